"""What is owed is merged and never dropped; the state says what is over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.broker.leader.releases import ROWS_MAX, OwedLeases
from ledgermq.broker.state.commands import ReleaseLeases, lease_rows
from ledgermq.broker.state.machine import BrokerState

from ..entry_log import Node
from ..receiving import ack, receive, request

Row = tuple[int, int, int, int, int]  # group, topic, queue, offset, lease


def command(offsets: range | list[int], group: int = 1, lease: int = 7, queue: int = 0) -> ReleaseLeases:
    return ReleaseLeases(group, 2, lease_rows([(queue, offset, lease) for offset in offsets]))


def rows_of(command: ReleaseLeases) -> list[Row]:
    return [(command.group_id, command.topic_id, *row) for row in command.rows.tolist()]


def taken(owed: OwedLeases) -> list[ReleaseLeases]:
    found = []
    while (each := owed.take()) is not None:
        found.append(each)
    return found


def test_twenty_thousand_rows_of_one_lease_are_one_range() -> None:
    owed = OwedLeases()
    for offset in range(20_000, 0, -1):
        owed.add(command([offset]))
    assert len(owed) == 1
    assert [row[3] for each in taken(owed) for row in rows_of(each)] == list(range(1, 20_001))
    assert not owed


def test_a_command_names_no_more_than_fits_and_groups_have_their_turns() -> None:
    owed = OwedLeases()
    owed.add(command(range(2 * ROWS_MAX + 1)))
    owed.add(command(range(3), group=5))
    assert [(each.group_id, len(each.rows)) for each in taken(owed)] == [
        (1, ROWS_MAX),
        (5, 3),
        (1, ROWS_MAX),
        (1, 1),
    ]


def test_nothing_is_owed_for_a_command_without_rows() -> None:
    owed = OwedLeases()
    owed.add(command([]))
    assert not owed
    assert owed.take() is None


SMALL = st.tuples(
    st.integers(1, 2), st.integers(1, 2), st.integers(0, 1), st.integers(0, 30), st.integers(8, 9)
)


@given(st.lists(st.one_of(SMALL, st.none()), max_size=60))
def test_it_is_a_set_of_rows_however_they_come(steps: list[Row | None]) -> None:
    """None takes a command out and puts it back in half of it."""
    owed, expected = OwedLeases(), set[Row]()
    for step in steps:
        if step is not None:
            owed.add(ReleaseLeases(step[0], step[1], lease_rows([step[2:]])))
            expected.add(step)
        elif (each := owed.take()) is not None:
            kept = each.rows[: len(each.rows) // 2]
            expected -= set(rows_of(ReleaseLeases(each.group_id, each.topic_id, each.rows[len(kept) :])))
            owed.add(ReleaseLeases(each.group_id, each.topic_id, kept))
    found = [row for each in taken(owed) for row in rows_of(each)]
    assert sorted(found) == sorted(expected)


class Consumer:
    """A group that was granted six messages of one queue."""

    def __init__(self) -> None:
        self.node = Node()
        self.topic, self.group = self.node.topic(queues=1), self.node.group()
        self.node.fill(self.topic, 0, 6)
        self.asked = request(self.group, self.topic, 6, session=9)
        self.found = receive(self.node, self.asked)
        self.lease = self.found[0].lease_id
        self.owed = OwedLeases()
        rows = [(0, each.queue_offset, each.lease_id) for each in self.found]
        self.owed.add(ReleaseLeases(self.group, self.topic, lease_rows(rows)))

    def still_owed(self, state: BrokerState | None = None) -> list[int]:
        self.owed.forget_ended(state or self.node.state)
        found = self.owed.take()
        return found.rows["offset"].tolist() if found is not None else []


def test_what_the_state_still_leases_is_still_owed() -> None:
    assert Consumer().still_owed() == [0, 1, 2, 3, 4, 5]


def test_what_was_acknowledged_is_owed_no_more() -> None:
    consumer = Consumer()
    ack(consumer.node, consumer.asked, consumer.found[1:3])
    assert consumer.still_owed() == [0, 3, 4, 5]


def test_what_was_released_under_another_leader_is_owed_no_more() -> None:
    consumer = Consumer()
    rows = lease_rows([(0, offset, consumer.lease) for offset in (0, 1, 2, 3, 5)])
    consumer.node.command(ReleaseLeases(consumer.group, consumer.topic, rows))
    assert consumer.still_owed() == [4]


def test_what_another_consumer_has_by_now_is_owed_no_more() -> None:
    consumer = Consumer()
    rows = lease_rows([(0, offset, consumer.lease) for offset in (2, 3)])
    consumer.node.command(ReleaseLeases(consumer.group, consumer.topic, rows))
    consumer.node.log.now += 1
    again = receive(consumer.node, request(consumer.group, consumer.topic, 6, session=11))
    assert [each.queue_offset for each in again] == [2, 3]
    assert consumer.still_owed() == [0, 1, 4, 5]


def test_a_deleted_topic_owes_nothing() -> None:
    consumer = Consumer()
    consumer.node.state.consumption.remove_topic(consumer.topic)
    assert consumer.still_owed() == []


def test_what_a_lagging_node_has_not_heard_of_is_still_owed() -> None:
    assert Consumer().still_owed(BrokerState()) == [0, 1, 2, 3, 4, 5]
