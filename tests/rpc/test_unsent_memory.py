"""Answers that peers do not read are bounded together, and those of others go on."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterator

import pytest

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc import unsent_memory
from ledgermq.rpc.grpc_messages import PREFIX
from ledgermq.rpc.unsent_memory import UnsentMemory
from ledgermq.rpc.wire_limits import WireLimits

from .peers import Stub, channel_to, run, serving, until
from .raw_peer import ECHO, RawPeer, raw_peer

MIB = 1 << 20
LIMITS = WireLimits(max_message=9 * MIB, total_unsent=2 * MIB)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(unsent_memory, "UNREAD_S", 0.3)
    monkeypatch.setattr(unsent_memory, "CHECK_S", 0.05)
    yield


@contextlib.asynccontextmanager
async def deaf_peer(address: str) -> AsyncIterator[RawPeer]:
    """A peer that opens its windows and reads nothing; its socket takes little, so that the rest waits."""
    async with raw_peer(address) as peer:
        peer.send(h2.SETTINGS, 0, 0, struct.pack(">HI", h2.INITIAL_WINDOW_SIZE, (1 << 31) - 1))
        peer.send(h2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        yield peer


async def ask(peer: RawPeer, stream_id: int, size: int) -> None:
    """Let the server echo so many bytes."""
    peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, ECHO)
    data = PREFIX.pack(0, size) + bytes(size)
    for start in range(0, len(data), 16_000):
        flags = h2.END_STREAM if start + 16_000 >= len(data) else 0
        peer.send(h2.DATA, flags, stream_id, data[start : start + 16_000])
    await peer.writer.drain()


@pytest.mark.parametrize("on_uvloop", [False, True])
def test_peers_that_read_nothing_are_cut_off_and_others_get_their_answers(on_uvloop: bool) -> None:
    async def test() -> None:
        async with (
            serving("wire", limits=LIMITS) as (server, address, _),
            channel_to("wire", address) as channel,
            contextlib.AsyncExitStack() as stack,
        ):
            answers = server._shared.answers
            assert answers is not None
            most = 0
            for _ in range(6):  # a socket's buffers may take some MiB of 8
                with contextlib.suppress(OSError):
                    peer = await stack.enter_async_context(deaf_peer(address))
                    await ask(peer, 1, 8 * MIB)
                    await ask(peer, 3, 8 * MIB)
                most = max(most, answers.held)
                body = bytes(MIB)
                assert await Stub(channel).echo(body) == body
            assert most > LIMITS.total_unsent
            await until(lambda: answers.held <= LIMITS.total_unsent + 16 * MIB)
            assert server.connection_count < 7
        assert answers.held == 0

    run(test, on_uvloop=on_uvloop)


@pytest.mark.parametrize("on_uvloop", [False, True])
def test_one_answer_of_any_size_waits_for_a_slow_reader(on_uvloop: bool) -> None:
    async def test() -> None:
        async with serving("wire", limits=LIMITS) as (server, address, _), deaf_peer(address) as peer:
            answers = server._shared.answers
            assert answers is not None
            await ask(peer, 1, 8 * MIB)
            await until(lambda: answers.held > LIMITS.total_unsent)
            await asyncio.sleep(1)  # longer than what the rule allows, were it more than one
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            size = 0
            while size < 8 * MIB + PREFIX.size:
                size += len((await peer.until(h2.DATA, 1))[3])
            await until(lambda: answers.held == 0)

    run(test, on_uvloop=on_uvloop)


class Reader:
    def __init__(self, memory: UnsentMemory, moved_at: float) -> None:
        self._memory = memory
        self.unsent = 0
        self.moved_at = moved_at
        self.ended = asyncio.Event()

    def take(self, size: int) -> None:
        self.unsent += size
        self._memory.on_change(self, size)

    def end_unread(self, reason: str) -> None:
        self.ended.set()
        self.take(-self.unsent)


def test_the_one_that_has_not_moved_for_longest_ends_first() -> None:
    async def test() -> None:
        now = asyncio.get_running_loop().time()
        memory = UnsentMemory(MIB)
        readers = [Reader(memory, now + 1000 - age) for age in (1, 3, 2, 0)]
        largest = readers[3]
        largest.take(100 * MIB)
        for each in readers[:3]:
            each.take(MIB)
        await readers[1].ended.wait()
        await asyncio.sleep(0.2)
        assert [each.ended.is_set() for each in readers] == [False, True, False, False]
        assert memory.held == 102 * MIB
        readers[2].moved_at = now - 1
        await readers[2].ended.wait()
        readers[0].moved_at = now - 1
        await asyncio.sleep(0.2)
        assert not readers[0].ended.is_set(), "there is room for it"

    run(test)


def test_nobody_ends_while_there_is_room() -> None:
    async def test() -> None:
        memory = UnsentMemory(MIB)
        readers = [Reader(memory, 0.0) for _ in range(4)]
        for each in readers:
            each.take(MIB // 4)
        await asyncio.sleep(0.2)
        assert not any(each.ended.is_set() for each in readers)
        for each in readers:
            each.take(-each.unsent)
        assert memory.held == 0

    run(test)
