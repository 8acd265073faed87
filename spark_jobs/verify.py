"""Command line of the verification job.

    python -m ledgermq.spark_jobs.verify DUMPS [--out DIR] [--local N | --master URL] [--strict] [--json]
    spark-submit --py-files ledgermq-spark.zip submit.py DUMPS --out DIR

Owns: options, output, exit codes: 0 consistent, 1 inconsistent, 2 unusable input, 3 incomplete (a configured
voter has no dump). If both 1 and 3 apply, 1 wins, because a proven fault is worse. `--strict` makes notes
count. Dumps of several broker groups are checked one by one, each with its own report; the worst one decides.
Must not: create a session at import, because executors import this package too.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from .block_fetch import fetcher
from .dump_folder import DEFAULT_SLICE_SIZE, NodeDump, find_dumps, group_folders
from .errors import SparkJobError
from .findings import Finding, Severity
from .report_page import digests_text
from .session import open_session
from .stage_progress import run_stage
from .topics.topic_views import clear_error
from .verdict import DumpVerdict
from .verification import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130
#: Maximum number of lines to print. All findings are in the report.
_MAX_LINES = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    options = _parse(arguments)
    options.command = shlex.join(["ledgermq", "check", *(sys.argv[1:] if arguments is None else arguments)])
    console = Console(stderr=options.json, highlight=False, soft_wrap=True)
    folder = options.dumps.resolve()
    out: Path = (options.out or folder / "report").resolve()
    try:
        groups = group_folders(folder)
        for each in groups:  # before Spark starts, so that a wrong folder is reported at once
            console.print(_headline(each, find_dumps(each)), markup=False)
        _make_folder(out)
        verdicts = _with_spark(groups, out, options, console)
    except (SparkJobError, OSError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {error}", markup=False)
        return EXIT_UNUSABLE
    except Exception as error:
        if os.environ.get("LEDGERMQ_DEBUG") == "1":
            raise
        # Not 1: that would accuse the replicas of a fault of the check.
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"error: internal error: {type(error).__name__}: {error}. Nothing can be said about the dumps."
            " See the whole trace: run it again with LEDGERMQ_DEBUG=1 in the environment",
            markup=False,
        )
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted: nothing can be said about the dumps", markup=False)
        return EXIT_INTERRUPTED
    worst = _worst(verdicts)
    if options.json:
        fields = [verdict.fields() for verdict in verdicts]
        several = {
            "format": "ledgermq-check-groups",
            "format_version": 1,
            "exit_code": worst,
            "groups": fields,
        }
        sys.stdout.write(json.dumps(fields[0] if len(fields) == 1 else several, indent=1) + "\n")
    else:
        for verdict, report in zip(verdicts, _reports(groups, out), strict=True):
            if len(verdicts) > 1:
                console.print(f"\nbroker group {verdict.group}", style="bold", markup=False)
            print_verdict(verdict, report, console)
    return worst


def _headline(folder: Path, dumps: Sequence[NodeDump]) -> str:
    voters = {voter for dump in dumps for voter in dump.voters}
    return (
        f"LedgerMQ check   broker group {dumps[0].group} of cluster {dumps[0].cluster}   {len(dumps)} dumps,"
        f" {len(voters)} voters   {folder}"
    )


def _worst(verdicts: Sequence[DumpVerdict]) -> int:
    """Return the exit code of all broker groups together. A proven fault outweighs the rest."""
    codes = {verdict.exit_code for verdict in verdicts}
    return next((code for code in (1, 3) if code in codes), 0)


def _reports(groups: Sequence[Path], out: Path) -> list[Path]:
    """Return the folder of each broker group's report."""
    return [out] if len(groups) == 1 else [out / group.name for group in groups]


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SparkJobError(
            f"the report cannot be written to {out}: {error.strerror}. Point --out at a folder that can be "
            "written."
        ) from None


def _with_spark(
    groups: Sequence[Path], out: Path, options: argparse.Namespace, console: Console
) -> list[DumpVerdict]:
    log = out / "spark.log"
    spark = open_session("ledgermq check", master=options.master, local=options.local, log=log)
    from pyspark.errors import PySparkException

    try:
        return [
            _run(spark, folder, report, options, console)
            for folder, report in zip(groups, _reports(groups, out), strict=True)
        ]
    except PySparkException as error:
        where = f" Spark's log is {log}." if log.exists() else ""
        raise SparkJobError(
            f"Spark could not finish the check: {clear_error(error).rstrip('.')}.{where} Nothing can be "
            "said about the dumps; run it again, with --local 1 if memory is short."
        ) from error
    finally:
        spark.stop()


