"""Ticks for the core, from a monotonic clock that the caller reads (D10).

Owns: the pace. Must not: read a clock, sleep. Ticks in which the core decides nothing are not worth a wake-up
each: they are counted together, when the next tick that decides something is due, or before an input. After a
stall (SIGSTOP, swap, a long pause of the loop) the caller first gets a turn to deliver the input that queued
up, then the core gets one tick, not hundreds: otherwise a resumed follower would campaign against a leader
whose heartbeats sit unread in its socket.
"""

from __future__ import annotations

import math
from typing import Protocol


class Clock(Protocol):
    """Source of the core's ticks: asked before, and told after, every input."""

    def before_input(self) -> int:
        """Return how many quiet ticks (in which the core decides nothing) it must get first."""

    def after_input(self) -> None:
        """Look whether the core's next decision is nearer now."""


class NoClock:
    """Clock without ticks, before the node runs."""

    def before_input(self) -> int:
        return 0

    def after_input(self) -> None:
        return


class TickSchedule:
    """Schedule of ticks and wake-ups.

    Invariant: after more than `stall_ms` without a look at the clock, one `take` gives 0 and the next one at
    most 1. Sleeps are at most half as long, so a sleep alone is never taken for a stall.
    """

    __slots__ = ("_next_ms", "_recovering", "_stall_ms", "_tick_ms", "lateness_ms", "wake_ms")

    def __init__(self, tick_ms: float, stall_ms: float, now_ms: float) -> None:
        self._tick_ms = tick_ms
        self._stall_ms = stall_ms
        self._next_ms = now_ms + tick_ms  # end of the first tick that the core has not got yet
        self._recovering = False  # a stall ended: `take` gave 0, and gives at most 1 next
        self.wake_ms = self._next_ms  # when to call `take` next
        self.lateness_ms = 0.0  # how late the last call of `take` came

    def take(self, now_ms: float) -> int:
        """Take the ticks to give now. Call it again at `wake_ms`, after other work had its turn."""
        self.lateness_ms = max(0.0, now_ms - self.wake_ms)
        if self._recovering:  # a loop that stalls again and again must still tick
            self._recovering = False
            self._next_ms = now_ms + self._tick_ms
            return 1
        if now_ms - self._next_ms > self._stall_ms:
            self._recovering = True
            self._next_ms = now_ms + self._tick_ms
            return 0
        return self._take(now_ms, math.inf)

    def has_passed(self, now_ms: float) -> bool:
        """Tell whether ticks have passed that the core must get before an input; never after a stall."""
        return 0 <= now_ms - self._next_ms <= self._stall_ms and not self._recovering

    def take_passed(self, now_ms: float, quiet: int) -> int:
        """Take the ticks to give before an input: those of the `quiet` next ones that have passed."""
        return self._take(now_ms, quiet) if self.has_passed(now_ms) else 0

    def _take(self, now_ms: float, limit: float) -> int:
        if now_ms < self._next_ms:
            return 0
        ticks = min(1 + int((now_ms - self._next_ms) // self._tick_ms), limit)
        self._next_ms += ticks * self._tick_ms
        return int(ticks)

    def wake_at(self, quiet: int) -> float:
        """Return when to wake up, with `quiet` quiet ticks ahead. The caller sets `wake_ms` to it."""
        ticks = 0 if self._recovering else min(quiet, int(self._stall_ms / 2 // self._tick_ms))
        return self._next_ms + ticks * self._tick_ms
