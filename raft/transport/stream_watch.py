"""Tells a stream that does not move from one that has much to do. Pure: the caller reads the clock and counts the bytes.

A look compares what must have passed by now, the goal, with what has. The stream is not stuck while each goal is reached, or a
fair number of bytes passes, within the limit: links are slow, and frames large. Both ends of a stream watch it like this: the receiver, that a frame that began is
whole some day; the sender, that what it sent arrives. Disks have no part in that.
"""

from __future__ import annotations

from typing import Final

#: Who gets so many bytes through within the limit is slow, not stuck: large frames may take as long as they need. (A link of
#: 150 kB/s must carry an append of 1 MiB, or a follower behind it never catches up.)
FAIR_BYTES: Final = 4 << 10
#: Of the limit: how often to look. A look that comes much later finds a loop that stood still, and no fault of the stream.
LOOKS_PER_LIMIT: Final = 4
#: A stream that used to take so many times less than the limit is given longer: the others are starved, not gone.
ROUND_TRIPS: Final = 4
#: The limit grows to so many times its floor.
MAX_GROWTH: Final = 4


class StreamWatch:
    """Times are seconds. Use: `begin` for each connection, `look` every `interval_s` while something is under way."""

    __slots__ = (
        "_aim",
        "_aimed_at",
        "_floor_s",
        "_last_look",
        "_passed",
        "_round_trip_s",
        "_since",
        "has_moved",
        "stood_s",
    )

    def __init__(self, floor_s: float) -> None:
        """`floor_s`: a stream that stands still for a shorter time is never called stuck."""
        self.has_moved = False  # a goal was reached since `begin`
        self.stood_s = 0.0  # at the last look; 0: it moves, or nothing is under way
        self._floor_s = floor_s
        self._round_trip_s = 0.0  # smoothed
        self._aim = self._passed = 0
        self._since: float | None = None  # when a fair number of bytes had passed last; None: there is no aim
        self._aimed_at = 0.0  # when the present aim was set
        self._last_look = 0.0

    @property
    def interval_s(self) -> float:
        return self._floor_s / LOOKS_PER_LIMIT

    @property
    def limit_s(self) -> float:
        """A stream that stands still for so long is stuck."""
        return min(max(self._floor_s, ROUND_TRIPS * self._round_trip_s), MAX_GROWTH * self._floor_s)

    def begin(self) -> None:
        """The stream is a new one; what is known of its round trips stays."""
        self._since, self.stood_s, self.has_moved = None, 0.0, False

    def moved(self, now: float, passed: int) -> None:
        """So many bytes have passed, as one hears now: learn how long that takes."""
        if self._since is not None and passed >= self._aim:
            self._round_trip_s += (now - self._aimed_at - self._round_trip_s) / 8
            self._reach()

    def look(self, now: float, goal: int, passed: int) -> float:
        """Return for how long the stream has stood still; 0.0: it moves, or nothing is under way (`passed` >= `goal`)."""
        gap, self._last_look = now - self._last_look, now
        if self._since is not None and passed >= self._aim:
            self._reach()
        if passed >= goal:
            self._since = None
        elif self._since is None:
            self._aim, self._passed, self._since, self._aimed_at = goal, passed, now, now
        elif passed - self._passed >= FAIR_BYTES:
            self._passed, self._since = passed, now
        elif gap > 2 * self.interval_s:  # this loop was late: what came meanwhile is not read yet
            self._since += gap
        self.stood_s = 0.0 if self._since is None else now - self._since
        return self.stood_s

    def _reach(self) -> None:
        self._since, self.stood_s, self.has_moved = None, 0.0, True
