"""What peers send to a server, drawn from a seed: frames that are right and frames that are not.

A seed gives the same bytes each time. In which pieces they arrive, and what a server has answered by then,
depends on the machine, too.
"""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Final

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.grpc_messages import PREFIX
from ledgermq.rpc.header_blocks import encode_block
from ledgermq.rpc.wire_limits import WireLimits

from .raw_peer import ECHO, message, request

_NAMES: Final = (b"Echo", b"Repeat", b"Endless", b"Mirror", b"Size", b"Sleep", b"Unread", b"ByHand", b"Abort",
                 b"Status", b"Missing", b"Direct", b"Direct", b"Direct")  # fmt: skip
_METHODS: Final = tuple(request(b"/test.Service/" + name) for name in _NAMES)
_ODD_METHODS: Final = tuple(
    request(b"/test.Service/" + name, field)
    for name in _NAMES
    for field in ((b"grpc-timeout", b"30m"), (b"content-length", b"105"), (b"grpc-encoding", b"gzip"))
)
#: Bodies of requests; `Repeat` answers with so many messages.
_BODIES: Final = (b"", b"x" * 100, b"50 " + b"y" * 300, b"3 " + b"z" * 900)
_LARGE_BODIES: Final = (*_BODIES, b"50 " + b"y" * 5_000, b"3 " + b"z" * 60_000)
_PIECES: Final = (
    *(message(b"a" * size) for size in (0, 10, 1000, 16_000)),
    *(PREFIX.pack(0, size) + b"b" * 1000 for size in (100_000, 2_000_000, 6_000_000)),
    *(b"c" * size for size in (0, 1, 3, 16_000)),
    PREFIX.pack(1, 20) + b"g" * 20,
    PREFIX.pack(7, 1),
)
_WINDOWS: Final = (0, 1, 10, 100, 16_384, 65_535, 1 << 20)
#: Bytes of DATA that a right peer sends in all: no window is needed for them but the first.
_MAX_DATA: Final = h2.DEFAULT_FRAME_SIZE * 3


class Peer:
    """Makes the bytes that one client sends."""

    def __init__(self, rnd: random.Random) -> None:
        self._rnd = rnd
        self._next_id = 1
        self._ids: list[int] = []  # of the last calls
        self.reads_slowly = rnd.random() < 0.3
        self.read_size = rnd.choice((100, 70_000))

    def greeting(self) -> bytes:
        """Return preface and settings."""
        window = self._rnd.choice((*_WINDOWS, (1 << 31) - 1))
        return h2.PREFACE + h2.settings_frame([(h2.INITIAL_WINDOW_SIZE, window)])

    def burst(self) -> bytes:
        """Return some frames."""
        return b"".join(self._frame() for _ in range(self._rnd.choice((1, 1, 5, 30))))

    def _begin(self) -> int:
        stream_id = self._next_id
        self._next_id += 2
        self._ids = [*self._ids[-7:], stream_id]
        return stream_id

    def _frame(self) -> bytes:
        raise NotImplementedError


class WildPeer(Peer):
    """Sends what it likes."""

    def _frame(self) -> bytes:
        rnd, kind = self._rnd, self._rnd.random()
        if self._ids and rnd.random() < 0.95:
            stream_id = rnd.choice(self._ids)
        else:
            stream_id = rnd.choice((0, 2, self._next_id, 99_999))
        if kind < 0.35:
            return self._call()
        if kind < 0.55:
            return self._data(stream_id)
        if kind < 0.60:
            return h2.reset_frame(stream_id, h2.CANCEL)
        if kind < 0.75:
            increment = rnd.choice((1, 100, 60_000, 1 << 20, 1 << 20, 1 << 20))
            return h2.window_frame(rnd.choice((0, stream_id)), increment)
        if kind < 0.88:
            return self._settings()
        if kind < 0.94:
            payload = rnd.choice((b"draining", b"12345678"))
            return h2.frame(h2.PING, rnd.choice((0, 0, h2.ACK)), 0, payload)
        return self._rare(stream_id)

    def _call(self) -> bytes:
        rnd, stream_id = self._rnd, self._begin()
        ended = h2.END_STREAM if rnd.random() < 0.1 else 0
        block = rnd.choice(_METHODS if rnd.random() < 0.6 else _ODD_METHODS)
        frames = h2.frame(h2.HEADERS, h2.END_HEADERS | ended, stream_id, block)
        if rnd.random() < 0.6:
            ended = h2.END_STREAM if rnd.random() < 0.6 else 0
            frames += h2.frame(h2.DATA, ended, stream_id, message(rnd.choice(_LARGE_BODIES)))
        return frames

    def _data(self, stream_id: int) -> bytes:
        rnd, body = self._rnd, self._rnd.choice(_PIECES)
        ended = h2.END_STREAM if rnd.random() < 0.15 else 0
        if rnd.random() < 0.1:
            padded = bytes([50]) + body[:16_000] + bytes(50)
            return h2.frame(h2.DATA, h2.PADDED | ended, stream_id, padded)
        return h2.frame(h2.DATA, ended, stream_id, body)

    def _settings(self) -> bytes:
        rnd = self._rnd
        if rnd.random() < 0.7:
            return h2.settings_frame([(h2.INITIAL_WINDOW_SIZE, rnd.choice(_WINDOWS))] * rnd.choice((1, 1, 3)))
        if rnd.random() < 0.9:
            return h2.settings_frame([(h2.MAX_FRAME_SIZE, rnd.choice((16_384, 65_535, (1 << 24) - 1)))])
        return h2.settings_frame([(rnd.choice((1, 3, 5)), rnd.choice(_WINDOWS))])

    def _rare(self, stream_id: int) -> bytes:
        trailers = encode_block(((b"x-trailer", b"1"),))
        flags = h2.END_HEADERS | h2.END_STREAM
        return self._rnd.choice(
            (
                h2.frame(h2.HEADERS, flags, stream_id, trailers),
                h2.frame(h2.HEADERS, 0, stream_id, ECHO[:20])
                + h2.frame(h2.CONTINUATION, h2.END_HEADERS, stream_id, ECHO[20:]),
                h2.frame(h2.PRIORITY, 0, stream_id, b"\0\0\0\0\x10"),
                h2.frame(h2.PRIORITY, 0, stream_id, b"\0\0\0\0\x10"),
                h2.frame(0x77, 0, stream_id, b"what"),
                h2.frame(0x77, 0, stream_id, b"what"),
                h2.goaway_frame(0, 0, "bye"),
            )
        )


