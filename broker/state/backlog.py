"""Backlog of consumer groups, for `group lag`, drains, removals and retention.

A consumer group consumes a topic if it has a position in one of its queues, or a member that subscribes to
it. Queues of the topic without a position count as unconsumed, unless the consumer group starts at the latest
message. Retention protects nothing for a consumer group that only subscribes. Pure: reads the state, changes
nothing.

Owns: the counting.   Must not: decide whether a backlog may be abandoned.

`apply` of SetBrokerGroupMode version 2 decides by `missed` on every node. The result of `missed`, and
therefore what `progress` counts, is part of the meaning of a published command: another rule needs another
version. (Parked messages were added to the count without one: a build that does not know them cannot hold a
state with them.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from .commands import LATEST
from .consume_queue import ConsumeQueue, QueueKey
from .consumer_groups import ConsumerGroup, ConsumerGroupTable
from .consumption import Consumption, ConsumptionKey, ConsumptionTable
from .effects import TopicProgress
from .memberships import MembershipTable
from .topics import TRACE_TOPIC, Topic, TopicTable

#: `Need.group_id` of a topic that no consumer group consumes; ids of consumer groups begin at 1.
NO_CONSUMER: Final = 0


class Consumed(Protocol):
    """The part of BrokerState that this module reads."""

    topics: TopicTable
    groups: ConsumerGroupTable
    consumption: ConsumptionTable
    memberships: MembershipTable

    def queues_of(self, topic: Topic) -> list[ConsumeQueue]: ...


def progress(
    state: Consumed, consumer_group: str = "", topic: str = "", *, consumers: Iterable[tuple[str, str]] = ()
) -> list[TopicProgress]:
    """Return the progress of each consumer group in each topic that it consumes.

    A topic with messages that no consumer group consumes has a row, too.
    Sorted by topic, then consumer group. `consumer_group`, `topic`: return only these; "" means all.
    `consumers`: further pairs (consumer group, topic) to count. They may have no position here; then all
    messages of the topic are ahead of them.
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
        if not known and not consumer_group:
            found += _untouched(queues, each)
        found += [
            _of(table, name, known[name], queues, each)
            for name in sorted(known)
            if consumer_group in ("", name)
        ]
    return found


def consumers_by_topic(state: Consumed) -> dict[int, set[int]]:
    """Return the ids of the consumer groups that `progress` counts as consumers here, by topic id."""
    return _consumers(state, state.consumption.copy())


def _consumers(state: Consumed, table: Iterable[ConsumptionKey]) -> dict[int, set[int]]:
    found = _with_position(table)
    for group_id in state.memberships.group_ids():
        membership = state.memberships.get(group_id)
        for name in membership.subscribed if membership is not None else ():
            if (topic := state.topics.find(name)) is not None:
                found.setdefault(topic.topic_id, set()).add(group_id)
    return found


def _with_position(table: Iterable[ConsumptionKey]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for group_id, topic_id, _ in table:
        found.setdefault(topic_id, set()).add(group_id)
    return found


def _untouched(queues: list[ConsumeQueue], topic: Topic) -> Iterator[TopicProgress]:
    held = [queue.end - queue.begin for queue in queues]
    if any(held):
        yield TopicProgress("", topic.name, sum(map(bool, held)), sum(held))


def _of(
    table: dict[ConsumptionKey, Consumption],
    name: str,
    consumer_group: ConsumerGroup | None,
    queues: list[ConsumeQueue],
    topic: Topic,
) -> TopicProgress:
    """Return the row of a consumer group. `consumer_group` None: it consumes only in other broker groups."""
    count = behind = leased = lost = parked = 0
    for queue in queues:
        known = table.get((consumer_group.group_id, *queue.key)) if consumer_group is not None else None
        if known is not None:
            leased += known.leased_count
            lost += known.lost
            parked += len(known.parked)
        left = queue.end - (
            _begin(consumer_group, queue) if known is None else max(known.committed, queue.begin)
        )
        if left > 0:
            count += 1
            behind += left
    return TopicProgress(name, topic.name, count, behind, leased, lost, parked)


def _begin(consumer_group: ConsumerGroup | None, queue: ConsumeQueue) -> int:
    """Return the start offset of `consumer_group` in a queue in which it has no position."""
    return queue.end if consumer_group is not None and consumer_group.start == LATEST else queue.begin


def missed(state: Consumed, consumers: Iterable[tuple[str, str]]) -> list[TopicProgress]:
    """Return the rows of `progress` that have a backlog or parked messages.

    The trace topic does not count while no consumer group consumes it.
    `consumers`: (consumer group, topic) of other broker groups; they count here even without a position.
    """
    left = [row for row in progress(state, consumers=consumers) if row.behind or row.parked]
    return [row for row in left if row.group or row.topic != TRACE_TOPIC]


@dataclass(frozen=True, slots=True)
class Need:
    """Lowest queue offset that some consumer group, or a hold, still needs."""

    offset: int
    group_id: int  # NO_CONSUMER: no consumer group has a position in the topic, which keeps unread messages
    parked: bool = False  # the message at `offset` is parked for that consumer group
    held_by: str = ""  # no consumer group: name of the hold that needs it


def unconsumed(state: Consumed, *, kept_only: bool = False) -> dict[QueueKey, Need]:
    """Return the lowest needed offset of every queue of which a consumer group needs stored messages.

    A consumer group with a position in a topic needs the messages that it has not acknowledged and those that
    are parked for it. A topic that keeps unread messages is needed as a whole while no consumer group has a
    position in it. `kept_only`: consider only topics that keep unread messages.
    """
    lowest: dict[QueueKey, Need] = {}
    topics = [topic for topic in state.topics if topic.keep_unread or not kept_only]
    table = state.consumption.copy() if topics else {}
    here = _with_position(table)
    for topic in topics:
        consumer_groups = [
            consumer_group
            for group_id in sorted(here.get(topic.topic_id, ()))
            if (consumer_group := state.groups.get(group_id)) is not None
        ]
        for queue in state.queues_of(topic) if consumer_groups or topic.keep_unread else ():
            needs = [_need(each, table.get((each.group_id, *queue.key)), queue) for each in consumer_groups]
            need = min(needs or [Need(queue.begin, NO_CONSUMER)], key=lambda need: need.offset)
            if need.offset < queue.end:
                lowest[queue.key] = need
    return lowest


def _need(consumer_group: ConsumerGroup, known: Consumption | None, queue: ConsumeQueue) -> Need:
    if known is None:
        return Need(_begin(consumer_group, queue), consumer_group.group_id)
    offset = max(known.first_needed, queue.begin)
    return Need(offset, consumer_group.group_id, offset < known.committed)
