"""Stall detection of a stream: tells one that makes no progress from one that is busy. Pure.

The caller reads the clock and counts the bytes. A look compares the goal, bytes that must have passed by now,
with those that have. The stream is not stuck as long as each goal is reached, or a fair number of bytes
passes, within the limit: links are slow, and frames large. Both ends of a stream use it. The receiver checks
that a frame in progress is completed; the sender checks that what it sent arrives. Disks have no part in
that.
"""

from __future__ import annotations

from typing import Final

#: Passing this many bytes within the limit counts as slow, not stuck, so large frames may take as long as
#: they need. (A 150 kB/s link must carry an append of 1 MiB, or its follower never catches up.)
FAIR_BYTES: Final = 4 << 10
#: Looks per limit. A look that comes much later means that the loop stalled, not the stream.
LOOKS_PER_LIMIT: Final = 4
#: The limit is at least this many usual round trips: a stream that was fast is starved by the others, not
#: gone.
ROUND_TRIPS: Final = 4
#: The limit grows to at most this many times its floor.
MAX_GROWTH: Final = 4


class StreamWatch:
    """Watch of one stream. Times are in seconds.

    Usage: `begin` for each connection, `look` every `interval_s` while bytes are in flight.
    """

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
        """`floor_s`: a shorter stall is never called stuck."""
        self.has_moved = False  # a goal was reached since `begin`
        self.stood_s = 0.0  # length of the stall at the last look; 0: it moves, or nothing is in flight
        self._floor_s = floor_s
        self._round_trip_s = 0.0  # smoothed time to reach a goal
        # current goal, and bytes passed at the last fair progress
        self._aim = self._passed = 0
        self._since: float | None = None  # time of the last fair progress; None: no goal is set
        self._aimed_at = 0.0  # when the current goal was set
        self._last_look = 0.0

    @property
    def interval_s(self) -> float:
        return self._floor_s / LOOKS_PER_LIMIT

    @property
    def limit_s(self) -> float:
        """Time without progress after which a stream is stuck."""
        return min(max(self._floor_s, ROUND_TRIPS * self._round_trip_s), MAX_GROWTH * self._floor_s)

    def begin(self) -> None:
        """Start with a new connection. Known round trips stay."""
        self._since, self.stood_s, self.has_moved = None, 0.0, False

    def moved(self, now: float, passed: int) -> None:
        """Learn how long bytes take, from a report of `passed` bytes that arrived now."""
        if self._since is not None and passed >= self._aim:
            self._round_trip_s += (now - self._aimed_at - self._round_trip_s) / 8
            self._reach()

    def look(self, now: float, goal: int, passed: int) -> float:
        """Return how long the stream has stalled; 0.0: it moves, or all of `goal` has passed."""
        gap, self._last_look = now - self._last_look, now
        if self._since is not None and passed >= self._aim:
            self._reach()
        if passed >= goal:
            self._since = None
        elif self._since is None:
            self._aim, self._passed, self._since, self._aimed_at = goal, passed, now, now
        elif passed - self._passed >= FAIR_BYTES:
            self._passed, self._since = passed, now
        elif gap > 2 * self.interval_s:  # this loop was late and has not read what arrived meanwhile
            self._since += gap
        self.stood_s = 0.0 if self._since is None else now - self._since
        return self.stood_s

    def _reach(self) -> None:
        self._since, self.stood_s, self.has_moved = None, 0.0, True
