"""Latency fault tolerance: avoids slow and failing broker groups, and prefers the fastest of the rest. Pure.

RocketMQ's `sendLatencyFaultEnable`; off by default. Two rules, in this order:
    avoidance        a call with at least the latency of a row in the table excludes its broker group for the
                     duration of that row; a failed call counts as the last row
    least latency    of the remaining broker groups, those whose latency is close to the lowest
A broker group always remains: if all are avoided, slow ones come before those whose calls failed.

Measurements belong to one node. They are discarded when another node leads the broker group. Times are ms of
the caller's clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

from ..errors import UsageError

#: Rows of (minimum latency, how long the broker group is avoided), ms.
LatencyFaultTable = Sequence[tuple[int, int]]
#: The table that the seed articles give for RocketMQ.
SEED_TABLE: Final[LatencyFaultTable] = ((500, 3000),)

#: Latencies within a factor of 2, or within 5 ms, count as equal. Smaller differences are chance; following
#: them would send everything to one broker group.
_ALIKE_FACTOR: Final = 2
_ALIKE_MS: Final = 5
#: An older measurement is ignored, so that its broker group is tried again; ms.
_STALE_MS: Final = 3_000
#: Weight of the newest call in the moving average.
_NEWEST: Final = 0.25


class LatencyTable:
    """How long a broker group is avoided after a call."""

    def __init__(self, rows: LatencyFaultTable = SEED_TABLE) -> None:
        """Raises: UsageError."""
        rows = list(rows) if isinstance(rows, Sequence) else [rows]
        whole = all(
            isinstance(row, tuple | list) and len(row) == 2 and all(type(each) is int for each in row)
            for row in rows
        )
        self._latencies = [row[0] for row in rows] if whole else []
        self._durations = [row[1] for row in rows] if whole else []
        rising = (
            sorted(set(self._latencies)) == self._latencies and sorted(self._durations) == self._durations
        )
        if not self._latencies or not rising or self._latencies[0] <= 0 or self._durations[0] < 0:
            raise UsageError(
                f"{rows!r} is not a latency fault table",
                "It is rows of (latency in ms, ms to avoid the broker group), with rising latencies above 0 "
                "and durations that do not fall",
                "For example [(500, 3000)]",
            )

    @property
    def shortest_slow(self) -> int:
        """The lowest latency with a consequence, ms. Without one: a value that no call reaches."""
        rows = zip(self._latencies, self._durations, strict=True)
        return next((latency for latency, duration in rows if duration), 1 << 62)

    @property
    def longest(self) -> int:
        """How long a broker group is avoided after a failed call, ms."""
        return self._durations[-1]

    def duration(self, latency_ms: int) -> int:
        """Return how long a broker group is avoided after a call of this latency, ms."""
        row = bisect_right(self._latencies, latency_ms) - 1
        return self._durations[row] if row >= 0 else 0


class CallTimes:
    """The calls of one producer to one broker group. Answers arrive in the order of the calls."""

    __slots__ = (
        "_failed_until",
        "_mean",
        "_measured_at",
        "_node",
        "_sent",
        "_slow_ms",
        "_slow_until",
        "_table",
    )

    def __init__(self, table: LatencyTable) -> None:
        self._table = table
        self._slow_ms = table.shortest_slow
        self._sent: deque[int] = deque()  # when each unanswered request was sent, oldest first
        self._node = ""  # the node that was measured
        self._mean = 0.0
        self._measured_at = -_STALE_MS
        self._slow_until = self._failed_until = 0

    # --- inputs -------------------------------------------------------------------------------------------

    def sent(self, now: int) -> None:
        """A request is sent."""
        self._sent.append(now)

    def answered(self, node: str, now: int) -> None:
        """The leader `node` answered the oldest request."""
        self._of(node)
        latency = now - self._sent.popleft()
        fresh = now - self._measured_at < _STALE_MS
        self._mean = self._mean + (latency - self._mean) * _NEWEST if fresh else float(latency)
        self._measured_at = now
        self._slow_until = max(self._slow_until, now + self._table.duration(latency))

    def refused(self, node: str, now: int) -> None:
        """The oldest request was refused because of the state of its node or broker group."""
        self._sent.popleft()
        self.failed(node, now)

    def failed(self, node: str, now: int) -> None:
        """A call to `node` failed. `node` "": no node of the broker group accepts calls."""
        self._of(node)
        self._failed_until = max(self._failed_until, now + self._table.longest)

    def ended(self, node: str, now: int, *, broken: bool) -> None:
        """The stream to `node` ended. `broken`: this client did not end it, so unanswered requests failed."""
        if broken and self._sent:
            self.failed(node, now)
        self._sent.clear()

    def forget(self) -> None:
        """Discard everything: another node leads the broker group."""
        self._node = ""
        self._measured_at = -_STALE_MS
        self._slow_until = self._failed_until = 0

    def _of(self, node: str) -> None:
        """Discard the measurements of any other node."""
        if node and node != self._node:
            self.forget()
            self._node = node

    # --- outputs ------------------------------------------------------------------------------------------

    def latency(self, now: int) -> float:
        """Return the expected latency, ms: at least the waiting time of the oldest unanswered request."""
        mean = self._mean if now - self._measured_at < _STALE_MS else 0.0
        return max(mean, float(now - self._sent[0])) if self._sent else mean

    def rank(self, now: int) -> int:
        """Return 0 for a healthy broker group, 1 while it is avoided for a slow call, 2 for a failed one."""
        if self._failed_until > now:
            return 2
        slow = self._slow_until > now or (self._sent and now - self._sent[0] >= self._slow_ms)
        return 1 if slow else 0


def quickest(latencies: Sequence[float]) -> list[int]:
    """Return the indexes of all latencies that are close to the lowest. Never empty."""
    least = min(latencies)
    limit = max(_ALIKE_FACTOR * least, least + _ALIKE_MS)
    return [number for number, latency in enumerate(latencies) if latency <= limit]
