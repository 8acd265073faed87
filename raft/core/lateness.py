"""How late things have lately come, in ticks: what an election timeout must bear on a machine that is short of CPU.

Owns: the measure. Must not: read a clock; ticks are counted by the caller. One pause says nothing about the next one, so it is
the second worst of the last one or two windows that counts; what was away for longer than `limit` was away, not late.
"""

from __future__ import annotations


class Lateness:
    """Use: `note(ticks)` with every measurement, `roll()` when a window ends; `ticks` is the answer."""

    __slots__ = ("_before", "_limit", "_now", "ticks")

    def __init__(self, limit: int) -> None:
        self.ticks = 0
        self._limit = limit
        self._now = (0, 0)  # the worst and the second worst of this window
        self._before = (0, 0)  # and of the one before it

    def note(self, late: int) -> None:
        """Something came so many ticks late."""
        worst, second = self._now
        if second < late <= self._limit:
            self._now = (late, worst) if late > worst else (worst, late)
            self._judge()

    def roll(self) -> None:
        """A window ends."""
        self._before, self._now = self._now, (0, 0)
        self._judge()

    def _judge(self) -> None:
        self.ticks = sorted((*self._before, *self._now))[-2]
