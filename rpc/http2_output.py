"""What a connection sends: one write per turn of the loop, and DATA as far as windows and buffer allow.

Owns: the peer's windows, the bytes of this turn, the streams that wait to send. Must not: read frames.

Answers, resets and settings go out at once, in order. DATA waits in its stream while a window is closed or
the transport is full, and all waiting streams send one frame in turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from . import http2_frames as h2
from .grpc_messages import PREFIX, Buffer
from .http2_frames import Http2ConnectionError
from .http2_stream import Http2Stream
from .unsent_memory import UnsentMemory
from .wire_limits import DEFAULT_WINDOW, HIGH_WATER, LOW_WATER, MAX_UNSENT, MAX_WINDOW

#: Smaller bodies are copied behind their prefix: one buffer costs less than two.
_JOIN_BELOW: Final = 16 << 10
#: Bytes collected in one turn above which they are written at once.
_FLUSH_ABOVE: Final = 1 << 20
#: Mean size of the collected pieces above which they are not joined.
_SCATTER_ABOVE: Final = 8 << 10
#: Frames that a new stream, or a DATA frame of ours, makes a peer send: grpcio sends WINDOW_UPDATE for the
#: stream and for the connection, grpc-java RST_STREAM for DATA that comes after it has ended the stream.
FRAMES_EXPLAINED: Final = 2


class Http2Output:
    """The sending half of one connection. All methods are called on the loop's thread."""

    __slots__ = ("_blocked", "_buffered", "_flush_due", "_loop", "_memory", "_on_ended", "_on_stuck",
                 "_out", "_out_size", "_transport", "frames_due", "is_collecting", "is_open", "is_paused",
                 "moved_at", "peer_frame_size", "peer_window", "ping_due", "unsent", "window")  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: UnsentMemory | None) -> None:
        """`memory`: the budget of a server's answers."""
        self.is_open = False
        self.is_paused = False  # the transport's buffer is full
        self.is_collecting = False  # somebody flushes soon: no need to remember it
        self.window = DEFAULT_WINDOW  # of the connection
        self.peer_window = DEFAULT_WINDOW  # of new streams
        self.peer_frame_size = h2.DEFAULT_FRAME_SIZE
        self.frames_due = 0  # frames of the peer that our DATA explains
        self.ping_due = False  # whether DATA of ours explains a PING
        self._loop = loop
        self._on_ended: Callable[[Http2Stream], None]
        self._on_stuck: Callable[[str], None]
        self.unsent = 0  # bytes of messages, in streams and in the transport's full buffer
        self.moved_at = 0.0  # when the peer last took some of them
        self._memory = memory
        self._buffered = 0  # counted of the transport's full buffer
        self._transport: Any = None
        self._out: list[Buffer] = []
        self._out_size = 0
        self._flush_due = False
        self._blocked: dict[Http2Stream, None] = {}  # with pending bytes and a window of their own

    def begin(
        self,
        transport: asyncio.BaseTransport,
        on_ended: Callable[[Http2Stream], None],
        on_stuck: Callable[[str], None],
    ) -> None:
        """Send on `transport` from now on, until `is_open` is set to False.

        `on_ended(stream)`: END_STREAM was sent; `on_stuck(reason)`: the peer reads too little.
        """
        self._transport = transport
        self._on_ended, self._on_stuck = on_ended, on_stuck
        self._transport.set_write_buffer_limits(high=HIGH_WATER if self._memory is None else LOW_WATER)
        self.is_open = True

    def pause(self) -> None:
        """Note that the transport's buffer is full."""
        self.is_paused = True
        self._buffered = self._transport.get_write_buffer_size()
        self._hold(self._buffered)

    def resume(self) -> None:
        """Note that the transport's buffer has room, and go on."""
        self.is_paused = False
        self._hold(-self._buffered)
        self._buffered = 0
        self.pump()

    def end(self) -> None:
        """Send nothing more, and hold nothing."""
        self.is_open = False
        self._hold(-self.unsent)
        self._buffered = 0

    def use_budget(self, memory: UnsentMemory | None) -> None:
        """Count what is held in another budget from now on, or no longer."""
        held = self.unsent
        self._hold(-held)
        self._memory = memory
        self._hold(held)

    def end_unread(self, reason: str) -> None:
        """End the connection, whose peer does not read."""
        self._on_stuck(reason)

    def _hold(self, change: int) -> None:
        """Count bytes of messages."""
        if self._memory is None or not change:
            return
        if change < 0 or not self.unsent:
            self.moved_at = self._loop.time()
        self.unsent += change
        self._memory.on_change(self, change)

    def forget(self, stream: Http2Stream) -> None:
        """Drop what a closed stream did not send."""
        self._blocked.pop(stream, None)
        self._hold(-min(stream.pending_size, self.unsent - self._buffered))
        if stream.pending or stream.drained is not None:
            stream.drop_pending()

    def emit(self, data: Buffer) -> None:
        """Write `data` with whatever else is sent in this turn of the loop."""
        if not self.is_open:
            return
        self._out.append(data)
        self._out_size += len(data)
        if self._out_size > _FLUSH_ABOVE:
            self.flush()
        elif not self._flush_due and not self.is_collecting:
            self._flush_due = True
            self._loop.call_soon(self._flush_later)

    def flush(self) -> None:
        """Write what was collected."""
        if not self._out:
            return
        out, size = self._out, self._out_size
        self._out, self._out_size = [], 0
        if self._transport.is_closing():
            return
        if len(out) == 1:
            self._transport.write(out[0])
        elif size < _SCATTER_ABOVE * len(out):
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        if self.is_paused and self._transport.get_write_buffer_size() > HIGH_WATER + MAX_UNSENT:
            self._on_stuck("the peer does not read what it asks for")

    def _flush_later(self) -> None:
        self._flush_due = False
        self.flush()

    def send_head(self, stream: Http2Stream, block: bytes, end: bool) -> None:
        """Send header fields, or trailers with `end`: these wait for pending messages."""
        if stream.we_ended or stream.closed:
            return
        if end and stream.pending:
            stream.tail = block
            return
        self.emit(h2.header_frames(stream.stream_id, block, end, self.peer_frame_size))
        if end:
            self._on_ended(stream)

    def send_data(self, stream: Http2Stream, prefix: bytes, body: Buffer, end: bool) -> None:
        """Send a message, or queue what the windows do not allow."""
        size = len(prefix) + len(body)
        if not self._claim(stream, size):
            self._queue(stream, (prefix, body), size, end)
            return
        header = h2.frame_header(size, h2.DATA, h2.END_STREAM if end else 0, stream.stream_id)
        if size < _JOIN_BELOW:
            self.emit(b"".join((header, prefix, body)))
        else:
            self.emit(header + prefix)
            if len(body):
                self.emit(body)
        if end:
            self._on_ended(stream)

    def send_now(self, stream: Http2Stream, parts: Sequence[Buffer]) -> int:
        """Send a message made of `parts` before this turn of the loop ends, as far as windows allow.

        Returns its size.
        """
        if stream.we_ended or not self.is_open:
            return 0
        size = sum(map(len, parts))
        total = PREFIX.size + size
        if not self._claim(stream, total):
            before, self.is_collecting = self.is_collecting, True
            self._queue(stream, (PREFIX.pack(0, size), *parts), total, False)
            self.is_collecting = before
            if not before:
                self.flush()
            return size
        head = h2.message_head(size, stream.stream_id)
        if total >= _JOIN_BELOW:
            self.flush()  # what was sent before
            self._transport.writelines((head, *filter(len, parts)))
        elif self._out or self.is_collecting:
            self.emit(b"".join((head, *parts)))
            if not self.is_collecting:
                self.flush()
        else:
            self._transport.write(b"".join((head, *parts)))
        return size

    def _claim(self, stream: Http2Stream, size: int) -> bool:
        """Count a DATA frame of `size` bytes as sent, if it may leave now. Returns whether it may."""
        if (
            stream.pending
            or self.is_paused
            or size > stream.send_window
            or size > self.window
            or size > self.peer_frame_size
        ):
            return False
        stream.send_window -= size
        self.window -= size
        self.frames_due += FRAMES_EXPLAINED
        self.ping_due = True
        return True

    def _queue(self, stream: Http2Stream, parts: Sequence[Buffer], size: int, end: bool) -> None:
        """Let bytes wait in their stream for windows and for the transport."""
        stream.pending.extend(part for part in parts if len(part))
        stream.pending_size += size
        stream.end_pending = end
        self._hold(size)
        self.unblock(stream)

    def send_end(self, stream: Http2Stream) -> None:
        """End our side of a stream behind its pending messages."""
        if stream.we_ended or stream.closed:
            return
        if stream.pending:
            stream.end_pending = True
            return
        self.emit(h2.frame_header(0, h2.DATA, h2.END_STREAM, stream.stream_id))
        self._on_ended(stream)

    def change_windows(self, size: int, streams: Iterable[Http2Stream]) -> None:
        """Apply the peer's setting to its open streams. Raises: Http2ConnectionError."""
        change = size - self.peer_window
        self.peer_window = size
        if not change:
            return
        for stream in list(streams):
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise Http2ConnectionError(h2.FLOW_CONTROL_ERROR, "a window of more than 2^31-1 bytes")
            if stream.send_window <= 0:
                self._blocked.pop(stream, None)
            elif stream.pending:
                self.unblock(stream)

    def unblock(self, stream: Http2Stream) -> None:
        """Send what a stream's window allows after it has grown."""
        if stream.send_window > 0:
            self._blocked.setdefault(stream)
            self.pump()

    def pump(self) -> None:
        """Send pending DATA of all streams in turn, a frame of each, as far as windows and buffer allow."""
        blocked = self._blocked
        while blocked and self.window > 0 and not self.is_paused and self.is_open:
            stream = next(iter(blocked))
            del blocked[stream]
            self._send_pending(stream)
            if stream.pending:
                if stream.send_window > 0:
                    blocked[stream] = None
                continue
            stream.wake_writer()
            if stream.tail is not None:
                block, stream.tail = stream.tail, None
                self.send_head(stream, block, True)

    def _send_pending(self, stream: Http2Stream) -> None:
        """Send one DATA frame of pending bytes."""
        size = min(stream.pending_size, stream.send_window, self.window, self.peer_frame_size)
        stream.send_window -= size
        self.window -= size
        self.frames_due += FRAMES_EXPLAINED
        self.ping_due = True
        stream.pending_size -= size
        self._hold(-size)
        parts = _cut(stream.pending, size)
        ended = stream.end_pending and not stream.pending
        header = h2.frame_header(size, h2.DATA, h2.END_STREAM if ended else 0, stream.stream_id)
        if size < _JOIN_BELOW:
            self.emit(b"".join((header, *parts)))
        else:
            self.emit(header)
            for part in parts:
                self.emit(part)
        if ended:
            stream.end_pending = False
            self._on_ended(stream)


def _cut(parts: deque[Buffer], size: int) -> list[Buffer]:
    """Take `size` bytes from the front of `parts`."""
    found: list[Buffer] = []
    while size:
        part = parts.popleft()
        if len(part) > size:
            view = memoryview(part)
            found.append(view[:size])
            parts.appendleft(view[size:])
            break
        found.append(part)
        size -= len(part)
    return found
