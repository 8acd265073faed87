"""Consumer groups: names, numeric ids, how each wants to be served.

Owns: the groups and the next free group id.   Must not: know offsets or leases (`leases.py`), or enforce `max_attempts`
(`broker/leader/selection.py`, `exhausted`).
Invariant: an id is never used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import GroupNotFoundError
from .commands import CreateGroup, StartPosition


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group. `version`: log index of its last change."""

    group_id: int
    name: str
    start: StartPosition
    max_attempts: int
    fifo: bool
    version: int


class GroupTable:
    """Consumer groups by name and by id."""

    def __init__(self) -> None:
        self._by_id: dict[int, ConsumerGroup] = {}
        self._by_name: dict[str, ConsumerGroup] = {}
        self.next_id = 1

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ConsumerGroup]:
        """All groups, oldest first."""
        return iter(sorted(self._by_id.values(), key=lambda group: group.group_id))

    def get(self, group_id: int) -> ConsumerGroup | None:
        return self._by_id.get(group_id)

    def find(self, name: str) -> ConsumerGroup | None:
        return self._by_name.get(name)

    def named(self, name: str) -> ConsumerGroup:
        """Return the group. Raises: GroupNotFoundError."""
        group = self._by_name.get(name)
        if group is None:
            raise GroupNotFoundError(name)
        return group

    def create(self, command: CreateGroup, index: int) -> tuple[ConsumerGroup, bool]:
        """Add a group unless the name is taken; return it and whether it is new."""
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
        """Add a group that has its id (from a checkpoint)."""
        self._by_id[group.group_id] = group
        self._by_name[group.name] = group

    def delete(self, group_id: int) -> ConsumerGroup | None:
        """Remove and return a group, None when there was none."""
        group = self._by_id.pop(group_id, None)
        if group is not None:
            del self._by_name[group.name]
        return group
