"""Which broker groups a producer avoids because their calls were slow or failed, and which of the rest are fastest. Pure.

RocketMQ's `sendLatencyFaultEnable`, off unless it is asked for. Two rules, one after the other:
    avoidance        a call that took as long as a row of the table says keeps its group out for as long as the row says; a
                     failed call counts as the last row
    least latency    of the groups that remain, those whose calls are as quick as the quickest's
Never is no group left: with all of them avoided the slow come before those whose calls failed.

What was measured is of one node: it is forgotten when another one leads the group. Times are ms of the caller's clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

from ..errors import UsageError

#: Rows of (latency from which, how long its group is avoided), ms.
LatencyFaultTable = Sequence[tuple[int, int]]
#: What the seed articles tell of RocketMQ.
SEED_TABLE: Final[LatencyFaultTable] = ((500, 3000),)

#: Two groups are equally quick within a factor of 2, or 5 ms: below that the difference is chance, and following it would
#: send everything to one of them.
_ALIKE_FACTOR: Final = 2
_ALIKE_MS: Final = 5
#: A measurement this old says nothing: its group is tried again, ms.
_STALE_MS: Final = 3_000
#: The weight of the newest call in the mean.
_NEWEST: Final = 0.25


class LatencyTable:
    """How long a group is avoided after a call."""

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
                "It is rows of (latency in ms, ms to avoid the broker group), with rising latencies above 0 and durations that "
                "do not fall",
                "For example [(500, 3000)]",
            )

    @property
    def shortest_slow(self) -> int:
        """The shortest latency that has a consequence; of none, one that no call reaches."""
        rows = zip(self._latencies, self._durations, strict=True)
        return next((latency for latency, duration in rows if duration), 1 << 62)

    @property
    def longest(self) -> int:
        """How long a group is avoided after a failed call."""
        return self._durations[-1]

    def duration(self, latency_ms: int) -> int:
        """Return how long a group is avoided after a call that took so long."""
        row = bisect_right(self._latencies, latency_ms) - 1
        return self._durations[row] if row >= 0 else 0


class CallTimes:
    """The calls of one producer to one broker group. Answers come in the order of the calls."""

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
        self._sent: deque[int] = deque()  # when those without an answer left
        self._node = ""  # whose calls these are
        self._mean = 0.0
        self._measured_at = -_STALE_MS
        self._slow_until = self._failed_until = 0

    # --- what happens -----------------------------------------------------------------------------------------

    def sent(self, now: int) -> None:
        """A request leaves."""
        self._sent.append(now)

    def answered(self, node: str, now: int) -> None:
        """The oldest request was answered by the leader, which is `node`."""
        self._of(node)
        latency = now - self._sent.popleft()
        fresh = now - self._measured_at < _STALE_MS
        self._mean = self._mean + (latency - self._mean) * _NEWEST if fresh else float(latency)
        self._measured_at = now
        self._slow_until = max(self._slow_until, now + self._table.duration(latency))

    def refused(self, node: str, now: int) -> None:
        """The oldest request was refused because of the state that the node or the group is in."""
        self._sent.popleft()
        self.failed(node, now)

    def failed(self, node: str, now: int) -> None:
        """A call to `node` failed, or no node of the group takes any ("")."""
        self._of(node)
        self._failed_until = max(self._failed_until, now + self._table.longest)

    def ended(self, node: str, now: int, *, broken: bool) -> None:
        """The stream to `node` ended. `broken`: by itself, so what had no answer has failed."""
        if broken and self._sent:
            self.failed(node, now)
        self._sent.clear()

    def forget(self) -> None:
        """Another node leads the group: nothing is known of it."""
        self._node = ""
        self._measured_at = -_STALE_MS
        self._slow_until = self._failed_until = 0

    def _of(self, node: str) -> None:
        """Forget what another node did."""
        if node and node != self._node:
            self.forget()
            self._node = node

    # --- what follows -----------------------------------------------------------------------------------------

    def latency(self, now: int) -> float:
        """Return how long a call takes as far as is known: at least as long as the oldest one without an answer waits."""
        mean = self._mean if now - self._measured_at < _STALE_MS else 0.0
        return max(mean, float(now - self._sent[0])) if self._sent else mean

    def rank(self, now: int) -> int:
        """Return 0 when the group is well, 1 while it is avoided because a call took, or takes, long, 2 because one failed."""
        if self._failed_until > now:
            return 2
        slow = self._slow_until > now or (self._sent and now - self._sent[0] >= self._slow_ms)
        return 1 if slow else 0


def quickest(latencies: Sequence[float]) -> list[int]:
    """Return the numbers of those that are as quick as the quickest; there is at least one."""
    least = min(latencies)
    limit = max(_ALIKE_FACTOR * least, least + _ALIKE_MS)
    return [number for number, latency in enumerate(latencies) if latency <= limit]
