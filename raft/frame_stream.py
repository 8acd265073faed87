"""Frames on a TCP connection between two nodes: four bytes of length, then the frame.

Owns: the buffers of one connection. Must not: know what a frame means, or who the peer is. A large frame is received
into memory of its own, where it stays: its entries are staged and cached without a copy. Nothing is handed up after
`abort`, or while `hold` is in force.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from ledgermq.proto.entry import Buffer

_LENGTH: Final = struct.Struct("<I")
_SCRATCH_SIZE: Final = 64 << 10
#: Larger frames are not sent by any node: an entry has at most a quarter of a segment.
MAX_FRAME_SIZE: Final = 1 << 30
#: Bytes that wait for the network before no more frames are made.
_HIGH_WATER: Final = 1 << 20
#: Smaller frames are joined with their length: one buffer costs less than two.
_JOIN_BELOW: Final = 16 << 10
#: A peer that acknowledges nothing for so long, ms, has vanished without a word; idle ones are asked after 2 s.
_VANISHED_MS: Final = 3_500
_SOCKET_OPTIONS: Final = (
    ("IPPROTO_TCP", "TCP_NODELAY", 1),
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", 2),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", 1),
    ("IPPROTO_TCP", "TCP_KEEPCNT", 2),
    ("IPPROTO_TCP", "TCP_USER_TIMEOUT", _VANISHED_MS),
)


class FrameStream(asyncio.BufferedProtocol):
    """One connection. Use: `send(parts)`, `hold()`, `resume()`, `close()`, `abort()`; all on the loop thread."""

    def __init__(
        self,
        on_frame: Callable[[Buffer], None],
        on_lost: Callable[[str], None],
        on_writable: Callable[[], None] = lambda: None,
        max_frame_size: int = MAX_FRAME_SIZE,
    ) -> None:
        """`on_lost(reason)` is called once, when the connection has ended; `on_writable` when it takes frames again."""
        self.max_frame_size = max_frame_size
        self.is_open = False
        self.may_send = False  # it is open, and what it was given is mostly under way
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_writable = on_writable
        self._transport: Any = None
        self._scratch = bytearray(_SCRATCH_SIZE)
        self._view = memoryview(self._scratch)
        self._filled = 0  # bytes in the scratch buffer
        self._large: memoryview | None = None  # the frame that is too large for it
        self._large_filled = 0
        self._held = False
        self._reason = ""

    @property
    def is_held(self) -> bool:
        """Nothing is read or handed up until `resume`."""
        return self._held

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write one frame; dropped when the connection has ended."""
        if not self.is_open:
            return
        size = sum(map(len, parts))
        if size < _JOIN_BELOW:
            self._transport.write(b"".join((_LENGTH.pack(size), *parts)))
        else:
            self._transport.writelines((_LENGTH.pack(size), *parts))

    def send_preamble(self, preamble: bytes) -> None:
        """Write the bytes that a connection opens with, before any frame."""
        self._transport.write(preamble)

    def hold(self) -> None:
        """Hand up nothing more until `resume`."""
        if not self._held:
            self._held = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Hand up what was held back, and read on."""
        if self._held and self.is_open:
            self._held = False
            self._cut()
            if not self._held and self.is_open:
                self._transport.resume_reading()

    def close(self) -> None:
        """End the connection when what was sent is under way."""
        if self.is_open:
            self.is_open = self.may_send = False
            self._transport.close()

    def abort(self, reason: str = "") -> None:
        """End the connection at once."""
        self._reason = self._reason or reason
        self.is_open = self.may_send = False
        if self._transport is not None:
            self._transport.abort()

    def feed(self, data: bytes) -> None:
        """Take bytes that were received before this protocol had the connection."""
        while data and self.is_open:
            buffer = self.get_buffer(len(data))
            count = min(len(buffer), len(data))
            if not count:  # held back, and the buffer is full: nobody may send so much before it was answered
                self.abort("it sends before it was answered")
                return
            buffer[:count] = data[:count]
            self.buffer_updated(count)
            data = data[count:]

    # --- asyncio.BufferedProtocol ------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.is_open = self.may_send = True

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is not None:
            self._large_filled += nbytes
            if self._large_filled == len(self._large):
                frame, self._large = self._large, None
                self._hand_up(frame)
            return
        self._filled += nbytes
        if not self._held:
            self._cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = self.may_send = False
        self._on_lost(self._reason or (str(exc) if exc else "closed by the peer"))

    def pause_writing(self) -> None:
        self.may_send = False

    def resume_writing(self) -> None:
        self.may_send = self.is_open
        if self.may_send:
            self._on_writable()

    # --- inside --------------------------------------------------------------------------------------------
    def _cut(self) -> None:
        """Hand up the whole frames of the scratch buffer; begin a large one."""
        view, start, end = self._view, 0, self._filled
        while end - start >= _LENGTH.size and not self._held and self.is_open:
            size = _LENGTH.unpack_from(view, start)[0]
            if size > self.max_frame_size:
                self.abort(f"a frame of {size} bytes; at most {self.max_frame_size}")
                return
            body = start + _LENGTH.size
            if body + size <= end:
                start = body + size
                self._hand_up(bytes(view[body:start]))
            elif _LENGTH.size + size > _SCRATCH_SIZE:
                self._large = memoryview(bytearray(size))
                self._large_filled = end - body
                self._large[: self._large_filled] = view[body:end]
                start = end
            else:
                break
        self._filled = end - start
        if start and self._filled:
            self._scratch[: self._filled] = self._scratch[start:end]

    def _hand_up(self, frame: Buffer) -> None:
        if self.is_open:
            self._on_frame(frame)


def set_options(stream: socket.socket, options: Sequence[tuple[str, str, int]] = _SOCKET_OPTIONS) -> None:
    """Send small frames at once, and notice peers that vanish; a listening socket passes it on to its connections."""
    for level, name, value in options:
        if hasattr(socket, name):  # some are Linux's only
            stream.setsockopt(getattr(socket, level), getattr(socket, name), value)


async def connect(address: str, stream: FrameStream, timeout_s: float) -> None:
    """Open a connection to `host:port`. Raises: OSError (ConnectionRefusedError, gaierror, TimeoutError …)."""
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(timeout_s):
        found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        failed: OSError = OSError(f"{address} has no address")
        for family, kind, protocol, _, where in found:
            outgoing = socket.socket(family, kind, protocol)
            try:
                outgoing.setblocking(False)
                set_options(outgoing)
                await loop.sock_connect(outgoing, where)
                await loop.create_connection(lambda: stream, sock=outgoing)
                return
            except OSError as error:
                outgoing.close()
                failed = error
            except BaseException:
                outgoing.close()
                raise
        raise failed
