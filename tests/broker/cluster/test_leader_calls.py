"""Calls that need the leader: served, forwarded, repeated after a lost leader, refused after one hop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.cluster import leader_calls as leader_calls
from ledgermq.broker.cluster.forwarding import FORWARDED_BY, PERHAPS_DONE
from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.cluster.lane import ForwardError
from ledgermq.broker.cluster.leader_calls import Call, LeaderCalls, LeaderUnavailableError
from ledgermq.raft.errors import NotLeaderError, ProposalLostError


class FakeForwarder:
    """Answers with the name of the node that was asked; nodes in `down` fail."""

    def __init__(self) -> None:
        self.down: dict[str, ForwardError] = {}
        self.after_failure: Callable[[], None] = lambda: None
        self.asked: list[str] = []
        self.perhaps_done: list[bool] = []

    def metadata(self, received: Any, listener: str) -> Any:
        return ()

    async def unary(self, node_id: str, method: str, request: bytes, metadata: Any, timeout: float) -> bytes:
        self.asked.append(node_id)
        self.perhaps_done.append(any(key == PERHAPS_DONE for key, _ in metadata))
        if node_id in self.down:
            self.after_failure()
            raise self.down[node_id]
        return node_id.encode()


def call(via: str = "", seconds: float = 60.0) -> Call:
    return Call("c", "", "default", via, time.monotonic() + seconds, ())


def test_the_marks_of_a_forwarded_call_mean_nothing_from_a_client() -> None:
    marks = ((FORWARDED_BY, "n2"), (PERHAPS_DONE, "1"))

    def seen(listener: str, metadata: Any) -> tuple[bool, bool]:
        context = SimpleNamespace(invocation_metadata=lambda: metadata, time_remaining=lambda: None)
        made = Call.of(context, listener)
        return made.forwarded, made.perhaps_done

    assert seen("default", marks) == (False, False)
    assert seen("", marks) == (True, True)
    assert seen("", marks[1:]) == (False, False)  # on the Raft port, but of no node


@pytest.fixture
def leadership() -> Leadership:
    return Leadership("n1")


@pytest.fixture
def forwarder() -> FakeForwarder:
    return FakeForwarder()


@pytest.fixture
def calls(leadership: Leadership, forwarder: FakeForwarder) -> LeaderCalls:
    passes_on: Any = forwarder
    return LeaderCalls(leadership, passes_on, lambda result: None)


async def local() -> bytes:
    return b"here"


async def test_the_leader_serves_the_call_itself_and_a_follower_forwards_it(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls
) -> None:
    leadership.on_changed("n2", 1)
    assert await calls.unary("/m", b"", call(), local) == b"n2"
    leadership.on_ready(2)
    assert await calls.unary("/m", b"", call(), local) == b"here"


async def test_a_forwarded_call_goes_no_further(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls
) -> None:
    leadership.on_changed("n2", 1)
    with pytest.raises(NotLeaderError):
        await calls.unary("/m", b"", call(via="n3"), local)
    assert forwarder.asked == []


@pytest.mark.parametrize("definite", [False, True])
async def test_a_failed_forward_is_repeated_at_the_next_leader_which_learns_if_it_is_perhaps_done(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls, definite: bool
) -> None:
    leadership.on_changed("n2", 1)
    forwarder.down["n2"] = ForwardError(definite, "gone, or not leader")
    forwarder.after_failure = lambda: leadership.on_changed("n3", 2)
    assert await calls.unary("/m", b"", call(), local) == b"n3"
    assert forwarder.asked == ["n2", "n3"]
    assert forwarder.perhaps_done == [False, not definite]


async def test_a_call_that_failed_at_the_leader_is_not_repeated_until_its_deadline(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls
) -> None:
    leadership.on_changed("n2", 1)
    forwarder.down["n2"] = ForwardError(False, "UNKNOWN: a defect", repeatable=False)
    with pytest.raises(LeaderUnavailableError):
        await calls.unary("/m", b"", call(), local)
    assert forwarder.asked == ["n2"]


async def test_a_leader_that_loses_the_proposal_lets_the_next_one_serve(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls
) -> None:
    leadership.on_ready(1)

    async def lost() -> bytes:
        leadership.on_lost()
        leadership.on_changed("n3", 2)
        raise ProposalLostError("lost")

    assert await calls.unary("/m", b"", call(), lost) == b"n3"
    assert forwarder.perhaps_done == [True]


async def test_without_a_leader_in_time_the_outcome_says_whether_it_is_unknown(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls
) -> None:
    with pytest.raises(LeaderUnavailableError) as error:
        await calls.unary("/m", b"", call(seconds=0.25), local)
    assert not error.value.unknown
    leadership.on_changed("n2", 1)
    forwarder.down["n2"] = ForwardError(False, "gone")
    with pytest.raises(LeaderUnavailableError) as error:
        await calls.unary("/m", b"", call(seconds=0.25), local)
    assert error.value.unknown


@pytest.fixture
def no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a change of the leadership ends a pause between two tries."""
    monkeypatch.setattr(leader_calls, "RETRY_INTERVAL", 3600.0)


