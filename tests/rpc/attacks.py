"""Attacks on a port that speaks gRPC, by raw peers; `under_attack` makes one of ATTACKS at many ports.

A port of probes, which speaks HTTP/1.1, gets those of AT_HTTP.

An attack that leaves its connections open yields while they are: what it takes then is what it may take.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import hpack

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.grpc_messages import PREFIX
from ledgermq.rpc.wire_limits import MAX_WINDOW
from tests.tls import CERTIFICATE

from .floods import FLOODS, Flood, Methods, bytes_of
from .raw_peer import Frame, RawPeer, message, raw_peer, request

_MIB: Final = 1 << 20
_RANDOM: Final = random.Random(1)
#: A hello that names a length and ends before it.
HALF_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + _RANDOM.randbytes(100)
NO_HTTP_2: Final = {
    "zeros": bytes(100_000),
    "random bytes": _RANDOM.randbytes(_MIB),
    "a frame between nodes": b"LMQR\x01A" + bytes(1000),
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "gRPC-web": b"POST /s/M HTTP/1.1\r\nHost: x\r\nContent-Type: application/grpc-web+proto\r\n\r\n"
    + bytes(5),
    "a preface and zeros": h2.PREFACE + bytes(100),
}
_PING: Final = b"attacked"


@dataclass(frozen=True)
class Port:
    """Where, what it serves, and the TLS with which it is spoken to."""

    name: str
    address: str
    methods: Methods
    tls: ssl.SSLContext | None = None
    big: bytes = b""  # request of `methods.unary` with a large answer; such a port takes large requests, too
    crowd: int = 8  # peers that each begin a large message
    is_http: bool = False  # it speaks HTTP/1.1 for probes: only AT_HTTP are attacks there

    def peer(self, *, greets: bool = True) -> contextlib.AbstractAsyncContextManager[RawPeer]:
        return raw_peer(self.address, greets=greets, tls=self.tls)


#: Makes an attack at a port. The stack keeps what stays open.
Attack = Callable[[Port, AsyncExitStack], Coroutine[Any, Any, None]]


def trusting(alpn: list[str]) -> ssl.SSLContext:
    """Return a client's TLS with this ALPN."""
    context = ssl.create_default_context(cafile=str(CERTIFICATE))
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


async def _seen(peer: RawPeer) -> list[Frame]:
    """Wait until the server has taken all that was sent, or has ended the connection; return its frames."""
    frames: list[Frame] = []
    with contextlib.suppress(OSError):
        peer.send(h2.PING, 0, 0, _PING)
        await peer.writer.drain()
    while (frame := await peer.read_frame()) is not None:
        frames.append(frame)
        if frame[0] == h2.PING and frame[1] & h2.ACK and frame[3] == _PING:
            break
    return frames


# --- what ends its connection -------------------------------------------------------------------------------
async def ended(data: bytes, code: int, port: Port) -> None:
    """Send frames that end the connection. What it says may be lost: it is reset if more came meanwhile."""
    async with port.peer() as peer:
        peer.writer.write(data)
        with contextlib.suppress(OSError):
            await peer.writer.drain()
        while (frame := await peer.read_frame()) is not None:
            assert frame[0] != h2.GOAWAY or h2.read_goaway(frame[3])[1] == code, frame


async def flood(what: Flood, port: Port, _stack: AsyncExitStack) -> None:
    await ended(bytes_of(what, port.methods), h2.ENHANCE_YOUR_CALM, port)


async def window_overflow(port: Port, _stack: AsyncExitStack) -> None:
    """More DATA than the stream's window, and more window than there can be."""
    data = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, port.methods.stream)
    data += h2.frame(h2.DATA, 0, 1, PREFIX.pack(0, 16_000) + bytes(16_000 - 5)) * 100
    data += h2.window_frame(0, MAX_WINDOW)
    await ended(data, h2.FLOW_CONTROL_ERROR, port)


async def thrown(data: bytes, port: Port, _stack: AsyncExitStack) -> None:
    """Bytes that are no HTTP/2, without TLS whatever the port speaks."""
    answer = await _throw(port.address, data)
    if port.is_http:
        assert answer.startswith(b"HTTP/1.1 40") if data.startswith((b"GET", b"POST")) else not answer, answer
    elif data.startswith((b"GET", b"POST")) and port.tls is None:
        assert b"gRPC over HTTP/2, not HTTP/1.1: use a gRPC client" in answer, answer


async def _throw(address: str, data: bytes) -> bytes:
    host, _, number = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    answer = bytearray()
    with contextlib.suppress(OSError):  # it may be reset before all was sent
        writer.write(data)
        while part := await reader.read(1 << 16):
            answer += part
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return bytes(answer)


async def other_tls(alpn: list[str], port: Port, _stack: AsyncExitStack) -> None:
    """TLS without HTTP/2, also where there is no TLS."""
    host, _, number = port.address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(
            host, int(number), ssl=trusting(alpn), server_hostname="localhost"
        )
    except OSError:
        assert port.tls is None
        return
    assert port.tls is not None, "a port without TLS has spoken TLS"
    assert b"switch ALPN h2 on" in await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


# --- what stays open ----------------------------------------------------------------------------------------
async def huge_metadata(port: Port, stack: AsyncExitStack) -> None:
    """Blocks that say far more than they have bytes: refused one by one."""
    peer = await stack.enter_async_context(port.peer())
    encoder = hpack.Encoder()
    for stream_id in range(1, 41, 2):
        bomb = encoder.encode([(b"x-bomb", b"v" * 3000)] * 1000)
        peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, bomb)
    for stream_id in range(41, 81, 2):
        peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, request(b"/x", (b"x-large", b"v" * 15_000)))
    frames = await _seen(peer)
    assert sum(kind == h2.HEADERS for kind, *_ in frames) == 40, "each call is answered"


