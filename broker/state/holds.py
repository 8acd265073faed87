"""Holds: messages that a job outside has yet to fetch, which retention waits for (D41).

    topic id -> name of the hold -> queue id -> first offset that is needed, and when its holder last named it

Owns: that table.   Must not: decide whether retention waits; that depends on limits of the leader
(`retention/keeper.py`). Must not read clocks: time is the log time of entries.
Invariants: an offset never moves back. Holds belong to topic ids, so a topic that was created again has none.
The queues of a hold are immutable, so a snapshot copies two levels of dicts only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ledgermq.proto.values import value

from .consume_queue import QueueKey

#: Maximum of holds of a topic. Part of the meaning of SetHold: another one needs another version of it.
MAX_HOLDS: Final = 16


def named_since(now: int, expires_hours: float) -> int:
    """Return the log time (ms) since which its holder must have named a hold that counts at `now` (ms)."""
    return now - int(expires_hours * 3_600_000)


@value
class HeldQueue:
    """What a hold needs of one queue."""

    offset: int  # messages from here on are needed; at its last advance no less than the begin of the queue
    advanced: int  # log time (ms) at which the holder last named it
    lost: int = 0  # messages between the offset before its last advance and the begin of the queue then

    def lost_at(self, begin: int) -> int:
        """Return the number of deleted messages that it waited for. `begin`: of the queue."""
        return self.lost + max(0, begin - self.offset)

    def advance(self, offset: int, begin: int, now: int) -> HeldQueue:
        """Return what its holder makes of it when it names an offset. `begin`, `now`: as in `Holds.set`."""
        if offset <= self.offset:
            return HeldQueue(self.offset, now, self.lost)
        return HeldQueue(max(offset, begin), now, max(0, begin - self.offset))


#: What a hold needs, by queue id.
Held = Mapping[int, HeldQueue]


class Holds:
    """All holds, by topic id and name."""

    def __init__(self) -> None:
        self._by_topic: dict[int, dict[str, Held]] = {}

    def __iter__(self) -> Iterator[tuple[int, str, Held]]:
        """Iterate over (topic id, name, hold), sorted."""
        for topic_id in sorted(self._by_topic):
            for name in sorted(self._by_topic[topic_id]):
                yield topic_id, name, self._by_topic[topic_id][name]

    def of_topic(self, topic_id: int) -> Mapping[str, Held]:
        return self._by_topic.get(topic_id, {})

    def set(self, topic_id: int, name: str, rows: Iterable[tuple[int, int, int]], now: int) -> Held | None:
        """Set or advance a hold; return it. None: it would be one too many of the topic.

        `rows`: queue id, offset, begin of the queue. `now`: log time, ms.
        """
        holds = self._by_topic.get(topic_id, {})
        known = holds.get(name)
        if known is None and len(holds) >= MAX_HOLDS:
            return None
        held = dict(known or {})
        for queue_id, offset, begin in rows:
            first = HeldQueue(max(offset, begin), now, max(0, begin - offset))
            held[queue_id] = held[queue_id].advance(offset, begin, now) if queue_id in held else first
        if held:
            self._by_topic.setdefault(topic_id, {})[name] = held
        return held

    def release(self, topic_id: int, name: str) -> bool:
        """Remove a hold; tell whether there was one."""
        holds = self._by_topic.get(topic_id, {})
        found = holds.pop(name, None)
        if not holds:
            self._by_topic.pop(topic_id, None)
        return found is not None

    def remove_topic(self, topic_id: int) -> None:
        self._by_topic.pop(topic_id, None)

    def deleted(self, key: QueueKey, before: int, after: int) -> Iterator[tuple[str, int, bool]]:
        """Yield what holds lose when the begin of a queue moves: name, messages, whether they are its first.

        The first ones since its holder advanced.
        """
        for name, held in self._by_topic.get(key[0], {}).items():
            need = held.get(key[1])
            if need is not None and need.offset < after:
                yield name, after - max(before, need.offset), before <= need.offset

    def needs(self, since: int) -> Iterator[tuple[QueueKey, str, int]]:
        """Yield (queue, name of the hold, offset) of what holders named at or after log time `since` (ms)."""
        for topic_id, name, held in self:
            for queue_id, need in held.items():
                if need.advanced >= since:
                    yield (topic_id, queue_id), name, need.offset

    def copy(self) -> dict[int, dict[str, Held]]:
        return {topic_id: dict(holds) for topic_id, holds in self._by_topic.items()}

    def restore(self, holds: dict[int, dict[str, Held]]) -> None:
        self._by_topic = holds
