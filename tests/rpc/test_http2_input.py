"""How much of what a peer sends is taken in one turn of the loop."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.http2_connection import Http2Connection
from ledgermq.rpc.http2_input import SCRATCH_SIZE
from ledgermq.rpc.turns import Turns
from ledgermq.rpc.wire_limits import FRAMES_PER_TURN
from tests.fuzz.rpc_targets import FakeTransport, until_ended

from .peers import run
from .raw_peer import request


class _Transport(FakeTransport):
    """Counts the answers, and knows whether it may be read."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0
        self._reads = True

    def is_read(self) -> bool:
        return self._reads

    def write(self, data: bytes) -> None:
        while data:
            size = h2.FRAME_HEADER_SIZE + int.from_bytes(data[:3], "big")
            self.answers += data[3] == h2.HEADERS
            data = data[size:]

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True


def _arrive(connection: Http2Connection, data: bytes) -> None:
    """Let the connection receive `data` at once; it fits."""
    memoryview(connection.get_buffer(-1))[: len(data)] = data
    connection.buffer_updated(len(data))


def _calls(count: int, first: int = 1) -> bytes:
    """Return calls of an unknown method, a frame each, that are answered at once."""
    block = request(b"/x")
    flags = h2.END_HEADERS | h2.END_STREAM
    return b"".join(h2.frame(h2.HEADERS, flags, first + 2 * number, block) for number in range(count))


@pytest.mark.parametrize("more", [0, 1])
def test_a_peer_with_many_frames_gets_a_share_of_each_turn(more: int) -> None:
    async def test() -> None:
        connection, transport = GrpcServer().serve_connection(), _Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        _arrive(connection, h2.PREFACE + h2.settings_frame([]))
        _arrive(connection, _calls(2 * FRAMES_PER_TURN + more))
        assert transport.answers == FRAMES_PER_TURN and not transport.is_read()
        assert connection.missing == 0
        await asyncio.sleep(0)
        assert transport.answers == 2 * FRAMES_PER_TURN and transport.is_read() == (not more)
        await asyncio.sleep(0)
        assert transport.answers == 2 * FRAMES_PER_TURN + more and transport.is_read()
        await until_ended(connection)

    run(test)


def test_a_read_that_fills_the_memory_is_the_last_one_of_its_turn() -> None:
    """The next one may be as large: a loop that reads until nothing is left would do nothing else."""

    async def test() -> None:
        connection, transport = GrpcServer().serve_connection(), _Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        _arrive(connection, h2.PREFACE + h2.settings_frame([]))
        frames = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, request(b"/x", (b"content-type", b"text/plain")))
        left = SCRATCH_SIZE - len(frames)
        frames += h2.frame(0x77, 0, 0, bytes(16_000)) * (left // 16_009)
        frames += h2.frame(0x77, 0, 0, bytes(left % 16_009 - h2.FRAME_HEADER_SIZE))
        _arrive(connection, frames)
        assert not transport.is_read()
        await asyncio.sleep(0)
        assert transport.is_read()
        _arrive(connection, _calls(1, first=3))
        assert transport.is_read()
        await until_ended(connection)

    run(test)


def test_frames_that_wait_are_dropped_with_their_connection() -> None:
    async def test() -> None:
        connection, transport = GrpcServer().serve_connection(), _Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        _arrive(connection, h2.PREFACE + h2.settings_frame([]))
        _arrive(connection, _calls(FRAMES_PER_TURN + 10))
        connection.close()
        await asyncio.sleep(0)
        assert transport.answers == FRAMES_PER_TURN and transport.closing and not transport.is_read()
        await until_ended(connection)

    run(test)


def test_what_comes_while_frames_wait_is_taken_behind_them() -> None:
    async def test() -> None:
        connection, transport = GrpcServer().serve_connection(), _Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        _arrive(connection, h2.PREFACE + h2.settings_frame([]))
        calls = _calls(FRAMES_PER_TURN + 10)
        _arrive(connection, calls[:-5])
        _arrive(connection, calls[-5:])  # as when memory for requests has come free meanwhile
        await asyncio.sleep(0)
        assert transport.answers == FRAMES_PER_TURN + 10 and transport.is_read()
        await until_ended(connection)

    run(test)


def test_of_many_peers_with_many_frames_one_goes_on_in_each_turn() -> None:
    async def test() -> None:
        server = GrpcServer()
        peers = [(server.serve_connection(), _Transport()) for _ in range(4)]
        for connection, transport in peers:
            connection.connection_made(transport)  # type: ignore[arg-type]
            _arrive(connection, h2.PREFACE + h2.settings_frame([]))
            _arrive(connection, _calls(2 * FRAMES_PER_TURN + 1))
        peers[1][0].abort("gone")

        def answers() -> list[int]:
            return [transport.answers for _, transport in peers]

        share = FRAMES_PER_TURN
        assert answers() == [share, share, share, share]
        await asyncio.sleep(0)
        assert answers() == [2 * share, share, share, share]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert answers() == [2 * share, share, 2 * share, share]
        for _ in range(4):
            await asyncio.sleep(0)
        assert answers() == [2 * share + 1, share, 2 * share + 1, 2 * share + 1]
        assert [transport.is_read() for _, transport in peers] == [True, False, True, True]
        for connection, _ in peers:
            await until_ended(connection)

    run(test)


def test_a_defect_in_one_turn_leaves_the_others_theirs() -> None:
    async def test() -> None:
        escaped: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: escaped.append(context["exception"])
        )
        turns, done = Turns(), asyncio.Event()
        turns.wait(partial(next, iter(())))
        turns.wait(done.set)
        await done.wait()
        assert len(escaped) == 1

    run(test)
