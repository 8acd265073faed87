"""Rate limit for repeated log lines. Pure: the caller reads the clock."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

PERIOD_S: Final = 60.0


class LogLimit:
    """One line per key and minute. Keys come from closed sets, such as the members of the broker group."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        # time of the last line, and number of lines suppressed since
        self._said: dict[Hashable, tuple[float, int]] = {}

    def passes(self, key: Hashable, now: float) -> int | None:
        """Return the number of lines suppressed since the last one; None: do not log now."""
        at, kept_back = self._said.get(key, (float("-inf"), 0))
        if now - at < PERIOD_S:
            self._said[key] = at, kept_back + 1
            return None
        self._said[key] = now, 0
        return kept_back
