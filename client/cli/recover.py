"""`ledgermq cluster recover`: starts the tool that works on a stopped node's folder, with this terminal.

Owns: its options. Must not: read the folder; that part belongs to the server package.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..local.cluster import require_server
from ..local.processes import run_to_end
from .output import JsonOption


def recover(
    data: Annotated[Path, typer.Option("--data", help="Data folder of a stopped node that survived.")],
    show: Annotated[
        bool, typer.Option("--show", help="Only show what the folder holds; nothing is changed.")
    ] = False,
    clone_for: Annotated[
        str,
        typer.Option("--clone-for", metavar="NODE", help="Make this copy of a recovered folder into NODE's."),
    ] = "",
    yes_lose_data: Annotated[
        str,
        typer.Option("--yes-lose-data", metavar="GROUP", help="The group's name, instead of the question."),
    ] = "",
    as_json: JsonOption = False,
) -> int:
    """Make a group work again whose majority is lost for ever. What only the lost nodes had is lost.

    First --show on every node that survived; then recover the best one, copy its folder to the other machines, and
    --clone-for on each copy. The runbook has the steps.
    """
    if show and (clone_for or yes_lose_data):
        raise UsageError("--show changes nothing", "It was given with an option that does", "Leave one out")
    if as_json and not (show or clone_for or yes_lose_data):
        raise UsageError(
            "--json asks no question",
            "Nobody confirmed that data may be lost",
            "Look first: --show --json; then: --yes-lose-data GROUP --json",
        )
    require_server("recovering a group")
    command = [sys.executable, "-m", "ledgermq.broker.recover", "--data", str(data)]
    command += ["--show"] * show
    command += ["--clone-for", clone_for] if clone_for else []
    command += ["--yes-lose-data", yes_lose_data] if yes_lose_data else []
    return run_to_end([*command, *["--json"] * as_json])
