"""`ledgermq spark`: topics as tables of Spark SQL, and a report of what they hold.

Owns: the options, and starting the job as a process of its own. Must not: import Spark.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ..local.processes import run_to_end
from .dump import require_spark
from .output import (
    DEFAULT_NAMESERVER,
    JsonOption,
    NameserverOption,
    StoredFromOption,
    StoredToOption,
    err,
)
from .times import stored_between

_QUERY = "ledgermq.spark_jobs.topics.query"
_ANALYZE = "ledgermq.spark_jobs.topics.analyze"

LocalOption = Annotated[int | None, typer.Option("--local", help="Cores to use. Default: all.", min=1)]
MasterOption = Annotated[str, typer.Option("--master", help="A Spark cluster, e.g. spark://host:7077.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    commands = typer.Typer(no_args_is_help=True, help="Query and analyse topics with Spark.")
    commands.command("sql")(sql)
    commands.command("shell")(shell)
    commands.command("analyze")(analyze)
    app.add_typer(commands, name="spark")


def sql(
    query: Annotated[str, typer.Argument(help="Topics are tables: SELECT tag, count(*) FROM orders ...")],
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    local: LocalOption = None,
    master: MasterOption = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows to print at most.")] = 1000,
    as_json: JsonOption = False,
) -> int:
    """Run one query and print its rows. With --json each row is a line.

    Columns: topic, queue_group, queue, offset, message_id, keys, tag, properties, body, born_time,
    store_time, message_group. Conditions on queue, offset and store_time limit what is read.
    """
    require_spark("ledgermq spark")
    options = ["--limit", str(limit), *(["--json"] * as_json)]
    return _run([*_command([_QUERY, "sql"], nameserver, local, master), *options, "--", query])


def shell(
    nameserver: NameserverOption = DEFAULT_NAMESERVER, local: LocalOption = None, master: MasterOption = ""
) -> None:
    """Open a Python shell with a Spark session, in which every topic is a view."""
    require_spark("ledgermq spark")
    command = _command([_QUERY, "shell"], nameserver, local, master)
    os.execv(command[0], command)  # the shell reads the terminal and its Ctrl-C itself


def analyze(
    topics: Annotated[str, typer.Argument(metavar="TOPIC[,TOPIC...]", help="What to analyse.")],
    begin: StoredFromOption = "",
    end: StoredToOption = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the report: new, empty, or of an older analysis, which is "
                     "replaced. Default: analysis-<time>."),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, max=1000, help="Tags of a topic in the report. All are in Parquet.")
    ] = 20,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    local: LocalOption = None,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> int:  # fmt: skip
    """Report what topics hold, by tag and hour, and how their messages fare.

    Messages, bytes, distinct keys, queueing delay and parked messages; where consumers trace, end-to-end
    delay, redeliveries and given-up messages, too. The folder gets report.html, report.json, and
    hours.parquet with a row for each topic, tag and hour.
    """
    begin_ms, end_ms = stored_between(begin, end, time.time_ns() // 1_000_000)
    require_spark("ledgermq spark")
    folder = out or Path(datetime.now(UTC).strftime("analysis-%Y%m%d-%H%M%S"))
    options = ["--from", str(begin_ms)] if begin_ms else []
    options += ["--to", str(end_ms)] if end_ms else []
    options += ["--out", str(folder), "--top", str(top), *(["--json"] * as_json)]
    return _run([*_command([_ANALYZE], nameserver, local, master), *options, "--", topics])


def _run(command: list[str]) -> int:
    try:
        return run_to_end(command)
    except KeyboardInterrupt:
        err.print("interrupted")
        raise


def _command(job: list[str], nameserver: str, local: int | None, master: str) -> list[str]:
    command = [sys.executable, "-m", *job, "--nameserver", nameserver]
    command += ["--local", str(local)] if local is not None else []
    return command + (["--master", master] if master else [])
