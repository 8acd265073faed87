"""Calls that wait long: a bound of their own, no send behind them, and no grant is lost on the way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.cluster import forwarding
from ledgermq.broker.cluster import lane as forward_lane
from ledgermq.broker.cluster import lane_server as forwarded_calls
from ledgermq.broker.cluster.lane import MAX_REQUEST
from ledgermq.broker.cluster.lane_server import ForwardedContext, _Stream, unless_arrived
from ledgermq.broker.reading.polls import MAX_WAITING, TooManyPollsError
from ledgermq.proto import peer_pb2

from .two_nodes import SERVICE, Two


async def poll(two: Two, name: str = "held", request: bytes = b"") -> bytes:
    return await two.forwarder.poll("n2", f"/{SERVICE}/{name}", request, (), 3600)


async def waiting(two: Two, count: int) -> list[asyncio.Task[bytes]]:
    tasks = [asyncio.create_task(poll(two, request=b"%d" % number)) for number in range(count)]
    for _ in tasks:
        await two.service.waiting.get()
    return tasks


async def test_however_many_polls_wait_a_send_shares_a_stream_of_its_own(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_lane, "MAX_CALLS", 2)
    polls = await waiting(two, 5)
    assert await two.call("echo", b"ab") == b"ba"
    assert two.service.alone == 0
    assert len(two.forwarder._poll_lanes["n2"]) == 3
    two.service.gate.set()
    assert await asyncio.gather(*polls) == [b"held %d" % number for number in range(5)]


async def test_a_poll_above_the_bound_is_refused_at_once_and_the_next_that_finds_room_is_not(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "MAX_POLLS", 3)
    polls = await waiting(two, 3)
    with pytest.raises(TooManyPollsError, match="Repeat after a moment"):
        await poll(two)
    assert await two.call("echo", b"ab") == b"ba"
    polls[0].cancel()
    await asyncio.gather(polls[0], return_exceptions=True)
    assert await poll(two, "echo", b"ab") == b"ba"
    two.service.gate.set()
    await asyncio.gather(*polls[1:])
    assert two.forwarder._polls == 0


def test_as_many_polls_have_room_as_a_leader_lets_wait() -> None:
    assert forwarding.MAX_POLLS == MAX_WAITING
    assert forwarding.MAX_POLL_LANES * forward_lane.MAX_CALLS >= MAX_WAITING


async def test_polls_at_a_node_that_leads_no_longer_are_given_up(two: Two) -> None:
    (held,) = await waiting(two, 1)
    two.forwarder.leader_changed("n3")
    with pytest.raises(forward_lane.ForwardError, match="leads no longer"):
        await held
    assert await two.service.ended.get() == "0"
    assert two.forwarder._polls == 0


async def test_a_large_poll_whose_caller_is_gone_is_answered_all_the_same(two: Two) -> None:
    """A call of its own that is cancelled may have been served, and nothing would tell what it was given."""
    request = b"x" * (MAX_REQUEST + 1)
    task = asyncio.create_task(poll(two, request=request))
    await two.service.waiting.get()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert two.forwarder._polls == 1
    two.service.gate.set()
    assert await two.unclaimed.get() == b"held " + request
    assert two.forwarder._polls == 0


async def test_large_polls_end_with_the_node(two: Two) -> None:
    task = asyncio.create_task(poll(two, request=b"x" * (MAX_REQUEST + 1)))
    await two.service.waiting.get()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await two.forwarder.close()
    assert two.forwarder._polls == 0


class Granting:
    """The other node's end of a stream whose calls grant something; `calls` go in, `written` comes out."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[peer_pb2.ForwardedCalls | None] = asyncio.Queue()
        self.written: asyncio.Queue[int] = asyncio.Queue()  # answers in each message
        self.writes = asyncio.Event()
        self.writes.set()
        self.taken_back: list[bytes] = []
        handler = SimpleNamespace(
            unary_unary=self._grant, request_deserializer=None, response_serializer=None
        )
        stream = _Stream(lambda method: handler, self)
        self.serving = asyncio.create_task(stream.serve(self._requests()))

    async def _requests(self) -> Any:
        while (message := await self.calls.get()) is not None:
            yield message.SerializeToString()

    async def _grant(self, request: bytes, context: Any) -> bytes:
        assert isinstance(context, ForwardedContext)
        unless_arrived(context, lambda: self.taken_back.append(request))
        return request

    async def write(self, raw: bytes) -> None:
        self.written.put_nowait(len(peer_pb2.ForwardedAnswers.FromString(raw).answers))
        await self.writes.wait()

    def ask(self, call_id: int) -> None:
        call = peer_pb2.ForwardedCall(
            call_id=call_id, method="/m", request=b"%d" % call_id, timeout_ms=60_000
        )
        self.calls.put_nowait(peer_pb2.ForwardedCalls(calls=[call]))

    async def end(self, how: str) -> None:
        if how == "closed":
            self.calls.put_nowait(None)
        else:
            self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_what_was_granted_in_answers_that_may_be_lost_with_their_stream_is_taken_back(how: str) -> None:
    """One is written, one is being written, one waits."""
    granting = Granting()
    granting.ask(1)
    assert await granting.written.get() == 1
    granting.writes.clear()
    granting.ask(2)
    assert await granting.written.get() == 1
    granting.ask(3)
    for _ in range(10):
        await asyncio.sleep(0)
    assert granting.taken_back == []
    await granting.end(how)
    assert granting.taken_back == [b"1", b"2", b"3"]


async def test_what_was_granted_long_before_its_stream_ended_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarded_calls, "ON_THE_WAY_SECONDS", -1.0)
    granting = Granting()
    granting.ask(1)
    assert await granting.written.get() == 1
    for _ in range(10):
        await asyncio.sleep(0)
    await granting.end("cancelled")
    assert granting.taken_back == []
