"""What pull and simple consumers say of themselves: figures of one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..message import LeasedMessage, MessageQueue
from .read_source import FetchSource


@dataclass(frozen=True, slots=True)
class PulledQueue:
    """One queue that a pull consumer reads. Offsets are queue offsets."""

    queue: MessageQueue
    position: int  # of the next message that is handed out
    end_offset: int  # of the queue, when it was last heard of
    fetched: int  # offsets that are here and not handed out
    paused: bool

    @property
    def lag(self) -> int:
        """Messages that were not handed out, when the queue was last heard of."""
        return max(self.end_offset - self.position, 0)


@dataclass(frozen=True, slots=True)
class PullStatistics:
    """Counts are messages, since the consumer was made."""

    delivered: int  # handed out
    deleted: int  # gone by retention before they were read
    queues: tuple[PulledQueue, ...]
    missing: tuple[MessageQueue, ...]  # wanted, of broker groups that have not answered
    sources: Mapping[str, FetchSource]  # the node of each broker group that answered last

    @property
    def lag(self) -> int:
        """Messages that were not handed out, in the queues that are read."""
        return sum(each.lag for each in self.queues)


@dataclass(frozen=True, slots=True)
class LeaseStatistics:
    """What a simple consumer did in one broker group. Counts are messages, since the consumer was made."""

    received: int
    redelivered: int  # of them received before, by whichever consumer of the group
    acknowledged: int
    refused: int  # acknowledgements that failed: the lease was over, or nobody answered
    waiting: int  # acknowledgements that wait for those under way


@dataclass(slots=True)
class LeaseCounts:
    """Makes LeaseStatistics."""

    _received: int = 0
    _redelivered: int = 0
    _acknowledged: int = 0
    _refused: int = 0

    def received(self, message: LeasedMessage) -> None:
        """A message came."""
        self._received += 1
        self._redelivered += message.delivery_attempt > 1

    def answered(self, outcomes: Sequence[Exception | None]) -> None:
        """Acknowledgements are done (None), or failed."""
        refused = sum(each is not None for each in outcomes)
        self._refused += refused
        self._acknowledged += len(outcomes) - refused

    def statistics(self, waiting: int) -> LeaseStatistics:
        """Return the figures of this moment."""
        return LeaseStatistics(self._received, self._redelivered, self._acknowledged, self._refused, waiting)
