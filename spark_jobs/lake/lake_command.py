"""Command line behind `ledgermq spark archive` and `ledgermq spark restore`.

    python -m ledgermq.spark_jobs.lake.lake_command archive orders --to PATH --every 60
    python -m ledgermq.spark_jobs.lake.lake_command verify PATH
    python -m ledgermq.spark_jobs.lake.lake_command compact PATH
    python -m ledgermq.spark_jobs.lake.lake_command restore PATH --topic orders

Owns: options, output, exit codes: 0 done, 1 the job failed or lake and brokers differ, 2 wrong usage or no
Spark, 130 Ctrl-C. Must not: know what a lake is made of.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from ledgermq.client.cluster.topic_route import TopicRoute
from ledgermq.client.sync.bulk_reader import BulkReader

from ..stage_progress import run_stage
from ..topics.query import EXIT_FAILED, exit_code, query_session
from .archive_job import ArchiveOptions, BatchDone, archive, check_before, compact
from .broker_ranges import compare
from .lake_folder import LakeFolder, lake_path
from .lake_verification import LakeVerdict, verify
from .restore_job import (
    RestoreOptions,
    RestorePlan,
    parse_offsets,
    plan_restore,
    queue_mapping,
    restore,
)
from .resume_point import check_topic
from .retention_hold import RetentionHold
from .spark_tasks import ARROW_SETTINGS, run_tasks

#: Differences that a person is shown.
_SHOWN: Final = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; return the exit code."""
    options = _parse(arguments)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # it prints errors as JSON, too
    command = {"archive": _archive, "compact": _compact, "verify": _verify, "restore": _restore}
    try:
        return exit_code(lambda: command[options.command](options))
    except OSError as error:
        errors = Console(stderr=True, highlight=False, soft_wrap=True)
        errors.print(f"error: the lake cannot be used: {error}", markup=False)
        return EXIT_FAILED


def _archive(options: argparse.Namespace) -> int:
    given = ArchiveOptions(
        options.nameserver, tuple(dict.fromkeys(options.topics.split(","))), lake_path(options.path),
        options.every, options.max_messages, options.fail_on_data_loss, options.compact,
    )  # fmt: skip
    check_before(given)  # before a JVM starts
    hold = RetentionHold(given.nameservers, options.hold) if options.hold else None
    with query_session(options, ARROW_SETTINGS) as spark:
        count = archive(spark, given, partial(_tell_batch, options.json), hold)
    _done(options, f"{count:,} messages archived into {given.root}", {"archived": count})
    return 0


def _tell_batch(as_json: bool, done: BatchDone) -> None:
    rate = round(done.messages / done.seconds)
    if as_json:
        fields = {"commit": done.number, "messages": done.messages, "files": done.files, "rate": rate}
        _write_json({**fields, "lag": done.lag})
        return
    behind = {name: lag for name, lag in done.lag.items() if lag}
    shown = ", ".join(f"{name} {lag:,}" for name, lag in list(behind.items())[:8]) or "none"
    sys.stdout.write(
        f"commit {done.number}: {done.messages:,} messages in {done.files} files, {rate:,}/s, behind: {shown}"
        "\n"
    )
    sys.stdout.flush()


def _compact(options: argparse.Namespace) -> int:
    root = lake_path(options.path)
    with query_session(options, ARROW_SETTINGS) as spark:
        count = compact(spark, root)
    _done(options, f"{count:,} files merged in {root}", {"merged": count})
    return 0


def _verify(options: argparse.Namespace) -> int:
    root = lake_path(options.path)
    console = Console(stderr=True)
    with LakeFolder.for_reading(root) as lake:
        if options.topic:
            check_topic(lake.state, options.topic)
        topics = [options.topic] if options.topic else lake.state.topics
        with query_session(options, ARROW_SETTINGS) as spark:

            def run(tasks: Sequence[Any]) -> Any:
                return run_stage(spark, console, "verify", lambda: run_tasks(spark, tasks, compare))

            verdict = verify(lake, topics, options.nameserver, run)
    if options.json:
        _write_json(verdict.fields())
    else:
        _print_verdict(verdict)
    return EXIT_FAILED if verdict.differences else 0


