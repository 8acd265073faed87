"""Command line behind `ledgermq spark analyze`: what topics hold and how their messages fare, as a report.

    python -m ledgermq.spark_jobs.topics.analyze orders,payments --out report

Owns: options, output, exit codes: 0 done, 1 Spark failed, 2 wrong usage or no Spark, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from ledgermq.client.cli.output import err, out, print_json, print_table
from ledgermq.proto.foreign_text import safe_text

from ..errors import SparkJobError
from ..page_templates import human_bytes
from ..stage_progress import run_stage
from .analysis_figures import Analysis, Delays, MessageFigures
from .analysis_folder import HOURS, PAGE, analysis_folder, write_hours, write_report
from .analysis_page import delay_text
from .query import EXIT_UNUSABLE, exit_code, query_session
from .topic_analysis import HOUR_SCHEMA, AnalysisRequest, Analyst, look_at

_TAGS_SHOWN: Final = 10  # tags of a topic in the terminal
_TAG_SHOWN: Final = 40  # characters of a tag there
_COLUMNS: Final = ("MESSAGES>", "BYTES>", "KEYS>", "QUEUEING p50>", "p99>")
_TRACED: Final = ("END TO END p50>", "p99>", "REDELIVERED>", "GIVEN UP>")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    options = _parse(arguments)
    topics = tuple(dict.fromkeys(name.strip() for name in options.topics.split(",") if name.strip()))

    def work() -> int:
        if not topics:
            raise SparkJobError(
                "no topic is named. Name one or several: ledgermq spark analyze orders,payments"
            )
        folder = options.out.resolve()
        with analysis_folder(folder):
            request = AnalysisRequest(options.nameserver, topics, options.from_ms, options.to_ms, options.top)
            analysis = _analyse(request, folder, options)
        if options.json:
            print_json(analysis.fields())
        else:
            print_analysis(analysis, folder)
        return 0

    try:
        return exit_code(work, topics, failed=". Nothing was written")
    except OSError as error:
        err.print(f"error: {error}", markup=False)
        return EXIT_UNUSABLE


def _analyse(request: AnalysisRequest, folder: Path, options: argparse.Namespace) -> Analysis:
    begun, made_ms = time.monotonic(), time.time_ns() // 1_000_000
    look = look_at(request)  # before Spark starts, so that a wrong name is reported at once
    with query_session(options) as spark:

        def work() -> Analysis:
            with Analyst(spark, look) as analyst:
                topics = analyst.topics()
                write_hours(folder, HOUR_SCHEMA, analyst.hour_batches())
            analysis = Analysis(
                topics,
                request.from_ms,
                request.to_ms,
                has_trace_topic=look.has_trace_topic,
                unlisted_parked=look.parked.unlisted,
                unreadable_traces=analyst.unreadable_traces,
                made_ms=made_ms,
                seconds=time.monotonic() - begun,
                software=_software(),
                command=options.command,
            )
            write_report(folder, analysis)
            return analysis

        found = run_stage(spark, err, "analyse", work)
    assert isinstance(found, Analysis)
    return found


def _software() -> str:
    try:
        return f"ledgermq {version('ledgermq')}"
    except PackageNotFoundError:  # run from a zip
        return "ledgermq"


def print_analysis(analysis: Analysis, folder: Path) -> None:
    """Print each topic with its tags, what was not counted, and where the rest is."""
    traced = any(topic.totals.traced for topic in analysis.topics)
    columns = ("TOPIC", "TAG", *_COLUMNS, *(_TRACED if traced else ()), "PARKED>")
    rows: list[Sequence[object]] = []
    for topic in analysis.topics:
        rows.append((topic.name, "(all)", *_cells(topic.totals, traced=traced)))
        for tag, figures in topic.tags[:_TAGS_SHOWN]:
            name = "(none)" if tag is None else safe_text(tag, _TAG_SHOWN)
            rows.append(("", name, *_cells(figures, traced=traced)))
        hidden = topic.tag_count - min(len(topic.tags), _TAGS_SHOWN)
        if hidden > 0:
            rows.append(("", f"({hidden:,} more)", *[""] * (len(columns) - 2)))
    print_table(columns, rows)
    for line in (*analysis.notes(), f"report: {folder / PAGE}", f"every tag and hour: {folder / HOURS}"):
        out.print(line, markup=False)


def _cells(figures: MessageFigures, *, traced: bool) -> list[object]:
    found = [figures.messages, human_bytes(figures.size), figures.distinct_keys, *_delays(figures.queueing)]
    if traced:
        found += [*_delays(figures.end_to_end), _known(figures.redeliveries), _known(figures.given_up)]
    return [*found, figures.parked]


def _delays(delays: Delays | None) -> list[object]:
    return ["", ""] if delays is None else [delay_text(delays.p50), delay_text(delays.p99)]


def _known(count: int | None) -> object:
    return "" if count is None else count


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ledgermq spark analyze", description=__doc__)
    parser.add_argument("topics", help="names, several with commas")
    parser.add_argument("--nameserver", default="127.0.0.1:9876")
    parser.add_argument(
        "--from", dest="from_ms", type=int, default=0, help="stored at or after, ms since 1970"
    )
    parser.add_argument("--to", dest="to_ms", type=int, default=0, help="stored before, ms since 1970")
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--top", type=int, default=20, help="tags of a topic in the report")
    parser.add_argument("--local", type=int)
    parser.add_argument("--master")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    options.command = shlex.join(
        ["ledgermq", "spark", "analyze", *(sys.argv[1:] if arguments is None else arguments)]
    )
    return options


if __name__ == "__main__":
    sys.exit(main())
