"""Statistics of a push consumer: counters and state at one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..message import MessageQueue
from .owned_queue import OwnedQueue


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """One queue that the consumer owns. Offsets are queue offsets."""

    queue: MessageQueue
    position: int  # everything below it is finished
    committed: int  # committed offset; a consumer that takes over begins there
    end_offset: int  # end of the queue as last known
    unfinished: int  # messages fetched and not finished
    bytes: int  # held for them
    running: int  # batches that a listener has
    state: str  # active, releasing

    @property
    def lag(self) -> int:
        """Unfinished messages, up to the last known end."""
        return max(self.end_offset - self.position, 0)


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """Counts are messages since the consumer was created."""

    consumed: int  # finished by the listener
    failed: int  # failed attempts
    skipped: int  # given up after the last attempt: passed to on_exhausted, or logged
    filtered: int  # rejected by the tag filter
    deleted: int  # deleted by retention before they were read
    queues: tuple[QueueStatistics, ...]
    members: Mapping[str, int]  # members of the consumer group, by broker group
    warnings: tuple[str, ...]  # of brokers about the consumer group's members, and failing commits

    @property
    def lag(self) -> int:
        """Unfinished messages in the queues of this consumer."""
        return sum(each.lag for each in self.queues)


def statistics_of(owned: OwnedQueue) -> QueueStatistics:
    """Return the statistics of a queue."""
    return QueueStatistics(
        owned.queue,
        owned.progress.position,
        owned.committed,
        max(owned.end_offset, owned.progress.position),
        owned.unfinished,
        owned.bytes,
        owned.running,
        owned.stage.name.lower(),
    )
