"""What every command of the CLI shares: options, printing, and running asyncio code.

Owns: the form of errors (what · why · next command), `--json`, the default nameserver. Exit codes: 0 ok, 1 failed,
2 usage. Must not: know any single command.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from .errors import UsageError
from .event_loop import new_event_loop
from .every_group import Silent, why_missing
from .text_table import text_table

DEFAULT_NAMESERVER = "127.0.0.1:9876"
MAX_HOURS = 24 * 365 * 100  # the longest time that an option takes

NameserverOption = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar="LEDGERMQ_NAMESERVER",
        help="host:port of the nameservers, comma-separated.",
    ),
]
BrokerGroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the broker group.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run asyncio code to its end; Ctrl-C cancels it cleanly."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(coroutine)


def open_standard_streams() -> None:
    """Put /dev/null where the caller has closed stdin, stdout or stderr: their numbers must not go to sockets."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # for the life of the process


def close_output() -> None:
    """Throw away what is still to be written to stdout, because nobody reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(text: str) -> None:
    """Print one error to stderr. The text has the three parts already."""
    err.print(f"[bold red]error:[/] {escape(text)}" if err.is_terminal else escape(f"error: {text}"))


def confirm(question: str) -> None:
    """Ask before what cannot be undone. Raises: typer.Abort (no), UsageError (there is nobody to ask)."""
    try:
        agreed = typer.confirm(question)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise UsageError(
            "nothing was changed",
            "The question had no answer: there is no terminal",
            "To agree without it, add --yes",
        ) from None
    if not agreed:
        raise typer.Abort


def warn_of_silent(silent: Silent) -> None:
    """Say on stderr which broker groups are missing from what was printed, and why."""
    for name, error in sorted(silent.items()):
        err.print(f"incomplete: {why_missing(name, error)}", markup=False)


def with_silent(rows: list[dict[str, Any]], silent: Silent) -> list[dict[str, Any]]:
    """Return the rows of a list for `--json`, in each the broker groups that may know more of it, if there are any."""
    return [{**row, "silent_groups": sorted(silent)} for row in rows] if silent else rows


def print_json(value: object) -> None:
    """Print one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows for people. A column whose name ends in `>` is aligned to the right."""
    for line in text_table(columns, [[_cell(value) for value in row] for row in rows]):
        out.print(escape(line))


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