class RightPeer(Peer):
    """Sends what a client may send: the server must not say that it breaks the protocol."""

    def __init__(self, rnd: random.Random) -> None:
        super().__init__(rnd)
        self.answers = b""  # frames that it owes to what it has read
        self._data_left = _MAX_DATA
        self._open: dict[int, None] = {}  # streams that it has not ended

    def take(self, kind: int, flags: int, payload: bytes) -> None:
        """Note a frame that the server sent."""
        if kind == h2.PING and not flags & h2.ACK:
            self.answers += h2.frame(h2.PING, h2.ACK, 0, payload)
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            self.answers += h2.frame(h2.SETTINGS, h2.ACK, 0)

    def _frame(self) -> bytes:
        rnd, kind = self._rnd, self._rnd.random()
        if self.answers and kind < 0.5:
            answers, self.answers = self.answers, b""
            return answers
        if kind < 0.6 or not self._open:
            return self._call()
        stream_id = rnd.choice(list(self._open))
        if kind < 0.75:
            return self._data(stream_id, message(rnd.choice(_BODIES)))
        if kind < 0.8:
            del self._open[stream_id]
            return h2.reset_frame(stream_id, h2.CANCEL)
        if kind < 0.9:
            return h2.window_frame(rnd.choice((0, stream_id)), rnd.choice((1, 100, 60_000)))
        if kind < 0.97:
            return h2.settings_frame([(h2.INITIAL_WINDOW_SIZE, rnd.choice(_WINDOWS))])
        return h2.frame(h2.PING, 0, 0, struct.pack(">Q", rnd.randrange(1 << 32)))

    def _call(self) -> bytes:
        stream_id = self._begin()
        self._open[stream_id] = None
        if len(self._open) > 8:
            del self._open[next(iter(self._open))]  # nothing more is sent on it
        frames = h2.frame(h2.HEADERS, h2.END_HEADERS, stream_id, self._rnd.choice(_METHODS))
        return frames + self._data(stream_id, message(self._rnd.choice(_BODIES)))

    def _data(self, stream_id: int, body: bytes) -> bytes:
        ended = self._rnd.random() < 0.6
        if len(body) > self._data_left:
            body, ended = b"", True
        self._data_left -= len(body)
        if ended:
            del self._open[stream_id]
        return h2.frame(h2.DATA, h2.END_STREAM if ended else 0, stream_id, body)


class History:
    """One server's bounds, its peers, and what happens in which order."""

    def __init__(self, seed: int) -> None:
        rnd = self.rnd = random.Random(seed)
        self.limits = WireLimits(
            max_message=5 << 20,
            max_streams=rnd.choice((3, 50, 1000)),
            total_memory=rnd.choice((100_000, 1 << 20, 24 << 20)),
            total_unsent=rnd.choice((50_000, 1 << 20, 12 << 20)),
            connection_memory=rnd.choice((1 << 20, 32 << 20)),
        )
        self.peers: list[WildPeer | RightPeer] = [
            (RightPeer if rnd.random() < 0.4 else WildPeer)(rnd) for _ in range(rnd.choice((1, 1, 3)))
        ]
        self.steps = rnd.choice((20, 60, 150))
        self.stops = rnd.random() < 0.2
        self.grace = rnd.choice((None, 0.0, 0.02))

    async def pause(self) -> None:
        """Let the server run, or not."""
        for _ in range(self.rnd.choice((0, 0, 1, 5))):
            await asyncio.sleep(0)
