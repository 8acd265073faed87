"""Shared parts of all CLI commands: options, output, and running asyncio code.

Owns: the format of errors (what · why · next command), `--json`, the default nameserver. Exit codes: 0 ok, 1
failed, 2 usage. Must not: know individual commands.

Columns are aligned and never cut, whatever the width of the terminal. When a `create` command reports broker
groups that are down, that must not fail: the object was created, whatever is known about the others.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from ledgermq.proto.foreign_text import safe_json, safe_lines, safe_text

from ..admin.admin import Admin
from ..cluster.every_group import Silent, why_missing
from ..cluster.routes import check_address
from ..errors import (
    ConsumerGroupNotFoundError,
    LedgerMQError,
    TopicNotFoundError,
    UsageError,
    did_you_mean,
)
from ..event_loop import new_event_loop
from ..interrupts import without_interrupt

_GAP = "  "


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the head and one line per row. A column whose name ends in `>` is aligned to the right."""
    names = [column.rstrip(">") for column in columns]
    table = [names, *rows]
    widths = [max(len(line[at]) for line in table) for at in range(len(names))]
    lines = []
    for line in table:
        cells = [
            text.rjust(width) if column.endswith(">") else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ]
        lines.append(_GAP.join(cells).rstrip())
    return lines


DEFAULT_NAMESERVER = "127.0.0.1:9876"
_CELL = 64 * 1024  # characters of a cell: more than any list of a command has
MAX_HOURS = 24 * 365 * 100  # limit of durations in options

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
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OneTopicOption = Annotated[str, typer.Option("--topic", help="Only this topic.")]
DumpsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="DUMPS", help="What ledgermq dump wrote for a broker group; also several of them."
    ),
]
StoredFromOption = Annotated[
    str, typer.Option("--from", help="Stored at or after this time: 2026-01-31T12:00:00, or ms since 1970.")
]
StoredToOption = Annotated[str, typer.Option("--to", help="Stored before this time.")]


def _log_addresses(nodes: list[str] | None) -> list[str] | None:
    """Raises: InvalidAddressError."""
    for address in nodes or []:
        check_address(address, "the address of a node's log port", 8082)
    return nodes


NodeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        callback=_log_addresses,
        help="host:port of a node's log port (8082); repeatable. No nameserver is asked.",
    ),
]


class _SafeConsole(Console):
    """Prints whatever comes from outside without letting it move the cursor or change the terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(safe_lines(each) if isinstance(each, str) else each for each in objects), **options)


out = _SafeConsole(highlight=False, soft_wrap=True)
err = _SafeConsole(stderr=True, highlight=False, soft_wrap=True)

T = TypeVar("T")
AnAdmin = TypeVar("AnAdmin", bound=Admin)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run asyncio code to its end; Ctrl-C cancels it cleanly at any time. Raises: KeyboardInterrupt."""

    async def interruptible() -> T:
        task = asyncio.current_task()
        try:
            return await coroutine
        except Exception:
            # An error that was on its way when Ctrl-C came, through a clean end that no cancellation stops.
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from None
            raise

    whole = interruptible()
    runner = asyncio.Runner(loop_factory=new_event_loop)
    try:
        with without_interrupt():
            runner.get_loop()
        return runner.run(whole)
    finally:
        with without_interrupt():
            whole.close()  # Ctrl-C may come before it starts
            coroutine.close()
            runner.close()


def administer(kind: Callable[[str], AnAdmin], nameserver: str, work: Callable[[AnAdmin], Awaitable[T]]) -> T:
    """Run calls of an admin client, Admin or BrokerGroupAdmin, to their end."""

    async def connected() -> T:
        async with kind(nameserver) as admin:
            return await work(admin)

    return run(connected())


def print_error(text: str) -> None:
    """Print one error to stderr. The text has the three parts already."""
    err.print(f"[bold red]error:[/] {escape(text)}" if err.is_terminal else escape(f"error: {text}"))


def confirm(question: str) -> None:
    """Ask before what cannot be undone. Raises: typer.Abort (no), UsageError (there is no terminal)."""
    try:
        agreed = typer.confirm(question)
    except typer.Abort as failure:
        if sys.stdin.isatty() or isinstance(failure.__context__, KeyboardInterrupt):
            raise
        raise UsageError(
            "nothing was changed",
            "The question had no answer: there is no terminal",
            "To agree without it, add --yes",
        ) from None
    if not agreed:
        raise typer.Abort


def delete_named(
    what: str,
    name: str,
    its: str,
    nameserver: str,
    look: Callable[[Admin], Awaitable[object]],
    delete: Callable[[Admin], Awaitable[object]],
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete a topic or a consumer group. `look` finds it: ask only about one that exists."""
    kind = what.split()[-1]
    try:
        if not yes:
            administer(Admin, nameserver, look)
            confirm(f'Delete {what} "{name}" with {its}?')
        administer(Admin, nameserver, delete)
    except (TopicNotFoundError, ConsumerGroupNotFoundError) as error:
        raise LedgerMQError(  # without its advice: to create it
            f'{what} "{name}" does not exist: there is nothing to delete',
            did_you_mean(error.similar),
            f"See all: ledgermq {kind} list",
        ) from error
    print_done(f'{what} "{name}" is deleted', {kind: name, "deleted": True}, as_json=as_json)


def warn_of_silent(silent: Silent) -> None:
    """Say on stderr which broker groups are missing from what was printed, and why."""
    for name, error in sorted(silent.items()):
        err.print(f"incomplete: {why_missing(name, error)}", markup=False)


def with_silent(rows: list[dict[str, Any]], silent: Silent) -> list[dict[str, Any]]:
    """Return the rows of a list for `--json`, in each the broker groups that may know more of it,
    if there are any.
    """
    return [{**row, "silent_groups": sorted(silent)} for row in rows] if silent else rows


def print_json(value: object) -> None:
    """Print one JSON document to stdout."""
    sys.stdout.write(safe_json(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


def print_json_line(value: object) -> None:
    """Print one of many JSON documents, each in a line of its own (NDJSON):
    it can be read before the last is there.
    """
    sys.stdout.write(safe_json(json.dumps(value, ensure_ascii=False)) + "\n")


def print_done(text: str, fields: dict[str, Any], *, as_json: bool) -> None:
    """Say what a command has done: `text` to people, `fields` to programs."""
    if as_json:
        print_json(fields)
    else:
        out.print(text, markup=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows for people. A column whose name ends in `>` is aligned to the right."""
    for line in text_table(columns, [[_cell(value) for value in row] for row in rows]):
        out.print(escape(line))


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return safe_text(str(value), _CELL)


async def groups_down(admin: Admin) -> list[str]:
    """Return the names of the broker groups that no node of is up, as far as is known."""
    try:
        return await admin.gone_groups()
    except LedgerMQError:
        return []


def warn_of_down(what: str, names: list[str]) -> None:
    """Say on stderr which broker groups did not get `what`, and how they get it later."""
    for name in names:
        err.print(
            f"broker group {name} is down and did not get {what}. When its nodes run again: "
            f"ledgermq cluster add-group {name}",
            markup=False,
        )
