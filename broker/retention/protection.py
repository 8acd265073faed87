"""Protection of unconsumed messages: where the log must begin, for which consumer group, how to free it.

Owns: the way from queue offsets that are needed (`state/backlog.py`) to a place in the log.
Must not: touch files (a read that must be done first is returned), decide what goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..state.backlog import unconsumed
from ..state.consume_queue import ColdRead, QueueKey
from ..state.machine import BrokerState

#: In one turn of the event loop (each takes some 20 µs); reads that are asked for at once, of which the cache must hold all.
_LOOK_UPS: Final = 500
_READS: Final = 64


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
