"""How far consumer groups are, topic by topic: what `ledgermq group lag` shows, and what a drain waits for.

A group that has a position in one queue of a topic consumes the topic: in its other queues it has everything before it,
unless it begins at the latest message. Pure: reads the state, changes nothing.
Owns: the counting.   Must not: decide whether what is left may be given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .commands import LATEST
from .consume_queue import ConsumeQueue, QueueKey
from .consumption import ConsumptionKey
from .groups import ConsumerGroup
from .leases import Consumption
from .state import BrokerState
from .topics import Topic


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """A consumer group in a topic; `group` "": nobody has consumed from it, and `behind` is all that it holds."""

    group: str
    topic: str
    queues: int = 0  # with messages that are not finished
    behind: int = 0
    leased: int = 0
    lost: int = 0


def progress(state: BrokerState, group: str = "", topic: str = "") -> list[TopicProgress]:
    """Return every consumer group in every topic that it consumes, and topics with messages that nobody consumes.

    By topic, then group. `group`, `topic`: only these; "" all.
    """
    table = state.consumption.copy()
    consumers: dict[int, set[int]] = {}
    for group_id, topic_id, _ in table:
        consumers.setdefault(topic_id, set()).add(group_id)
    found: list[TopicProgress] = []
    for each in sorted(state.topics, key=lambda each: each.name):
        if topic not in ("", each.name):
            continue
        names = {
            known.name: known
            for group_id in consumers.get(each.topic_id, ())
            if (known := state.groups.get(group_id)) is not None
        }
        if not names and not group:
            found += _untouched(state, each)
        found += [_of(state, table, names[name], each) for name in sorted(names) if group in ("", name)]
    return found


def unfinished(rows: list[TopicProgress]) -> list[TopicProgress]:
    """Return those that still have something to consume."""
    return [row for row in rows if row.behind]


def _untouched(state: BrokerState, topic: Topic) -> Iterator[TopicProgress]:
    held = [queue.end - queue.begin for queue in state.queues_of(topic)]
    if any(held):
        yield TopicProgress("", topic.name, sum(map(bool, held)), sum(held))


def _of(
    state: BrokerState, table: dict[ConsumptionKey, Consumption], group: ConsumerGroup, topic: Topic
) -> TopicProgress:
    queues = behind = leased = lost = 0
    for queue in state.queues_of(topic):
        left = queue.end - _finished(table, group, queue.key, queue)
        queues += bool(left)
        behind += left
        leased += state.leased_count(group.group_id, *queue.key)
        lost += state.lost_count(group.group_id, *queue.key)
    return TopicProgress(group.name, topic.name, queues, behind, leased, lost)


def _finished(
    table: dict[ConsumptionKey, Consumption], group: ConsumerGroup, key: QueueKey, queue: ConsumeQueue
) -> int:
    """Everything below it is finished, or was never meant for the group."""
    known = table.get((group.group_id, *key))
    if known is not None:
        return min(max(known.committed, queue.begin), queue.end)
    return queue.end if group.start == LATEST else queue.begin
