"""The front of a server in the same event loop: connections change their protocol, and nothing is lost."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from ledgermq.raft.ports import front as port_front
from ledgermq.raft.ports.counts import Ended, PortCounts, Refused
from ledgermq.raft.ports.front import FrontLimits, PortVerdict, take_port
from ledgermq.raft.ports.handover import EventLoopFront
from ledgermq.raft.ports.tls_records import HANDSHAKE
from tests.ports import free_port
from tests.tls import CERTIFICATE, KEY

pytestmark = pytest.mark.usefixtures("runner")

HERE = "127.0.0.1"
WAIT_S = 20.0


def judge(transport: asyncio.Transport, first: bytes) -> PortVerdict:
    if first[0] == HANDSHAKE:
        return PortVerdict.PASS_ON_TLS
    return PortVerdict.PASS_ON if len(first) > 3 else PortVerdict.WAIT


class Echo(asyncio.BufferedProtocol):
    """A server's protocol with little memory for received bytes."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.peer: tuple[str, int] = ("", 0)
        self._on_lost = on_lost
        self._buffer = bytearray(7)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.peer = transport.get_extra_info("peername")[:2]

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(bytes(self._buffer[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()


class Port:
    """A front on a free port, and what it has handed over."""

    def __init__(self, limits: FrontLimits) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE, KEY)
        self.counts, self.number, self.served = PortCounts("test"), free_port(), list[Echo]()
        self.front = EventLoopFront(judge, self._serve, limits, self.counts, context)

    def _serve(self, on_lost: Callable[[], None]) -> Echo:
        self.served.append(Echo(on_lost))
        return self.served[-1]

    async def closed(self, count: int) -> None:
        """Wait until so many connections are left."""
        async with asyncio.timeout(WAIT_S):
            while self.counts.open > count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@asynccontextmanager
async def opened(limits: FrontLimits | None = None) -> AsyncIterator[Port]:
    port = Port(limits or FrontLimits())
    await port.front.listen(take_port(f"{HERE}:{port.number}"))
    try:
        yield port
    finally:
        port.front.close()


async def test_what_came_before_the_verdict_comes_first_and_the_client_is_known_by_its_address() -> None:
    text = bytes(range(256)) * 100
    async with opened() as port, asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(HERE, port.number)
        for piece in (text[:2], text[2:20], text[20:]):
            writer.write(piece)
            await asyncio.sleep(0.01)
        assert await reader.readexactly(len(text)) == text
        assert port.served[0].peer == writer.get_extra_info("sockname")
        assert port.counts.open == 1, "it keeps its place"
        writer.close()
        await port.closed(0)


@pytest.mark.parametrize("step", [1, 100, 1 << 20])
async def test_tls_is_spoken_however_the_hello_is_cut_and_what_follows_at_once_is_kept(step: int) -> None:
    context = ssl.create_default_context(cafile=str(CERTIFICATE))
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    text = bytes(range(256)) * 10
    async with opened() as port, asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(HERE, port.number)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = outgoing.read()
        for at in range(0, len(hello), step):
            writer.write(hello[at : at + step])
            await asyncio.sleep(0)
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                incoming.write(await reader.read(1 << 16))
            else:
                break
        tls.write(text)  # leaves with the end of the handshake
        writer.write(outgoing.read())
        received = b""
        while len(received) < len(text):
            try:
                received += tls.read(1 << 16)
            except ssl.SSLWantReadError:
                incoming.write(await reader.read(1 << 16))
        assert received == text
        assert tls.selected_alpn_protocol() == "h2"
        assert port.served[0].peer == writer.get_extra_info("sockname")
        writer.transport.abort()
        await port.closed(0)


async def test_a_handshake_that_fails_or_ends_early_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_front, "FIRST_BYTES_TIMEOUT_S", 0.3)
    outgoing = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    async with opened() as port, asyncio.timeout(WAIT_S):
        for then in (b"\x17\x03\x03\x00\x04junk", b""):
            reader, writer = await asyncio.open_connection(HERE, port.number)
            writer.write(hello + then)
            if not then:
                assert await reader.read(5), "an answer to the hello"
                writer.transport.abort()
            await port.closed(0)
            writer.close()
        reader, writer = await asyncio.open_connection(HERE, port.number)
        writer.write(hello)
        await port.closed(0)
        writer.close()
        assert port.served == []
        assert port.counts.ended == {Ended.HANDSHAKE: 1}
        assert port.front._held == 0


async def test_connections_that_were_handed_over_count_against_the_limit() -> None:
    async with opened(FrontLimits(max_connections=1)) as port, asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(HERE, port.number)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        with socket.socket() as other:
            other.setblocking(False)
            with suppress(ConnectionError):  # reset
                await asyncio.get_running_loop().sock_connect(other, (HERE, port.number))
                assert await asyncio.get_running_loop().sock_recv(other, 1) == b""
        assert port.counts.refused == {Refused.LIMIT: 1}
        writer.close()
        await port.closed(0)
