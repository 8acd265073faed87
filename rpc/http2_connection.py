"""One HTTP/2 connection of a server or a client, as an asyncio protocol.

Owns: the connection's state, its streams, the order of frames on it, and every refusal of a peer that breaks
the protocol or floods it. Must not: know gRPC's methods and statuses.

Received bytes go into memory that all connections of an endpoint share, except those of large messages: the
loop reads them straight into the message. What is sent during one turn of the loop is one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

from . import http2_frames as h2
from .allowance import Allowance
from .call_headers import MalformedFieldsError
from .flow_control import ReceiveMemory, stream_grant
from .grpc_messages import PREFIX, GrpcMessageError
from .header_blocks import HeaderBlock, HeaderBlockDecoder, HeaderBlockError
from .http2_frames import FRAME_HEADER, FRAME_HEADER_SIZE, Http2ConnectionError, Http2StreamError
from .http2_output import FRAMES_EXPLAINED, Http2Output
from .http2_stream import DirectStream, DirectUser, Http2Stream, StreamUser
from .shared_memory import SharedMemory
from .wire_limits import (
    FIRST_PIECE,
    FIRST_PIECE_TIMES,
    GENEROUS_MESSAGES,
    GENEROUS_PIECE,
    IDLE_FRAMES,
    IDLE_FRAMES_PER_S,
    MAX_CONTINUATIONS,
    MAX_CONTROL_FRAME,
    MAX_HEADER_BLOCK,
    MAX_HEADER_LIST,
    MAX_SENT_FRAME,
    MAX_STREAM_ID,
    MAX_WINDOW,
    REMEMBERED_STREAMS,
    RESETS,
    RESETS_PER_S,
    WireLimits,
)

#: Memory for received bytes that an endpoint's connections share.
SCRATCH_SIZE: Final = 128 << 10
#: Rest of a DATA frame that is worth its own read.
_DIRECT_MIN: Final = 8 << 10
#: Bytes that are read behind a large message: enough for the begin of the next one, of which the rest is then
#: read into its own memory.
_PEEK: Final = 1 << 10
#: Time in seconds in which a peer may take what was sent before the end, also when this side stops.
_LINGER_S: Final = 5.0
_LAST_LINGER_S: Final = 1.0
#: Begin of the reason of a connection that ended without ours.
CLOSED_BY_PEER: Final = "connection closed by the peer"
#: Reason of a connection to a server that answers in HTTP/1.
SPEAKS_HTTP_1: Final = "the server speaks HTTP/1, not gRPC"
_KEEPALIVE_PING: Final = b"ledgermq"
_DRAIN_PING: Final = b"draining"
#: Sentences of refusals, for the peer and the log: what is wrong, and what to switch.
_HTTP_1: Final = (
    "this port speaks gRPC over HTTP/2, not HTTP/1.1: use a gRPC client (gRPC-web needs a proxy that "
    "translates it)"
)
_NO_ALPN: Final = (
    "this port speaks gRPC over HTTP/2, which the TLS client does not offer: use a gRPC client, or switch "
    "ALPN h2 on in it"
)
_TLS: Final = "TLS on a port without TLS: switch TLS off in the client, or use a port with TLS"
_NO_HTTP: Final = "this port speaks gRPC over HTTP/2, not what came: use a gRPC client, and check the port"
_SILENT: Final = "no HTTP/2 within {:g} s: use a gRPC client; a health check has a port of its own"
_FLOOD: Final = "this is how a flood looks: stop that client, or ask its makers"
_BROKEN: Final = "the client breaks HTTP/2: update or stop it"
_HTTP_1_METHODS: Final = tuple(
    b"%s " % each
    for each in (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH")
)


class Http2Connection(asyncio.BufferedProtocol):
    """One connection. All methods are called on the loop's thread.

    A server passes `accept(connection, stream id, header block)`, which adds each new stream or raises
    MalformedFieldsError; a client opens streams.
    """

    def __init__(
        self,
        limits: WireLimits,
        scratch: bytearray,
        shared: SharedMemory,
        *,
        accept: Callable[[Http2Connection, int, HeaderBlock], None] | None = None,
        on_made: Callable[[Http2Connection], None] = lambda connection: None,
        on_ready: Callable[[Http2Connection], None] = lambda connection: None,
        on_room: Callable[[], None] = lambda: None,
        on_going: Callable[[Http2Connection], None] = lambda connection: None,
        on_lost: Callable[[Http2Connection, str], None] = lambda connection, reason: None,
        on_resumed: Callable[[], None] = lambda: None,
    ) -> None:
        """`scratch`: SCRATCH_SIZE bytes, shared by connections of one loop, as `shared` is.

        `on_made`: connected; `on_ready`: the peer's first settings came; `on_room`: a stream has closed;
        `on_going`: the peer takes no more streams; `on_lost(connection, reason)`: it is over; `on_resumed`:
        the transport takes more again.
        """
        self.limits = limits
        self.streams: dict[int, Http2Stream] = {}
        self.is_draining = False  # no more streams: we said so, or the peer
        self.peer_max_streams = MAX_STREAM_ID  # no limit, unless its settings say one
        self.peer = self.address = ""  # addresses of both ends, as grpcio writes them
        self.transport: Any = None
        self._accept = accept
        self._on_made, self._on_ready, self._on_room = on_made, on_ready, on_room
        self._on_going, self._on_lost, self._on_resumed = on_going, on_lost, on_resumed
        # called when received bytes end inside a frame or a message, or break the protocol
        self.listeners: list[Callable[[], None]] = []
        self.arrived = 0  # bytes of all frames
        self.broken = ""  # how the peer broke the protocol
        self._loop = asyncio.get_running_loop()
        # received
        self._scratch, self._view = scratch, memoryview(scratch)
        self._rest = b""  # begin of a frame
        self._preface_done = accept is None
        self._settings_seen = False
        self._decoder = HeaderBlockDecoder()
        self._memory = ReceiveMemory(max(limits.connection_memory, 2 * limits.max_message))
        self._shared = shared
        self._is_reading = True
        self._data_stream: Http2Stream | None = None  # of the DATA frame in progress
        self._data_left = self._data_padding = 0
        self._data_ends = False
        self._is_direct = False
        self._peeks = False  # the last message was a large one of a direct stream
        self._block: bytearray | None = None  # of HEADERS without END_HEADERS
        self._block_stream = self._block_frames = 0
        self._block_ends = False
        self._last_id = 0  # largest stream id of the peer, or of ours for a client
        self._ended: dict[int, bool] = {}  # recent ended streams; True: we reset it, late frames are right
        self._incomplete: dict[Http2Stream, None] = {}  # with a message in progress, oldest first
        self.received = 0  # bytes of messages in progress, since the begin
        self._idle_frames = Allowance(IDLE_FRAMES, IDLE_FRAMES_PER_S, self._loop.time())
        self._resets = Allowance(RESETS, RESETS_PER_S, self._loop.time())
        self._output = Http2Output(self._loop, self._end_ours, self.abort, shared.answers)
        self.send_head = self._output.send_head
        self.send_data = self._output.send_data
        self.send_end = self._output.send_end
        self.send_now = self._output.send_now
        self.flush = self._output.flush
        # life
        self._reason = ""
        self._heard_at = 0.0
        self._asked = False  # a PING waits for a sign of life
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.peer = _address(transport, "peername")
        self.address = _address(transport, "sockname")
        tls = transport.get_extra_info("ssl_object")
        self._output.begin(transport)
        self._idle_since = self._heard_at = self._loop.time()
        self._on_made(self)
        if not self.is_open:
            return
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._refuse_in_http_1(_NO_ALPN)
            return
        if self._accept is None:
            self._output.emit(h2.PREFACE)
            self._send_settings((h2.ENABLE_PUSH, 0))
        self._timer = self._loop.call_later(self.limits.handshake_s, self._on_timer)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._data_left >= _DIRECT_MIN:
            stream = self._data_stream
            if stream is not None and stream.cutter.size and not stream.closed:
                self._is_direct = True
                self._peeks = type(stream) is DirectStream
                return stream.cutter.direct()[: self._data_left]
        self._is_direct = False
        if not self._rest:
            if self._peeks:
                self._peeks = False
                return self._view[:_PEEK]
            return self._view
        size = len(self._rest)
        self._view[:size] = self._rest
        return self._view[size:]

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_at, self._asked = self._loop.time(), False
        self.arrived += nbytes
        self._output.is_collecting = True
        try:
            if self._is_direct:
                self._take_direct(nbytes)
            else:
                end = len(self._rest) + nbytes
                taken = self._parse(end)
                self._rest = bytes(self._view[taken:end]) if taken < end else b""
            if self.is_open and self._preface_done:
                if self._memory.is_worth_granting:
                    self._grant_connection()
                    if self._memory.is_full:
                        self._make_room()
                if self._incomplete or self._shared.is_exhausted:
                    self._shared.on_received(self)
        except Http2ConnectionError as error:
            self._end_broken(error)
        self._output.is_collecting = False
        self._output.flush()
        if self.listeners and (self._rest or self._data_left or self._incomplete or self.broken):
            for listen in tuple(self.listeners):
                listen()

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        self._output.resume()
        self._on_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.end()
        self.is_draining = True
        if self._timer is not None:
            self._timer.cancel()
        reason = self._reason or (f"{CLOSED_BY_PEER}: {exc}" if exc else CLOSED_BY_PEER)
        for stream in list(self.streams.values()):
            self._close(stream, we_reset=True)
            stream.owner.on_reset(h2.CONNECTION_LOST, reason, False)
        self._shared.forget(self)
        if not self._lost.done():
            self._lost.set_result(None)
        self._on_lost(self, reason)

    @property
    def is_open(self) -> bool:
        """Whether frames are read and sent."""
        return self._output.is_open

    def may_send(self, stream: Http2Stream) -> bool:
        """Whether a message on `stream` would leave without waiting for a window or for the transport."""
        output = self._output
        return output.is_open and not output.is_paused and not stream.pending

    @property
    def missing(self) -> int:
        """Bytes that the incomplete frame, or header block, still needs as far as known; 0 between frames."""
        if self._data_left or self._data_padding:
            return self._data_left + self._data_padding
        size = len(self._rest)
        if size >= FRAME_HEADER_SIZE:
            return FRAME_HEADER_SIZE + int.from_bytes(self._rest[:3], "big") - size
        return FRAME_HEADER_SIZE - size if size or self._block is not None else 0

    # --- shared_memory.MemoryUser ---------------------------------------------------------------------------
    @property
    def held(self) -> int:
        return self._memory.held

    @property
    def waits_for_reader(self) -> bool:
        return any(each.messages and not each.needs_end for each in self.streams.values())

    @property
    def is_receiving(self) -> bool:
        return bool(self._incomplete)

    def stop_reading(self) -> None:
        self._is_reading = False
        self.transport.pause_reading()

    def read_on(self) -> None:
        self._is_reading, self._heard_at = True, self._loop.time()
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def drop_incomplete(self, reason: str) -> None:
        for stream in list(self._incomplete):
            self._drop(stream, reason)

    def use_budget(self, shared: SharedMemory) -> None:
        """Count what this connection holds in another budget from now on."""
        former, self._shared = self._shared, shared
        for budget, sign in ((former, -1), (shared, 1)):
            budget.held += sign * self._memory.held
            budget.incomplete += sign * len(self._incomplete)
        self._output.use_budget(shared.answers)
        former.forget(self)
        if not self._is_reading:
            self.read_on()

    # --- for calls ------------------------------------------------------------------------------------------
    @property
    def may_open(self) -> bool:
        """Whether a client may open a stream now."""
        return (
            self.is_open
            and not self.is_draining
            and self._settings_seen
            and len(self.streams) < self.peer_max_streams
        )

    def new_stream(self, owner: StreamUser, max_message: int) -> Http2Stream:
        """Return a client's new stream; it begins with `send_head`, at once. Needs `may_open`."""
        stream = self.add_stream(self._next_id(), owner, max_message)
        self._note_last_id()
        return stream

    def new_direct_stream(self, owner: DirectUser, max_message: int) -> DirectStream:
        """Return a client's new stream; the first one of a connection may begin before `may_open`."""
        stream = self.add_direct_stream(self._next_id(), owner, max_message)
        self._note_last_id()
        return stream

    def _next_id(self) -> int:
        self._last_id += 2 if self._last_id else 1
        return self._last_id

    def _note_last_id(self) -> None:
        if self._last_id == MAX_STREAM_ID:  # there are no more ids
            self.is_draining = True
            self._on_going(self)

    def add_stream(self, stream_id: int, owner: StreamUser, max_message: int) -> Http2Stream:
        """Return the stream that belongs to `owner` from now on."""
        window = self.limits.stream_window
        stream = Http2Stream(self, owner, stream_id, window, self._output.peer_window, max_message)
        self._add(stream)
        return stream

    def add_direct_stream(self, stream_id: int, owner: DirectUser, max_message: int) -> DirectStream:
        """Return a stream whose messages are given to `owner` as they come."""
        window = self.limits.stream_window
        stream = DirectStream(self, owner, stream_id, window, self._output.peer_window, max_message)
        self._add(stream)
        return stream

    def _add(self, stream: Http2Stream) -> None:
        self.streams[stream.stream_id] = stream
        self._output.frames_due += FRAMES_EXPLAINED

    def widen(self, stream: Http2Stream, window: int) -> None:
        """Let the peer have so many unread bytes on a stream from now on."""
        stream.window = max(window, stream.window)
        if not stream.closed and not stream.peer_ended:
            self._grant_stream(stream)

    def reset(self, stream: Http2Stream, code: int) -> None:
        """End a stream at once; its owner is not told."""
        if not stream.closed:
            self._output.emit(h2.reset_frame(stream.stream_id, code))
            self._close(stream, we_reset=True)

    def on_taken(self, stream: Http2Stream) -> None:
        if not stream.closed:
            self._account(stream)
            if not stream.peer_ended:
                self._grant_stream(stream)
        self._grant_connection()

    def drain(self) -> None:
        """Take no more streams; end when the last one has. Streams on their way are still served."""
        if self.is_open and not self.is_draining:
            self._output.emit(h2.goaway_frame(MAX_STREAM_ID, h2.NO_ERROR, "this server stops"))
            self._output.emit(h2.frame(h2.PING, 0, 0, _DRAIN_PING))

    def close(self, code: int = h2.NO_ERROR, reason: str = "") -> None:
        """End the connection when everything sent has left the write buffer."""
        if self.is_open:
            self._reason = self._reason or reason
            last = self._last_id if self._accept is not None else 0
            self._output.emit(h2.goaway_frame(last, code, reason))
            self._output.flush()
            self._output.is_open = False
            self.is_draining = True
            self.transport.close()
            self._schedule(_LINGER_S, self.transport.abort)

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        self._reason = self._reason or reason
        self._output.end()
        self.is_draining = True
        if self.transport is not None:
            self.transport.abort()

    @staticmethod
    async def close_all(connections: Collection[Http2Connection], reason: str) -> None:
        """End connections and wait until they are gone. One whose peer does not read is aborted soon."""
        for each in connections:
            each.close(h2.NO_ERROR, reason)
        lost = [each._lost for each in connections]
        if not lost:
            return
        await asyncio.wait(lost, timeout=_LAST_LINGER_S)
        for each in connections:
            if not each._lost.done():
                each.abort(reason)
        await asyncio.wait(lost, timeout=_LAST_LINGER_S)

    def _send_settings(self, first: tuple[int, int]) -> None:
        """Send what must be the first frame; a server after the client's preface, or it is no HTTP/2."""
        self._output.emit(
            h2.settings_frame(
                (
                    first,
                    (h2.INITIAL_WINDOW_SIZE, self.limits.stream_window),
                    (h2.MAX_FRAME_SIZE, self.limits.max_data_frame),
                    (h2.MAX_HEADER_LIST_SIZE, MAX_HEADER_LIST),
                )
            )
        )

    # --- received frames ------------------------------------------------------------------------------------
    def _parse(self, end: int) -> int:
        """Take the frames in the scratch memory. Returns how many bytes of it are done with."""
        position = 0
        if not self._preface_done:
            position = self._take_preface(end)
            if not self._preface_done:
                return position
        scratch, unpack, output = self._scratch, FRAME_HEADER.unpack_from, self._output
        while output.is_open:
            if self._data_left:
                count = min(self._data_left, end - position)
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
            high, low, kind, flags, stream_id = unpack(scratch, position)
            size = high << 8 | low
            stream_id &= MAX_STREAM_ID
            if self._block is not None and (kind != h2.CONTINUATION or stream_id != self._block_stream):
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "a frame inside a header block")
            body = position + FRAME_HEADER_SIZE
            if kind == h2.DATA and self._settings_seen:
                if size > self.limits.max_data_frame:
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
                self._end_stream_broken(error)
        return position

    def _take_preface(self, end: int) -> int:
        begin = self._scratch[: min(end, len(h2.PREFACE))]
        if begin == h2.PREFACE:
            self._preface_done = True
            self._send_settings((h2.MAX_CONCURRENT_STREAMS, self.limits.max_streams))
            return len(begin)
        if not h2.PREFACE.startswith(begin):
            if begin[:2] == b"\x16\x03":
                self.abort(_TLS)
            elif any(begin.startswith(each) for each in _HTTP_1_METHODS):
                self._refuse_in_http_1(_HTTP_1)
            elif any(each.startswith(begin) for each in _HTTP_1_METHODS):
                return 0
            else:
                self.abort(_NO_HTTP)
            return end
        return 0

    def _refuse_in_http_1(self, reason: str) -> None:
        """End the connection with an answer that a client of HTTP/1.1 can read."""
        text = reason.encode() + b"\n"
        self.transport.write(
            b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\ncontent-type: text/plain\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(text), text)
        )
        self._reason = reason
        self._output.is_open = False
        self.is_draining = True
        self.transport.close()
        self._schedule(_LINGER_S, self.transport.abort)

    def _take_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._settings_seen and (kind != h2.SETTINGS or flags & h2.ACK):
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
            self._take_window_update(stream_id, h2.read_number(payload, "WINDOW_UPDATE") & MAX_WINDOW)
        elif kind == h2.RST_STREAM:
            self._take_reset(stream_id, h2.read_number(payload, "RST_STREAM"))
        elif kind == h2.CONTINUATION:
            self._take_continuation(flags, payload)
        elif kind == h2.PING:
            self._take_ping(flags, stream_id, payload)
        elif kind == h2.SETTINGS:
            self._take_settings(flags, stream_id, payload)
        elif kind == h2.GOAWAY:
            self._take_goaway(stream_id, payload)
        elif kind == h2.PUSH_PROMISE:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "PUSH_PROMISE, which this side does not allow")
        else:
            self._spend_idle()
            if kind == h2.PRIORITY:
                if not stream_id:
                    raise Http2ConnectionError(h2.PROTOCOL_ERROR, "PRIORITY on stream 0")
                h2.read_priority(payload, stream_id)

    # --- DATA -----------------------------------------------------------------------------------------------
    def _begin_data(self, size: int, flags: int, stream_id: int, body: int) -> int:
        """Begin a DATA frame whose payload starts at `body`. Returns how many bytes of it are done with."""
        if not stream_id:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "DATA on stream 0")
        self._memory.take(size)
        taken = padding = 0
        if flags & h2.PADDED:
            padding = self._scratch[body] if size else size
            if padding >= size:
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "DATA with more padding than bytes")
            taken = 1
        stream = self.streams.get(stream_id)
        ended = bool(flags & h2.END_STREAM)
        content = size - taken - padding
        if stream is None or stream.peer_ended:
            self._refuse_late(stream, stream_id, "DATA")
            stream = None
        else:
            stream.recv_window -= size
            if stream.recv_window < 0:
                self._end_stream_broken(
                    Http2StreamError(h2.FLOW_CONTROL_ERROR, stream_id, "more DATA than the stream's window")
                )
                stream = None
            elif stream.content_left is not None:
                stream.content_left -= content
                if stream.content_left < 0 or (ended and stream.content_left):
                    self._end_stream_broken(
                        Http2StreamError(h2.PROTOCOL_ERROR, stream_id, "not as many bytes as content-length")
                    )
                    stream = None
        if not content:
            if not ended:
                self._spend_idle()
            elif stream is not None:
                self._end_theirs(stream)
        self._data_stream, self._data_left, self._data_padding = stream, content, padding
        self._data_ends = ended
        return taken

    def _take_message(self, stream_id: int, size: int, body: int, end: int) -> int:
        """Take a DATA frame that is one message of a direct stream, or its begin.

        Returns how many bytes of it are done with; 0: take it in the general way.
        """
        stream = self.streams.get(stream_id)
        start = body + PREFIX.size
        if type(stream) is not DirectStream or not stream.is_plain or start > end:
            return 0
        flag, length = PREFIX.unpack_from(self._scratch, body)
        if flag or length != size - PREFIX.size or length > stream.cutter.max_size:
            return 0
        if size > stream.recv_window or size > self._memory.window:
            return 0
        self._memory.window -= size
        stream.recv_window -= size
        left = body + size - end
        if left <= 0:
            stream.receive(bytes(self._view[start : body + size]))
        else:
            data = self._view[start:end]
            stream.cutter.begin(flag, length, self._first_piece(len(data)), data)
            self._data_stream, self._data_left, self._data_padding = stream, left, 0
            self._data_ends = False
            self._account(stream)
            self.received += len(data)
        if 2 * stream.recv_window <= stream.window and not stream.closed:
            self._grant_stream(stream)
        return min(size, end - body)

    def _first_piece(self, received: int) -> int:
        """Return the size of the first memory of a message of which so many bytes came."""
        if self._shared.incomplete < GENEROUS_MESSAGES:
            return GENEROUS_PIECE
        return max(FIRST_PIECE, FIRST_PIECE_TIMES * received)

    def _take_data(self, data: memoryview) -> None:
        """Take the next bytes of the DATA frame in progress."""
        self._data_left -= len(data)
        stream = self._data_stream
        if stream is None or stream.closed:
            return
        if stream.discards:
            self._after_data(stream, len(data))
            return
        try:
            stream.cutter.feed(data, stream.deliver, self._first_piece(len(data)))
        except GrpcMessageError as error:
            self._end_unreadable(stream, error)
        else:
            self._after_data(stream, len(data))

    def _take_direct(self, count: int) -> None:
        """Take bytes that the loop has read straight into a message."""
        self._data_left -= count
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
        self.reset(stream, h2.CANCEL)

    def _after_data(self, stream: Http2Stream, count: int) -> None:
        if stream.closed:  # by its owner, in a message
            return
        is_busy = stream.unread or stream.held or stream.cutter.size or self._data_ends or self._incomplete
        if not is_busy and 2 * stream.recv_window > stream.window:
            return  # nothing is unread, and there is no window to grant
        self._account(stream)
        if stream in self._incomplete:
            self.received += count
        if self._data_ends and not self._data_left:
            self._end_theirs(stream)
        elif self._memory.held > 2 * self._memory.limit:  # many tiny or inflated messages
            self._drop(stream, "too many unread messages")
        elif stream.cutter.size and self._shared.must_drop(self):
            self._drop(stream, "there is no memory left for requests")
        elif 2 * min(stream.recv_window, stream.window - stream.cutter.size) <= stream.window:
            self._grant_stream(stream)  # a window is low, or the message is large

    def _account(self, stream: Http2Stream) -> None:
        """Count what the stream holds now."""
        self._hold(stream, stream.unread + stream.cutter.room)
        begun = stream.cutter.begun
        is_part = stream.cutter.size or (
            stream.needs_end and stream.unread and not (stream.peer_ended or self._data_ends)
        )
        if stream in self._incomplete and (not is_part or stream.begun != begun):
            self._end_incomplete(stream)
        if is_part and stream not in self._incomplete:
            self._incomplete[stream] = None
            self._shared.incomplete += 1
            stream.begun = begun

    def _hold(self, stream: Http2Stream, held: int) -> None:
        change = held - stream.held
        stream.held = held
        self._memory.held += change
        self._shared.held += change
        if change < 0 and self._shared.stopped:
            self._shared.on_freed(self)

    def _end_incomplete(self, stream: Http2Stream) -> None:
        """Give the room of a large message to those that wait."""
        del self._incomplete[stream]
        self._shared.incomplete -= 1
        if not self._incomplete:
            self._shared.on_freed(self)
        promised, stream.promised = stream.promised, 0
        self._memory.promised -= promised
        if not promised or not self.is_open:
            return
        for waiting in self._incomplete:
            if 2 * waiting.cutter.size > waiting.window and not waiting.promised:
                self._grant_stream(waiting)
                if not waiting.promised:
                    break

    def _grant_stream(self, stream: Http2Stream) -> None:
        """Let the peer send more on a stream, if there is room for it."""
        window, size, memory = stream.window, stream.cutter.size, self._memory
        # Smaller messages always fit: increments of less than half a window are saved up.
        is_large = 2 * size > window and not stream.promised
        if is_large and stream.unread < window and memory.may_promise(size):
            stream.promised = size
            memory.promised += size
        if stream.promised:
            increment = stream_grant(window, stream.recv_window, stream.unread, stream.cutter.missing)
        else:
            unread = stream.unread + stream.cutter.filled
            increment = stream_grant(window, stream.recv_window, unread, 0)
        if increment:
            stream.recv_window += increment
            self._output.emit(h2.window_frame(stream.stream_id, increment))

    def _grant_connection(self) -> None:
        increment = self._memory.grant()
        if increment:
            self._output.emit(h2.window_frame(0, increment))

    def _make_room(self) -> None:
        """Drop the newest incomplete messages if nothing else can free the connection's memory."""
        if any(stream.messages for stream in self.streams.values()):
            return
        while 2 * self._memory.held > self._memory.limit and len(self._incomplete) > 1:
            self._drop(next(reversed(self._incomplete)), "too many large messages at a time")
        self._grant_connection()

    def _drop(self, stream: Http2Stream, reason: str) -> None:
        self.reset(stream, h2.ENHANCE_YOUR_CALM)
        stream.owner.on_reset(h2.ENHANCE_YOUR_CALM, reason, False)

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
        stream = self.streams.get(stream_id)
        if stream is not None:
            if stream.peer_ended:
                self._refuse_late(stream, stream_id, "HEADERS")
                return
            if self._accept is not None and not ended:
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
                self._end_theirs(stream)
            return
        if self._accept is None or stream_id in self._ended:
            self._refuse_late(None, stream_id, "HEADERS")
            return
        if not stream_id & 1 or stream_id <= self._last_id:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, f"a new stream with the id {stream_id}")
        if self.is_draining:
            return  # behind the GOAWAY that named the last stream
        self._last_id = stream_id
        if len(self.streams) >= self.limits.max_streams:
            self._note_ended(stream_id, we_reset=True)
            self._spend_idle()
            self._output.emit(h2.reset_frame(stream_id, h2.REFUSED_STREAM))
            return
        try:
            self._accept(self, stream_id, decoded)
        except MalformedFieldsError as error:
            raise Http2StreamError(h2.PROTOCOL_ERROR, stream_id, str(error)) from None
        stream = self.streams.get(stream_id)
        if ended and stream is not None:
            if stream.content_left:
                raise Http2StreamError(h2.PROTOCOL_ERROR, stream_id, "not as many bytes as content-length")
            self._end_theirs(stream)

    # --- other frames ---------------------------------------------------------------------------------------
    def _take_window_update(self, stream_id: int, increment: int) -> None:
        if not self._is_explained():
            self._spend_idle()
        if not stream_id:
            if not increment:
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
            self._output.window += increment
            if self._output.window > MAX_WINDOW:
                raise Http2ConnectionError(h2.FLOW_CONTROL_ERROR, "a window of more than 2^31-1 bytes")
            self._output.pump()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "WINDOW_UPDATE for a stream that is not open")
            return
        if not increment:
            raise Http2StreamError(h2.PROTOCOL_ERROR, stream_id, "WINDOW_UPDATE of 0 bytes")
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise Http2StreamError(h2.FLOW_CONTROL_ERROR, stream_id, "a window of more than 2^31-1 bytes")
        if stream.pending:
            self._output.unblock(stream)

    def _take_reset(self, stream_id: int, code: int) -> None:
        if not stream_id or (stream_id not in self.streams and self._is_idle(stream_id)):
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "RST_STREAM for a stream that is not open")
        stream = self.streams.get(stream_id)
        if stream is not None or not self._is_explained():
            self._spend_reset()
        if stream is not None:
            self._close(stream, we_reset=False)
            stream.owner.on_reset(code, "the peer has ended the call", code == h2.REFUSED_STREAM)

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Http2ConnectionError(h2.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        if self._output.ping_due and not flags & h2.ACK:
            self._output.ping_due = False  # a peer measures its bandwidth by what came before the answer
        else:
            self._spend_idle()
        if not flags & h2.ACK:
            self._output.emit(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif payload == _DRAIN_PING and self._accept is not None and not self.is_draining:
            self.is_draining = True
            self._output.emit(h2.goaway_frame(self._last_id, h2.NO_ERROR, "this server stops"))
            self._end_if_drained()

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "SETTINGS on a stream")
        self._spend_idle()
        if flags & h2.ACK:
            if payload:
                raise Http2ConnectionError(
                    h2.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with a payload"
                )
            return
        pairs = h2.read_settings(payload)
        self._output.emit(h2.frame(h2.SETTINGS, h2.ACK, 0))
        for identifier, value in pairs:
            if identifier == h2.INITIAL_WINDOW_SIZE:
                self._output.change_windows(value, self.streams.values())
            elif identifier == h2.MAX_FRAME_SIZE:
                self._output.peer_frame_size = min(value, MAX_SENT_FRAME)
            elif identifier == h2.MAX_CONCURRENT_STREAMS:
                self.peer_max_streams = value
                self._on_room()
        if not self._settings_seen:
            self._settings_seen = True
            self._schedule(self._next_look(0.0, 0.0), self._on_timer)
            self._on_ready(self)

    def _take_goaway(self, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "GOAWAY on a stream")
        last, code, text = h2.read_goaway(payload)
        self._spend_idle()
        if self._accept is not None:
            return  # a client that goes: it ends its streams itself
        self.is_draining = True
        reason = f"the server ends the connection: {text or f'code {code}'}"
        if code:
            self._reason = self._reason or reason
        for stream in [each for each in self.streams.values() if each.stream_id > last]:
            self._close(stream, we_reset=False)
            stream.owner.on_reset(h2.REFUSED_STREAM, reason, True)
        self._on_going(self)
        self._end_if_drained()

    def _is_idle(self, stream_id: int) -> bool:
        """Whether a stream was never used."""
        return stream_id > self._last_id or (self._accept is None and not stream_id & 1)

    def _refuse_late(self, stream: Http2Stream | None, stream_id: int, what: str) -> None:
        """Refuse a frame for a stream that has ended, or never began; ignore it where we reset the stream.

        Raises: Http2ConnectionError.
        """
        if stream is None and (self._is_idle(stream_id) or (self._accept is not None and not stream_id & 1)):
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, f"{what} for a stream that is not open")
        self._spend_idle()
        if stream is None and what == "HEADERS" and self._ended.get(stream_id) is False:
            raise Http2ConnectionError(h2.STREAM_CLOSED, "HEADERS for a stream that has ended")
        if stream is not None or not self._ended.get(stream_id, False):
            self._end_stream_broken(
                Http2StreamError(h2.STREAM_CLOSED, stream_id, f"{what} for a stream that has ended")
            )

    def _is_explained(self) -> bool:
        """Take one frame of the peer as an effect of our DATA, if there was enough of it."""
        if self._output.frames_due <= 0:
            return False
        self._output.frames_due -= 1
        return True

    def _spend_idle(self) -> None:
        if not self._idle_frames.spend(self._loop.time()):
            raise Http2ConnectionError(h2.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def _spend_reset(self) -> None:
        """Count a stream of the peer that was reset; a client opens its streams itself."""
        if self._accept is not None and not self._resets.spend(self._loop.time()):
            raise Http2ConnectionError(h2.ENHANCE_YOUR_CALM, "too many streams were reset")

    # --- ends -----------------------------------------------------------------------------------------------
    def _end_ours(self, stream: Http2Stream) -> None:
        stream.we_ended = True
        if stream.peer_ended:
            self._close(stream, we_reset=False)
        elif self._accept is not None:  # the answer is complete: the rest of the request is not wanted
            self._output.emit(h2.reset_frame(stream.stream_id, h2.NO_ERROR))
            self._close(stream, we_reset=True)

    def _end_theirs(self, stream: Http2Stream) -> None:
        stream.peer_ended = True
        if not stream.cutter.is_between:
            self._end_stream_broken(
                Http2StreamError(h2.PROTOCOL_ERROR, stream.stream_id, "the stream ended inside a message")
            )
            return
        stream.wake_reader()
        if stream.we_ended:
            self._close(stream, we_reset=False)
        elif self._accept is None:  # the answer is complete: the server needs nothing more
            self._output.emit(h2.reset_frame(stream.stream_id, h2.NO_ERROR))
            self._close(stream, we_reset=True)
        stream.owner.on_end()

    def _close(self, stream: Http2Stream, we_reset: bool) -> None:
        if stream.closed:
            return
        stream.closed = stream.we_ended = True
        del self.streams[stream.stream_id]
        self._note_ended(stream.stream_id, we_reset)
        self._hold(stream, 0)
        if stream in self._incomplete:
            self._end_incomplete(stream)
        self._output.forget(stream)
        stream.wake_reader()
        if not self.streams:
            self._idle_since = self._loop.time()
            self._end_if_drained()
        self._on_room()

    def _note_ended(self, stream_id: int, we_reset: bool) -> None:
        self._ended[stream_id] = we_reset
        if len(self._ended) > REMEMBERED_STREAMS:
            del self._ended[next(iter(self._ended))]

    def _end_if_drained(self) -> None:
        if self.is_draining and not self.streams and self.is_open:
            self._loop.call_soon(self._close_drained)

    def _close_drained(self) -> None:
        if not self.streams:
            self.close()

    def _end_stream_broken(self, error: Http2StreamError) -> None:
        stream = self.streams.get(error.stream_id)
        self._output.emit(h2.reset_frame(error.stream_id, error.code))
        if stream is None:
            self._note_ended(error.stream_id, we_reset=True)
            self._spend_idle()
        else:
            self._spend_reset()  # a peer can make us reset its streams as well as reset them
            self._close(stream, we_reset=True)
            stream.owner.on_reset(error.code, str(error), False)

    def _end_broken(self, error: Http2ConnectionError) -> None:
        if self._accept is not None:
            advice = _FLOOD if error.code == h2.ENHANCE_YOUR_CALM else _BROKEN
            self._reason = self._reason or f"{error}: {advice}"
        elif not self._settings_seen and self._scratch.startswith(b"HTTP/1."):
            self._reason = SPEAKS_HTTP_1
        self.broken = str(error)
        self._reason = self._reason or self.broken
        self.close(error.code, self.broken)

    # --- life -----------------------------------------------------------------------------------------------
    def _schedule(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call `action` later, and nothing else that was scheduled; 0 s: never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, action) if delay_s else None

    def _next_look(self, idle_s: float, silent_s: float) -> float:
        """Return the time to the next look at a connection without a stream, or a frame, for so long."""
        limits = self.limits
        look_s = limits.keepalive_s
        if silent_s < look_s:
            look_s -= silent_s
        if not limits.max_idle_s or self._accept is None:
            return look_s
        return min(look_s or limits.max_idle_s, limits.max_idle_s - idle_s)

    def _on_timer(self) -> None:
        """Ask a silent peer, end a connection that does not answer or has no streams."""
        limits = self.limits
        if not self._settings_seen:
            self.abort(_SILENT.format(limits.handshake_s))
            return
        is_server = self._accept is not None
        now = self._loop.time()
        idle_s = 0.0 if self.streams else now - self._idle_since
        silent_s = now - self._heard_at
        if is_server and limits.max_idle_s and idle_s >= limits.max_idle_s:
            self.close(h2.NO_ERROR, "idle")
            return
        is_due = limits.keepalive_s and self._is_reading and silent_s >= limits.keepalive_s
        if not is_due or not (is_server or self.streams):
            self._asked = False
            self._schedule(self._next_look(idle_s, silent_s), self._on_timer)
        elif not self._asked:
            self._asked = True
            self._output.emit(h2.frame(h2.PING, 0, 0, _KEEPALIVE_PING))
            self._schedule(limits.keepalive_timeout_s, self._on_timer)
        else:
            self.abort(f"no answer to a PING within {limits.keepalive_timeout_s:g} s")


def _address(transport: asyncio.BaseTransport, which: str) -> str:
    name = transport.get_extra_info(which)
    if isinstance(name, tuple):
        return f"ipv6:[{name[0]}]:{name[1]}" if ":" in name[0] else f"ipv4:{name[0]}:{name[1]}"
    return f"unix:{name or transport.get_extra_info('sockname') or ''}"
