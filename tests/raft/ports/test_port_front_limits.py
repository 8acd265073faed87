"""Connection limits of a front, and which connections it closes when there are too many."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import cast

import pytest

from ledgermq.raft.ports import acceptor
from ledgermq.raft.ports import front as port_front
from ledgermq.raft.ports.counts import Ended, PortCounts, Refused
from ledgermq.raft.ports.front import FrontLimits, Judge, PortFront, PortVerdict, take_port
from tests.ports import free_port

HERE = "127.0.0.1"
pytestmark = pytest.mark.usefixtures("runner")


def judge(connection: asyncio.Transport, first: bytes) -> PortVerdict:
    """A peer's stream begins with "s" and is taken. Everything else is passed on."""
    if first[:1] == b"s":
        connection.write(b"taken")
        connection.resume_reading()
        return PortVerdict.TAKEN
    return PortVerdict.PASS_ON


class Echo(asyncio.Protocol):
    """The server behind: echoes what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Caller:
    """A connection to the port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def says(self, text: bytes) -> bytes:
        """Send something. Returns the answer, or b"" if the connection is closed instead."""
        try:
            self._writer.write(text)
            return await self._reader.read(100)
        except ConnectionError:
            return b""

    async def is_closed(self) -> bool:
        try:
            return await self._reader.read(1) == b""
        except ConnectionError:
            return True

    def leave(self) -> None:
        self._writer.close()


class Port:
    """A front on a local port."""

    def __init__(self, limits: FrontLimits, judge: Judge = judge) -> None:
        self.number = free_port()
        self.counts = PortCounts("port")
        self.front = PortFront(judge, limits, self.counts)
        self._callers: list[Caller] = []
        self._server: asyncio.Server

    async def open(self) -> None:
        path = self.front.inner_address.removeprefix("unix:")
        self._server = await asyncio.get_running_loop().create_unix_server(Echo, path)
        await self.front.listen(take_port(f"{HERE}:{self.number}"))

    async def call(self, tls: ssl.SSLContext | None = None) -> Caller:
        name = "localhost" if tls is not None else None
        caller = Caller(*await asyncio.open_connection(HERE, self.number, ssl=tls, server_hostname=name))
        self._callers.append(caller)
        return caller

    async def refuses(self) -> bool:
        """Connect, and return whether the connection is closed before anything is sent."""
        try:
            caller = await self.call()
        except ConnectionError:
            return True
        return await caller.is_closed()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 (counters signal no event)
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        for caller in self._callers:
            caller.leave()
        self.front.close()
        self._server.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(limits: FrontLimits) -> AsyncIterator[Port]:
    port = Port(limits)
    await port.open()
    try:
        yield port
    finally:
        await port.close()


async def test_a_full_port_refuses_and_takes_again_when_somebody_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(FrontLimits(max_connections=2)) as port:
        first, second = await port.call(), await port.call()
        assert await first.says(b"1") == b"1"
        assert await second.says(b"2") == b"2"
        for _ in range(3):
            assert await port.refuses()
        assert await first.says(b"still here") == b"still here"
        assert port.counts.refused == {Refused.LIMIT: 3}
        assert (port.counts.open, port.counts.limit) == (2, 2)
        second.leave()
        await port.until(lambda: port.counts.open == 1)
        late = await port.call()
        assert await late.says(b"3") == b"3"
    lines = [line for line in caplog.messages if line.startswith("connections refused")]
    assert len(lines) == 1, "one line for all of them"
    assert "port=port reason=limit" in lines[0] and "open=2 limit=2" in lines[0]


async def test_who_says_nothing_makes_room_for_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_front, "EVICTABLE_AFTER_S", 0.0)

    async with opened(FrontLimits(max_connections=3)) as port:
        spoke = await port.call()
        assert await spoke.says(b"1") == b"1"
        silent = [await port.call() for _ in range(2)]
        await port.until(lambda: port.counts.open == 3)
        late = await port.call()
        assert await late.says(b"2") == b"2"
        assert await silent[0].is_closed(), "the one that is silent for longest"
        assert await silent[1].says(b"3") == b"3"
        assert await spoke.says(b"still here") == b"still here"
        assert port.counts.ended == {Ended.MADE_ROOM: 1}
        assert not port.counts.refused


