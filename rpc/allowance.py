"""Reserve of events that a peer may cause, and that grows with time. Pure.

Owns: the arithmetic. Must not: read a clock.
"""

from __future__ import annotations


class Allowance:
    """Reserve of events that grows with time."""

    __slots__ = ("_last", "_left", "_per_s", "_reserve")

    def __init__(self, reserve: int, per_s: int, now: float) -> None:
        """`now`: seconds of the clock that `spend` is given."""
        self._reserve, self._per_s = reserve, per_s
        self._left, self._last = float(reserve), now

    def spend(self, now: float, events: int = 1) -> bool:
        """Count `events` at `now`. Returns False when fewer are left."""
        if self._left < events:
            grown = (now - self._last) * self._per_s
            self._left = min(float(self._reserve), self._left + grown)
            self._last = now
            if self._left < events:
                return False
        self._left -= events
        return True
