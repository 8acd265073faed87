"""Points in time as people type and read them, in their machine's time zone. Must not: read the clock."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import typer

from ..errors import UsageError

#: Numbers that are taken as ms since 1970: from March 1973 to the year 5138. Smaller ones are probably
#: offsets or seconds, larger ones microseconds.
_TIMES_MS: Final = range(10**11, 10**14)


def position(text: str) -> str:
    """Return "earliest", "latest" or ms since the epoch for what a user typed. Raises: typer.BadParameter."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdecimal():
        if len(text) > 15 or int(text) not in _TIMES_MS:
            raise typer.BadParameter(
                f"{text} is not taken: a number is a time in ms since 1970, of 12 to 14 digits, not an "
                "offset; the other forms are earliest, latest and 2026-01-31T12:00:00. Each queue has "
                "offsets of its own; they are set from Python: PullConsumer.commit({queue: offset}, "
                "reset=True)"
            )
        return text
    try:
        return str(int(datetime.fromisoformat(text).timestamp() * 1000))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither earliest, latest, ms since the epoch, nor a time like 2026-01-31T12:00:00"
        ) from None


def time_ms(text: str, *, earliest: int, latest: int) -> int:
    """Return ms since the epoch for what a user typed, given what its two words stand for.
    Raises: typer.BadParameter.
    """
    at, words = position(text), {"earliest": earliest, "latest": latest}
    return words[at] if at in words else int(at)


def stored_between(begin: str, end: str, now_ms: int) -> tuple[int, int]:
    """Return ms since the epoch for --from and --to as a user typed them; 0: no bound.
    Raises: typer.BadParameter, UsageError.
    """
    begin_ms = max(time_ms(begin, earliest=0, latest=now_ms), 0) if begin else 0
    end_ms = 0
    if end and end != "latest":
        end_ms = max(time_ms(end, earliest=1, latest=0), 1)  # nothing is stored before the first ms
    if end_ms and begin_ms >= end_ms:
        raise UsageError(
            f"nothing is between --from {begin} and --to {end}", "The end is not after the beginning"
        )
    return begin_ms, end_ms


def local_time(timestamp_ms: int, *, sep: str = "T", timespec: str = "milliseconds") -> str:
    """Return ms since the epoch as `position` takes it.
    What is no time, though a client said so, is shown as it is.
    """
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).isoformat(sep, timespec)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