async def open_header_block(port: Port, stack: AsyncExitStack) -> None:
    peer = await stack.enter_async_context(port.peer())
    peer.send(h2.HEADERS, 0, 1, port.methods.unary)
    peer.send(h2.CONTINUATION, 0, 1, b"\0" * 100)
    await peer.writer.drain()


async def slow_writer(port: Port, stack: AsyncExitStack) -> None:
    """A message of 100 MiB by single bytes, and many of which only the prefix comes."""
    peer = await stack.enter_async_context(port.peer())
    for stream_id in range(1, 401, 2):
        peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, port.methods.stream)
        peer.send(h2.DATA, 0, stream_id, PREFIX.pack(0, 100 * _MIB if port.big else 100_000))
    for _ in range(500):
        peer.send(h2.DATA, 0, 1, b"x")
    await _seen(peer)


async def parts_of_messages(port: Port, stack: AsyncExitStack) -> None:
    """Many peers that each begin a large message and stop."""

    data = PREFIX.pack(0, 4 * _MIB if port.big else 200_000) + bytes(190_000)
    frames = [h2.frame(h2.HEADERS, h2.END_HEADERS, 1, port.methods.stream)]
    frames += [h2.frame(h2.DATA, 0, 1, data[start : start + 16_000]) for start in range(0, len(data), 16_000)]
    for _ in range(port.crowd):
        if peer := await _opened(port, stack):
            peer.writer.write(b"".join(frames))
            await peer.writer.drain()


async def _opened(port: Port, stack: AsyncExitStack) -> RawPeer | None:
    """Return one more connection; None: the port is full, and has refused it."""
    try:
        return await stack.enter_async_context(port.peer())
    except (OSError, AssertionError):
        return None


async def slow_reader(port: Port, stack: AsyncExitStack) -> None:
    """Asks for much, with windows for all of it, and does not read."""
    peer = await stack.enter_async_context(port.peer())
    peer.send(h2.SETTINGS, 0, 0, struct.pack(">HI", h2.INITIAL_WINDOW_SIZE, (1 << 31) - 1))
    peer.send(h2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for stream_id in range(1, 2 * 5, 2):
        peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, port.methods.unary)
        peer.send(h2.DATA, h2.END_STREAM, stream_id, message(port.big))
    await peer.writer.drain()


async def unread_answers(port: Port, stack: AsyncExitStack) -> None:
    """Many slow readers; some are cut off while others come."""
    for _ in range(port.crowd if port.big else 1):
        with contextlib.suppress(OSError, AssertionError):
            await slow_reader(port, stack)


async def streams_left_open(port: Port, stack: AsyncExitStack) -> None:
    """As many streams as the server allows, or 10,000."""
    async with AsyncExitStack() as opening:
        peer = await opening.enter_async_context(port.peer(greets=False))
        peer.writer.write(h2.PREFACE + h2.settings_frame([]))
        allowed = dict(h2.read_settings((await peer.until(h2.SETTINGS))[3]))
        peer.send(h2.SETTINGS, h2.ACK, 0)
        count = min(allowed[h2.MAX_CONCURRENT_STREAMS], 10_000)
        for stream_id in range(1, 2 * count, 2):
            peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, port.methods.unary)
        frames = await _seen(peer)
        assert not [frame for frame in frames if frame[0] in (h2.GOAWAY, h2.RST_STREAM)], port
        await stack.enter_async_context(opening.pop_all())


async def idle_connections(port: Port, stack: AsyncExitStack) -> None:
    """A full port refuses more: that is no failure."""
    for _ in range(max(20, port.crowd)):
        if port.is_http:
            await _begin(port, b"GET /li", stack)
        else:
            await _opened(port, stack)


async def _begin(port: Port, data: bytes, stack: AsyncExitStack) -> None:
    """Open a connection, and send the begin of something."""
    host, _, number = port.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(number))
    stack.callback(writer.close)
    writer.write(data)


async def half_hellos(port: Port, stack: AsyncExitStack) -> None:
    for _ in range(50):
        await _begin(port, HALF_HELLO, stack)
    await asyncio.sleep(0)


ATTACKS: Final[dict[str, Attack]] = {
    **{each.__name__: partial(flood, each) for each in FLOODS},
    **{name: partial(thrown, data) for name, data in NO_HTTP_2.items()},
    "window overflow": window_overflow,
    "ALPN http/1.1": partial(other_tls, ["http/1.1"]),
    "no ALPN": partial(other_tls, []),
    "huge metadata": huge_metadata,
    "header block never ended": open_header_block,
    "slow writer": slow_writer,
    "parts of messages": parts_of_messages,
    "slow reader": slow_reader,
    "unread answers": unread_answers,
    "streams left open": streams_left_open,
    "idle connections": idle_connections,
    "half a hello": half_hellos,
}
#: Those that need no HTTP/2.
AT_HTTP: Final = frozenset((*NO_HTTP_2, "ALPN http/1.1", "no ALPN", "idle connections", "half a hello"))


@contextlib.asynccontextmanager
async def under_attack(kind: str, everywhere: list[Port]) -> AsyncIterator[None]:
    """Attack all ports at once; what stays open stays so inside the block."""
    attack = ATTACKS[kind]
    ports = [each for each in everywhere if kind in AT_HTTP or not each.is_http]
    async with AsyncExitStack() as stack:
        stacks = [await stack.enter_async_context(AsyncExitStack()) for _ in ports]
        await asyncio.gather(*(attack(port, each) for port, each in zip(ports, stacks, strict=True)))
        yield
