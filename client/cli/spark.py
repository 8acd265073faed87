"""`ledgermq spark`: topics as tables of Spark SQL, as files of a lake, and a report of what they hold.

Owns: the options, and starting the job as a process of its own. Must not: import Spark.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ..durations import parse_duration
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
_LAKE = "ledgermq.spark_jobs.lake.lake_command"
_FORMATS = ("parquet", "delta", "iceberg")

LocalOption = Annotated[int | None, typer.Option("--local", help="Cores to use. Default: all.", min=1)]
MasterOption = Annotated[
    str, typer.Option("--master", help="A Spark cluster: spark://host:7077, sc://host:15002, ...")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    commands = typer.Typer(
        no_args_is_help=True, help="Query and analyse topics with Spark, archive and restore them."
    )
    commands.command("sql")(sql)
    commands.command("shell")(shell)
    commands.command("analyze")(analyze)
    commands.command("archive")(archive)
    commands.command("restore")(restore)
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
    require_spark("ledgermq spark", master)
    options = ["--limit", str(limit), *(["--json"] * as_json)]
    return _run([*_command([_QUERY, "sql"], nameserver, local, master), *options, "--", query])


def shell(
    nameserver: NameserverOption = DEFAULT_NAMESERVER, local: LocalOption = None, master: MasterOption = ""
) -> None:
    """Open a Python shell with a Spark session, in which every topic is a view."""
    require_spark("ledgermq spark", master)
    command = _command([_QUERY, "shell"], nameserver, local, master)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the shell, which replaces this process,
    os.execv(command[0], command)  # can read the terminal and its Ctrl-C itself


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
    require_spark("ledgermq spark", master)
    folder = out or Path(datetime.now(UTC).strftime("analysis-%Y%m%d-%H%M%S"))
    options = ["--from", str(begin_ms)] if begin_ms else []
    options += ["--to", str(end_ms)] if end_ms else []
    options += ["--out", str(folder), "--top", str(top), *(["--json"] * as_json)]
    return _run([*_command([_ANALYZE], nameserver, local, master), *options, "--", topics])


def archive(
    topics: Annotated[str, typer.Argument(metavar="[TOPIC[,TOPIC...]]", help="What to archive.")] = "",
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="Folder of the lake.")] = "",
    every: Annotated[str, typer.Option("--every", help="Time between batches, until Ctrl-C.")] = "1m",
    once: Annotated[bool, typer.Option("--once", help="Archive what there is now, and end.")] = False,
    verify: Annotated[
        str, typer.Option("--verify", metavar="PATH", help="Compare a lake with its brokers instead.")
    ] = "",
    topic: Annotated[str, typer.Option("--topic", help="With --verify: only this topic.")] = "",
    compact: Annotated[
        bool, typer.Option("--compact", help="Merge small files of all hours at the end; or only that.")
    ] = False,
    hold: Annotated[
        bool, typer.Option("--hold/--no-hold", help="Let retention wait for the archive, within its limits.")
    ] = False,
    name: Annotated[str, typer.Option("--name", help="Name of the hold.")] = "archive",
    fail_on_data_loss: Annotated[
        bool,
        typer.Option(
            "--fail-on-data-loss/--no-fail-on-data-loss",
            help="Fail when retention was faster, or note a gap.",
        ),
    ] = True,
    max_messages: Annotated[int, typer.Option("--max-messages", min=1, help="In one batch.")] = 1_000_000,
    table_format: Annotated[str, typer.Option("--table-format", help="parquet.")] = "parquet",
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    local: LocalOption = None,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> int:
    """Write topics into Parquet files, by topic, day and hour (UTC), each message exactly once.

    Run it again to go on. With --json each batch is a line.
    """
    _check_format(table_format)
    if verify:
        if topics or to or once or compact or hold:
            raise typer.BadParameter("--verify PATH goes with --topic, and with no TOPIC and no --to")
        return _run_lake("verify", verify, [f"--topic={topic}"], nameserver, local, master, as_json=as_json)
    if not to or topic:
        raise typer.BadParameter("say what and where: ledgermq spark archive TOPIC --to PATH")
    if not topics:
        if not compact:
            raise typer.BadParameter("name the topics to archive, several with commas; or give --compact")
        return _run_lake("compact", to, [], nameserver, local, master, as_json=as_json)
    seconds = 0.0 if once else parse_duration(every)
    if not once and not 0.1 <= seconds <= 86_400:
        raise typer.BadParameter("--every takes 100ms to 24h; --once archives what there is, and ends")
    options = [f"--to={to}", f"--every={seconds}", f"--max-messages={max_messages}"]
    options += ["--compact"] * compact + [f"--hold={name}"] * hold
    options += [] if fail_on_data_loss else ["--no-fail-on-data-loss"]
    return _run_lake("archive", topics, options, nameserver, local, master, as_json=as_json)


def restore(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder of the lake.")],
    topic: Annotated[str, typer.Option("--topic", help="Topic of the lake.")],
    into: Annotated[str, typer.Option("--into", help="Topic to write into. Default: the same.")] = "",
    begin: StoredFromOption = "",
    end: StoredToOption = "",
    offsets: Annotated[
        str, typer.Option("--offsets", help='Only these: {"g0": {"0": [10, 500]}}: from 10 to 499.')
    ] = "",
    write_id: Annotated[
        str, typer.Option("--write-id", help="A repeat with the same id goes on, or does nothing.")
    ] = "",
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    local: LocalOption = None,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> int:
    """Write messages of a lake into a topic: the order of each queue is kept, each message is stored once."""
    options = [f"--topic={topic}", f"--into={into}", f"--offsets={offsets}", f"--write-id={write_id}"]
    begin_ms, end_ms = stored_between(begin, end, time.time_ns() // 1_000_000)
    options += [f"--first-ms={begin_ms}"] if begin_ms else []
    options += [f"--end-ms={end_ms}"] if end_ms else []
    return _run_lake("restore", path, options, nameserver, local, master, as_json=as_json)


def _check_format(name: str) -> None:
    """Raises: typer.BadParameter."""
    if name not in _FORMATS:
        raise typer.BadParameter(f'there is no table format "{name}"; archive writes parquet')
    if name != "parquet":
        raise typer.BadParameter(
            f"archive writes Parquet only. For a table of {name} write the stream yourself: "
            f'readStream.format("ledgermq") ... writeStream.format("{name}"), in a session that has the jars '
            "of that format on --packages (docs/spark-lake.md)"
        )


def _run_lake(
    name: str,
    about: str,
    options: list[str],
    nameserver: str,
    local: int | None,
    master: str,
    *,
    as_json: bool,
) -> int:
    """Run a command of the job. `about`: its topics, or the folder of its lake."""
    require_spark("ledgermq spark", master)
    command = _command([_LAKE, name], nameserver, local, master)
    return _run([*command, *options, *(["--json"] * as_json), "--", about])


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
