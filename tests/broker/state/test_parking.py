"""Parked messages: out of delivery after their last failure, visible, and delivered again on release."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ledgermq.broker.admin.listings import describe_topic
from ledgermq.broker.checkpoint.layout import encode_snapshot, take_snapshot
from ledgermq.broker.leader import selection
from ledgermq.broker.leader.selection import Delivery, ReceiveRequest
from ledgermq.broker.official.receive_at_leader import COMMAND_BYTES, MESSAGE_BYTES
from ledgermq.broker.state import commands as c
from ledgermq.broker.state import consumption
from ledgermq.broker.state.backlog import Need, progress, unconsumed
from ledgermq.broker.state.codecs import encode
from ledgermq.broker.state.effects import Effects, ModeResult, Parked, RowsResult
from ledgermq.proto import admin_pb2

from ..entry_log import Node, checkpoint, filled, restored, result_of
from ..receiving import accepted, ack, change, deliveries, offsets, receive, request


def parking_node(messages: int = 1, **group: Any) -> tuple[Node, int, int, ReceiveRequest]:
    """A node whose group knows parking; a topic of one queue, and a consumer group."""
    node = Node()
    node.command(c.FeatureLevel(c.PARKED_MESSAGES))
    topic, number = node.topic(queues=1), node.group(**{"max_attempts": 2, **group})
    node.fill(topic, 0, messages)
    return node, topic, number, request(number, topic)


def fail(node: Node, asked: ReceiveRequest, times: int = 2) -> list[Delivery]:
    """Receive so often, and acknowledge nothing."""
    found: list[Delivery] = []
    for _ in range(times):
        found = receive(node, asked)
        node.log.now += 1_000
    return found


def parked(node: Node, topic: int, group: int) -> list[tuple[int, int, int]]:
    """Return (offset, attempts, reason) of what is parked in queue 0."""
    found = node.state.consumption.get((group, topic, 0))
    assert found is not None
    return [(offset, attempts, reason) for offset, _, attempts, reason in found.parked.tolist()]


def restarted(node: Node) -> bytes:
    raw = checkpoint(node.state)
    again = restored(raw)
    assert b"".join(encode_snapshot(take_snapshot(again))) == raw
    return raw


def test_a_message_that_failed_for_the_last_time_is_parked_and_comes_no_more() -> None:
    node, topic, group, asked = parking_node(3)
    first = receive(node, asked)
    ack(node, asked, first[1:])
    node.log.now += 1_000
    assert [item.attempt for item in receive(node, asked)] == [2]
    node.log.now += 1_000
    assert node.view.selector.has_deliverable(asked, node.log.now)
    assert receive(node, asked) == []
    assert parked(node, topic, group) == [(0, 2, c.ParkReason.ATTEMPTS)]
    assert not node.view.selector.has_deliverable(asked, node.log.now)
    node.log.now += 1_000_000
    assert receive(node, asked) == []
    assert node.state.committed_offset(group, topic, 0) == 3, "it holds no offset back"
    assert node.state.queue_end(topic, 0) == 3 and node.state.queue_begin(topic, 0) == 0
    (row,) = progress(node.state)
    assert (row.behind, row.leased, row.parked) == (0, 0, 1)


def test_other_expired_messages_come_with_the_selection_that_parks() -> None:
    node, topic, group, asked = parking_node(2)
    receive(node, asked)
    node.log.now += 1_000
    again = receive(node, request(group, topic, 1))
    assert offsets(again) == [(0, 0)]
    node.log.now += 1_000
    turn = node.view.open_turn()
    plan = turn.grant(asked, node.log.now)
    other = turn.grant(asked, node.log.now)
    assert plan.parks and not other.parks, "reserved until the turn ends"
    effects = node.commit(turn)
    assert offsets(deliveries(plan, effects.results)) == [(0, 1)]
    assert effects.parked == [Parked(group, topic, 0, 1, 1)]
    assert parked(node, topic, group) == [(0, 2, c.ParkReason.ATTEMPTS)]


def test_a_message_that_was_given_back_or_delayed_is_judged_by_its_deliveries() -> None:
    node, topic, group, asked = parking_node()
    (item,) = receive(node, asked)
    assert change(node, asked, item, 0) == [True], "not acknowledged: at once, please"
    node.log.now += 1
    assert [each.attempt for each in receive(node, asked)] == [2]
    node.log.now += 1_000
    assert receive(node, asked) == []
    assert parked(node, topic, group) == [(0, 2, c.ParkReason.ATTEMPTS)]


def test_nothing_is_parked_before_every_node_knows_how() -> None:
    node, topic, group = filled(1, max_attempts=2)
    asked = request(group, topic)
    assert [item.attempt for item in fail(node, asked, 5)] == [5]
    node.command(c.FeatureLevel(c.PARKED_MESSAGES))
    assert receive(node, asked) == []
    assert parked(node, topic, group) == [(0, 5, c.ParkReason.ATTEMPTS)]


def test_a_released_message_comes_again_with_all_its_attempts() -> None:
    node, topic, group, asked = parking_node()
    fail(node, asked, 3)
    effects = node.command(
        c.ReleaseParked(group, c.position_rows([(topic, 0, 0), (topic, 0, 7), (99, 0, 0)]))
    )
    assert result_of(effects, RowsResult).accepted.tolist() == [True, False, False]
    assert effects.released == {(group, topic)}, "waiting polls are woken"
    assert [(item.queue_offset, item.attempt) for item in fail(node, asked, 1)] == [(0, 1)]
    (item,) = receive(node, asked)
    assert ack(node, asked, [item]) == [True]
    assert parked(node, topic, group) == []
    assert node.state.committed_offset(group, topic, 0) == 1


def test_beyond_the_bound_of_a_queue_messages_are_delivered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is skipped silently: a thousand parked ones are no poison messages but another fault."""
    monkeypatch.setattr(consumption, "PARKED_MAX", 2)
    monkeypatch.setattr(selection, "PARKED_MAX", 2)
    node, topic, group, asked = parking_node(4)
    fail(node, asked)
    assert offsets(receive(node, asked)) == [(0, 2), (0, 3)]
    assert len(parked(node, topic, group)) == 2
    node.log.now += 1_000
    assert offsets(receive(node, asked)) == [(0, 2), (0, 3)]
    lease = node.state.consumption.get((group, topic, 0))
    assert lease is not None
    rows = c.park_rows([(0, 2, int(lease.leases["lease_id"][0]), 0)])
    assert accepted(node, c.ParkMessages(group, topic, rows, c.ParkReason.FORWARDED)) == [False]
    node.command(c.ReleaseParked(group, c.position_rows([(topic, 0, 0)])))
    node.log.now += 1_000
    assert offsets(receive(node, asked)) == [(0, 0), (0, 3)], "there is room for one more"