@pytest.mark.usefixtures("no_timer")
async def test_a_change_of_leader_during_an_attempt_is_not_waited_for_again(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls
) -> None:
    leadership.on_changed("n2", 1)
    forwarder.down["n2"] = ForwardError(True, "not leader")
    forwarder.after_failure = lambda: leadership.on_changed("n3", 2)
    assert await calls.unary("/m", b"", call(), local) == b"n3"


async def forwarded_to_the_elected(leadership: Leadership, calls: LeaderCalls) -> asyncio.Task[bytes]:
    """Return a call that n3 forwarded to n1, which is elected and does not serve yet."""
    leadership.on_changed("n1", 2)
    answer = asyncio.create_task(calls.unary("/m", b"", call(via="n3"), local))
    await asyncio.sleep(0)
    assert not answer.done()
    return answer


@pytest.mark.usefixtures("no_timer")
async def test_a_forwarded_call_waits_for_a_leader_that_is_elected_and_serves_in_a_moment(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls
) -> None:
    answer = await forwarded_to_the_elected(leadership, calls)
    leadership.on_ready(2)
    assert await answer == b"here"


@pytest.mark.usefixtures("no_timer")
async def test_a_forwarded_call_is_refused_when_the_elected_node_loses_the_lead_before_it_serves(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls
) -> None:
    answer = await forwarded_to_the_elected(leadership, calls)
    leadership.on_changed("n2", 3)
    with pytest.raises(NotLeaderError):
        await answer


async def test_whoever_waits_for_an_election_is_told_when_it_is_over(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls
) -> None:
    leadership.on_changed(None, 2)
    waiting = asyncio.create_task(leadership.wait_settled(3600))
    for leader, term in (("n1", 3), (None, 4)):
        await asyncio.sleep(0)
        leadership.on_changed(leader, term)  # elected and not ready, or none: not settled
    await asyncio.sleep(0)
    assert not waiting.done()
    leadership.on_changed("n3", 5)
    await waiting
    await leadership.wait_settled(3600)  # it is settled already


@pytest.mark.parametrize("leads", [True, False])
async def test_who_leaves_amid_the_frames_ends_them_at_once(
    leadership: Leadership, forwarder: FakeForwarder, calls: LeaderCalls, leads: bool
) -> None:
    """They hold leases: their end must not wait for the garbage collector."""
    ended: list[str] = []

    async def frames(*_: Any) -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            yield b"second"
        finally:
            ended.append("now")

    leadership.on_changed("n2", 1)
    if leads:
        leadership.on_ready(2)
    answer = calls.stream(call(), frames, frames)
    assert await anext(answer) == b"first"
    await answer.aclose()
    assert ended == ["now"]
