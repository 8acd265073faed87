"""What consumer groups still have to read, as `protect_unconsumed` counts it."""

from __future__ import annotations

import numpy as np

from ledgermq.broker.state.commands import (
    LATEST,
    CommitOffsets,
    DeleteGroup,
    GrantLeases,
    LogStart,
    QueueGrant,
    SetTopicKeepUnread,
    TrimQueues,
    position_rows,
)
from ledgermq.broker.state.consume_queue import QueueKey
from ledgermq.broker.state.unconsumed import NOBODY_YET, Need, Protection, protection, unconsumed
from tests.raft.simulated_disk import SimulatedDisk

from ..checkpoint.test_checkpoint import DATA, store_on, write
from ..entry_log import Node


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


def test_what_is_leased_and_not_acknowledged_is_still_needed() -> None:
    node = Node()
    topic, group = node.topic(queues=1), node.group("billing")
    node.fill(topic, 0, 10)
    commit(node, group, (topic, 0, 0))
    grant = QueueGrant(0, 0, 6, np.arange(6, dtype=np.int64))
    node.command(GrantLeases(group, topic, 60_000, (grant,), 0))
    consumption = node.state.consumption.get((group, topic, 0))
    assert consumption is not None and consumption.position == 6
    assert unconsumed(node.state) == {(topic, 0): Need(0, group)}


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
    assert protection(node.state, {}) is None
    node.fill(orders, 0, 2)
    first_bill = node.log.end
    node.fill(bills, 0, 2)
    later_order = node.log.end
    node.fill(orders, 0, 2)
    commit(node, group, (orders, 0, 2), (bills, 0, 0))
    found = protection(node.state, {})
    assert isinstance(found, Protection)
    assert (found.group, found.topic) == ("billing", "bills")
    assert first_bill < found.physical_offset < later_order
    commit(node, group, (bills, 0, 2))
    found = protection(node.state, {})
    assert isinstance(found, Protection)
    assert found.topic == "orders" and found.physical_offset > later_order
    node.command(LogStart(2, node.log.end, position_rows([(orders, 0, 4)])))
    assert protection(node.state, {}) is None


def test_a_topic_that_keeps_what_is_unread_is_needed_by_its_consumer_groups_and_wholly_without_any() -> None:
    node = Node()
    kept, other = node.topic("kept", queues=2), node.topic("other", queues=1)
    group = node.group("billing")
    for key in ((kept, 0), (kept, 1), (other, 0)):
        node.fill(*key, 4)
    commit(node, group, (other, 0, 1))
    assert unconsumed(node.state, kept_only=True) == {}, "no topic asks for it"
    node.command(SetTopicKeepUnread(kept, True))
    whole = {(kept, 0): Need(0, NOBODY_YET), (kept, 1): Need(0, NOBODY_YET)}
    assert unconsumed(node.state, kept_only=True) == whole
    assert unconsumed(node.state) == whole | {(other, 0): Need(1, group)}
    commit(node, group, (kept, 0, 3))
    read = {(kept, 0): Need(3, group), (kept, 1): Need(0, group)}
    assert unconsumed(node.state, kept_only=True) == read
    commit(node, group, (kept, 0, 4), (kept, 1, 4))
    assert unconsumed(node.state, kept_only=True) == {}
    node.command(DeleteGroup(group))
    assert unconsumed(node.state, kept_only=True) == whole, "no consumer group consumes it any more"
    node.command(SetTopicKeepUnread(kept, False))
    assert unconsumed(node.state, kept_only=True) == {}


def test_who_holds_the_log_is_told_with_what_to_do() -> None:
    node = Node()
    topic, group = node.topic("orders", queues=1), node.group("billing")
    node.command(SetTopicKeepUnread(topic, True))
    node.fill(topic, 0, 4)
    found = protection(node.state, {}, kept_only=True)
    assert isinstance(found, Protection)
    assert "held by topic orders, which no consumer group consumes" in found.hold
    assert "group delete" not in found.hold, "there is none"
    commit(node, group, (topic, 0, 1))
    found = protection(node.state, {}, kept_only=True)
    assert isinstance(found, Protection)
    assert found.hold == (
        "The log, which all topics of the broker group share, is held by consumer group billing in topic orders: that topic keeps "
        "what is unread. To free it: let billing consume (not while all writes are refused), ledgermq group delete billing (when another one consumes the topic), or "
        "ledgermq topic update orders --no-keep-unread; else more disk"
    )


def test_the_place_of_the_log_is_found_whatever_the_cache_of_cold_queues_holds() -> None:
    """The units of more queues than the cache has blocks, on a file system where each read has to be done by somebody else."""
    count = 300
    disk = SimulatedDisk()
    disk.make_directory(DATA)
    node = Node()
    topic = node.topic("orders", queues=count)
    node.command(SetTopicKeepUnread(topic, True))
    for queue in range(count):
        node.fill(topic, queue, 1, first_id=queue, size=8)
    before = store_on(disk)
    before.load()
    node.state.queues.attach(before.files)
    write(before, node.state)
    store = store_on(disk)
    state = store.load()
    store.files.read_nowait = lambda *_: None  # type: ignore[method-assign]
    known: dict[tuple[QueueKey, int], int] = {}
    for turn in range(100):
        found = protection(state, known, kept_only=True)
        if not isinstance(found, list):
            break
        assert len(found) <= 64, turn
        for read in found:
            state.queues.admit(read, store.files.load(read))
    assert isinstance(found, Protection) and found.physical_offset == min(known.values())
    assert len(known) == count
