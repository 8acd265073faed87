"""Durations: parsing and formatting. Pure."""

from __future__ import annotations

import re

from .errors import UsageError


def parse_duration(text: str) -> float:
    """Return the seconds of `30s`, `500ms`, `2m`, `30`. Raises: UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    if match is None:
        raise UsageError(f'"{text}" is not a length of time', "", "Write it like 30s, 500ms or 2m")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}[match[2]]


def duration(milliseconds: int) -> str:
    """Format a duration: `412 ms`, `3 m 12 s`, `2 d 4 h`."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds // 1000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} m {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} m"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"
