"""Templates of report pages, and how numbers, sizes and times are written in them.

Owns: escaping. What a page shows comes from dumps and messages: it becomes text, and a character that is not
printable becomes an escape, so that it cannot turn what is around it. Must not: load anything from a network.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from ledgermq.proto.foreign_text import safe_lines


def page_template(name: str) -> Template:
    """Return a template by its path below this package. It may include `report_style.css.j2`."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        loader=FunctionLoader(_source),
        finalize=_printable,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    return environment


def _source(name: str) -> str:
    """Read a template as a resource, because the package may be in a zip."""
    return files("ledgermq.spark_jobs").joinpath(name).read_text("utf-8")


def _printable(value: Any) -> Any:
    return safe_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def human_bytes(count: int) -> str:
    """Return a readable number of bytes: 61 MiB."""
    value, unit = float(count), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"


def utc_text(time_ms: int) -> str:
    """Return ms since the epoch as a person reads them, "" for 0."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if time_ms else ""
