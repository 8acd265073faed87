"""Random histories of a server's connections: nothing is left behind, nothing escapes.

`SEED=17` runs one of them, `SEEDS=5000` the first 5,000 on each loop. A failure says its seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from functools import partial
from typing import Any, Final

import grpc
import pytest

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.direct_call import ServedDirectCall
from ledgermq.rpc.grpc_messages import Buffer
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.http2_connection import Http2Connection

from .connection_histories import History, RightPeer, WildPeer
from .peers import run, serving
from .raw_peer import RawPeer

ONE: Final = os.environ.get("SEED")
COUNT: Final = int(os.environ.get("SEEDS") or 80)
#: What a server may end the connection of a right peer for: scarce memory, and that it stops.
_FAIR: Final = (h2.NO_ERROR, h2.ENHANCE_YOUR_CALM)


class _DirectUser:
    """User of a call without a task, who does all that one may do."""

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self._rnd = random.Random(stream_id)
        self._call = ServedDirectCall(connection, stream_id, self, 5 << 20)
        if self._rnd.random() < 0.3:
            self._call.stream.hold()
            asyncio.get_running_loop().call_soon(self._release)
        if self._rnd.random() < 0.3:
            connection.widen(self._call.stream, 20 << 20)

    def _release(self) -> None:
        if self._call.is_open:
            self._call.stream.release()

    def on_message(self, message: Buffer) -> None:
        kind = self._rnd.random()
        if kind < 0.6:
            self._call.send((bytes(message), b"tail"))
        elif kind < 0.7:
            self._call.finish(grpc.StatusCode.ABORTED, "x")
        elif kind < 0.75:
            self._call.reset()

    def on_sent(self) -> None:
        if self._rnd.random() < 0.3:
            self._call.send((b"more",))

    def on_over(self, code: grpc.StatusCode, details: str) -> None: ...


class _Client:
    """A peer with its connection."""

    def __init__(self, peer: WildPeer | RightPeer, raw: RawPeer) -> None:
        self.peer, self.raw = peer, raw
        self.code: int = h2.NO_ERROR  # of the server's GOAWAY
        self.reason = ""
        self.may_read = asyncio.Event()
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        peer = self.peer
        while True:
            if peer.reads_slowly:
                await self.may_read.wait()
                self.may_read.clear()
            if isinstance(peer, WildPeer):
                with contextlib.suppress(OSError):
                    if await self.raw.reader.read(peer.read_size):
                        continue
                return
            frame = await self.raw.read_frame()
            if frame is None:
                return
            peer.take(frame[0], frame[1], frame[3])
            if frame[0] == h2.GOAWAY:
                _, self.code, self.reason = h2.read_goaway(frame[3])

    async def send(self, history: History) -> None:
        burst, writer = self.peer.burst(), self.raw.writer
        cut = history.rnd.randrange(len(burst) + 1)
        for part in (burst[:cut], burst[cut:]):
            if not writer.transport.is_closing():
                writer.write(part)
            await history.pause()

    async def end(self) -> None:
        self.raw.writer.transport.abort()
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)


async def _live(history: History, server: GrpcServer, clients: list[_Client]) -> None:
    rnd = history.rnd
    for _ in range(history.steps):
        client = rnd.choice(clients)
        client.may_read.set()
        await client.send(history)
        if rnd.random() < 0.01:
            for connection in list(server._connections):
                connection.drain()
    if history.stops:
        await server.stop(history.grace)


def _left(server: GrpcServer) -> dict[str, Any]:
    """Return what the server still has."""
    shared = server._shared
    assert shared.answers is not None
    found = {
        "held": shared.held,
        "incomplete": shared.incomplete,
        "stopped": shared.stopped,
        "marks": shared._marks,
        "favoured": shared._favoured,
        "unsent": shared.answers.held,
        "readers": shared.answers._readers,
        "calls": server._calls,
        "connections": server._connections,
    }
    return {name: value for name, value in found.items() if value}


async def _check(seed: int) -> None:
    history, errors = History(seed), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with serving("wire", history.limits) as (server, address, service):
        server.add_direct_method("/test.Service/Direct", _DirectUser)
        if history.rnd.random() < 0.5:
            service.go_on.set()
        host, _, port = address.rpartition(":")
        clients = []
        for peer in history.peers:
            raw = RawPeer(*await asyncio.open_connection(host, int(port)))
            raw.writer.write(peer.greeting())
            clients.append(_Client(peer, raw))
        try:
            await _live(history, server, clients)
        finally:
            for client in clients:
                await client.end()
        service.go_on.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                while _left(server):  # noqa: ASYNC110  # counters of a server
                    await asyncio.sleep(0.001)
        assert not _left(server)
    for each in errors:
        raise AssertionError(each["message"]) from each.get("exception")
    for client in clients:
        if isinstance(client.peer, RightPeer):
            assert client.code in _FAIR, f"a right peer was told {client.code}: {client.reason}"


@pytest.mark.parametrize("on_uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_a_random_history_leaves_nothing(on_uvloop: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "ledgermq.rpc")  # peers break the protocol, handlers get nonsense
    for seed in [int(ONE)] if ONE else range(COUNT):
        try:
            run(partial(_check, seed), on_uvloop=on_uvloop)
        except BaseException as error:
            error.add_note(f"SEED={seed}")
            raise
