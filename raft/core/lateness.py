"""Measure of recent lateness, in ticks: what an election timeout must bear on a machine short of CPU.

Owns: the measure. Must not: read a clock; the caller counts ticks. A single pause says nothing about the next
one, so the second worst value of the last one or two windows counts. Whatever was silent for longer than
`limit` was away, not late.
"""

from __future__ import annotations


class Lateness:
    """Use: `note(ticks)` with every measurement, `roll()` when a window ends; `ticks` is the answer."""

    __slots__ = ("_before", "_limit", "_now", "ticks")

    def __init__(self, limit: int) -> None:
        self.ticks = 0
        self._limit = limit  # longer silences are not counted
        self._now = (0, 0)  # the worst and the second worst value of this window
        self._before = (0, 0)  # the same of the window before

    def note(self, late: int) -> None:
        """Record that something came this many ticks late."""
        worst, second = self._now
        if second < late <= self._limit:
            self._now = (late, worst) if late > worst else (worst, late)
            self._judge()

    def roll(self) -> None:
        """End a window: its values count until the next one has ended."""
        self._before, self._now = self._now, (0, 0)
        self._judge()

    def _judge(self) -> None:
        self.ticks = sorted((*self._before, *self._now))[-2]
