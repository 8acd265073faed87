"""`ledgermq spark`: topics as tables of Spark SQL.

Owns: the options, and starting the job as a process of its own. Must not: import Spark.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ..local.processes import run_to_end
from .dump import require_spark
from .output import DEFAULT_NAMESERVER, JsonOption, NameserverOption, err

_JOB = "ledgermq.spark_jobs.topics.query"

LocalOption = Annotated[int | None, typer.Option("--local", help="Cores to use. Default: all.", min=1)]
MasterOption = Annotated[
    str, typer.Option("--master", help="A Spark cluster: spark://host:7077, sc://host:15002, ...")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    commands = typer.Typer(no_args_is_help=True, help="Query topics with Spark.")
    commands.command("sql")(sql)
    commands.command("shell")(shell)
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
    try:
        return run_to_end([*_command("sql", nameserver, local, master), *options, "--", query])
    except KeyboardInterrupt:
        err.print("interrupted")
        raise


def shell(
    nameserver: NameserverOption = DEFAULT_NAMESERVER, local: LocalOption = None, master: MasterOption = ""
) -> None:
    """Open a Python shell with a Spark session, in which every topic is a view."""
    require_spark("ledgermq spark", master)
    command = _command("shell", nameserver, local, master)
    os.execv(command[0], command)  # the shell reads the terminal and its Ctrl-C itself


def _command(name: str, nameserver: str, local: int | None, master: str) -> list[str]:
    command = [sys.executable, "-m", _JOB, name, "--nameserver", nameserver]
    command += ["--local", str(local)] if local is not None else []
    return command + (["--master", master] if master else [])
