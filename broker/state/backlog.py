"""How far consumer groups are, topic by topic: what `ledgermq group lag` shows, what a drain waits for, what a removal would lose.

A group that has a position in one queue of a topic, or a member that subscribes to it, consumes the topic: in its other
queues it has everything before it, unless it begins at the latest message. Pure: reads the state, changes nothing.
Owns: the counting.   Must not: decide whether what is left may be given up.

`apply` of SetBrokerGroupMode version 2 decides by `missed`, on every node: what it says of a state, and so what `progress`
counts, belongs to the meaning of a published command. Another rule needs another version. (Parked messages count since there
are some: a build that knows none of them cannot have the state in which they are.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from .commands import LATEST
from .consume_queue import ConsumeQueue
from .consumer_groups import ConsumerGroup, GroupTable
from .consumption import ConsumptionKey, ConsumptionTable
from .effects import TopicProgress
from .leases import Consumption
from .memberships import MembershipTable
from .topics import TRACE_TOPIC, Topic, TopicTable


class Consumed(Protocol):
    """What is asked of a BrokerState."""

    @property
    def topics(self) -> TopicTable: ...

    @property
    def groups(self) -> GroupTable: ...

    @property
    def consumption(self) -> ConsumptionTable: ...

    @property
    def memberships(self) -> MembershipTable: ...

    def queues_of(self, topic: Topic) -> list[ConsumeQueue]: ...


def progress(
    state: Consumed, group: str = "", topic: str = "", *, consumers: Iterable[tuple[str, str]] = ()
) -> list[TopicProgress]:
    """Return every consumer group in every topic that it consumes, and topics with messages that nobody consumes.

    By topic, then group. `group`, `topic`: only these; "" all. `consumers`: (consumer group, topic) that count, too, although
    they may never have come here: they have everything before them.
    """
    table = state.consumption.copy()
    here = _consumers(state, table)
    strangers: dict[str, set[str]] = {}
    for name, of_topic in consumers:
        strangers.setdefault(of_topic, set()).add(name)
    found: list[TopicProgress] = []
    for each in sorted(state.topics, key=lambda each: each.name):
        if topic not in ("", each.name):
            continue
        known: dict[str, ConsumerGroup | None] = dict.fromkeys(strangers.get(each.name, ()))
        for group_id in here.get(each.topic_id, ()):
            if (one := state.groups.get(group_id)) is not None:
                known[one.name] = one
        queues = state.queues_of(each)
        if not known and not group:
            found += _untouched(queues, each)
        found += [
            _of(table, name, known[name], queues, each) for name in sorted(known) if group in ("", name)
        ]
    return found


def consumers_by_topic(state: Consumed) -> dict[int, set[int]]:
    """Return the ids of the groups that consume each topic here, by topic id: those that `progress` counts."""
    return _consumers(state, state.consumption.copy())


def _consumers(state: Consumed, table: Iterable[ConsumptionKey]) -> dict[int, set[int]]:
    """Return the ids of the groups that consume each topic here, by topic id."""
    found: dict[int, set[int]] = {}
    for group_id, topic_id, _ in table:
        found.setdefault(topic_id, set()).add(group_id)
    for group_id in state.memberships.group_ids():
        membership = state.memberships.get(group_id)
        for name in membership.subscribed if membership is not None else ():
            if (topic := state.topics.find(name)) is not None:
                found.setdefault(topic.topic_id, set()).add(group_id)
    return found


def unfinished(rows: list[TopicProgress]) -> list[TopicProgress]:
    """Return those that still have something to consume."""
    return [row for row in rows if row.behind]


def _untouched(queues: list[ConsumeQueue], topic: Topic) -> Iterator[TopicProgress]:
    held = [queue.end - queue.begin for queue in queues]
    if any(held):
        yield TopicProgress("", topic.name, sum(map(bool, held)), sum(held))


def _of(
    table: dict[ConsumptionKey, Consumption],
    name: str,
    group: ConsumerGroup | None,
    queues: list[ConsumeQueue],
    topic: Topic,
) -> TopicProgress:
    """`group` None: it consumes the topic elsewhere alone."""
    count = behind = leased = lost = parked = 0
    untouched_is_done = group is not None and group.start == LATEST
    for number, queue in enumerate(queues):
        known = table.get((group.group_id, topic.topic_id, number)) if group is not None else None
        if known is not None:
            left = queue.end - max(known.committed, queue.begin)
            leased += known.leased_count
            lost += known.lost
            parked += len(known.parked)
        else:
            left = 0 if untouched_is_done else queue.end - queue.begin
        if left > 0:
            count += 1
            behind += left
    return TopicProgress(name, topic.name, count, behind, leased, lost, parked)


def missed(state: Consumed, consumers: Iterable[tuple[str, str]]) -> list[TopicProgress]:
    """Return who has not consumed what, or has it parked, and what nobody consumes; traces that nobody reads hold up nothing.

    `consumers`: (consumer group, topic) of other broker groups, which count here although they never came.
    """
    left = [row for row in progress(state, consumers=consumers) if row.behind or row.parked]
    return [row for row in left if row.group or row.topic != TRACE_TOPIC]
