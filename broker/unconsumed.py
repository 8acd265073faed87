"""What consumer groups still have to read, for `protect_unconsumed`.

A group has to read a queue from its committed offset on; queues of a topic it consumes from and where it has no position yet,
from their beginning (unless it starts at the latest message). Groups that never consumed from a topic need nothing of it.
Owns: the question who needs what.   Must not: touch files (a read that must be done first is returned), decide what goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .commands import LATEST
from .consume_queue import ColdRead, QueueKey
from .state import BrokerState


@dataclass(frozen=True, slots=True)
class Need:
    """A queue offset that a group has not consumed; the lowest one of all groups."""

    offset: int
    group_id: int


@dataclass(frozen=True, slots=True)
class Protection:
    """The log from `physical_offset` on holds messages that `group` has not consumed in `topic`."""

    physical_offset: int
    group: str
    topic: str


def unconsumed(state: BrokerState) -> dict[QueueKey, Need]:
    """Return the lowest offset that some group needs, of every queue where one needs something that is stored."""
    lowest: dict[QueueKey, Need] = {}
    table = state.consumption.copy()
    for group_id, topic_id in sorted({key[:2] for key in table}):
        topic, group = state.topics.get(topic_id), state.groups.get(group_id)
        if topic is None or group is None:
            continue
        for queue in state.queues_of(topic):
            found = table.get((group_id, *queue.key))
            if found is not None:
                offset = max(found.committed, queue.begin)
            else:
                offset = queue.end if group.start == LATEST else queue.begin
            known = lowest.get(queue.key)
            if offset < queue.end and (known is None or offset < known.offset):
                lowest[queue.key] = Need(offset, group_id)
    return lowest


def protection(state: BrokerState) -> Protection | ColdRead | None:
    """Return from where on the log is needed; None: nothing is; or a read that must be done first (then ask again)."""
    first: Protection | None = None
    for key, need in unconsumed(state).items():
        unit = state.queues.lookup(*key, need.offset, 1)
        if isinstance(unit, ColdRead):
            return unit
        position = int(unit["physical_offset"][0])
        if first is None or position < first.physical_offset:
            topic, group = state.topics.get(key[0]), state.groups.get(need.group_id)
            assert topic is not None and group is not None, "unconsumed() names those that are there"
            first = Protection(position, group.name, topic.name)
    return first