def test_one_selection_parks_a_bounded_number_and_renews_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "MAX_PARKED", 2)
    node, topic, group, asked = parking_node(5)
    fail(node, asked)
    assert receive(node, asked) == []
    assert len(parked(node, topic, group)) == 2
    assert receive(node, asked) == [] and receive(node, asked) == []
    assert len(parked(node, topic, group)) == 5


def test_a_selection_adds_no_more_to_a_turn_than_it_says() -> None:
    """Else what shares the turn does not fit into the entry, and fails with it."""
    count = 32
    grants = tuple(
        c.QueueGrant(10_000 + i, 1 << 40, 1 << 41, np.array([1 << 40], np.int64)) for i in range(count)
    )
    parked = c.park_rows([(10_000 + i, 1 << 40, 1 << 30, 1 << 20) for i in range(selection.MAX_PARKED)])
    granted = encode(c.GrantLeases(1, 1, 60_000, grants, 0))
    taken = len(granted) + len(encode(c.ParkMessages(1, 1, parked, c.ParkReason.ATTEMPTS)))
    assert taken <= COMMAND_BYTES + count * MESSAGE_BYTES


def test_only_the_current_lease_can_be_parked() -> None:
    node, topic, group, asked = parking_node()
    (first,) = receive(node, asked)
    node.log.now += 1_000
    (second,) = receive(node, asked)

    def park(item: Delivery) -> list[bool]:
        rows = c.park_rows([(0, item.queue_offset, item.lease_id, 17)])
        return accepted(node, c.ParkMessages(group, topic, rows, c.ParkReason.FORWARDED))

    assert park(first) == [False], "another consumer has it"
    assert park(second) == [True]
    assert parked(node, topic, group) == [(0, 17, c.ParkReason.FORWARDED)], "what the consumer counted"
    assert park(second) == [False]
    assert ack(node, asked, [second]) == [False], "too late: it comes again when it is released"


