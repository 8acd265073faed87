"""Commands `ledgermq message …`: single messages."""

from __future__ import annotations

import typer

from .export import export
from .find import get, query
from .trace import trace


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    message = typer.Typer(
        no_args_is_help=True, help="Look up stored messages, and what became of one.", rich_markup_mode=None
    )
    message.command("get")(get)
    message.command("query")(query)
    message.command("trace")(trace)
    message.command("export")(export)
    app.add_typer(message, name="message")
