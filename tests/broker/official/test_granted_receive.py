"""Receives at a follower: the leader leases, the follower reads its log and gives back the rest."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.cluster.lane import ForwardError
from ledgermq.broker.official import receive_at_follower as granted_receive
from ledgermq.broker.state.machine import BrokerState
from ledgermq.proto import rocketmq_v2_pb2 as v2

from ..fake_raft import settle
from ..grant_rig import BODIES, METADATA, GrantRig, bodies, opened, status


@pytest.fixture
def rig() -> AbstractAsyncContextManager[GrantRig]:
    return opened()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower does not wait for what it has not applied."""
    monkeypatch.setattr(granted_receive, "APPLY_SECONDS", 0.0)


async def test_a_consumer_of_a_follower_gets_the_very_bytes_that_the_leader_would_send() -> None:
    async with opened() as rig:
        of_leader = await rig.all_of(rig.receive_at_leader())
    async with opened() as rig:
        rig.apply(3)
        of_follower = await rig.all_of(rig.receive())
    assert bodies(of_leader) == list(BODIES)
    assert of_follower[:-1] == of_leader[:-1], "the last frame says when it was sent"


async def test_the_messages_come_from_the_followers_log_and_the_leader_reads_nothing(rig: GrantRig) -> None:
    rig.apply(3)
    no_log: Any = None
    rig.leader_reader._log = no_log
    assert bodies(await rig.all_of(rig.receive())) == list(BODIES)
    assert rig.to_leader.asked == ["Grant"]
    assert (rig.read_from("own_log"), rig.read_from("leader")) == (3, 0)
    assert rig.context.metrics.messages_out.labels("messaging")._value.get() == 3


async def test_a_follower_that_lags_hands_out_when_it_has_applied_what_was_granted(rig: GrantRig) -> None:
    rig.apply(2)
    frames = rig.receive()
    task = await rig.begun(frames)
    assert not task.done()
    assert rig.hurried == 1
    rig.apply(1)
    found = [await task, *[frame async for frame in frames]]
    assert bodies(found) == list(BODIES)
    assert rig.to_leader.asked == ["Grant"]


async def test_the_wait_for_apply_ends_before_the_call_does(
    rig: GrantRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granted_receive, "APPLY_SECONDS", 3600.0)
    rig.apply(2)
    assert bodies(await rig.all_of(rig.receive(timeout=0.0))) == list(BODIES)
    assert rig.to_leader.asked == ["Grant", "ReadGranted"]


@pytest.mark.parametrize(("left", "share"), [(100.0, 2.0), (1.0, 0.5), (-1.0, 0.0)])
def test_half_of_what_is_left_of_a_call_is_the_leaders(
    left: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granted_receive, "time", SimpleNamespace(monotonic=lambda: 50.0))
    assert granted_receive._share(2.0, 50.0 + left) == share


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("applied", "own"), [(0, 0), (1, 0), (2, 2)])
async def test_what_a_follower_has_not_applied_in_time_comes_from_the_leader_in_its_place(
    rig: GrantRig, applied: int, own: int
) -> None:
    """Its log holds the bytes, but nothing says there that they are committed."""
    rig.apply(applied)
    assert bodies(await rig.all_of(rig.receive())) == list(BODIES)
    assert rig.to_leader.asked == ["Grant", "ReadGranted"]
    assert (rig.read_from("own_log"), rig.read_from("leader")) == (own, 3 - own)
    assert bool(rig.log.reads) == bool(own)


async def test_a_damaged_copy_of_a_message_is_not_handed_out(rig: GrantRig) -> None:
    rig.apply(3)
    place = rig.log.raw.index(BODIES[0])
    rig.log.raw = rig.log.raw[:place] + b"FIRST" + rig.log.raw[place + 5 :]
    assert bodies(await rig.all_of(rig.receive())) == list(BODIES)
    assert (rig.read_from("own_log"), rig.read_from("leader")) == (1, 2), "two stand in one entry"


async def test_a_follower_whose_state_is_being_made_again_reads_nothing_itself(rig: GrantRig) -> None:
    rig.apply(3)
    rig.context.replica.rebuild = SimpleNamespace()
    assert bodies(await rig.all_of(rig.receive())) == list(BODIES)
    assert rig.read_from("leader") == 3


async def test_a_disk_that_hangs_holds_up_nobody_for_long(
    rig: GrantRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granted_receive, "READ_SECONDS", 0.0)
    rig.apply(3)
    rig.log.slow = True
    assert bodies(await rig.all_of(rig.receive())) == list(BODIES)
    assert rig.read_from("leader") == 3


async def test_what_retention_deleted_on_both_nodes_is_left_out(rig: GrantRig) -> None:
    rig.apply(3)
    rig.log.begin = len(rig.entries[0]) + len(rig.entries[1])
    rig.leader_reader._log = rig.log
    found = await rig.all_of(rig.receive())
    assert bodies(found) == [BODIES[2]]
    assert status(found[0]).code == v2.OK


async def test_nothing_to_deliver_and_a_refusal_are_told_as_the_leader_tells_them(rig: GrantRig) -> None:
    rig.apply(3)
    await rig.all_of(rig.receive())
    empty = [frame async for frame in rig.receive()]
    assert (status(empty[0]).code, len(empty)) == (v2.MESSAGE_NOT_FOUND, 2)
    refused = [frame async for frame in rig.receive("unknown")]
    assert (status(refused[0]).code, len(refused)) == (v2.TOPIC_NOT_FOUND, 2)