# --- in order -------------------------------------------------------------------------------------------
def test_in_order_the_first_of_a_batch_is_parked_and_those_behind_it_begin_anew() -> None:
    node, topic, group, _ = parking_node(4, fifo=True)
    asked = request(group, topic, 3)
    fail(node, asked)
    assert receive(node, asked) == []
    assert parked(node, topic, group) == [(0, 2, c.ParkReason.ATTEMPTS)], "the others failed because of it"
    again = receive(node, asked)
    assert [(item.queue_offset, item.attempt) for item in again] == [(1, 1), (2, 1)]
    ack(node, asked, again)
    assert offsets(receive(node, asked)) == [(0, 3)]


def test_in_order_what_was_acknowledged_behind_a_parked_message_does_not_come_again() -> None:
    node, topic, group, _ = parking_node(3, fifo=True)
    asked = request(group, topic, 3)
    fail(node, asked, 1)
    again = receive(node, asked)
    ack(node, asked, again[1:2])
    node.log.now += 1_000
    assert receive(node, asked) == []
    assert parked(node, topic, group) == [(0, 2, c.ParkReason.ATTEMPTS)]
    assert offsets(receive(node, asked)) == [(0, 2)]


def test_in_order_a_forwarded_message_frees_its_queue() -> None:
    node, topic, group, _ = parking_node(2, fifo=True)
    asked = request(group, topic, 1, session=7)
    (item,) = receive(node, asked)
    other = request(group, topic, 1, session=8)
    assert receive(node, other) == []
    rows = c.park_rows([(0, 0, item.lease_id, 17)])
    effects = node.command(c.ParkMessages(group, topic, rows, c.ParkReason.FORWARDED))
    assert effects.released == {(group, topic)}, "waiting polls are woken"
    assert offsets(receive(node, other)) == [(0, 1)]


def test_in_order_a_released_message_does_not_bring_an_acknowledged_one_back() -> None:
    """It waits in front of the batch that is out, and is no part of it."""
    node, topic, group, _ = parking_node(4, fifo=True)
    asked = request(group, topic, 1, attempt_id="a")
    fail(node, asked, 2)
    receive(node, asked)
    batch = receive(node, request(group, topic, 3, attempt_id="b"))
    assert offsets(batch) == [(0, 1), (0, 2), (0, 3)]
    node.command(c.ReleaseParked(group, c.position_rows([(topic, 0, 0)])))
    assert offsets(receive(node, request(group, topic, 3, attempt_id="b"))) == offsets(batch)
    assert receive(node, asked) == [], "one batch at a time"
    ack(node, asked, batch)
    assert offsets(receive(node, asked)) == [(0, 0)]


def test_an_ordered_queue_full_of_parked_messages_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumption, "PARKED_MAX", 0)
    monkeypatch.setattr(selection, "PARKED_MAX", 0)
    node, topic, group, _ = parking_node(2, fifo=True)
    assert [item.attempt for item in fail(node, request(group, topic, 1), 4)] == [4]


