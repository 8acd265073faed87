"""Lengths of time as people write them. Pure."""

from __future__ import annotations

import re

from .errors import UsageError


def parse_duration(text: str) -> float:
    """Return seconds of `30s`, `500ms`, `2m`, `30`. Raises: UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    if match is None:
        raise UsageError(f'"{text}" is not a length of time', "", "Write it like 30s, 500ms or 2m")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}[match[2]]
