"""One budget for what all peers send together: bounded, and nobody waits without end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc import shared_memory
from ledgermq.rpc.grpc_messages import PREFIX
from ledgermq.rpc.shared_memory import SharedMemory
from ledgermq.rpc.wire_limits import READ_AHEAD, SMALL_SHARE, WireLimits

from .peers import Stub, channel_to, run, serving, until
from .raw_peer import ECHO, MIRROR, RawPeer, message, raw_peer

MIB = 1 << 20
LIMITS = WireLimits(max_message=5 * MIB, total_memory=2 * MIB)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(shared_memory, "STALL_S", 0.2)
    monkeypatch.setattr(shared_memory, "CHECK_S", 0.05)
    yield


@contextlib.asynccontextmanager
async def peers_at(address: str, count: int) -> AsyncIterator[list[RawPeer]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(raw_peer(address)) for _ in range(count)]


def send_part(peer: RawPeer, block: bytes = MIRROR, part: int = 240_000) -> None:
    """Begin a message of 4 MiB."""
    peer.send(h2.HEADERS, h2.END_HEADERS, 1, block)
    data = PREFIX.pack(0, 4 * MIB) + bytes(part)
    for start in range(0, len(data), 16_000):
        peer.send(h2.DATA, 0, 1, data[start : start + 16_000])


async def one_is_reset(peers: list[RawPeer]) -> None:
    """Wait until a peer is told that its message was dropped."""
    waiting = [asyncio.create_task(peer.until(h2.RST_STREAM, 1)) for peer in peers]
    done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for each in done:
        assert int.from_bytes(each.result()[3], "big") == h2.ENHANCE_YOUR_CALM


def test_peers_that_only_take_memory_lose_it_and_calls_of_every_size_go_on() -> None:
    async def test() -> None:
        limits = WireLimits(max_message=5 * MIB, total_memory=16 * MIB)
        async with (
            serving("wire", limits) as (server, address, _service),
            channel_to("wire", address) as channel,
            peers_at(address, 50) as takers,
        ):
            stub: Any = Stub(channel)
            most, done = 0, asyncio.Event()

            async def watch() -> None:
                nonlocal most
                while not done.is_set():
                    most = max(most, server._shared.held)
                    await asyncio.sleep(0)

            watcher = asyncio.create_task(watch())
            for taker in takers:
                send_part(taker)
            large, small = b"l" * (4 * MIB), b"s" * 1000
            answers = await asyncio.gather(*(stub.echo(body) for body in (large, small, large, small)))
            assert answers == [large, small, large, small]
            await one_is_reset(takers)
            done.set()
            await watcher
            assert most <= 2 * limits.total_memory + READ_AHEAD + 2 * len(large), most

    run(test)


def test_whole_requests_whose_calls_never_end_are_dropped() -> None:
    """A unary call is served when the client has ended it; until then its message takes memory."""

    async def test() -> None:
        async with (
            serving("wire", LIMITS) as (_server, address, _service),
            channel_to("wire", address) as channel,
            peers_at(address, 15) as takers,
        ):
            stub: Any = Stub(channel)
            for taker in takers:
                taker.send(h2.HEADERS, h2.END_HEADERS, 1, ECHO)
                body = message(bytes(200_000))
                for start in range(0, len(body), 16_000):
                    taker.send(h2.DATA, 0, 1, body[start : start + 16_000])
            await one_is_reset(takers)
            large = bytes(4 * MIB)
            assert await stub.echo(large) == large

    run(test)


def test_a_slow_handler_is_no_fault_of_its_peer() -> None:
    """Whole messages of a stream wait for their reader as long as it takes."""

    async def test() -> None:
        limits = WireLimits(max_message=5 * MIB, total_memory=MIB)
        async with (
            serving("wire", limits) as (server, address, service),
            channel_to("wire", address) as channel,
        ):
            stub: Any = Stub(channel)
            calls = [stub.unread() for _ in range(8)]
            writers = [asyncio.create_task(_write(call, 20)) for call in calls]
            await until(lambda: server._shared.held > limits.total_memory)
            assert await stub.echo(b"small") == b"small", "on a connection that holds too much"
            await asyncio.sleep(0.5)
            service.go_on.set()
            for call in calls:
                assert [await call.read() for _ in range(20)] == [b"100000"] * 20
            await asyncio.gather(*writers)
            assert not server._shared.stopped

    run(test)


async def _write(call: Any, count: int) -> None:
    for _ in range(count):
        await call.write(bytes(100_000))


class User:
    """A connection that holds what a test says."""

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self.held = self.received = 0
        self.is_receiving = self.waits_for_reader = False
        self._reads = True
        self._dropped = ""

    def take(self, size: int, *, whole: bool = False) -> None:
        self.held += size
        self.received += size
        self._shared.held += size
        self.is_receiving = not whole
        self._shared.on_received(self)

    def free(self) -> None:
        self._shared.held -= self.held
        self.held = 0
        self.is_receiving = False
        self._shared.on_freed(self)

    def is_reading(self) -> bool:
        return self._reads

    def was_dropped(self) -> bool:
        return bool(self._dropped)

    def stop_reading(self) -> None:
        self._reads = False

    def read_on(self) -> None:
        self._reads = True

    def drop_incomplete(self, reason: str) -> None:
        self._dropped = reason
        self.free()


def test_the_first_one_beyond_the_limit_goes_on_and_the_next_when_it_is_done() -> None:
    async def test() -> None:
        shared = SharedMemory(MIB)
        first, second, third = (User(shared) for _ in range(3))
        first.take(MIB + 1)
        second.take(2 * MIB)
        third.take(SMALL_SHARE + 1)
        assert (first.is_reading(), second.is_reading(), third.is_reading()) == (True, False, False)
        first.take(100 * MIB)
        assert first.is_reading() and not shared.must_drop(first) and shared.must_drop(second)
        first.free()
        assert second.is_reading() and third.is_reading()
        second.take(MIB)
        third.take(MIB)
        assert (second.is_reading(), third.is_reading()) == (True, False), "the favour went on in order"
        second.free()
        third.free()
        assert shared.held == 0 and third.is_reading()

    run(test)


def test_who_holds_little_reads_on_whatever_others_hold() -> None:
    async def test() -> None:
        shared = SharedMemory(MIB)
        large, other, small = (User(shared) for _ in range(3))
        large.take(10 * MIB)
        other.take(2 * MIB)
        for _ in range(10):
            small.take(SMALL_SHARE, whole=True)
            assert small.is_reading()
            small.free()
        small.take(SMALL_SHARE + 1, whole=True)
        assert not small.is_reading()
        small.free()
        assert small.is_reading(), "although others still hold everything"

    run(test)


def test_who_sends_too_slowly_loses_its_message_only_when_memory_is_scarce() -> None:
    async def test() -> None:
        shared = SharedMemory(MIB)
        slow, excused, fast = (User(shared) for _ in range(3))
        excused.waits_for_reader = True
        slow.take(100_000)
        excused.take(100_000)
        await asyncio.sleep(0.3)
        fast.take(100_000)
        assert not slow.was_dropped()
        await asyncio.sleep(0.1)
        fast.take(MIB)
        assert slow.was_dropped() and not excused.was_dropped() and not fast.was_dropped()

    run(test)


def test_one_that_stops_reading_is_looked_at_without_any_further_byte() -> None:
    async def test() -> None:
        shared = SharedMemory(MIB)
        favoured, waiting = User(shared), User(shared)
        favoured.take(2 * MIB)
        waiting.take(MIB + 1)
        assert not waiting.is_reading()
        await until(favoured.was_dropped)
        assert waiting.is_reading() and not waiting.was_dropped()
        shared.forget(waiting)

    run(test)


def test_what_one_large_message_takes_is_not_taken_from_the_others() -> None:
    async def test() -> None:
        shared = SharedMemory(MIB)
        large, other = User(shared), User(shared)
        large.take(50 * MIB)
        other.take(MIB)
        assert other.is_reading()

    run(test)


def test_the_favour_ends_although_the_favoured_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "FAVOUR_S", 0.3)

    async def test() -> None:
        shared = SharedMemory(MIB)
        favoured, waiting = User(shared), User(shared)
        favoured.take(2 * MIB)
        waiting.take(MIB + 1)
        while not favoured.was_dropped():
            favoured.take(100_000)
            await asyncio.sleep(0.01)
        assert waiting.is_reading() and not waiting.was_dropped()
        shared.forget(waiting)

    run(test)
