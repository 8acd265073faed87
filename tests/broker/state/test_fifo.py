"""FIFO groups: one batch of a queue at a time, in order, again from its first open message."""

from __future__ import annotations

import pytest

from ledgermq.broker.state import commands as c

from ..entry_log import filled
from ..receiving import ack, offsets, receive, request


def test_a_fifo_queue_is_locked_while_a_batch_is_in_flight() -> None:
    node, topic, group = filled(5, fifo=True)
    asked = request(group, topic, 2, attempt_id="a")
    other = request(group, topic, 2, attempt_id="b")
    first = receive(node, asked)
    assert offsets(first) == [(0, 0), (0, 1)]
    assert receive(node, other) == []
    assert not node.view.selector.has_deliverable(other, node.log.now)
    again = receive(node, asked)
    assert (offsets(again), [item.attempt for item in again]) == (offsets(first), [1, 1])
    ack(node, asked, first[:1])
    assert receive(node, other) == []
    node.command(c.Ack(group, topic, c.lease_rows([(0, 1, first[1].lease_id)])))
    assert offsets(receive(node, other)) == [(0, 2), (0, 3)]


def test_a_repeated_fifo_batch_ends_before_a_message_whose_lease_has_ended() -> None:
    """Its handle is void; and what is behind it must not come before it."""
    node, topic, group = filled(5, fifo=True)
    asked = request(group, topic, 3, attempt_id="a")
    first = receive(node, asked)
    node.command(c.ReleaseLeases(group, topic, c.lease_rows([(0, 1, first[1].lease_id)])))
    assert offsets(receive(node, asked)) == [(0, 0)]
    ack(node, asked, first[:1])
    assert receive(node, asked) == []
    node.log.now += 1_000
    assert offsets(receive(node, asked)) == [(0, 1), (0, 2)]


def test_two_undecided_turns_do_not_share_a_fifo_queue() -> None:
    node, topic, group = filled(5, fifo=True)
    turn = node.view.open_turn()
    assert turn.grant(request(group, topic, 1), node.log.now).slot is not None
    assert turn.grant(request(group, topic, 1), node.log.now).slot is None


def test_an_expired_fifo_batch_comes_again_from_its_first_open_message_with_acknowledged_ones() -> None:
    node, topic, group = filled(5, fifo=True)
    asked = request(group, topic, 3)
    first = receive(node, asked)
    ack(node, asked, [first[1]])
    assert node.view.selector.next_expiry(group, topic) == node.log.now + 1_000
    node.log.now += 1_000
    again = receive(node, asked)
    assert offsets(again) == [(0, 0), (0, 1), (0, 2)]
    ack(node, asked, again)
    assert offsets(receive(node, asked)) == [(0, 3), (0, 4)]


def test_the_end_of_a_fifo_batch_wakes_those_who_wait() -> None:
    node, topic, group = filled(1, fifo=True)
    (item,) = receive(node, request(group, topic))
    effects = node.command(c.Ack(group, topic, c.lease_rows([(0, 0, item.lease_id)])))
    assert effects.released == {(group, topic)}


@pytest.mark.parametrize("how", ["retention", "an offset that was committed"])
def test_what_is_left_of_a_fifo_batch_when_its_open_message_goes_is_done(how: str) -> None:
    """Acknowledged messages come again only because of an open one before them."""
    node, topic, group = filled(5, fifo=True)
    asked = request(group, topic, 3)
    found = receive(node, asked)
    rows = c.lease_rows([(0, each.queue_offset, each.lease_id) for each in found[1:]])
    node.command(c.Ack(group, topic, rows))
    move: c.Command = c.CommitOffsets(group, c.position_rows([(topic, 0, 1)]))
    if how == "retention":
        move = c.TrimQueues(c.position_rows([(topic, 0, 1)]))
    effects = node.command(move)
    assert node.state.committed_offset(group, topic, 0) == 3
    assert (group, topic) in effects.released, "waiting polls are woken"
    assert offsets(receive(node, asked)) == [(0, 3), (0, 4)]
