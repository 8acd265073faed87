"""Consumer group table: names, numeric ids, delivery settings.

Owns: the consumer groups and the next free id.   Must not: know offsets or leases (`consumption.py`), or
enforce `max_attempts` (`broker/leader/selection.py`, `exhausted`).
Invariant: an id is never reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from ..errors import ConsumerGroupNotFoundError
from .commands import CreateConsumerGroup, StartPosition
from .topics import NamedTable


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group."""

    group_id: int  # from 1; never reused
    name: str
    start: StartPosition  # where it begins in a queue in which it has no position
    max_attempts: int  # deliveries of a message before it is parked
    fifo: bool  # messages of a queue are delivered in order, in batches
    version: int  # log index of its last change


class ConsumerGroupTable(NamedTable[ConsumerGroup]):
    """Consumer groups by name and by id."""

    def __init__(self) -> None:
        super().__init__(attrgetter("group_id"), ConsumerGroupNotFoundError)

    def create(self, command: CreateConsumerGroup, index: int) -> tuple[ConsumerGroup, bool]:
        """Add a consumer group unless the name is taken; return it and whether it is new."""
        found = self.find(command.name)
        if found is not None:
            return found, False
        created = ConsumerGroup(
            self.next_id, command.name, command.start, command.max_attempts, command.fifo, index
        )
        self.put(created)
        return created, True
