"""Lengths of time: as people write them, and as programs give them. Pure."""

from __future__ import annotations

import math
import re
from typing import Final

from .errors import UsageError

#: Brokers give no longer lease.
LONGEST_LEASE_MS: Final = 12 * 3600 * 1000


def parse_duration(text: str) -> float:
    """Return seconds of `30s`, `500ms`, `2m`, `30`. Raises: UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    if match is None:
        raise UsageError(f'"{text}" is not a length of time', "", "Write it like 30s, 500ms or 2m")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}[match[2]]


def duration(milliseconds: int) -> str:
    """Return a length of time for people: `412 ms`, `3 m 12 s`, `2 d 4 h`."""
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


def check_timeout(timeout_ms: float, *, least: float = -math.inf) -> None:
    """Check a time to wait. Raises: UsageError (no number, or less than `least`)."""
    is_number = isinstance(timeout_ms, int | float) and not isinstance(timeout_ms, bool)
    if not is_number or math.isnan(timeout_ms) or timeout_ms < least:
        at_least = "" if least == -math.inf else f" from {least:g} on"
        raise UsageError(f"timeout_ms is {timeout_ms!r}", "", f"It must be a number of ms{at_least}")


def check_wait(timeout_ms: float | None) -> None:
    """Check how long to wait for a message, None: without end. Raises: UsageError."""
    if timeout_ms is not None:
        check_timeout(timeout_ms)
        if math.isinf(timeout_ms):
            raise UsageError(f"timeout_ms is {timeout_ms!r}", "", "Give None to wait without end")


def check_lease(name: str, lease_ms: int, *, least: int = 1) -> None:
    """Check how long a message is to be invisible to others. Raises: UsageError."""
    is_whole = isinstance(lease_ms, int) and not isinstance(lease_ms, bool)
    if not is_whole or not least <= lease_ms <= LONGEST_LEASE_MS:
        step = f"It must be a whole number of ms, {least} to {LONGEST_LEASE_MS:,} (12 h)"
        raise UsageError(f"{name} is {lease_ms!r}", "", step)
