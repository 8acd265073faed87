"""A client that sends frames as it likes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.grpc_messages import PREFIX
from ledgermq.rpc.header_blocks import Fields, encode_block

Frame = tuple[int, int, int, bytes]  # kind, flags, stream id, payload


def request(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """Return the header block of a call."""
    fields: Fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"test"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    return encode_block((*fields, *more))


ECHO = request(b"/test.Service/Echo")
MIRROR = request(b"/test.Service/Mirror")
UNREAD = request(b"/test.Service/Unread")
SLEEP = request(b"/test.Service/Sleep")
ENDLESS = request(b"/test.Service/Endless")


def message(body: bytes) -> bytes:
    """Return a message with its prefix."""
    return PREFIX.pack(0, len(body)) + body


class FrameWriter:
    """Writes frames."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def send(self, kind: int, flags: int, stream_id: int, payload: bytes = b"") -> None:
        """Write one frame."""
        self._write(h2.frame(kind, flags, stream_id, payload))

    def call(self, stream_id: int, block: bytes = ECHO, body: bytes = b"") -> None:
        """Write a whole request."""
        self.send(h2.HEADERS, h2.END_HEADERS, stream_id, block)
        self.send(h2.DATA, h2.END_STREAM, stream_id, message(body))


class RawPeer(FrameWriter):
    """One connection. `read_frame` returns what the server sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer.write)
        self.reader, self.writer = reader, writer

    async def read_frame(self) -> Frame | None:
        """Return the next frame; None at the end of the connection."""
        try:
            head = await self.reader.readexactly(h2.FRAME_HEADER_SIZE)
            size = int.from_bytes(head[:3], "big")
            payload = await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return None
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    async def until(self, kind: int, stream_id: int | None = None) -> Frame:
        """Return the next frame of a kind, skipping others. Fails at the end of the connection."""
        while True:
            frame = await self.read_frame()
            assert frame is not None, "the server closed the connection"
            if frame[0] == kind and stream_id in (None, frame[2]):
                return frame

    async def goaway(self) -> tuple[int, str]:
        """Return (code, reason) of the GOAWAY that ends the connection."""
        found = None
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()
        while (frame := await self.read_frame()) is not None:
            if frame[0] == h2.GOAWAY:
                found = h2.read_goaway(frame[3])
        assert found is not None, "the connection ended without GOAWAY"
        return found[1], found[2]


@contextlib.asynccontextmanager
async def raw_peer(
    address: str, *, greets: bool = True, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawPeer]:
    """Connect, and exchange settings unless told otherwise."""
    host, _, port = address.rpartition(":")
    name = "localhost" if tls is not None else None
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, server_hostname=name)
    peer = RawPeer(reader, writer)
    if greets:
        writer.write(h2.PREFACE + h2.settings_frame([]))
        await peer.until(h2.SETTINGS)
        peer.send(h2.SETTINGS, h2.ACK, 0)
    try:
        yield peer
    finally:
        writer.close()
        with contextlib.suppress(OSError):  # it may have been reset
            await writer.wait_closed()