async def test_who_came_a_moment_ago_need_not_make_room_where_few_are_silent() -> None:
    async with opened(FrontLimits(max_connections=8)) as port:
        for _ in range(7):
            spoke = await port.call()
            assert await spoke.says(b"1") == b"1"
        young = await port.call()
        await port.until(lambda: port.counts.open == 8)
        assert await port.refuses()
        assert await young.says(b"1") == b"1"


async def test_where_many_are_silent_whoever_comes_gets_in_however_fast_they_come_again() -> None:
    """Silent clients reconnect as soon as they are closed."""
    async with opened(FrontLimits(max_connections=100)) as port:
        silent = [await port.call() for _ in range(100)]
        for _ in range(20):
            caller = await port.call()
            assert await caller.says(b"1") == b"1"
            caller.leave()
            silent.append(await port.call())
        assert not port.counts.refused
        assert port.counts.ended[Ended.MADE_ROOM] >= 20


async def test_one_address_may_have_so_many_connections_and_others_theirs() -> None:
    async with opened(FrontLimits(max_connections=10, per_address=2)) as port:
        callers = [await port.call() for _ in range(2)]
        for number, caller in enumerate(callers):
            assert await caller.says(b"%d" % number) == b"%d" % number
        assert await port.refuses()
        assert port.counts.refused == {Refused.ADDRESS: 1}
        other = Caller(*await asyncio.open_connection(HERE, port.number, local_addr=("127.0.0.2", 0)))
        assert await other.says(b"another address") == b"another address"
        other.leave()
        callers[0].leave()
        await port.until(lambda: port.counts.open <= 2)
        again = await port.call()
        assert await again.says(b"2") == b"2"


async def test_who_is_taken_finds_a_place_however_many_are_passed_on() -> None:
    """On the Raft port: the streams of the peers."""
    async with opened(FrontLimits(max_connections=4, reserve=2)) as port:
        passed = [await port.call() for _ in range(2)]
        for caller in passed:
            assert await caller.says(b"1") == b"1"
        refused = await port.call()
        assert await refused.says(b"2") == b""
        assert port.counts.refused == {Refused.LIMIT: 1}
        for _ in range(5):
            peer = await port.call()
            assert await peer.says(b"stream") == b"taken"
        assert port.counts.open == 2, "those that are taken count no longer"


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Open as many files as this process may still open. (Its limit is lowered first.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.dup(2))
            except OSError:
                break
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_descriptors_callers_are_refused_and_the_loop_does_not_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    takes: list[int] = []
    take = acceptor.Acceptor._take

    def counted(self: acceptor.Acceptor, listening: socket.socket) -> None:
        takes.append(1)
        take(self, listening)

    monkeypatch.setattr(acceptor.Acceptor, "_take", counted)

    monkeypatch.setattr(acceptor, "STARVED_PAUSE_S", 3600.0)
    async with opened(FrontLimits()) as port:
        before = await port.call()
        assert await before.says(b"1") == b"1"
        callers = [socket.socket() for _ in range(acceptor.ACCEPTS_PER_TURN + 4)]
        with no_descriptors():
            takes.clear()
            for caller in callers:
                caller.connect((HERE, port.number))  # the kernel accepts it
            await port.until(lambda: port.counts.refused[Refused.DESCRIPTORS] > 0)
            assert await before.says(b"still here") == b"still here"
            for _ in range(200):
                await asyncio.sleep(0)
            assert len(takes) == 1, "the socket waits for its pause to end"
        for caller in callers:
            caller.close()


async def test_a_port_that_ran_out_of_descriptors_goes_on_when_there_are_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(acceptor, "STARVED_PAUSE_S", 0.001)

    async with opened(FrontLimits()) as port:
        with socket.socket() as early, no_descriptors():
            early.connect((HERE, port.number))
            await port.until(lambda: port.counts.refused[Refused.DESCRIPTORS] > 0)
        late = await port.call()
        assert await late.says(b"1") == b"1"
    assert "LimitNOFILE" in caplog.text
