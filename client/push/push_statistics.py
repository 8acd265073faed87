"""What a push consumer says of itself: figures of one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..message import MessageQueue
from .owned_queue import OwnedQueue


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """One queue that the consumer has. Offsets are queue offsets."""

    queue: MessageQueue
    position: int  # everything below it is finished
    committed: int  # stored as finished; a consumer that takes over begins there
    end_offset: int  # of the queue, when it was last heard of
    unfinished: int  # messages: fetched, and not finished
    bytes: int  # held for them
    running: int  # batches that a listener has
    state: str  # active, releasing

    @property
    def lag(self) -> int:
        """Messages that are not finished, when the queue was last heard of."""
        return max(self.end_offset - self.position, 0)


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """Counts are messages, since the consumer was made."""

    consumed: int  # the listener was done with them
    failed: int  # attempts that failed
    skipped: int  # given up after the last attempt: handed to on_exhausted, or logged
    filtered: int  # kept back by the tag filter
    deleted: int  # gone by retention before they were read
    queues: tuple[QueueStatistics, ...]
    members: Mapping[str, int]  # of the consumer group, by broker group
    warnings: tuple[str, ...]  # what brokers say of this group's members, and commits that fail

    @property
    def lag(self) -> int:
        """Messages that are not finished, in the queues of this consumer."""
        return sum(each.lag for each in self.queues)


def statistics_of(owned: OwnedQueue) -> QueueStatistics:
    """Return the figures of a queue."""
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
