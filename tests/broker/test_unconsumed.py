"""What consumer groups still have to read, as `protect_unconsumed` counts it."""

from __future__ import annotations

from ledgermq.broker.commands import LATEST, CommitOffsets, DeleteGroup, LogStart, TrimQueues, position_rows
from ledgermq.broker.unconsumed import Need, Protection, protection, unconsumed

from .entry_log import Node


def commit(node: Node, group: int, *rows: tuple[int, int, int]) -> None:
    node.command(CommitOffsets(group, position_rows(rows)))


def test_a_group_needs_its_queues_from_where_it_stands_and_others_need_nothing() -> None:
    node = Node()
    topic, group, idle = node.topic(queues=2), node.group("billing"), node.group("idle")
    node.fill(topic, 0, 10)
    node.fill(topic, 1, 10)
    assert unconsumed(node.state) == {}, "nobody has ever consumed"
    commit(node, group, (topic, 0, 4), (topic, 1, 10))
    assert unconsumed(node.state) == {(topic, 0): Need(4, group)}, "all of queue 1 is done"
    commit(node, idle, (topic, 0, 7), (topic, 1, 9))
    assert unconsumed(node.state) == {(topic, 0): Need(4, group), (topic, 1): Need(9, idle)}
    node.command(DeleteGroup(group))
    assert unconsumed(node.state) == {(topic, 0): Need(7, idle), (topic, 1): Need(9, idle)}


def test_a_queue_of_a_consumed_topic_without_a_position_is_needed_from_where_the_group_would_begin() -> None:
    node = Node()
    topic, group, late = node.topic(queues=2), node.group("billing"), node.group("late", start=LATEST)
    node.fill(topic, 0, 3)
    node.fill(topic, 1, 3)
    commit(node, late, (topic, 0, 3))
    assert unconsumed(node.state) == {}
    commit(node, group, (topic, 0, 3))
    assert unconsumed(node.state) == {(topic, 1): Need(0, group)}
    node.command(TrimQueues(position_rows([(topic, 1, 2)])))
    assert unconsumed(node.state) == {(topic, 1): Need(2, group)}, "what is deleted is needed no more"


def test_the_log_is_needed_from_the_oldest_message_that_somebody_needs() -> None:
    node = Node()
    orders, bills = node.topic("orders", queues=1), node.topic("bills", queues=1)
    group = node.group("billing")
    assert protection(node.state) is None
    node.fill(orders, 0, 2)
    first_bill = node.log.end
    node.fill(bills, 0, 2)
    later_order = node.log.end
    node.fill(orders, 0, 2)
    commit(node, group, (orders, 0, 2), (bills, 0, 0))
    found = protection(node.state)
    assert isinstance(found, Protection)
    assert (found.group, found.topic) == ("billing", "bills")
    assert first_bill < found.physical_offset < later_order
    commit(node, group, (bills, 0, 2))
    found = protection(node.state)
    assert isinstance(found, Protection)
    assert found.topic == "orders" and found.physical_offset > later_order
    node.command(LogStart(2, node.log.end, position_rows([(orders, 0, 4)])))
    assert protection(node.state) is None
