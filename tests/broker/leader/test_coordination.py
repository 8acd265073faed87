"""Members' streams at the leader: what they are told and refused, and what a stall of the loop does."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.broker.leader import coordination as coordination_module
from ledgermq.broker.leader.coordination import MembershipStream
from ledgermq.broker.leader.coordinator import Wish
from ledgermq.broker.leader.pipeline import TooManyRequestsError
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.state.commands import CreateTopic, DeleteConsumerGroup, LeaveConsumerGroup, SetPositions
from ledgermq.proto import route_pb2
from ledgermq.raft.errors import NodeStoppedError, NotLeaderError

from ..leading_node import Leader, settle


@pytest.fixture
def leader() -> Leader:
    return Leader()


async def test_a_member_is_told_when_its_queues_change(leader: Leader) -> None:
    a = await leader.join("a")
    assert leader.owned(a) == [0, 1, 2, 3]
    a.changed.clear()
    b = await leader.join("b")
    assert a.changed.is_set()
    view = leader.coordination.view(a)
    assert view is not None
    leader.coordination.released(a, view.revoked)
    await settle()
    assert (leader.owned(a), leader.owned(b)) == ([0, 1], [2, 3])


async def test_who_leaves_is_told_nothing_more_and_the_others_at_once(leader: Leader) -> None:
    a, b = await leader.join("a"), await leader.join("b")
    leader.coordination.leave(a)
    await settle()
    assert leader.coordination.view(a) is None
    assert leader.owned(b) == [0, 1, 2, 3]


async def test_what_is_refused_or_lost_comes_again_with_the_next_look(leader: Leader) -> None:
    a, b = await leader.join("a"), await leader.join("b")
    leader.refuse = lambda command: (
        TooManyRequestsError(1, 1) if isinstance(command, LeaveConsumerGroup) else None
    )
    leader.coordination.leave(a)
    await settle()
    leader.refuse, leader.lose = lambda command: None, lambda command: isinstance(command, LeaveConsumerGroup)
    await leader.tick()
    leader.lose = lambda command: False
    assert leader.owned(a) == [0, 1, 2, 3]
    await leader.tick()
    assert leader.coordination.view(a) is None
    assert leader.owned(b) == [0, 1, 2, 3]


async def test_a_member_that_is_silent_is_taken_out_and_told_so(leader: Leader) -> None:
    a, b = await leader.join("a"), await leader.join("b")
    for _ in range(30):
        leader.coordination.heard(b)
        await leader.tick()
    with pytest.raises(RefusedError, match="was not heard") as refused:
        leader.coordination.view(a)
    assert (refused.value.refusal.code, refused.value.refusal.retryable) == (route_pb2.FENCED, True)
    assert leader.owned(b) == [0, 1, 2, 3]


async def test_a_stall_of_the_loop_makes_no_member_silent(leader: Leader) -> None:
    """The signs of life that came meanwhile wait to be read."""
    a = await leader.join("a")
    leader.time += 60
    leader.coordination._tick()
    await settle()
    assert leader.owned(a) == [0, 1, 2, 3]


async def test_the_time_to_come_back_begins_when_the_stream_ends(leader: Leader) -> None:
    a = await leader.join("a")
    await leader.tick(2.5)
    leader.coordination.close(a)
    await leader.tick(2.5)
    again = await leader.join("a")
    assert leader.owned(again) == [0, 1, 2, 3]
    view = leader.coordination.view(again)
    assert view is not None and len({epoch for _, epoch in view.owned}) == 1
    leader.coordination.close(again)
    await leader.tick(3.1)
    assert leader.node.state.memberships.group_ids() == []


async def test_another_stream_of_the_same_member_takes_over(leader: Leader) -> None:
    old = await leader.join("a")
    new = await leader.join("a")
    with pytest.raises(RefusedError, match="took this membership over") as refused:
        leader.coordination.view(old)
    assert not refused.value.refusal.retryable
    leader.coordination.leave(old)
    leader.coordination.close(old)
    await settle()
    assert leader.owned(new) == [0, 1, 2, 3]


async def test_streams_end_with_the_lead_and_the_next_leader_knows_the_members(leader: Leader) -> None:
    a = await leader.join("a")
    leader.leadership.on_lost()
    with pytest.raises(NotLeaderError):
        leader.coordination.view(a)
    leader.coordination.close(a)
    with pytest.raises(NotLeaderError):
        await leader.join("a")
    asked = len(leader.asked)
    await leader.tick(5)
    leader.leadership.on_ready(2)
    await leader.tick(2.9)
    assert len(leader.asked) == asked, "everybody has time again"
    again = await leader.join("a")
    assert leader.owned(again) == [0, 1, 2, 3]


async def test_a_node_that_stops_ends_its_streams(leader: Leader) -> None:
    a = await leader.join("a")
    leader.coordination.stop()
    with pytest.raises(NodeStoppedError):
        leader.coordination.view(a)
    with pytest.raises(NodeStoppedError):
        await leader.join("b")


async def test_who_comes_back_in_the_last_moment_is_not_taken_out_behind_its_own_command(
    leader: Leader,
) -> None:
    a = await leader.join("a")
    leader.coordination.close(a)
    await leader.tick(2.9)
    joining = asyncio.ensure_future(leader.join("a"))
    await asyncio.sleep(0)
    leader.time += 0.1
    leader.coordination._tick()
    again = await joining
    await settle()
    assert leader.owned(again) == [0, 1, 2, 3]
    assert not any(isinstance(command, LeaveConsumerGroup) for command in leader.asked)


async def test_a_deleted_group_ends_the_streams_of_its_members(leader: Leader) -> None:
    a = await leader.join("a")
    leader.apply(DeleteConsumerGroup(leader.group))
    await settle()
    with pytest.raises(RefusedError, match="was deleted") as refused:
        leader.coordination.view(a)
    assert refused.value.refusal.code == route_pb2.GROUP_NOT_FOUND
    with pytest.raises(RefusedError, match="was deleted"):
        await leader.join("b")


async def test_a_new_topic_is_given_out(leader: Leader) -> None:
    a = await leader.join("a", topics=("later",))
    assert leader.owned(a) == []
    leader.apply(CreateTopic("later", 2))
    await settle()
    assert leader.owned(a) == [0, 1]


async def test_starts_by_time_are_looked_up_before_queues_are_given_out() -> None:
    leader = Leader(start="1234", queues=1)
    leader.node.fill(1, 0, 5)
    a = await leader.join("a")
    assert leader.looked_up == [(1, 0, 1234)]
    assert [command for command in leader.asked if isinstance(command, SetPositions)]
    assert leader.owned(a) == [0]
    assert leader.node.state.committed_offset(leader.group, 1, 0) == 2


async def test_members_are_bounded_in_a_group_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination_module, "MEMBERS_PER_GROUP", 2)
    monkeypatch.setattr(coordination_module, "MEMBERS_PER_NODE", 3)
    leader = Leader()
    await asyncio.gather(leader.join("a"), leader.join("b"))
    with pytest.raises(RefusedError, match="the consumer group has 2 members; the limit is 2") as refused:
        await leader.join("c")
    assert refused.value.refusal.retryable
    await leader.join("a")
    leader.group = leader.node.group("other")
    await leader.join("c")
    with pytest.raises(RefusedError, match="the broker group has 3 members; the limit is 3"):
        await leader.join("d")


async def test_a_join_that_is_refused_leaves_nothing_behind(leader: Leader) -> None:
    leader.refuse = lambda command: TooManyRequestsError(1, 1)
    with pytest.raises(TooManyRequestsError):
        await leader.join("a")
    assert not leader.coordination._streams


async def test_twenty_members_share_sixty_four_queues_and_no_queue_rests() -> None:
    """Each hands over as soon as it is told."""
    leader = Leader(queues=64)
    streams: list[MembershipStream] = []
    for number in range(20):
        streams.append(await leader.join(f"m{number:02}"))
        for stream in streams:
            view = leader.coordination.view(stream)
            assert view is not None
            leader.coordination.released(stream, view.revoked)
        await settle()
    counts = [len(leader.owned(stream)) for stream in streams]
    assert (sum(counts), min(counts), max(counts)) == (64, 3, 4)


async def test_long_passes_over_a_group_leave_the_loop_to_others_in_between(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await leader.join("a")
    real = leader.coordination._groups[leader.group].decide

    def decide(now: int) -> list[Wish]:
        leader.time += 900.0  # it takes a quarter of an hour
        return real(now)

    monkeypatch.setattr(leader.coordination._groups[leader.group], "decide", decide)
    leader.coordination.released(stream, [])
    await settle()
    began = leader.time
    leader.coordination.leave(stream)
    await settle()
    assert leader.time == began, "no pass before an hour is over"
