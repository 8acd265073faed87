"""How many ticks the core gets, from a monotonic clock that the caller reads (D10).

Owns: the pace. Must not: read a clock, sleep. After a stall (SIGSTOP, swap, a long pause of the loop) the caller
first gets a turn to deliver the input that queued up, then the core gets one tick, not hundreds: else a resumed
follower would campaign against a leader whose heartbeats sit unread in its socket.
"""

from __future__ import annotations


class TickSchedule:
    """Invariant: after a late call of more than `stall_ms`, exactly one call gives 0, and the next at most 1."""

    __slots__ = ("_next_ms", "_recovering", "_stall_ms", "_tick_ms", "lateness_ms")

    def __init__(self, tick_ms: float, stall_ms: float, now_ms: float) -> None:
        self._tick_ms = tick_ms
        self._stall_ms = stall_ms
        self._next_ms = now_ms + tick_ms
        self._recovering = False
        self.lateness_ms = 0.0  # how late the last call came

    def due(self, now_ms: float) -> int:
        """Return the ticks to give now. Call it again after `delay_ms`, when other work had its turn."""
        self.lateness_ms = max(0.0, now_ms - self._next_ms)
        if self._recovering:  # a loop that stalls again and again must still tick
            self._recovering = False
            self._next_ms = now_ms + self._tick_ms
            return 1
        if self.lateness_ms > self._stall_ms:
            self._recovering = True
            self._next_ms = now_ms + self._tick_ms
            return 0
        if now_ms < self._next_ms:
            return 0
        ticks = 1 + int(self.lateness_ms // self._tick_ms)
        self._next_ms += ticks * self._tick_ms
        return ticks

    def delay_ms(self, now_ms: float) -> float:
        """Milliseconds until the next tick is due."""
        return max(0.0, self._next_ms - now_ms)
