"""Statistics of pull and simple consumers: counters and state at one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..message import MessageQueue
from .read_source import FetchSource


@dataclass(frozen=True, slots=True)
class PulledQueue:
    """One queue that a pull consumer reads. Offsets are queue offsets."""

    queue: MessageQueue
    position: int  # of the next message to hand out
    end_offset: int  # of the queue, as last known
    fetched: int  # offsets fetched and not handed out
    paused: bool

    @property
    def lag(self) -> int:
        """Messages not handed out, up to the last known end."""
        return max(self.end_offset - self.position, 0)


@dataclass(frozen=True, slots=True)
class PullStatistics:
    """Counts are messages since the consumer was created."""

    delivered: int  # handed out
    deleted: int  # deleted by retention before they were read
    queues: tuple[PulledQueue, ...]
    missing: tuple[MessageQueue, ...]  # wanted; their broker groups have not answered
    sources: Mapping[str, FetchSource]  # node that answered last, by broker group

    @property
    def lag(self) -> int:
        """Messages not handed out, over all queues that are read."""
        return sum(each.lag for each in self.queues)


@dataclass(frozen=True, slots=True)
class LeaseStatistics:
    """Counters of a simple consumer in one broker group: messages since the consumer was created."""

    received: int
    redelivered: int  # of these, delivered before, to any consumer of the consumer group
    acknowledged: int
    refused: int  # failed acknowledgements: the lease was over, or no node answered
    waiting: int  # acknowledgements that wait for the request in flight