def _run(
    spark: SparkSession, folder: Path, out: Path, options: argparse.Namespace, console: Console
) -> DumpVerdict:
    _make_folder(out)
    return verify(
        spark, folder, out, strict=options.strict, command=options.command,
        slice_size=options.slice_mib << 20,
        run_stage=partial(run_stage, spark, console, as_json=options.json),
        fetch=fetcher(options.nameserver) if options.nameserver else None,
        duplicates=options.duplicates,
    )  # fmt: skip


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ledgermq check",
        description="Prove that the dumped replicas of each broker group are equal, or name what is not.",
        epilog=(
            "exit codes: 0 consistent, 1 inconsistent, 2 unusable input, 3 incomplete (a voter has no dump)"
        ),
    )
    parser.add_argument(
        "dumps", type=Path, help="folder with the dumps of all nodes, as `ledgermq dump` writes it"
    )
    parser.add_argument("--out", type=Path, help="where the report goes (default: DUMPS/report)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--local", type=int, metavar="N", help="run in this process on N cores (default: all)")
    where.add_argument("--master", help="run on a Spark cluster, e.g. spark://host:7077")
    parser.add_argument("--strict", action="store_true", help="notes count as faults, too")
    parser.add_argument(
        "--duplicates", action="store_true", help="name message ids that a topic has more than once, as notes"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--slice-mib",
        type=int,
        default=DEFAULT_SLICE_SIZE >> 20,
        help="log read by one task, MiB (default: 128)",
    )
    parser.add_argument(
        "--nameserver",
        default="",
        help="knows the nodes, for the blocks that must be fetched if digests differ: HOST:PORT[,...]",
    )
    options = parser.parse_args(arguments)
    if options.slice_mib < 1:
        parser.error("--slice-mib must be at least 1")
    if options.local is not None and options.local < 1:
        parser.error("--local must be at least 1")
    return options


def print_verdict(verdict: DumpVerdict, out: Path, console: Console) -> None:
    """Print the table, a line for each finding, and the verdict last."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("NODE", "ENTRIES>", "MESSAGES>", "BYTES>", "FIRST>", "COMMIT>", "FAULTS>", "STATE"):
        right = column.endswith(">")
        table.add_column(column.rstrip(">"), justify="right" if right else "left", no_wrap=True)
    for node in verdict.nodes:
        records = None if node.dump.has_digests else node.totals.records  # digests do not count messages
        numbers = (
            node.totals.entries, records, node.totals.size, node.dump.first_index,
            node.dump.commit_index, node.errors,
        )  # fmt: skip
        table.add_row(node.dump.node, *("-" if each is None else f"{each:,}" for each in numbers), node.state)
    console.print(table)
    for finding in verdict.findings[:_MAX_LINES]:
        _print_finding(finding, console)
    hidden = len(verdict.findings) - _MAX_LINES
    if hidden > 0:
        console.print(f"... {hidden:,} more in {out / 'findings.parquet'}", markup=False)
    if digests := digests_text(verdict):
        console.print(digests, markup=False)
    console.print(f"report: {out / 'report.html'}", markup=False)
    words = {0: "CONSISTENT", 1: "INCONSISTENT", 3: "INCOMPLETE"}
    colour = {0: "green", 1: "red", 3: "yellow"}[verdict.exit_code]
    text = f"{words[verdict.exit_code]}  {verdict.headline}  ({verdict.seconds:.1f} s)"
    console.print(text, markup=False, style=f"bold {colour}")


def _print_finding(finding: Finding, console: Console) -> None:
    style = {Severity.ERROR: "red", Severity.INCOMPLETE: "yellow", Severity.INFO: ""}[finding.severity]
    more = f" (and {finding.count - 1:,} more)" if finding.count > 1 else ""
    console.print(finding.line(), markup=False, style=style, end="")
    console.print(f"  {finding.detail}{more}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
