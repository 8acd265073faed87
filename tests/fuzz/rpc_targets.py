"""Decoders of `rpc`: whole connections of a server and of a client, header blocks, messages.

The first byte of a connection's input says in which pieces its bytes arrive.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc
import hpack

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.grpc_channel import CLIENT_LIMITS, GrpcChannel
from ledgermq.rpc.grpc_messages import PREFIX, GrpcMessageError, MessageCutter
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.header_blocks import HeaderBlockDecoder, HeaderBlockError, encode_block
from ledgermq.rpc.http2_connection import Http2Connection
from ledgermq.rpc.http2_input import SCRATCH_SIZE
from ledgermq.rpc.shared_memory import SharedMemory
from ledgermq.rpc.wire_limits import WireLimits

from .fuzzer import Target

_LIMITS: Final = WireLimits(max_streams=20, max_message=1 << 20)
PIECES: Final = (1, 7, 9, 100, 1000, SCRATCH_SIZE)


class FakeTransport:
    """Takes what is written, and is closed when it is told so."""

    def __init__(self) -> None:
        self.closing = False

    def write(self, data: Any) -> None:
        assert data

    def writelines(self, parts: Any) -> None:
        assert all(parts)

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None


def feed(connection: Http2Connection, transport: FakeTransport, data: bytes, size: int) -> None:
    position = 0
    while position < len(data) and not transport.closing:
        target = memoryview(connection.get_buffer(-1))
        part = data[position : position + min(size, len(target))]
        target[: len(part)] = part
        connection.buffer_updated(len(part))
        position += len(part)


async def until_ended(connection: Http2Connection) -> None:
    for _ in range(4):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    for _ in range(4):
        await asyncio.sleep(0)
    messages = connection._messages
    assert not connection.streams and messages.memory.held == 0
    assert messages.shared.held == 0 and messages.shared.incomplete == 0
    assert not messages.shared.stopped and not messages.shared._marks
    assert not messages.incomplete and not messages.memory.promised and not connection._output._blocked


async def _serve(data: bytes) -> None:
    server = GrpcServer(_LIMITS)
    server.add_generic_rpc_handlers((_handlers(),))
    server.log_ended = lambda host, peer, reason, port="": None  # type: ignore[method-assign]  # many
    connection, transport = server.serve_connection(), FakeTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    feed(connection, transport, data[1:], PIECES[data[0] % len(PIECES)] if data else 1)
    await until_ended(connection)


async def _call(data: bytes) -> None:
    channel = GrpcChannel("127.0.0.1:1")
    shared = SharedMemory(CLIENT_LIMITS.total_memory)
    connection = Http2Connection(CLIENT_LIMITS, bytearray(SCRATCH_SIZE), shared)
    transport = FakeTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    feed(connection, transport, h2.settings_frame([]), 1000)
    channel._connection = connection
    one: Any = channel.unary_unary("/s/One")(b"request")
    many: Any = channel.stream_stream("/s/Many")()
    await many.write(b"request")
    feed(connection, transport, data[1:], PIECES[data[0] % len(PIECES)] if data else 1)
    connection._table.is_draining = True  # a call that was refused shall not be sent again
    await until_ended(connection)
    await channel.close()
    assert one.done() and many.done()


def _handlers() -> Any:
    async def one(request: bytes, context: Any) -> bytes:
        return request

    async def many(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    return grpc.method_handlers_generic_handler(
        "s",
        {
            "One": grpc.unary_unary_rpc_method_handler(one),
            "Many": grpc.stream_stream_rpc_method_handler(many),
        },
    )


_loop: Final = asyncio.new_event_loop()


def in_loop(decode: Callable[[bytes], Any]) -> Callable[[bytes], None]:
    return lambda data: _loop.run_until_complete(decode(data))


# --- real encodings -----------------------------------------------------------------------------------------
def _request(path: bytes, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b"te", b"trailers"),
            (b"content-type", b"application/grpc"), (b"grpc-timeout", b"10S"), *more]  # fmt: skip


def _message(body: bytes, flag: int = 0) -> bytes:
    return PREFIX.pack(flag, len(body)) + body


def _conversations() -> Sequence[bytes]:
    encoder = hpack.Encoder()
    begin = h2.PREFACE + h2.settings_frame([(h2.INITIAL_WINDOW_SIZE, 1 << 20), (h2.MAX_FRAME_SIZE, 1 << 15)])
    whole = h2.END_HEADERS | h2.END_STREAM
    first = encoder.encode(_request(b"/s/One", (b"x-bin", b"AAEC"), (b"x-text", b"text")))
    again = encoder.encode(_request(b"/s/One", (b"x-bin", b"AAEC"), (b"x-text", b"text")))
    stream = encoder.encode(_request(b"/s/Many", (b"grpc-encoding", b"gzip")))
    one = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, first) + h2.frame(
        h2.DATA, h2.END_STREAM, 1, _message(b"abc")
    )
    two = h2.frame(h2.HEADERS, h2.END_HEADERS | h2.PADDED, 3, b"\x02" + again + b"\0\0") + h2.frame(
        h2.DATA, h2.END_STREAM | h2.PADDED, 3, b"\x01" + _message(b"abc") + b"\0"
    )
    many = (
        h2.frame(h2.HEADERS, 0, 5, stream[:10])
        + h2.frame(h2.CONTINUATION, h2.END_HEADERS, 5, stream[10:])
        + h2.frame(
            h2.DATA, 0, 5, _message(gzip.compress(b"z" * 1000, mtime=0), 1) + _message(bytes(30_000))[:20_000]
        )
        + h2.window_frame(5, 1000)
        + h2.frame(h2.DATA, 0, 5, bytes(10_005))
        + h2.frame(h2.HEADERS, whole, 5, encode_block(((b"x-end", b"1"),)))
    )
    others = (
        h2.frame(h2.PING, 0, 0, b"12345678")
        + h2.frame(h2.PRIORITY, 0, 1, b"\0\0\0\0\x10")
        + h2.frame(h2.HEADERS, h2.END_HEADERS, 7, encode_block(tuple(_request(b"/s/Many"))))
        + h2.reset_frame(7, h2.CANCEL)
        + h2.frame(0x55, 0, 0, b"unknown")
        + h2.window_frame(0, 100)
        + h2.frame(h2.SETTINGS, h2.ACK, 0)
        + h2.goaway_frame(0, 0, "bye")
    )
    return [
        b"\x05" + begin + one + two + many + others,
        b"\x01" + begin + others + one,
        b"\x02" + begin + many,
    ]


def _answers() -> Sequence[bytes]:
    head = encode_block(((b":status", b"200"), (b"content-type", b"application/grpc"),
                         (b"grpc-encoding", b"gzip"), (b"x-bin", b"AAEC")))  # fmt: skip
    status = encode_block(((b"grpc-status", b"5"), (b"grpc-message", b"no%20way"), (b"x-why", b"it")))
    only = encode_block(
        ((b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", b"0"))
    )
    whole = h2.END_HEADERS | h2.END_STREAM
    one = (
        h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head)
        + h2.frame(h2.DATA, 0, 1, _message(b"abc"))
        + h2.frame(h2.HEADERS, whole, 1, status)
    )
    many = (
        h2.frame(h2.HEADERS, h2.END_HEADERS, 3, head)
        + h2.frame(
            h2.DATA, 0, 3, _message(gzip.compress(b"z" * 1000, mtime=0), 1) + _message(bytes(30_000))[:20_000]
        )
        + h2.frame(h2.DATA, 0, 3, bytes(10_005))
    )
    return [
        b"\x05" + one + many + h2.frame(h2.HEADERS, whole, 3, status),
        b"\x02" + h2.frame(h2.HEADERS, whole, 1, only) + many + h2.reset_frame(3, h2.ENHANCE_YOUR_CALM),
        b"\x03" + h2.window_frame(3, 10) + h2.goaway_frame(1, 0, "bye") + one,
    ]


def _blocks() -> Sequence[bytes]:
    fields = _request(b"/s/One", (b"x-text", b"text" * 20))
    return [hpack.Encoder().encode(fields), hpack.Encoder().encode(fields, huffman=False),
            encode_block(tuple(fields))]  # fmt: skip


def _decode_blocks(data: bytes) -> None:
    """Decode as two blocks, so that the second one meets a table."""
    decoder = HeaderBlockDecoder()
    decoder.decode(data)
    decoder.decode(data + data)


def _cut_messages(data: bytes) -> None:
    cutter = MessageCutter(1 << 20)
    cutter.encoding = b"gzip" if data[:1] < b"\x80" else b"identity"
    view, found = memoryview(data)[1:], list[Any]()
    for start in range(0, len(view), 1000):
        cutter.feed(view[start : start + 1000], found.append, 64)


def _messages() -> Sequence[bytes]:
    compressed = _message(gzip.compress(b"z" * 5000, mtime=0), 1)
    return [b"\0" + _message(b"") + compressed + _message(bytes(5000)), b"\xff" + _message(b"abc") * 3]


RPC_TARGETS: Final = (
    Target("http2_requests", in_loop(_serve), (), _conversations),
    Target("http2_answers", in_loop(_call), (), _answers),
    Target("header_block", _decode_blocks, (HeaderBlockError,), _blocks),
    Target("grpc_messages", _cut_messages, (GrpcMessageError,), _messages),
)