@pytest.mark.parametrize("taken", [1, 2, 3, 4])
async def test_what_did_not_reach_the_consumer_is_given_back_at_once(rig: GrantRig, taken: int) -> None:
    """The first frame is the status; the one that is on its way when the consumer goes has not arrived."""
    rig.apply(3)
    frames = rig.receive()
    await (await rig.begun(frames))
    for _ in range(taken - 1):
        await anext(frames)
    await frames.aclose()
    await rig.decide(4)
    assert rig.visible == [0, 1, 2][max(taken - 2, 0) :]
    assert rig.to_leader.asked[-1] == "GiveBack"


async def test_a_consumer_that_goes_while_its_messages_are_read_loses_nothing(rig: GrantRig) -> None:
    rig.apply(3)
    rig.log.slow = True
    task = await rig.begun(rig.receive())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await rig.decide(4)
    assert rig.visible == [0, 1, 2]


async def test_an_answer_that_comes_when_the_consumer_is_gone_is_given_back(rig: GrantRig) -> None:
    request = rig.request().SerializeToString()
    answer = asyncio.ensure_future(rig.to_leader.poll("n1", granted_receive.GRANT, request, METADATA, 50))
    await rig.decide(3)
    rig.unclaimed.take(await answer)
    await rig.decide(4)
    assert rig.visible == [0, 1, 2]
    assert rig.to_leader.asked[-1] == "GiveBack"


async def test_an_answer_that_grants_nothing_gives_nothing_back(rig: GrantRig) -> None:
    request = rig.request("unknown").SerializeToString()
    rig.unclaimed.take(await rig.to_leader.poll("n1", granted_receive.GRANT, request, METADATA, 50))
    assert rig.context.replica.releases.owed == 0


async def test_a_read_that_fails_over_a_defect_gives_back_what_was_granted(rig: GrantRig) -> None:
    rig.apply(3)
    no_log: Any = None
    rig.follower_reader._log = no_log
    task = await rig.begun(rig.receive())
    with pytest.raises(AttributeError):
        await task
    await rig.decide(4)
    assert rig.visible == [0, 1, 2]


async def test_a_leader_that_was_started_again_and_has_not_applied_the_grant_says_so(rig: GrantRig) -> None:
    """It would find no message at these offsets; "deleted" would leave the leases without a holder."""
    rig.context.replica.rebuild = SimpleNamespace()
    rig.leader.replica.state = BrokerState()
    rig.leader.replica.state.topics = rig.raft.state.topics
    rig.leader.replica.state.groups = rig.raft.state.groups
    task = await rig.begun(rig.receive())
    with pytest.raises(ForwardError, match="has not applied the grant"):
        await task
    await rig.decide(4)
    assert rig.visible == [0, 1, 2]


async def test_a_stop_waits_until_the_leader_took_what_receives_still_held(
    rig: GrantRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granted_receive, "STOP_SECONDS", 3600.0)
    rig.apply(3)
    frames = rig.receive()
    await (await rig.begun(frames))
    stop = asyncio.ensure_future(rig.receives.stop())
    await settle()
    assert not stop.done()
    await frames.aclose()
    await rig.decide(4)
    await stop
    assert rig.visible == [0, 1, 2]


async def test_what_comes_after_the_stop_starts_nothing(
    rig: GrantRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granted_receive, "STOP_SECONDS", 0.0)
    rig.apply(3)
    frames = rig.receive()
    await (await rig.begun(frames))
    await rig.receives.stop()
    await frames.aclose()
    await settle()
    assert rig.to_leader.asked == ["Grant"]
    assert rig.context.replica.releases.owed > 0


@pytest.mark.usefixtures("impatient")
async def test_a_leader_that_is_lost_before_the_follower_has_all_is_asked_nothing_twice(
    rig: GrantRig,
) -> None:
    """No frame has left: the whole receive goes to the next leader, and the leases are given back."""
    rig.to_leader.fail["ReadGranted"] = ForwardError(False, "gone")
    task = await rig.begun(rig.receive())
    with pytest.raises(ForwardError, match="gone"):
        await task
    await rig.decide(4)
    assert rig.visible == [0, 1, 2]


@pytest.mark.parametrize("reason", ["older leader", "switched off"])
async def test_without_grants_the_leader_hands_out_itself(rig: GrantRig, reason: str) -> None:
    rig.apply(3)
    if reason == "older leader":
        rig.to_leader.fail["Grant"] = ForwardError(True, "UNIMPLEMENTED", False, unknown_there=True)
    else:
        rig.context.config.follower_reads = False
    assert bodies(await rig.all_of(rig.receive())) == list(BODIES)
    assert rig.to_leader.asked[-1] == "ReceiveMessage"
    assert rig.log.reads == 0
    received = rig.context.metrics.bytes_from_leader.labels("messages")._value.get()
    assert received > sum(map(len, BODIES))


async def test_a_grant_is_small_whatever_the_messages_are(rig: GrantRig) -> None:
    rig.apply(3)
    await rig.all_of(rig.receive())
    counted: Any = rig.context.metrics.bytes_from_leader
    assert 0 < counted.labels("grant")._value.get() < 150
    assert counted.labels("messages")._value.get() == 0
