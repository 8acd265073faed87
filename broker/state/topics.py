"""Topic table: names, numeric ids, queues (D3, D12).

Owns: the topics and the next free topic id.   Must not: know the contents of queues.
Invariants: an id is never reused, so a topic that was deleted and created again has another id. Topics are
frozen, so a snapshot of the table is a shallow copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, TypeVar

from ..errors import TopicNotFoundError
from .commands import CreateTopic, MessageType

#: Maximum of queues of a topic in one broker group.
MAX_QUEUES: Final = 1024
#: Topic to which clients write message traces, if the broker group keeps them.
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of this broker group."""

    topic_id: int  # from 1; never reused
    name: str
    queue_count: int  # queue ids are 0 to queue_count - 1
    message_type: MessageType
    version: int  # log index of its last change
    created_at: int  # log time, ms
    retention_ms: int = 0  # messages are visible for so much log time; 0: as long as the log holds them
    keep_unread: bool = False  # retention deletes no message that a consumer group has yet to read

    @property
    def folder(self) -> str:
        """Name of its folder in `consumequeue/`."""
        return f"{self.name}@{self.topic_id}"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Item = TypeVar("_Item", bound=_Named)


class NamedTable(Generic[_Item]):
    """Topics or consumer groups, by name and by id."""

    def __init__(self, id_of: Callable[[_Item], int], not_found: Callable[[str], Exception]) -> None:
        self._by_id: dict[int, _Item] = {}
        self._by_name: dict[str, _Item] = {}
        self._id_of = id_of
        self._not_found = not_found
        self.next_id = 1

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[_Item]:
        """Iterate over all items, oldest first."""
        return iter([self._by_id[number] for number in sorted(self._by_id)])

    def get(self, number: int) -> _Item | None:
        return self._by_id.get(number)

    def find(self, name: str) -> _Item | None:
        return self._by_name.get(name)

    def named(self, name: str) -> _Item:
        """Return the item. Raises: TopicNotFoundError, ConsumerGroupNotFoundError."""
        found = self._by_name.get(name)
        if found is None:
            raise self._not_found(name)
        return found

    def put(self, item: _Item) -> None:
        """Add or replace an item that has an id."""
        self._by_id[self._id_of(item)] = item
        self._by_name[item.name] = item
        self.next_id = max(self.next_id, self._id_of(item) + 1)

    def delete(self, number: int) -> _Item | None:
        """Remove and return an item; None: there was none."""
        item = self._by_id.pop(number, None)
        if item is not None:
            del self._by_name[item.name]
        return item


class TopicTable(NamedTable[Topic]):
    """Topics by name and by id."""

    def __init__(self) -> None:
        super().__init__(attrgetter("topic_id"), TopicNotFoundError)

    def was_deleted(self, topic_id: int) -> bool:
        """Tell whether the id belonged to a topic that was deleted."""
        return 0 < topic_id < self.next_id and topic_id not in self._by_id

    def create(self, command: CreateTopic, index: int, timestamp: int) -> tuple[Topic, bool]:
        """Add a topic unless the name is taken; return it and whether it is new."""
        found = self.find(command.name)
        if found is not None:
            return found, False
        topic = Topic(
            self.next_id, command.name, command.queue_count, command.message_type, index, timestamp,
            command.retention_ms, command.keep_unread,
        )  # fmt: skip
        self.put(topic)
        return topic, True

    def change(self, topic_id: int, index: int, **fields: Any) -> tuple[Topic | None, bool]:
        """Change fields of a topic; return it (None: no such topic) and whether a value changed."""
        found = self.get(topic_id)
        if found is None or replace(found, **fields) == found:
            return found, False
        changed = replace(found, **fields, version=index)
        self.put(changed)
        return changed, True
