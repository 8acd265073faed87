"""From where on the log is needed, and by whom."""

from __future__ import annotations

from ledgermq.broker.retention.protection import Protection, protection
from ledgermq.broker.state.commands import LogStart, SetTopicKeepUnread, position_rows
from ledgermq.broker.state.consume_queue import QueueKey
from tests.raft.simulated_disk import SimulatedDisk

from ..checkpoint.test_checkpoint import DATA, store_on, write
from ..entry_log import Node
from ..state.test_backlog import commit


def test_the_log_is_needed_from_the_oldest_message_that_a_consumer_group_needs() -> None:
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
    assert (found.consumer_group, found.topic) == ("billing", "bills")
    assert first_bill < found.physical_offset < later_order
    commit(node, group, (bills, 0, 2))
    found = protection(node.state, {})
    assert isinstance(found, Protection)
    assert found.topic == "orders" and found.physical_offset > later_order
    node.command(LogStart(2, node.log.end, position_rows([(orders, 0, 4)])))
    assert protection(node.state, {}) is None


def test_an_operator_is_told_what_holds_the_log_and_what_to_do() -> None:
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
        "The log, which all topics of the broker group share, is held by consumer group billing in topic "
        "orders: that topic keeps what is unread. To free it: let billing consume (not while all writes are "
        "refused), ledgermq group delete billing (when another one consumes the topic), or "
        "ledgermq topic update orders --no-keep-unread; else more disk"
    )


def test_the_place_of_the_log_is_found_whatever_the_cache_of_cold_queues_holds() -> None:
    """More queues than the cache has blocks, on a file system where every read is a cold one."""
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
