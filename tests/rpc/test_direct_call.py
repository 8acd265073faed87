"""Calls whose messages are given to their user as they come: both ends, with each other and with grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.direct_call import DirectCall, MadeDirectCall, ServedDirectCall
from ledgermq.rpc.grpc_messages import Buffer
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.http2_connection import Http2Connection
from ledgermq.rpc.http2_input import SCRATCH_SIZE
from ledgermq.rpc.shared_memory import SharedMemory
from ledgermq.rpc.wire_limits import WireLimits

from .peers import run
from .raw_peer import message, raw_peer, request

METHOD = "/test.Direct/Echo"
Code = grpc.StatusCode
LIMITS = WireLimits(max_message=9 << 20, max_data_frame=2 << 20)


class User:
    """Records what it is told. With `echoes` it sends every message back."""

    def __init__(self, *, echoes: bool = False) -> None:
        self.call: DirectCall
        self.messages: list[Buffer] = []
        self.over: tuple[grpc.StatusCode, str] | None = None
        self.sent = 0
        self.changed = asyncio.Event()
        self._echoes = echoes

    def on_message(self, message: Buffer) -> None:
        self.messages.append(message)
        if self._echoes:
            self.call.send((message,))
        self.changed.set()

    def on_sent(self) -> None:
        self.sent += 1
        self.changed.set()

    def on_over(self, code: grpc.StatusCode, details: str) -> None:
        assert self.over is None
        self.over = code, details
        self.changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


class Served:
    """A server whose calls get a `User` each."""

    def __init__(self, address: str, users: list[User]) -> None:
        self.address, self.users = address, users

    async def called(self, number: int = 1) -> User:
        while len(self.users) < number:  # noqa: ASYNC110 (no event says so)
            await asyncio.sleep(0.001)
        return self.users[number - 1]


@asynccontextmanager
async def serving(*, holds: bool = False, max_message: int = 9 << 20) -> AsyncIterator[Served]:
    users: list[User] = []

    def begin(connection: Http2Connection, stream_id: int) -> None:
        user = User(echoes=True)
        user.call = ServedDirectCall(connection, stream_id, user, max_message)
        if holds:
            user.call.stream.hold()
        users.append(user)

    server = GrpcServer(LIMITS, takes_compressed=False)
    server.add_direct_method(METHOD, begin)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Served(f"127.0.0.1:{port}", users)
    finally:
        await server.stop(0)


@asynccontextmanager
async def calling(address: str, method: str = METHOD) -> AsyncIterator[User]:
    user = User()
    connection = Http2Connection(LIMITS, bytearray(SCRATCH_SIZE), SharedMemory(LIMITS.total_memory))
    host, _, port = address.rpartition(":")
    await asyncio.get_running_loop().create_connection(lambda: connection, host, int(port))
    user.call = MadeDirectCall(connection, method, address, user, 9 << 20)
    try:
        yield user
    finally:
        await Http2Connection.close_all([connection], "")


@pytest.mark.parametrize("on_uvloop", [True, False])
def test_messages_of_any_size_come_back_in_order(on_uvloop: bool) -> None:
    async def test() -> None:
        async with serving() as server, calling(server.address) as user:
            sizes = (0, 1, 20_000, 70_000, 300_000, 3 << 20, 9 << 20, 5, 1 << 20, 1 << 20, 2_000, 1 << 20, 0)
            for size in sizes:
                user.call.send((b"head", bytes(size - 8), b"tail") if size > 8 else (bytes(size),))
            await user.until(lambda: len(user.messages) == len(sizes))
            assert [len(each) for each in user.messages] == list(sizes)
            assert bytes(user.messages[3]) == b"head" + bytes(69_992) + b"tail"
            for number in (5, 8, 9):
                is_lent = isinstance(user.messages[number], memoryview)
                assert is_lent, "it is in the memory that it was received into"

    run(test, on_uvloop=on_uvloop)


def test_grpcio_speaks_with_it() -> None:
    async def test() -> None:
        async with serving() as server, grpc.aio.insecure_channel(server.address) as channel:
            method: Any = channel.stream_stream(METHOD, None, None)
            call = method()
            for body in (b"one", b"", bytes(100_000)):
                await call.write(body)
                assert await call.read() == body
            await call.done_writing()
            assert await call.code() is Code.OK
            user = await server.called()
            assert user.over is not None and user.over[0] is Code.OK

    run(test)


def test_a_status_and_a_reset_reach_the_other_end() -> None:
    async def test() -> None:
        async with serving() as server:
            async with calling(server.address) as user:
                user.call.send((b"x",))
                await user.until(lambda: user.messages)
                served = (await server.called()).call
                assert isinstance(served, ServedDirectCall)
                served.finish(Code.FAILED_PRECONDITION, "not this one")
                await user.until(lambda: user.over)
                assert user.over == (Code.FAILED_PRECONDITION, "not this one")
            async with calling(server.address) as user:
                user.call.send((b"x",))
                await user.until(lambda: user.messages)
                user.call.reset()
                there = await server.called(2)
                await there.until(lambda: there.over)
                assert user.over is None, "the end of this side"
            async with calling(server.address, "/test.Direct/Other") as user:
                await user.until(lambda: user.over)
                assert user.over == (Code.UNIMPLEMENTED, "Method not found!")

    run(test)


def test_a_message_above_the_limit_ends_the_call_before_memory_is_taken() -> None:
    async def test() -> None:
        async with serving(max_message=100) as server, calling(server.address) as user:
            user.call.send((bytes(101),))
            there = await server.called()
            await there.until(lambda: there.over)
            assert there.call.is_unreadable and not there.messages
            await user.until(lambda: user.over)

    run(test)


def test_what_is_held_waits_within_the_window_and_comes_when_it_is_released() -> None:
    async def test() -> None:
        async with serving(holds=True) as server, calling(server.address) as user:
            bodies = [b"%d" % number + bytes(50_000) for number in range(40)]  # 2 MB
            for body in bodies:
                user.call.send((body,))
            assert not user.call.may_send
            there = await server.called()
            while there.call.stream.recv_window > 50_000:  # noqa: ASYNC110 (no event says so)
                await asyncio.sleep(0.001)
            assert not there.messages
            assert there.call.stream.unread <= LIMITS.stream_window + 1000
            there.call.connection.widen(there.call.stream, 1 << 20)
            there.call.stream.release()
            await user.until(lambda: len(user.messages) == len(bodies))
            assert user.messages == bodies
            assert user.sent, "it was told that it can send again"

    run(test)


def test_a_user_may_end_its_connection_in_the_middle_of_what_came() -> None:
    async def test() -> None:
        async with serving() as server, calling(server.address) as user:

            def end(message: Buffer) -> None:
                user.call.connection.abort("enough")

            user.call.stream.receive = end
            for _ in range(3):
                user.call.send((b"x",))
            await user.until(lambda: user.over)
            assert user.over == (Code.UNAVAILABLE, "enough")

    run(test)


def test_an_incomplete_frame_or_message_is_told_to_listeners_and_measured() -> None:
    async def test() -> None:
        async with serving() as server, raw_peer(server.address) as peer:
            peer.send(h2.HEADERS, h2.END_HEADERS, 1, request(METHOD.encode()))
            connection = (await server.called()).call.connection
            told = asyncio.Event()
            connection.listeners.append(told.set)
            data = h2.frame(h2.DATA, 0, 1, message(bytes(1000)))
            for size, missing in ((4, 5), (9, 1001), (500, 501)):
                told.clear()
                peer.writer.write(data[:size])
                data = data[size:]
                await told.wait()
                assert connection.missing == missing
            peer.writer.write(data)
            await (await server.called()).until(lambda: server.users[0].messages)
            assert connection.missing == 0

    run(test)
