"""What a node owes to the leader is told until one took it, or its lease is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.cluster.leader_calls import Call, LeaderUnavailableError
from ledgermq.broker.leader import releases
from ledgermq.broker.leader.pipeline import Applied
from ledgermq.broker.leader.releases import LeaseReleases
from ledgermq.broker.official.give_backs import release_of_peer, tell_leader
from ledgermq.broker.state.commands import ReleaseLeases, lease_rows
from ledgermq.proto import peer_pb2, route_pb2
from ledgermq.raft.errors import NotLeaderError, ProposalLostError

from ..entry_log import Node

NOT_NOW = peer_pb2.GiveBackAnswer(refusal=route_pb2.Refusal(message="too many requests"))


async def settle() -> None:
    """Let everything come to rest: a try is a task of its own, and so is what gathers it."""
    for _ in range(20):
        await asyncio.sleep(0)


def release(offset: int, lease: int = 7, group: int = 1) -> ReleaseLeases:
    return ReleaseLeases(group, 2, lease_rows([(0, offset, lease)]))


class Follower:
    """n2, which follows n1. `answer` is what the leader says; None: it says nothing for now."""

    def __init__(self) -> None:
        self.node = Node()
        self.leadership = Leadership("n2")
        self.leadership.on_changed("n1", 1)
        self.releases = LeaseReleases(self._run, lambda: self.node.state, self.leadership, self._tell)
        self.answer: peer_pb2.GiveBackAnswer | Exception | None = peer_pb2.GiveBackAnswer()
        self.asked = asyncio.Event()
        self.calls = 0
        self.told: list[tuple[int, int]] = []  # group, offset: what the leader took
        self.proposed: asyncio.Future[Applied] | None = None

    def _tell(self, command: ReleaseLeases) -> Awaitable[str]:
        calls: Any = self
        return tell_leader(calls, self.releases, command)

    def _run(self, command: ReleaseLeases) -> asyncio.Future[Applied]:
        if self.proposed is None:
            raise NotLeaderError("n1")
        return self.proposed

    async def unary(
        self, method: str, request: bytes, call: Call, local: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        self.calls += 1
        self.asked.set()
        if self.leadership.ready:
            return await local()
        answer = self.answer
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        if not answer.HasField("refusal"):
            command = release_of_peer(peer_pb2.GrantedMessages.FromString(request))
            self.told += [(command.group_id, offset) for offset in command.rows["offset"].tolist()]
        return answer.SerializeToString()

    async def next_try(self) -> None:
        self.asked.clear()
        await self.asked.wait()
        await settle()


@pytest.fixture
@asynccontextmanager
async def follower() -> AsyncIterator[Follower]:
    made = Follower()
    yield made
    made.answer = made.answer or LeaderUnavailableError(False)
    await made.releases.stop(0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a change of the leadership leads to the next try."""
    monkeypatch.setattr(releases, "PAUSE_SECONDS", 3600.0)


async def test_what_is_given_back_is_told_at_once_and_owed_no_more(follower: Follower) -> None:
    follower.releases.give_back(release(1))
    await settle()
    assert follower.told == [(1, 1)]
    assert follower.releases.owed == 0


@pytest.mark.usefixtures("patient")
async def test_what_comes_while_no_leader_is_there_is_kept_however_much_it_is(follower: Follower) -> None:
    follower.answer = LeaderUnavailableError(False)
    for offset in range(5_000):
        follower.releases.give_back(release(offset))
    await settle()
    assert follower.releases.owed == 1
    follower.answer = peer_pb2.GiveBackAnswer()
    before = follower.calls
    follower.leadership.on_changed("n3", 2)
    await settle()
    assert sorted(follower.told) == [(1, offset) for offset in range(5_000)]
    assert follower.calls - before == 2


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("answer", [NOT_NOW, LeaderUnavailableError(True), ZeroDivisionError("a defect")])
async def test_what_a_leader_does_not_take_is_told_again(follower: Follower, answer: Any) -> None:
    follower.answer = answer
    follower.releases.give_back(release(1))
    follower.releases.give_back(release(2, group=4))
    await settle()
    assert (follower.told, follower.releases.owed) == ([], 2)
    follower.answer = peer_pb2.GiveBackAnswer()
    follower.leadership.on_changed("n1", 2)
    await settle()
    assert sorted(follower.told) == [(1, 1), (4, 2)]
    assert follower.releases.owed == 0


async def test_without_news_of_a_leader_it_is_told_again_after_a_pause(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "PAUSE_SECONDS", 0.0)
    follower.answer = NOT_NOW
    follower.releases.give_back(release(1))
    await follower.next_try()
    await follower.next_try()
    follower.answer = peer_pb2.GiveBackAnswer()
    await follower.next_try()
    assert follower.told == [(1, 1)]


@pytest.mark.usefixtures("patient")
async def test_what_this_node_finds_over_in_its_own_state_is_told_to_nobody(follower: Follower) -> None:
    follower.node.topic()
    follower.answer = NOT_NOW
    follower.releases.give_back(release(1, lease=1))
    follower.releases.give_back(release(2, lease=99))
    follower.leadership.on_changed("n1", 2)
    await settle()
    follower.leadership.on_changed("n1", 3)
    await settle()
    assert follower.releases.owed == 1, "entry 1 made no lease; entry 99 is to come"
    follower.answer = peer_pb2.GiveBackAnswer()
    follower.leadership.on_changed("n1", 4)
    await settle()
    assert follower.told == [(1, 2)]


@pytest.mark.usefixtures("patient")
async def test_what_a_node_owed_when_it_was_deposed_is_told_to_the_next_leader(follower: Follower) -> None:
    follower.leadership.on_ready(2)
    lost = follower.proposed = asyncio.get_running_loop().create_future()
    follower.releases.propose(release(1))
    follower.leadership.on_lost()
    follower.leadership.on_changed("n3", 3)
    lost.set_exception(ProposalLostError("deposed"))
    await settle()
    assert follower.told == [(1, 1)]


async def test_what_a_new_leader_has_of_its_time_as_a_follower_it_proposes_itself(follower: Follower) -> None:
    follower.leadership.on_ready(2)
    follower.proposed = asyncio.get_running_loop().create_future()
    follower.releases.give_back(release(1))
    await settle()
    follower.proposed.set_result(Applied(None, 3))
    await settle()
    assert follower.releases.owed == 0


async def test_a_stop_hands_over_what_is_owed(follower: Follower) -> None:
    for group in range(1, 41):
        follower.releases.give_back(release(1, group=group))
    await follower.releases.stop(3600)
    assert sorted(follower.told) == [(group, 1) for group in range(1, 41)]
    assert follower.releases.owed == 0


async def test_a_stop_waits_no_longer_than_it_may_and_says_what_is_left(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    follower.answer = None
    follower.releases.give_back(release(1))
    await follower.asked.wait()
    await follower.releases.stop(0)
    assert follower.releases.owed == 1
    follower.releases.give_back(release(2))
    await settle()
    assert follower.calls == 1, "nothing begins after the stop"
    assert "leases not given back" in caplog.text
