"""Log time: the only clock that the replicated state knows (D21).

Owns: the estimate of log time and its slewing to the wall clock. Must not: read a clock; the caller gives the
wall clock and a monotonic clock, both in ms.
Invariants: the value of `lead` never decreases and is never below a timestamp of the log or of a followed
leader; a correction changes the pace by at most 1 %. A heartbeat alone moves log time at most `MAX_AHEAD_MS`
past this node's own clocks; an entry, which is checked and becomes part of the log, may move it by any
amount.
"""

from __future__ import annotations

from typing import Final

#: Log time runs at most this much faster or slower than the monotonic clock.
MAX_SLEW: Final = 0.01
WARN_OFFSET_MS: Final = 1000
#: After a late heartbeat the next one seems early. Neither the wire nor a stall delays one for this long.
MAX_AHEAD_MS: Final = 10_000


class LogTime:
    """Estimate of log time on one node, leader or not."""

    __slots__ = ("_at_ms", "_floor", "_value", "offset_ms")

    def __init__(self) -> None:
        self._floor = 0  # highest timestamp (ms) seen in the log or from a leader; never decreases
        self._value: float | None = None  # log time (ms) at the moment `_at_ms`; None: no reference yet
        self._at_ms = 0.0  # monotonic clock (ms) when `_value` was taken
        self.offset_ms = 0.0  # wall clock minus log time, at the last call that knew both

    @property
    def floor(self) -> int:
        """Highest timestamp (ms) known to be used."""
        return self._floor

    @property
    def is_off(self) -> bool:
        """Tell whether wall clock and log time are more than a second apart: a metric and a warning."""
        return abs(self.offset_ms) > WARN_OFFSET_MS

    def restore(self, timestamp: int) -> None:
        """Take the last timestamp of a recovered log. It gives no reference: its age is unknown."""
        self._floor = max(self._floor, timestamp)

    def observe_entry(self, timestamp: int, wall_ms: float, monotonic_ms: float) -> None:
        """Take the timestamp of an entry. Log time is at least that; far ahead during a catch-up."""
        self._floor = max(self._floor, timestamp)
        if self._value is not None and timestamp >= self._value + max(0.0, monotonic_ms - self._at_ms):
            self._follow(timestamp, wall_ms, monotonic_ms)

    def observe(self, timestamp: int, wall_ms: float, monotonic_ms: float) -> bool:
        """Follow the timestamp of a heartbeat; return False if it is too far ahead of the log and the clocks.

        Nothing is lost by not following it: entries of the leader carry its time, and entries are believed.
        """
        if timestamp > max(self.estimate(wall_ms, monotonic_ms), wall_ms) + MAX_AHEAD_MS:
            return False
        self._follow(timestamp, wall_ms, monotonic_ms)
        return True

    def _follow(self, timestamp: int, wall_ms: float, monotonic_ms: float) -> None:
        self._floor = max(self._floor, timestamp)
        self._value, self._at_ms = float(timestamp), monotonic_ms
        self.offset_ms = wall_ms - timestamp

    def estimate(self, wall_ms: float, monotonic_ms: float) -> int:
        """Return log time without leading: a follower may use it for its own decisions."""
        if self._value is None:
            return max(self._floor, int(wall_ms))
        return max(self._floor, int(self._value + max(0.0, monotonic_ms - self._at_ms)))

    def lead(self, wall_ms: float, monotonic_ms: float) -> int:
        """Advance log time as the leader and return it: the timestamp of the next entry or heartbeat.

        Continues from the last reference plus the monotonic time since, and slews to the wall clock. Without
        a reference (first leader, or every node restarted) it starts at the wall clock, but never below the
        log.
        """
        if self._value is None:
            self._value = max(float(self._floor), wall_ms)
        else:
            elapsed = max(0.0, monotonic_ms - self._at_ms)
            wanted = wall_ms - (self._value + elapsed)
            limit = elapsed * MAX_SLEW
            # Not below the floor: a leader that was behind must not make log time stand still here
            self._value = max(self._value + elapsed + min(limit, max(-limit, wanted)), float(self._floor))
        self._at_ms = monotonic_ms
        self.offset_ms = wall_ms - self._value
        self._floor = int(self._value)
        return self._floor
