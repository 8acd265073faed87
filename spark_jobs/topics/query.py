"""Command line behind `ledgermq spark`: one SQL query, or a Python shell, over topics.

    python -m ledgermq.spark_jobs.topics.query sql "SELECT count(*) FROM orders"
    python -m ledgermq.spark_jobs.topics.query shell

Owns: options, output, exit codes: 0 done, 1 the query failed, 2 wrong usage or no Spark, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import code
import json
import logging
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ledgermq.client.errors import LedgerMQError

from ..errors import SparkJobError
from ..session import open_session
from .topic_views import clear_error, make_views, mentioned, plain_value, user_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_FAILED, EXIT_UNUSABLE, EXIT_INTERRUPTED = 1, 2, 130
#: Unlike a check, a query may run over many rows: compiled code pays off.
_SETTINGS = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.driver.extraJavaOptions": "-XX:-UsePerfData",
    "spark.log.level": "ERROR",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a query or the shell; return the exit code."""
    options = _parse(arguments)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # it prints errors as JSON, too
    topics: list[str] = []

    def work() -> int:
        # `ledgermq spark shell` blocks it until its process, which this one replaced, can end cleanly
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        topics.extend(user_topics(options.nameserver))
        with query_session(options) as spark:
            if options.command == "sql":
                make_views(spark, options.nameserver, mentioned(options.query, topics))
                return _print_query(spark, options)
            _interact(spark, make_views(spark, options.nameserver, topics))
            return 0

    return exit_code(work, topics)


def exit_code(work: Callable[[], int], topics: Sequence[str] = (), *, failed: str = "") -> int:
    """Do the work of a command; return its exit code, or that of its error, which is printed.

    `topics`: that an error of Spark may be about. `failed`: what is said behind such an error.
    """
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        return work()
    except (LedgerMQError, SparkJobError) as error:
        errors.print(f"error: {error}", markup=False)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if not is_of_spark(error):
            raise
        errors.print(f"error: {clear_error(error, topics)}{failed}", markup=False)
        return EXIT_FAILED


@contextmanager
def query_session(
    options: argparse.Namespace, more: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Open a session that knows the sources. `more`: settings besides. Raises: SparkJobError."""
    with tempfile.TemporaryDirectory() as folder:
        spark = open_session(
            "LedgerMQ query",
            master=options.master,
            local=options.local,
            log=Path(folder, "spark.log"),
            settings=_SETTINGS | dict(more or {}),
        )
        try:
            from .data_source import register_source  # needs Spark, which is there now

            register_source(spark)
            yield spark
        finally:
            spark.stop()


def _print_query(spark: SparkSession, options: argparse.Namespace) -> int:
    rows = spark.sql(options.query).limit(options.limit + 1)
    columns, found = rows.columns, rows.collect()
    shown = [[plain_value(value) for value in row] for row in found[: options.limit]]
    if options.json:
        for row in shown:
            sys.stdout.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")
    else:
        table = Table(box=None)
        for name in columns:
            table.add_column(name, overflow="fold")
        for row in shown:
            table.add_row(*map(_cell, row))
        Console(highlight=False, markup=False).print(table)
    if len(found) > options.limit:
        sys.stderr.write(f"the first {options.limit:,} rows; more: --limit N\n")
    return 0


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _interact(spark: SparkSession, names: Sequence[str]) -> None:
    from .stream_progress import StreamProgress  # needs Spark, which is there now

    listener = StreamProgress()
    spark.streams.addListener(listener)

    def progress() -> None:
        """Print how far each streaming query is."""
        sys.stdout.writelines(f"{each.text()}\n" for each in listener.queries())

    shown = ", ".join(names[:20]) or "none yet"
    banner = (
        f'Spark {spark.version} with format("ledgermq"). `spark` is the session.\nViews of topics: {shown}'
        '\nFor example: spark.sql("SELECT tag, count(*) FROM '
        f'{names[0] if names else "orders"} GROUP BY tag").show()'
        "\nprogress() says how far streaming queries are, and their lag."
    )
    _Console({"spark": spark, "progress": progress}).interact(banner, exitmsg="")


class _Console(code.InteractiveConsole):
    """A console that shows errors of Spark as one sentence, and others as Python does."""

    def showtraceback(self) -> None:
        error = sys.exception()
        if error is not None and is_of_spark(error):
            self.write(f"error: {clear_error(error)}\n")
        else:
            super().showtraceback()


def is_of_spark(error: BaseException) -> bool:
    """Tell whether an error is one of Spark's own."""
    return type(error).__module__.startswith("pyspark.")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ledgermq spark", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("sql", "shell"):
        command = commands.add_parser(name)
        command.add_argument("--nameserver", default="127.0.0.1:9876")
        where = command.add_mutually_exclusive_group()
        where.add_argument("--local", type=int)
        where.add_argument("--master")
        if name == "sql":
            command.add_argument("query")
            command.add_argument("--limit", type=int, default=1000)
            command.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
