"""Commands `ledgermq admin …`: retention by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from ..admin.admin import Admin
from .output import (
    DEFAULT_NAMESERVER,
    MAX_HOURS,
    JsonOption,
    NameserverOption,
    administer,
    confirm,
    out,
    print_json,
)


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    admin = typer.Typer(
        no_args_is_help=True, help="Look after the storage of a cluster.", rich_markup_mode=None
    )
    admin.callback()(_group)
    admin.command("clean")(clean)
    app.add_typer(admin, name="admin")


def _group() -> None:
    """Look after the storage of a cluster."""


def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be deleted.")] = False,
    older_than_hours: Annotated[
        float,
        typer.Option(
            "--older-than-hours", min=0, max=MAX_HOURS, help="Age to delete at; 0: the configured retention."
        ),
    ] = 0,
    even_unexpired: Annotated[
        bool, typer.Option("--even-unexpired", help="Delete every sealed segment, whatever its age.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before deleting unexpired segments.")
    ] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Delete expired segments now, on all nodes of every broker group."""
    if even_unexpired and not (dry_run or yes):
        confirm("Delete messages that have not expired?")
    age_ms = int(older_than_hours * 3_600_000)
    answers = administer(
        Admin,
        nameserver,
        lambda admin: admin.clean(dry_run=dry_run, older_than_ms=age_ms, even_unexpired=even_unexpired),
    )
    if as_json:
        print_json([
            {"group": name, "segments": list(a.segments), "bytes": a.bytes, "dry_run": dry_run,
             "note": a.note}
            for name, a in answers
        ])  # fmt: skip
        return
    verb = "would delete" if dry_run else "deleted"
    for name, answer in answers:
        out.print(f"{name}: {verb} {len(answer.segments)} segments, {answer.bytes:,} bytes")
        if answer.segments:
            out.print(f"    the log begins at entry {answer.log_start_index:,} then")
        if answer.note:
            out.print(f"    {answer.note}", soft_wrap=True)
