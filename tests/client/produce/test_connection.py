"""A producer's stream to a broker group whose leader changes, against channels that only take notes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from ledgermq.client.cluster import leader_tracker
from ledgermq.client.cluster.topic_route import BrokerGroup, Node
from ledgermq.client.message import MessageQueue
from ledgermq.client.produce import produce_stream as module
from ledgermq.client.produce.latency_fault import CallTimes, LatencyTable
from ledgermq.client.produce.produce_stream import BrokerGroupConnection, now_ms
from ledgermq.client.produce.send_window import Outcome, SendWindow
from ledgermq.proto import log_pb2
from ledgermq.proto import route_pb2 as pb

FOR_EVER_MS = 3_600_000
NODES = tuple(Node(name, name, name, alive=True) for name in ("n1", "n2", "n3"))


def group(term: int, leader: str) -> BrokerGroup:
    return BrokerGroup("local", "g0", term, leader, NODES, writable=True)


class Call:
    """A stream whose node says nothing until the test does."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.written: asyncio.Queue[bytes] = asyncio.Queue()
        self._answers: asyncio.Queue[log_pb2.ProduceResponse | BaseException] = asyncio.Queue()

    def answer(self, answer: log_pb2.ProduceResponse | BaseException) -> None:
        self._answers.put_nowait(answer)

    async def write(self, request: bytes) -> None:
        self.written.put_nowait(request)

    async def read(self) -> log_pb2.ProduceResponse:
        answer = await self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def cancel(self) -> None:
        self.answer(asyncio.CancelledError())


class Channels:
    """Hands out calls; `opened` are those that the test has not looked at yet."""

    def __init__(self) -> None:
        self.opened: asyncio.Queue[Call] = asyncio.Queue()
        self._address = ""

    def get(self, address: str) -> Channels:
        self._address = address
        return self

    def stream_stream(self, *_: object, **__: object) -> Callable[..., Call]:
        call = Call(self._address)
        self.opened.put_nowait(call)
        return lambda **_: call


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[BrokerGroupConnection, Channels]]:
    """Return a connection whose window holds one message; n1 leads term 1."""
    sessions = iter(range(1, 1000))
    window = SendWindow(lambda: next(sessions))
    lane = window.lane(MessageQueue("orders", "g0", 0), 7)
    section = window.open_section(lane, now_ms(), now_ms() + FOR_EVER_MS, 64)
    window.added(section, bytes(64), "ticket")
    channels: Any = Channels()
    connection = BrokerGroupConnection(group(1, "n1"), channels, window, _ignore, lambda _: None)
    try:
        yield connection, channels
    finally:
        await connection.close()


def _ignore(_connection: BrokerGroupConnection, _outcome: Outcome) -> None:
    """No caller waits for the message."""


