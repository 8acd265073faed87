"""What a connection receives: frames out of the bytes that the loop reads, DATA without a copy.

Owns: the memory that is read into, the frame and the header block in progress. Must not: send, but credit and
refusals; know what a connection's life is.

Received bytes go into memory that all connections of an endpoint share, except those of large messages: the
loop reads them straight into the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import http2_frames as h2
from .call_headers import MalformedFieldsError
from .flood_guard import FloodGuard
from .foreign_client import refusal_of
from .grpc_messages import PREFIX, GrpcMessageError
from .header_blocks import HeaderBlock, HeaderBlockDecoder, HeaderBlockError
from .http2_control import Http2Control
from .http2_frames import FRAME_HEADER, FRAME_HEADER_SIZE, Http2ConnectionError, Http2StreamError
from .http2_output import Http2Output
from .http2_stream import DirectStream, Http2Stream
from .received_messages import ReceivedMessages
from .stream_table import StreamTable
from .wire_limits import (
    FRAMES_PER_TURN,
    MAX_CONTINUATIONS,
    MAX_CONTROL_FRAME,
    MAX_HEADER_BLOCK,
    MAX_STREAM_ID,
    MAX_WINDOW,
    WireLimits,
)

#: Memory for received bytes that an endpoint's connections share.
SCRATCH_SIZE: Final = 128 << 10
#: Rest of a DATA frame that is worth its own read.
_DIRECT_MIN: Final = 8 << 10
#: Bytes that are read behind a large message: enough for the begin of the next one, of which the rest is then
#: read into its own memory.
_PEEK: Final = 1 << 10


class Http2Input:
    """The receiving half of one connection. All methods are called on the loop's thread."""

    __slots__ = ("_accept", "_block", "_block_ends", "_block_frames", "_block_stream", "_control",
                 "_data_ends", "_data_padding", "_data_stream", "_decoder", "_guard", "_limits", "_messages",
                 "_on_foreign", "_output", "_peeks", "_scratch", "_streams", "_view", "data_left",
                 "is_behind", "is_direct", "preface_done", "rest")  # fmt: skip

    def __init__(
        self,
        limits: WireLimits,
        scratch: bytearray,
        output: Http2Output,
        messages: ReceivedMessages,
        streams: StreamTable,
        control: Http2Control,
        guard: FloodGuard,
        accept: Callable[[int, HeaderBlock], None] | None,
        on_foreign: Callable[[str, bool], None],
    ) -> None:
        """`accept(stream id, header block)` adds a client's new stream, or raises MalformedFieldsError.

        `on_foreign(reason, whether it speaks HTTP/1)` ends the connection of a client without HTTP/2.
        """
        self.rest = b""  # begin of a frame; when `is_behind`, frames
        self.is_behind = False  # more may be there than one turn of the loop should take
        self.preface_done = not streams.is_server
        self.is_direct = False  # the next bytes go into a message
        self.data_left = 0  # bytes of the DATA frame in progress
        self._limits = limits
        self._scratch, self._view = scratch, memoryview(scratch)
        self._output = output
        self._messages = messages
        self._streams = streams
        self._control = control
        self._guard = guard
        self._accept, self._on_foreign = accept, on_foreign
        self._decoder = HeaderBlockDecoder()
        self._data_stream: Http2Stream | None = None  # of the DATA frame in progress
        self._data_padding = 0
        self._data_ends = False
        self._peeks = False  # the last message was a large one of a direct stream
        self._block: bytearray | None = None  # of HEADERS without END_HEADERS
        self._block_stream = self._block_frames = 0
        self._block_ends = False

    @property
    def missing(self) -> int:
        """Bytes that the incomplete frame, or header block, still needs as far as known; 0 between frames."""
        if self.data_left or self._data_padding:
            return self.data_left + self._data_padding
        size = len(self.rest)
        if size >= FRAME_HEADER_SIZE:
            return max(FRAME_HEADER_SIZE + int.from_bytes(self.rest[:3], "big") - size, 0)
        return FRAME_HEADER_SIZE - size if size or self._block is not None else 0

    # --- bytes ----------------------------------------------------------------------------------------------
    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the loop is to put the next bytes. See asyncio.BufferedProtocol."""
        if self.data_left >= _DIRECT_MIN:
            stream = self._data_stream
            if stream is not None and stream.cutter.size and not stream.closed:
                self.is_direct = True
                self._peeks = type(stream) is DirectStream
                return stream.cutter.direct()[: self.data_left]
        self.is_direct = False
        if not self.rest:
            if self._peeks:
                self._peeks = False
                return self._view[:_PEEK]
            return self._view
        size = len(self.rest)
        self._view[:size] = self.rest
        return self._view[size:]

    def take(self, count: int) -> None:
        """Take frames in the scratch memory, of which `count` bytes are new; `is_behind`: not all.

        Raises: Http2ConnectionError.
        """
        end = len(self.rest) + count
        self.is_behind = end == len(self._scratch)
        position = frames = 0
        if not self.preface_done:
            position = self._take_preface(end)
            if not self.preface_done:
                self.rest = bytes(self._view[position:end])
                return
        scratch, unpack, output = self._scratch, FRAME_HEADER.unpack_from, self._output
        while output.is_open:
            if self.data_left:
                count = min(self.data_left, end - position)
                if not count:
                    break
                self._take_data(self._view[position : position + count])
                position += count
                continue
            if self._data_padding:
                count = min(self._data_padding, end - position)
                if not count:
                    break
                self._data_padding -= count
                position += count
                continue
            if end - position < FRAME_HEADER_SIZE:
                break
            if frames == FRAMES_PER_TURN:
                self.is_behind = True
                break
            frames += 1
            high, low, kind, flags, stream_id = unpack(scratch, position)
            size = high << 8 | low
            stream_id &= MAX_STREAM_ID
            if self._block is not None and (kind != h2.CONTINUATION or stream_id != self._block_stream):
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "a frame inside a header block")
            body = position + FRAME_HEADER_SIZE
            if kind == h2.DATA and self._control.settings_seen:
                if size > self._limits.max_data_frame:
                    raise Http2ConnectionError(h2.FRAME_SIZE_ERROR, f"DATA of {size} bytes")
                if not flags and (taken := self._take_message(stream_id, size, body, end)):
                    position = body + taken
                    continue
                if flags & h2.PADDED and size and body == end:
                    break  # the length of the padding is not there
                position = body + self._begin_data(size, flags, stream_id, body)
                continue
            if size > MAX_CONTROL_FRAME:
                raise Http2ConnectionError(h2.FRAME_SIZE_ERROR, f"a frame of type {kind} and {size} bytes")
            if end - body < size:
                break
            position = body + size
            try:
                self._take_frame(kind, flags, stream_id, bytes(self._view[body:position]))
            except Http2StreamError as error:
                self._streams.end_broken(error)
        self.rest = bytes(self._view[position:end]) if position < end else b""

    def _take_preface(self, end: int) -> int:
        begin = bytes(self._scratch[: min(end, len(h2.PREFACE))])
        if begin == h2.PREFACE:
            self.preface_done = True
            self._control.send_settings()
            return len(begin)
        if not h2.PREFACE.startswith(begin):
            reason, is_http_1 = refusal_of(begin)
            if reason:
                self._on_foreign(reason, is_http_1)
                return end
        return 0

    def _take_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._control.settings_seen and (kind != h2.SETTINGS or flags & h2.ACK):
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == h2.HEADERS:
            if not stream_id:
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "HEADERS on stream 0")
            try:
                block = h2.block_of(payload, flags, stream_id)
            except Http2StreamError:  # the block must be decoded all the same; so end the connection
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "a stream depends on itself") from None
            ended = bool(flags & h2.END_STREAM)
            if flags & h2.END_HEADERS:
                self._take_block(stream_id, block, ended)
            else:
                self._block, self._block_stream, self._block_ends = bytearray(block), stream_id, ended
                self._block_frames = 0
        elif kind == h2.WINDOW_UPDATE:
            self._control.take_window_update(stream_id, h2.read_number(payload, "WINDOW_UPDATE") & MAX_WINDOW)
        elif kind == h2.RST_STREAM:
            self._control.take_reset(stream_id, h2.read_number(payload, "RST_STREAM"))
        elif kind == h2.CONTINUATION:
            self._take_continuation(flags, payload)
        elif kind == h2.PING:
            self._control.take_ping(flags, stream_id, payload)
        elif kind == h2.SETTINGS:
            self._control.take_settings(flags, stream_id, payload)
        elif kind == h2.GOAWAY:
            self._control.take_goaway(stream_id, payload)
        elif kind == h2.PUSH_PROMISE:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "PUSH_PROMISE, which this side does not allow")
        else:
            self._guard.spend_idle()
            if kind == h2.PRIORITY:
                if not stream_id:
                    raise Http2ConnectionError(h2.PROTOCOL_ERROR, "PRIORITY on stream 0")
                h2.read_priority(payload, stream_id)

    # --- DATA -----------------------------------------------------------------------------------------------
    def _begin_data(self, size: int, flags: int, stream_id: int, body: int) -> int:
        """Begin a DATA frame whose payload starts at `body`. Returns how many bytes of it are done with."""
        if not stream_id:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "DATA on stream 0")
        self._messages.memory.take(size)
        taken = padding = 0
        if flags & h2.PADDED:
            padding = self._scratch[body] if size else size
            if padding >= size:
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "DATA with more padding than bytes")
            taken = 1
        stream = self._streams.open.get(stream_id)
        ended = bool(flags & h2.END_STREAM)
        content = size - taken - padding
        if stream is None or stream.peer_ended:
            self._streams.refuse_late(stream, stream_id, "DATA")
            stream = None
        else:
            stream.recv_window -= size
            if stream.recv_window < 0:
                self._streams.end_broken(
                    Http2StreamError(h2.FLOW_CONTROL_ERROR, stream_id, "more DATA than the stream's window")
                )
                stream = None
            elif stream.content_left is not None:
                stream.content_left -= content
                if stream.content_left < 0 or (ended and stream.content_left):
                    self._streams.end_broken(
                        Http2StreamError(h2.PROTOCOL_ERROR, stream_id, "not as many bytes as content-length")
                    )
                    stream = None
        if not content:
            if not ended:
                self._guard.spend_idle()
            elif stream is not None:
                self._streams.end_theirs(stream)
        self._data_stream, self.data_left, self._data_padding = stream, content, padding
        self._data_ends = ended
        return taken

    def _take_message(self, stream_id: int, size: int, body: int, end: int) -> int:
        """Take a DATA frame that is one message of a direct stream, or its begin.

        Returns how many bytes of it are done with; 0: take it in the general way.
        """
        messages, stream = self._messages, self._streams.open.get(stream_id)
        start = body + PREFIX.size
        if type(stream) is not DirectStream or not stream.is_plain or start > end:
            return 0
        flag, length = PREFIX.unpack_from(self._scratch, body)
        if flag or length != size - PREFIX.size or length > stream.cutter.max_size:
            return 0
        if size > stream.recv_window or size > messages.memory.window:
            return 0
        messages.memory.window -= size
        stream.recv_window -= size
        left = body + size - end
        if left <= 0:
            stream.receive(bytes(self._view[start : body + size]))
        else:
            data = self._view[start:end]
            stream.cutter.begin(flag, length, messages.first_piece(len(data)), data)
            self._data_stream, self.data_left, self._data_padding = stream, left, 0
            self._data_ends = False
            messages.account(stream, False)
            messages.received += len(data)
        if 2 * stream.recv_window <= stream.window and not stream.closed:
            messages.grant_stream(stream)
        return min(size, end - body)

    def _take_data(self, data: memoryview) -> None:
        """Take the next bytes of the DATA frame in progress."""
        self.data_left -= len(data)
        stream = self._data_stream
        if stream is None or stream.closed:
            return
        if stream.discards:
            self._after_data(stream, len(data))
            return
        try:
            stream.cutter.feed(data, stream.deliver, self._messages.first_piece(len(data)))
        except GrpcMessageError as error:
            self._end_unreadable(stream, error)
        else:
            self._after_data(stream, len(data))

    def take_direct(self, count: int) -> None:
        """Take bytes that the loop has read straight into a message."""
        self.data_left -= count
        stream = self._data_stream
        assert stream is not None
        try:
            stream.cutter.advance(count, stream.deliver)
        except GrpcMessageError as error:
            self._end_unreadable(stream, error)
        else:
            self._after_data(stream, count)

    def _end_unreadable(self, stream: Http2Stream, error: GrpcMessageError) -> None:
        stream.owner.on_bad_message(error)
        self._streams.reset(stream, h2.CANCEL)

    def _after_data(self, stream: Http2Stream, count: int) -> None:
        if stream.closed:  # by its owner, in a message
            return
        messages, ends = self._messages, self._data_ends
        is_busy = stream.unread or stream.held or stream.cutter.size or ends or messages.incomplete
        if not is_busy and 2 * stream.recv_window > stream.window:
            return  # nothing is unread, and there is no window to grant
        messages.account(stream, ends)
        if stream in messages.incomplete:
            messages.received += count
        if ends and not self.data_left:
            self._streams.end_theirs(stream)
        elif messages.memory.held > 2 * messages.memory.limit:  # many tiny or inflated messages
            self._streams.drop(stream, "too many unread messages")
        elif stream.cutter.size and messages.shared.must_drop(messages.user):
            self._streams.drop(stream, "there is no memory left for requests")
        elif 2 * min(stream.recv_window, stream.window - stream.cutter.size) <= stream.window:
            messages.grant_stream(stream)  # a window is low, or the message is large

    # --- header blocks --------------------------------------------------------------------------------------
    def _take_continuation(self, flags: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block_frames += 1
        block += payload
        if self._block_frames > MAX_CONTINUATIONS or len(block) > MAX_HEADER_BLOCK:
            raise Http2ConnectionError(h2.ENHANCE_YOUR_CALM, "a header block of too many frames or bytes")
        if flags & h2.END_HEADERS:
            self._block = None
            self._take_block(self._block_stream, bytes(block), self._block_ends)

    def _take_block(self, stream_id: int, block: bytes, ended: bool) -> None:
        if len(block) > MAX_HEADER_BLOCK:
            raise Http2ConnectionError(h2.ENHANCE_YOUR_CALM, f"a header block of {len(block)} bytes")
        try:
            decoded = self._decoder.decode(block)
        except HeaderBlockError as error:
            raise Http2ConnectionError(h2.COMPRESSION_ERROR, str(error)) from None
        streams = self._streams
        stream = streams.open.get(stream_id)
        if stream is not None:
            if stream.peer_ended:
                streams.refuse_late(stream, stream_id, "HEADERS")
                return
            if streams.is_server and not ended:
                raise Http2StreamError(h2.PROTOCOL_ERROR, stream_id, "trailers without END_STREAM")
            try:
                stream.owner.on_head(decoded, ended)
            except MalformedFieldsError as error:
                raise Http2StreamError(h2.PROTOCOL_ERROR, stream_id, str(error)) from None
            if ended and not stream.closed:
                if stream.content_left:
                    raise Http2StreamError(
                        h2.PROTOCOL_ERROR, stream_id, "not as many bytes as content-length"
                    )
                streams.end_theirs(stream)
            return
        if self._accept is None or stream_id in streams.ended:
            streams.refuse_late(None, stream_id, "HEADERS")
            return
        if not stream_id & 1 or stream_id <= streams.last_id:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, f"a new stream with the id {stream_id}")
        if streams.is_draining:  # behind the GOAWAY that named the last stream: dropped, with its DATA
            streams.note_ended(stream_id, we_reset=True)
            self._guard.spend_idle()
            return
        streams.last_id = stream_id
        if len(streams.open) >= self._limits.max_streams:
            streams.note_ended(stream_id, we_reset=True)
            self._guard.spend_idle()
            self._output.emit(h2.reset_frame(stream_id, h2.REFUSED_STREAM))
            return
        try:
            self._accept(stream_id, decoded)
        except MalformedFieldsError as error:
            raise Http2StreamError(h2.PROTOCOL_ERROR, stream_id, str(error)) from None
        stream = streams.open.get(stream_id)
        if ended and stream is not None:
            if stream.content_left:
                raise Http2StreamError(h2.PROTOCOL_ERROR, stream_id, "not as many bytes as content-length")
            streams.end_theirs(stream)