def _print_verdict(verdict: LakeVerdict) -> None:
    table = Table(box=None)
    table.add_column("TOPIC", overflow="fold")
    table.add_column("QUEUE")
    for name in ("OFFSETS", "ARCHIVED", "COMPARED", "GONE", "GAPS", "DIFFERENT"):
        table.add_column(name, justify="right")
    for each in verdict.queues:
        table.add_row(
            each.topic, f"{each.broker_group}/{each.queue}", f"{each.first:,}..{each.end - 1:,}",
            *(f"{number:,}" for number in (each.archived, each.compared, each.gone, each.gaps)),
            str(len(each.differences)),
        )  # fmt: skip
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(table)
    for text in verdict.differences[:_SHOWN]:
        console.print(f"different: {text}")
    if len(verdict.differences) > _SHOWN:
        console.print(f"and {len(verdict.differences) - _SHOWN:,} more: --json")
    gone = sum(each.gone for each in verdict.queues)
    compared = sum(each.compared for each in verdict.queues)
    result = f"{len(verdict.differences):,} differences" if verdict.differences else "the same"
    console.print(
        f"{result}: {verdict.files:,} files, {compared:,} messages compared with the brokers; {gone:,} are "
        "only in the lake"
    )


def _restore(options: argparse.Namespace) -> int:
    given = RestoreOptions(
        options.nameserver, options.topic, options.into or options.topic,
        write_id=options.write_id, offsets=parse_offsets(options.offsets) if options.offsets else None,
        **({"first_ms": options.first_ms} if options.first_ms else {}),
        **({"end_ms": options.end_ms} if options.end_ms else {}),
    )  # fmt: skip
    with LakeFolder.for_reading(lake_path(options.path)) as lake:
        check_topic(lake.state, given.topic)
        plan = plan_restore(lake, given)
        mapping = queue_mapping(plan, _route(given))
        if not options.json:
            _print_mapping(plan, given, mapping)
        with query_session(options, ARROW_SETTINGS) as spark:
            count = restore(spark, plan, given, partial(_tell_write, options.json))
    _done(
        options,
        f"{count:,} messages are in {given.into}",
        {"restored": count, "into": given.into, "write_id": plan.write_id, "queues": dict(mapping)},
    )
    return 0


def _route(options: RestoreOptions) -> TopicRoute:
    with BulkReader(options.nameservers) as reader:
        return reader.route(options.into)


def _print_mapping(plan: RestorePlan, options: RestoreOptions, mapping: Sequence[tuple[str, str]]) -> None:
    for source, target in mapping:
        sys.stdout.write(f"queue {source} of the lake -> queue {target} of {options.into}\n")
    sys.stdout.write(
        "messages with a message group go to the queue of that message group\n"
        f"write id {plan.write_id}: repeated within seven days, nothing is stored twice\n"
    )
    sys.stdout.flush()


def _tell_write(as_json: bool, done: int, of: int) -> None:
    if not as_json and of > 1:
        sys.stdout.write(f"write {done} of {of} is complete\n")
        sys.stdout.flush()


def _done(options: argparse.Namespace, text: str, fields: dict[str, Any]) -> None:
    if options.json:
        _write_json(fields)
    else:
        sys.stdout.write(text + "\n")


def _write_json(fields: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(fields, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ledgermq spark", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("archive", "compact", "verify", "restore"):
        command = commands.add_parser(name)
        if name == "archive":
            command.add_argument("topics")
            command.add_argument("--to", dest="path", required=True)
            command.add_argument("--every", type=float, default=0.0, help="seconds; 0: once")
            command.add_argument("--max-messages", type=int, default=1_000_000)
            command.add_argument("--fail-on-data-loss", action=argparse.BooleanOptionalAction, default=True)
            command.add_argument("--compact", action="store_true")
            command.add_argument("--hold", default="", help="name of the hold")
        else:
            command.add_argument("path")
        if name == "verify":
            command.add_argument("--topic", default="")
        if name == "restore":
            command.add_argument("--topic", required=True)
            command.add_argument("--into", default="")
            command.add_argument("--first-ms", type=int, default=0)
            command.add_argument("--end-ms", type=int, default=0)
            command.add_argument("--offsets", default="")
            command.add_argument("--write-id", default="")
        command.add_argument("--nameserver", default="127.0.0.1:9876")
        command.add_argument("--local", type=int)
        command.add_argument("--master")
        command.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
