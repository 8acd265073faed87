"""How far consumer groups are, topic by topic: what `ledgermq group lag` shows, and what a drain waits for.

A group that has a position in one queue of a topic consumes the topic: in its other queues it has everything before it,
unless it begins at the latest message. Pure: reads the state, changes nothing.
Owns: the counting.   Must not: decide whether what is left may be given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .commands import LATEST
from .consume_queue import ConsumeQueue
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
        known = [state.groups.get(group_id) for group_id in consumers.get(each.topic_id, ())]
        names = {one.name: one for one in known if one is not None}
        queues = state.queues_of(each)
        if not names and not group:
            found += _untouched(queues, each)
        found += [_of(table, names[name], queues, each) for name in sorted(names) if group in ("", name)]
    return found


def unfinished(rows: list[TopicProgress]) -> list[TopicProgress]:
    """Return those that still have something to consume."""
    return [row for row in rows if row.behind]


def _untouched(queues: list[ConsumeQueue], topic: Topic) -> Iterator[TopicProgress]:
    held = [queue.end - queue.begin for queue in queues]
    if any(held):
        yield TopicProgress("", topic.name, sum(map(bool, held)), sum(held))


def _of(
    table: dict[ConsumptionKey, Consumption], group: ConsumerGroup, queues: list[ConsumeQueue], topic: Topic
) -> TopicProgress:
    count = behind = leased = lost = 0
    group_id, topic_id, untouched_is_done = group.group_id, topic.topic_id, group.start == LATEST
    for number, queue in enumerate(queues):
        known = table.get((group_id, topic_id, number))
        if known is not None:
            left = queue.end - max(known.committed, queue.begin)
            leased += known.leased_count
            lost += known.lost
        else:
            left = 0 if untouched_is_done else queue.end - queue.begin
        if left > 0:
            count += 1
            behind += left
    return TopicProgress(group.name, topic.name, count, behind, leased, lost)
