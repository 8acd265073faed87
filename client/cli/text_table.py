"""Aligned columns of text that are never cut, whatever the width of the terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

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
