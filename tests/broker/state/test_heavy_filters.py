"""Filters that match little of a long queue: the messages they read in one turn, and what runs in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ledgermq.broker.leader import selection
from ledgermq.broker.leader.selection import ReceiveRequest, Selector
from ledgermq.broker.official.receive_at_leader import ReceiveWork
from ledgermq.broker.state.commands import CreateConsumerGroup
from ledgermq.broker.state.consume_queue import ColdRead, ConsumeQueue
from ledgermq.broker.state.effects import GrantResult
from ledgermq.raft.errors import NotLeaderError

from ..entry_log import Node, filled
from ..fake_raft import FakeRaft, settle
from ..leader.test_produce import sections
from ..receiving import offsets, receive, request

RARE, COMMON = 9, 1
SELECTION, TURN = 400, 1_000


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many units each look took, with budgets that a test fills quickly."""
    looks: list[int] = []
    lookup = Selector.lookup

    def counted(self: Selector, queue: ConsumeQueue, offset: int, count: int) -> np.ndarray | ColdRead:
        found = lookup(self, queue, offset, count)
        assert not isinstance(found, ColdRead)
        looks.append(len(found))
        return found

    monkeypatch.setattr(Selector, "lookup", counted)
    monkeypatch.setattr(selection, "SCAN_UNITS", SELECTION)
    monkeypatch.setattr(selection, "_SCAN_STEP", 50)
    monkeypatch.setattr(selection, "SKIP_UNITS", 200)
    monkeypatch.setattr(selection, "SCAN_UNITS_PER_TURN", TURN)
    return looks


def backlog(node: Node, queues: int, each: int) -> tuple[int, int]:
    """Return (consumer group, topic): `each` unwanted messages per queue, a wanted one behind the last."""
    topic, group = node.topic(queues=queues), node.group()
    receive(node, request(group, topic, tags=frozenset({RARE})))  # where the group begins is decided
    for queue in range(queues):
        node.fill(topic, queue, each, size=8, tags=[COMMON])
    node.fill(topic, queues - 1, 1, size=8, tags=[RARE])
    return group, topic


@pytest.mark.parametrize(("queues", "each"), [(1, 3_000), (20, 150)])
def test_one_selection_looks_at_a_bounded_number_over_all_queues_and_says_that_it_is_not_done(
    queues: int, each: int, looked_at: list[int]
) -> None:
    node = Node()
    group, topic = backlog(node, queues, each)
    asked = request(group, topic, tags=frozenset({RARE}))
    total = 0
    for _ in range(2 * queues * each // SELECTION):
        looked_at.clear()
        turn = node.view.open_turn()
        plan = turn.grant(asked, node.log.now)
        assert sum(looked_at) <= SELECTION
        total += sum(looked_at)
        if plan.slot is not None:
            break
        assert plan.unfinished
        if not turn.size:
            turn.abandon()
        else:
            node.commit(turn)
    assert plan.slot is not None
    result = node.commit(turn).results[plan.slot]
    assert isinstance(result, GrantResult)
    found = plan.deliveries(result)
    assert offsets(found) == [(queues - 1, each)]
    assert total <= queues * each + 1, "nothing is looked at twice"


def test_what_is_looked_through_to_the_end_is_finished(looked_at: list[int]) -> None:
    node, topic, group = filled()
    asked = request(group, topic, tags=frozenset({RARE}))
    receive(node, asked)
    node.fill(topic, 0, SELECTION - 50, size=8, tags=[COMMON])
    turn = node.view.open_turn()
    assert not turn.grant(asked, node.log.now).unfinished


def test_all_filters_of_a_turn_share_its_bound_and_plain_receives_do_not_count(looked_at: list[int]) -> None:
    node = Node()
    group, topic = backlog(node, 1, 5_000)
    turn = node.view.open_turn()
    for number in range(10):
        asked = request(group, topic, tags=frozenset({RARE, 100 + number}))
        assert turn.grant(asked, node.log.now).unfinished
    assert turn.scan.is_spent
    assert sum(looked_at) < TURN + 50
    plain = request(node.group("plain"), topic, 3)
    receive(node, plain)
    assert len(receive(node, plain)) == 3


async def filtered_queue(raft: FakeRaft) -> Callable[[int], ReceiveWork]:
    """Make a queue of 3,000 messages without a tag; return what submits a filter that wants none of them."""
    await raft.topic(queues=1)
    raft.pipeline.submit(sections(count=3_000))
    group = raft.pipeline.run(CreateConsumerGroup("billing"))
    await settle()
    await raft.decide(len(raft.proposals) - 1)
    group_id = group.result().result.group.group_id

    def submit(number: int) -> ReceiveWork:
        work = ReceiveWork(
            ReceiveRequest(group_id, 1, 1, 1_000, frozenset({RARE, 100 + number})), lambda deliveries: None
        )
        raft.pipeline.submit(work)
        return work

    submit(0)  # where the group begins is decided
    await settle()
    await raft.decide(len(raft.proposals) - 1)
    return submit


async def test_filters_that_a_turn_has_no_room_for_wait_and_producers_behind_them_do_not(
    looked_at: list[int],
) -> None:
    raft = FakeRaft()
    submit = await filtered_queue(raft)
    looked_at.clear()
    filters = [submit(number) for number in range(10)]
    sent = sections(1, producer=8)
    raft.pipeline.submit(sent)
    await settle()
    assert TURN <= sum(looked_at) < TURN + 50
    placed = [work for work in filters if work.future.done()]
    assert placed == filters[:3]
    looked_at.clear()
    await raft.decide(len(raft.proposals) - 1)
    assert sent.future.done(), "it was sent behind all of them"
    assert sum(looked_at) < TURN + 50
    assert filters[5].future.done(), "those that waited come first in the next turn"
    while not all(work.future.done() for work in filters):
        looked_at.clear()
        await raft.decide(len(raft.proposals) - 1)
        assert sum(looked_at) < TURN + 50


async def test_filters_that_wait_for_their_turn_are_refused_when_the_leader_falls(
    looked_at: list[int],
) -> None:
    raft = FakeRaft()
    submit = await filtered_queue(raft)
    filters = [submit(number) for number in range(6)]
    await settle()
    assert not filters[-1].future.done()
    assert raft.pipeline.bytes_waiting
    raft.pipeline.on_leader(None)
    with pytest.raises(NotLeaderError):
        filters[-1].future.result()


async def test_a_filter_whose_client_is_gone_looks_at_nothing(looked_at: list[int]) -> None:
    raft = FakeRaft()
    submit = await filtered_queue(raft)
    looked_at.clear()
    submit(1).future.cancel()
    await settle()
    assert not looked_at
    assert not raft.pipeline.bytes_waiting
