"""Protection of unconsumed and held messages: the part of the log to keep, for whom, and how to free it.

Owns: the mapping of needed queue offsets (`state/backlog.py`, `state/holds.py`) to an offset in the log.
Must not: touch files (required reads are returned), decide what is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..state.backlog import NO_CONSUMER, Need, unconsumed
from ..state.consume_queue import ColdRead, QueueKey
from ..state.machine import BrokerState

#: Maximum of lookups per turn of the event loop; each takes some 20 µs.
_LOOK_UPS: Final = 500
#: Maximum of reads that are returned at once; the block cache must hold all of them.
_READS: Final = 64


@dataclass(frozen=True, slots=True)
class Protection:
    """Part of the log that is protected because a consumer group, or the holder of a hold, needs it."""

    physical_offset: int  # the log is needed from here on
    consumer_group: (
        str  # consumer group that needs the first message; "": no consumer group consumes the topic
    )
    topic: str  # of that message
    parked: bool = False  # that message is parked
    keep_unread: bool = False  # the topic keeps unread messages, even if the disk is full
    held_by: str = ""  # name of the hold, if it is one

    @property
    def setting(self) -> str:
        """Name of the setting that causes the protection."""
        if self.held_by:
            return f"ledgermq topic describe {self.topic}"
        return "topic update --keep-unread" if self.keep_unread else "protect_unconsumed"

    @property
    def hold(self) -> str:
        """Text for an operator: the topic that holds the log on a full disk, and the remedies."""
        consume, delete = "create a consumer group and let it consume", ""
        if self.consumer_group:
            consume = f"let {self.consumer_group} consume"
            if self.parked:
                consume = f"release or consume what is parked (ledgermq group release {self.consumer_group})"
            delete = f"ledgermq group delete {self.consumer_group} (when another one consumes the topic), "
        return (
            f"The log, which all topics of the broker group share, is held by {self}: that topic keeps what"
            f" is unread. To free it: {consume} (not while all writes are refused), {delete}or ledgermq topic"
            f" update {self.topic} --no-keep-unread; else more disk"
        )

    def __str__(self) -> str:
        if self.held_by:
            return f"hold {self.held_by} of topic {self.topic}"
        if not self.consumer_group:
            return f"topic {self.topic}, which no consumer group consumes"
        if self.parked:
            return (
                f"consumer group {self.consumer_group} in topic {self.topic}, for which messages there are"
                f" parked (ledgermq group describe {self.consumer_group})"
            )
        return f"consumer group {self.consumer_group} in topic {self.topic}"


def protection(
    state: BrokerState, known: dict[tuple[QueueKey, int], int], *, kept_only: bool = False
) -> Protection | list[ColdRead] | None:
    """Return the part of the log that consumer groups need (None: none), or reads to do before the next call.

    `known` collects offsets found so far across calls, because the block cache does not hold the units of all
    queues. The list may be empty: then yield to the event loop and call again.
    """
    return _first_needed(state, known, unconsumed(state, kept_only=kept_only))


def held(
    state: BrokerState, known: dict[tuple[QueueKey, int], int], since: int
) -> Protection | list[ColdRead] | None:
    """Return the part of the log that holds need, as `protection`. `since`: as in `held_offsets`."""
    return _first_needed(state, known, held_offsets(state, since))


def held_offsets(state: BrokerState, since: int) -> dict[QueueKey, Need]:
    """Return the lowest stored offset that holds need, of every queue of which they need stored messages.

    `since`: log time (ms); holds whose holders have been silent since before then do not count.
    """
    lowest: dict[QueueKey, Need] = {}
    for key, name, offset in state.holds.needs(since):
        queue = state.queues.named(*key)
        offset = max(offset, queue.begin)
        if offset < queue.end and (key not in lowest or offset < lowest[key].offset):
            lowest[key] = Need(offset, NO_CONSUMER, held_by=name)
    return lowest


def _first_needed(
    state: BrokerState, known: dict[tuple[QueueKey, int], int], needs: Mapping[QueueKey, Need]
) -> Protection | list[ColdRead] | None:
    first: Protection | None = None
    cold: list[ColdRead] = []
    looked = 0
    for key, need in needs.items():
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
            topic = state.topics.get(key[0])
            consumer_group = state.groups.get(need.group_id)
            assert topic is not None, "needs name those that are there"
            name = consumer_group.name if consumer_group is not None else ""
            kept = topic.keep_unread and not need.held_by
            first = Protection(position, name, topic.name, need.parked, kept, need.held_by)
    return cold or first