# --- other events of a consumer group -------------------------------------------------------------------
def test_parked_messages_are_in_checkpoints() -> None:
    node, topic, group, _ = parking_node(3)
    before = restarted(node)
    fail(node, request(group, topic, 1), 3)
    raw = restarted(node)
    assert (before[4], raw[4]) == (1, 5), "older nodes read the rest"
    again = restored(raw)
    assert again.parked_count(group, topic, 0) == 1
    node.command(c.ReleaseParked(group, c.position_rows([(topic, 0, 0)])))
    assert restarted(node)[4] == 1


def test_a_reset_delivers_what_is_parked_behind_it_and_leaves_the_rest_parked() -> None:
    node, topic, group, asked = parking_node(4)
    fail(node, asked, 3)
    assert len(parked(node, topic, group)) == 4
    node.commit_offsets(group, (topic, 0, 2), reset=True)
    assert [offset for offset, _, _ in parked(node, topic, group)] == [0, 1]
    assert offsets(receive(node, request(group, topic))) == [(0, 2), (0, 3)]


def test_retention_takes_parked_messages_and_says_so() -> None:
    node, topic, group, asked = parking_node(4)
    fail(node, asked, 3)
    effects: Effects = node.trim((topic, 0, 3))
    (loss,) = effects.losses
    assert (loss.count, loss.begin) == (3, 3)
    assert [offset for offset, _, _ in parked(node, topic, group)] == [3]
    assert node.state.lost_count(group, topic, 0) == 3
    assert accepted(node, c.ReleaseParked(group, c.position_rows([(topic, 0, 1)]))) == [False]


def test_a_group_still_needs_what_is_parked_for_it() -> None:
    node, topic, group, _ = parking_node(3)
    asked = request(group, topic, 1)
    fail(node, asked, 3)
    ack(node, asked, receive(node, request(group, topic)))
    assert unconsumed(node.state) == {(topic, 0): Need(0, group, True)}
    node.command(c.SetBrokerGroupMode(c.BrokerGroupMode.DRAINING))
    result = result_of(node.command(c.SetBrokerGroupMode(c.BrokerGroupMode.REMOVED, True)), ModeResult)
    assert [(row.group, row.behind, row.parked) for row in result.left] == [("billing", 0, 1)]


def test_parked_messages_go_with_their_topic_and_with_their_group() -> None:
    node, topic, group, asked = parking_node(1)
    fail(node, asked, 3)
    node.command(c.DeleteTopic(topic))
    assert node.state.consumption.get((group, topic, 0)) is None
    node, topic, group, asked = parking_node(1)
    fail(node, asked, 3)
    node.command(c.DeleteConsumerGroup(group))
    rows = c.position_rows([(topic, 0, 0)])
    assert accepted(node, c.ReleaseParked(group, rows)) == [False]
    assert accepted(
        node, c.ParkMessages(group, topic, c.park_rows([(0, 0, 1, 0)]), c.ParkReason.ATTEMPTS)
    ) == [False]


def test_messages_that_no_consumer_requests_any_more_are_parked_by_the_housekeeping() -> None:
    node, topic, group, asked = parking_node(2)
    fail(node, asked)
    assert node.view.housekeeping(node.log.now + 1_000) == [], "not each second"
    (command,) = node.view.housekeeping(node.log.now + 15_000)
    assert isinstance(command, c.ParkMessages)
    node.command(command)
    assert [offset for offset, _, _ in parked(node, topic, group)] == [0, 1]
    assert node.view.housekeeping(node.log.now + 60_000) == []


def test_a_topic_is_described_with_who_lost_messages_of_it_and_for_whom_some_are_parked() -> None:
    node, topic, _, asked = parking_node(4)
    node.commit_offsets(node.group("quick"), (topic, 0, 4))
    fail(node, asked, 3)
    node.trim((topic, 0, 3))
    described = describe_topic(node.state, admin_pb2.DescribeTopicRequest(topic="orders"))
    assert [(each.group, each.lost, each.parked) for each in described.consumers] == [("billing", 3, 1)]