@pytest.fixture(autouse=True)
def no_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but news may move a stream."""
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_MS", FOR_EVER_MS)


@pytest.mark.parametrize("between", [[], [group(2, "")]], ids=["at once", "after a term without a leader"])
async def test_a_leader_that_fell_silent_is_left_when_the_route_names_the_next_one(
    between: list[BrokerGroup],
) -> None:
    async with connected() as (connection, channels):
        old = await channels.opened.get()
        request = await old.written.get()
        for each in (*between, group(2, "n2")):
            connection.update(each)
        new = await channels.opened.get()
        assert (old.address, new.address) == ("n1", "n2")
        # The request has the number of its stream's order; the section behind it must be the same bytes.
        assert (await new.written.get())[2:] == request[2:]


async def test_a_route_of_an_older_term_moves_nothing() -> None:
    async with connected() as (connection, channels):
        call = await channels.opened.get()
        await call.written.get()
        connection.update(group(3, "n1"))
        connection.update(group(2, "n2"))
        await _turns()
        assert channels.opened.empty()
        assert connection.connected


async def test_a_suspicion_of_the_nameserver_moves_no_stream() -> None:
    async with connected() as (connection, channels):
        await (await channels.opened.get()).written.get()
        connection.update(group(1, ""))
        connection.update(group(1, "n1"))
        await _turns()
        assert channels.opened.empty()
        assert connection.connected


async def test_a_new_leader_ends_the_pause_that_another_node_asked_for() -> None:
    async with connected() as (connection, channels):
        old = await channels.opened.get()
        await old.written.get()
        refusal = pb.Refusal(code=pb.NO_QUORUM, retryable=True, retry_after_ms=FOR_EVER_MS)
        old.answer(log_pb2.ProduceResponse(request_id=1, refusal=refusal))
        await _turns()
        assert connection.window.paused_until
        assert channels.opened.empty()
        connection.update(group(2, "n2"))
        new = await channels.opened.get()
        assert new.address == "n2"
        assert await new.written.get()


@pytest.mark.parametrize(
    ("code", "rank"),
    [(pb.NOT_LEADER, 2), (pb.STALE_ROUTE, 0), (pb.OUTCOME_UNKNOWN, 2), (pb.NO_QUORUM, 2), (pb.DISK_FULL, 2)],
)
async def test_what_a_refusal_says_of_the_calls_to_the_group(code: pb.RefusalCode, rank: int) -> None:
    """A call to another node had failed before: who does not lead says nothing, who leads ends that."""

    async with connected() as (connection, channels):
        calls = connection.calls = CallTimes(LatencyTable())
        calls.failed("n3", now_ms())
        call = await channels.opened.get()
        await call.written.get()
        refusal = pb.Refusal(code=code, retryable=True, retry_after_ms=FOR_EVER_MS)
        call.answer(log_pb2.ProduceResponse(request_id=1, refusal=refusal))
        await _turns()
        assert calls.rank(now_ms()) == rank


async def test_a_stream_that_breaks_with_a_request_open_is_a_failed_call_and_one_that_is_left_is_none() -> (
    None
):
    async with connected() as (connection, channels):
        calls = connection.calls = CallTimes(LatencyTable())
        for leave, rank in ((connection.update, 0), (None, 2)):
            call = await channels.opened.get()
            await call.written.get()
            if leave is not None:
                leave(group(2, "n2"))
            else:
                call.answer(grpc.RpcError())
            channels.opened.put_nowait(await channels.opened.get())  # the next stream is there
            assert calls.rank(now_ms()) == rank


async def test_news_during_a_pause_of_the_search_are_what_it_goes_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_tracker, "_search_pause_ms", lambda _rounds: FOR_EVER_MS)

    async with connected() as (connection, channels):
        for name in ("n1", "n2", "n3"):
            call = await channels.opened.get()
            assert call.address == name
            call.answer(grpc.RpcError())
        await _turns()
        assert channels.opened.empty()
        connection.update(group(2, "n3"))
        assert (await channels.opened.get()).address == "n3"


async def _turns() -> None:
    """Let the tasks go as far as they can without an event."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("known", "goes_to"),
    [((2, "n3"), "n3"), ((1, "n1"), ""), ((0, ""), ""), ((2, ""), "")],
    ids=["another leads", "the same leads", "no node answers", "an election is on"],
)
async def test_a_leader_that_fell_silent_is_left_when_another_node_names_the_next_one(
    known: tuple[int, str], goes_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a nameserver: it may be on the host that was lost."""
    monkeypatch.setattr(module, "SUSPICION_MS", -1)
    monkeypatch.setattr(module, "CHECK_S", 0.0)
    asked: asyncio.Queue[list[str]] = asyncio.Queue()

    async def who_leads(_channels: object, addresses: list[str]) -> tuple[int, str]:
        asked.put_nowait(addresses)
        return known

    monkeypatch.setattr(module, "who_leads", who_leads)

    async with connected() as (connection, channels):
        await channels.opened.get()
        assert await asked.get() == ["n2", "n3"]
        if goes_to:
            assert (await channels.opened.get()).address == goes_to
            return
        await asked.get()
        assert channels.opened.empty()
        assert connection.connected
