"""What consumer groups still have to read, for `protect_unconsumed` and for topics that keep what is unread.

A group has to read a queue from its committed offset on; queues of a topic it consumes from and where it has no position yet,
from their beginning (unless it starts at the latest message). What is parked for it, it has not consumed. Groups that never consumed from a topic need nothing of it.
A topic that keeps what is unread, and that no consumer group consumes, is needed as a whole.
Owns: the question who needs what.   Must not: touch files (a read that must be done first is returned), decide what goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .commands import LATEST
from .consume_queue import ColdRead, QueueKey
from .machine import BrokerState

NOBODY_YET: Final = 0  # ids of consumer groups begin at 1
#: In one turn of the event loop (each takes some 20 µs); reads that are asked for at once, of which the cache must hold all.
_LOOK_UPS: Final = 500
_READS: Final = 64


@dataclass(frozen=True, slots=True)
class Need:
    """A queue offset that a group has not consumed; the lowest one of all groups. `parked`: it is parked for that group.

    `group_id` NOBODY_YET: no consumer group consumes the topic, which keeps what is unread.
    """

    offset: int
    group_id: int
    parked: bool = False


@dataclass(frozen=True, slots=True)
class Protection:
    """The log from `physical_offset` on holds messages that `group` ("": any) has not consumed in `topic`."""

    physical_offset: int
    group: str
    topic: str
    parked: bool = False  # the first of them is parked
    keep_unread: bool = False  # the topic asks for it, however full the disk is

    @property
    def setting(self) -> str:
        """What asks for the protection."""
        return "topic update --keep-unread" if self.keep_unread else "protect_unconsumed"

    @property
    def hold(self) -> str:
        """Who holds the log of a full disk, and what to do."""
        consume, delete = "create a consumer group and let it consume", ""
        if self.group:
            consume = f"let {self.group} consume"
            if self.parked:
                consume = f"release or consume what is parked (ledgermq group release {self.group})"
            delete = f"ledgermq group delete {self.group} (when another one consumes the topic), "
        return (
            f"The log, which all topics of the broker group share, is held by {self}: that topic keeps what is unread. To free "
            f"it: {consume} (not while all writes are refused), {delete}or ledgermq topic update {self.topic} --no-keep-unread; else more disk"
        )

    def __str__(self) -> str:
        if not self.group:
            return f"topic {self.topic}, which no consumer group consumes"
        if self.parked:
            return (
                f"consumer group {self.group} in topic {self.topic}, for which messages there are parked (ledgermq group describe "
                f"{self.group})"
            )
        return f"consumer group {self.group} in topic {self.topic}"


def unconsumed(state: BrokerState, *, kept_only: bool = False) -> dict[QueueKey, Need]:
    """Return the lowest offset that some group needs, of every queue where one needs something that is stored.

    `kept_only`: of topics that keep what is unread.
    """
    lowest: dict[QueueKey, Need] = {}
    kept = {topic.topic_id: topic for topic in state.topics if topic.keep_unread}
    if kept_only and not kept:
        return lowest
    table = state.consumption.copy()
    for group_id, topic_id in sorted({key[:2] for key in table if not kept_only or key[1] in kept}):
        topic, group = state.topics.get(topic_id), state.groups.get(group_id)
        if topic is None or group is None:
            continue
        kept.pop(topic_id, None)
        for queue in state.queues_of(topic):
            found = table.get((group_id, *queue.key))
            if found is not None:
                offset = max(found.first_needed, queue.begin)
            else:
                offset = queue.end if group.start == LATEST else queue.begin
            known = lowest.get(queue.key)
            if offset < queue.end and (known is None or offset < known.offset):
                lowest[queue.key] = Need(offset, group_id, found is not None and offset < found.committed)
    for topic in kept.values():  # nobody consumes them
        for queue in state.queues_of(topic):
            if queue.begin < queue.end:
                lowest[queue.key] = Need(queue.begin, NOBODY_YET)
    return lowest


def protection(
    state: BrokerState, known: dict[tuple[QueueKey, int], int], *, kept_only: bool = False
) -> Protection | list[ColdRead] | None:
    """Return from where on the log is needed; None: nothing is; or reads that must be done before it is asked again.

    `known` keeps, from one question to the next, what was found out: the cache does not hold the units of all queues. The list
    may be empty: then others should have their turn first.
    """
    first: Protection | None = None
    cold: list[ColdRead] = []
    looked = 0
    for key, need in unconsumed(state, kept_only=kept_only).items():
        position = known.get((key, need.offset))
        if position is None:
            if looked == _LOOK_UPS or len(cold) == _READS:
                return cold
            looked += 1
            unit = state.queues.lookup(*key, need.offset, 1)
            if isinstance(unit, ColdRead):
                cold.append(unit)
                continue
            position = known[key, need.offset] = int(unit["physical_offset"][0])
        if first is None or position < first.physical_offset:
            topic, group = state.topics.get(key[0]), state.groups.get(need.group_id)
            assert topic is not None, "unconsumed() names those that are there"
            name = group.name if group is not None else ""
            first = Protection(position, name, topic.name, need.parked, topic.keep_unread)
    return cold or first
