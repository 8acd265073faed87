"""How far consumer groups are, and what they still have to read."""

from __future__ import annotations

import numpy as np

from ledgermq.broker.state import commands as c
from ledgermq.broker.state.backlog import NO_CONSUMER, Need, progress, unconsumed
from ledgermq.broker.state.effects import TopicProgress

from ..entry_log import Node, filled


def commit(node: Node, group: int, *rows: tuple[int, int, int]) -> None:
    node.command(c.CommitOffsets(group, c.position_rows(rows)))


def test_progress_counts_unfinished_messages_and_lists_topics_without_a_consumer_group() -> None:
    node = Node()
    orders, lonely = node.topic("orders"), node.topic("lonely")
    node.topic("empty")
    billing, late = node.group("billing"), node.group("late", start=c.LATEST)
    node.group("idle")
    for queue in (0, 1):
        node.fill(orders, queue, 10)
    node.fill(lonely, 0, 3)
    node.commit_offsets(billing, (orders, 0, 4))
    node.command(c.SetPositions(late, c.position_rows([(orders, 0, 10)])))
    rows = progress(node.state)
    assert rows == [
        TopicProgress("", "lonely", 1, 3),
        TopicProgress("billing", "orders", 2, 16),
        TopicProgress("late", "orders", 0, 0),
    ]
    assert progress(node.state, "billing") == rows[1:2]
    assert progress(node.state, topic="lonely") == rows[:1]
    node.commit_offsets(billing, (orders, 0, 10), (orders, 1, 10))
    assert [row.behind for row in progress(node.state, topic="orders")] == [0, 0]


def test_a_group_needs_its_queues_from_where_it_stands_and_others_need_nothing() -> None:
    node = Node()
    topic, group, idle = node.topic(queues=2), node.group("billing"), node.group("idle")
    node.fill(topic, 0, 10)
    node.fill(topic, 1, 10)
    assert unconsumed(node.state) == {}, "no consumer group has a position"
    commit(node, group, (topic, 0, 4), (topic, 1, 10))
    assert unconsumed(node.state) == {(topic, 0): Need(4, group)}, "all of queue 1 is done"
    commit(node, idle, (topic, 0, 7), (topic, 1, 9))
    assert unconsumed(node.state) == {(topic, 0): Need(4, group), (topic, 1): Need(9, idle)}
    node.command(c.DeleteConsumerGroup(group))
    assert unconsumed(node.state) == {(topic, 0): Need(7, idle), (topic, 1): Need(9, idle)}


def test_what_is_leased_and_not_acknowledged_is_still_needed() -> None:
    node, topic, group = filled(10)
    commit(node, group, (topic, 0, 0))
    grant = c.QueueGrant(0, 0, 6, np.arange(6, dtype=np.int64))
    node.command(c.GrantLeases(group, topic, 60_000, (grant,), 0))
    consumption = node.state.consumption.get((group, topic, 0))
    assert consumption is not None and consumption.position == 6
    assert unconsumed(node.state) == {(topic, 0): Need(0, group)}


def test_a_queue_of_a_consumed_topic_without_a_position_is_needed_from_where_the_group_would_begin() -> None:
    node = Node()
    topic, group, late = node.topic(queues=2), node.group("billing"), node.group("late", start=c.LATEST)
    node.fill(topic, 0, 3)
    node.fill(topic, 1, 3)
    commit(node, late, (topic, 0, 3))
    assert unconsumed(node.state) == {}
    commit(node, group, (topic, 0, 3))
    assert unconsumed(node.state) == {(topic, 1): Need(0, group)}
    node.trim((topic, 1, 2))
    assert unconsumed(node.state) == {(topic, 1): Need(2, group)}, "what is deleted is needed no more"


def test_a_topic_that_keeps_what_is_unread_is_needed_by_its_consumer_groups_and_wholly_without_any() -> None:
    node = Node()
    kept, other = node.topic("kept", queues=2), node.topic("other", queues=1)
    group = node.group("billing")
    for key in ((kept, 0), (kept, 1), (other, 0)):
        node.fill(*key, 4)
    commit(node, group, (other, 0, 1))
    assert unconsumed(node.state, kept_only=True) == {}, "no topic asks for it"
    node.command(c.SetTopicKeepUnread(kept, True))
    whole = {(kept, 0): Need(0, NO_CONSUMER), (kept, 1): Need(0, NO_CONSUMER)}
    assert unconsumed(node.state, kept_only=True) == whole
    assert unconsumed(node.state) == whole | {(other, 0): Need(1, group)}
    commit(node, group, (kept, 0, 3))
    read = {(kept, 0): Need(3, group), (kept, 1): Need(0, group)}
    assert unconsumed(node.state, kept_only=True) == read
    commit(node, group, (kept, 0, 4), (kept, 1, 4))
    assert unconsumed(node.state, kept_only=True) == {}
    node.command(c.DeleteConsumerGroup(group))
    assert unconsumed(node.state, kept_only=True) == whole, "no consumer group consumes it any more"
    node.command(c.SetTopicKeepUnread(kept, False))
    assert unconsumed(node.state, kept_only=True) == {}
