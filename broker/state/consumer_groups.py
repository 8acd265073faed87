"""Consumer group table: names, numeric ids, delivery settings.

Owns: the consumer groups and the next free id.   Must not: know offsets or leases (`leases.py`), or enforce
`max_attempts` (`broker/leader/selection.py`, `exhausted`).
Invariant: an id is never reused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import GroupNotFoundError
from .commands import CreateGroup, StartPosition


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group."""

    group_id: int  # from 1; never reused
    name: str
    start: StartPosition  # where it begins in a queue in which it has no position
    max_attempts: int  # deliveries of a message before it is parked
    fifo: bool  # messages of a queue are delivered in order, in batches
    version: int  # log index of its last change


class GroupTable:
    """Consumer groups by name and by id."""

    def __init__(self) -> None:
        self._by_id: dict[int, ConsumerGroup] = {}
        self._by_name: dict[str, ConsumerGroup] = {}
        self.next_id = 1

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ConsumerGroup]:
        """Iterate over all consumer groups, oldest first."""
        return iter(sorted(self._by_id.values(), key=lambda group: group.group_id))

    def get(self, group_id: int) -> ConsumerGroup | None:
        return self._by_id.get(group_id)

    def find(self, name: str) -> ConsumerGroup | None:
        return self._by_name.get(name)

    def named(self, name: str) -> ConsumerGroup:
        """Return the consumer group. Raises: GroupNotFoundError."""
        group = self._by_name.get(name)
        if group is None:
            raise GroupNotFoundError(name)
        return group

    def create(self, command: CreateGroup, index: int) -> tuple[ConsumerGroup, bool]:
        """Add a consumer group unless the name is taken; return it and whether it is new."""
        found = self._by_name.get(command.name)
        if found is not None:
            return found, False
        group = ConsumerGroup(
            self.next_id, command.name, command.start, command.max_attempts, command.fifo, index
        )
        self.next_id += 1
        self.put(group)
        return group, True

    def put(self, group: ConsumerGroup) -> None:
        """Add a consumer group that already has an id (from a checkpoint)."""
        self._by_id[group.group_id] = group
        self._by_name[group.name] = group

    def delete(self, group_id: int) -> ConsumerGroup | None:
        """Remove and return a consumer group; None: there was none."""
        group = self._by_id.pop(group_id, None)
        if group is not None:
            del self._by_name[group.name]
        return group
