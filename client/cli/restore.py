"""`ledgermq restore`: runs the tool that makes folders of a broker group from dumps, for `ledgermq up`.

Owns: its options, and the plan of a local cluster beside the folders. Must not: read dumps or folders (the
server package does).
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..errors import UsageError
from ..local import ports as local_ports
from ..local.cluster import require_server
from ..local.plan import LocalPlan
from ..local.processes import run_to_end
from .output import DumpsArgument, JsonOption, out
from .times import time_ms

_LOCAL = "local"  # the cluster that `ledgermq up` starts
_RECORD = "restored.json"


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("restore")(restore)


def restore(
    dumps: DumpsArgument,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder to make; it gets one sub-folder per node.")
    ] = None,
    to_index: Annotated[
        int | None, typer.Option("--to-index", min=1, help="The last entry to keep. Default: all.")
    ] = None,
    to_time: Annotated[
        str,
        typer.Option(
            "--to-time", help="Keep what was stored until then: 2026-01-31T12:00:00, or ms since 1970."
        ),
    ] = "",
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            metavar="NAME[=HOST:PORT],...",
            help="Names, and addresses of their Raft ports. Default: as dumped.",
        ),
    ] = "",
    group: Annotated[str, typer.Option("--group", help="Name of the broker group. Default: as dumped.")] = "",
    cluster: Annotated[str, typer.Option("--cluster", help="Name of the cluster. Default: as dumped.")] = "",
    show: Annotated[
        bool,
        typer.Option("--show", help="Only show what the dumps hold, and which entry deleted or reset what."),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Make the folders of a new broker group from dumps.

    Up to an entry or a time; nothing that runs is touched. First --show; then restore into a new folder, and
    start its nodes: on one machine with ledgermq up --data DIR.
    """
    if show == (data is not None):
        raise UsageError(
            "--show makes nothing, and was given with --data"
            if show
            else "it is not said where to restore to",
            "Nothing was made",
            "Look first: ledgermq restore DUMPS --show; then: ledgermq restore DUMPS --data DIR",
        )
    if to_index is not None and to_time:
        raise UsageError(
            "--to-index and --to-time both say where to stop", "Nothing was made", "Give one of them"
        )
    require_server("restoring a broker group")
    command = [sys.executable, "-m", "ledgermq.broker.restore", *map(str, dumps)]
    command += ["--data", str(data)] if data is not None else []
    command += ["--to-index", str(to_index)] if to_index is not None else []
    if to_time:
        now_ms = time.time_ns() // 1_000_000
        command += ["--to-time", str(time_ms(to_time, earliest=0, latest=now_ms))]
    for flag, value in (("--nodes", nodes), ("--group", group), ("--cluster", cluster)):
        command += [flag, value] if value else []
    code = run_to_end([*command, *["--show"] * show, *["--json"] * as_json])
    if code == 0 and data is not None and _let_up_start_it(data) and not as_json:
        out.print(escape(f"On this machine: ledgermq up --data {data}"))
    return code


def _let_up_start_it(data: Path) -> bool:
    """Write the plan with which `ledgermq up` starts the folders as they are,
    if it starts clusters of that name.
    """
    made = json.loads((data / _RECORD).read_text())
    if made["cluster"] != _LOCAL:
        return False
    names = list(made["nodes"])
    ports = dict(zip(names, islice(local_ports.node_ports(), len(names)), strict=True))
    plan = LocalPlan(local_ports.nameserver_port(), {made["group"]: ports}, str(made["segment_size"]))
    fresh = data / "cluster.new"
    fresh.write_text(plan.to_json())
    fresh.replace(data / "cluster.json")
    return True
