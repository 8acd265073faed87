"""How often the log says what happens again and again. Pure: the caller reads the clock."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

PERIOD_S: Final = 60.0


class LogLimit:
    """One line per key and minute. Keys come from closed sets, such as the members of the group."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[Hashable, tuple[float, int]] = {}  # when, and how often it was not said since

    def passes(self, key: Hashable, now: float) -> int | None:
        """Return None: say nothing now; or how often that was the answer since the last line."""
        at, kept_back = self._said.get(key, (float("-inf"), 0))
        if now - at < PERIOD_S:
            self._said[key] = at, kept_back + 1
            return None
        self._said[key] = now, 0
        return kept_back
