"""One HTTP/2 connection of a server or a client, as an asyncio protocol.

Owns: the connection from its first byte to its end, and what calls and endpoints need of it. Must not: know
gRPC's methods and statuses.

It is made of parts, each with a subject of its own: `http2_input.py` reads frames, `http2_control.py` takes
those without contents, `stream_table.py` begins and ends streams, `received_messages.py` counts what they
hold, `http2_output.py` sends, `flood_guard.py` counts what brings nothing, `keepalive.py` looks for silence.
What is sent during one turn of the loop is one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from . import http2_frames as h2
from .flood_guard import FloodGuard
from .foreign_client import NO_ALPN, http_1_answer
from .header_blocks import HeaderBlock
from .http2_control import Http2Control
from .http2_frames import Http2ConnectionError
from .http2_input import Http2Input
from .http2_output import Http2Output
from .http2_stream import DirectStream, DirectUser, Http2Stream, StreamUser
from .keepalive import Keepalive
from .received_messages import ReceivedMessages
from .shared_memory import SharedMemory
from .stream_table import StreamTable
from .wire_limits import MAX_STREAM_ID, WireLimits

#: Time in seconds in which a peer may take what was sent before the end, also when this side stops.
_LINGER_S: Final = 5.0
_LAST_LINGER_S: Final = 1.0
#: Begin of the reason of a connection that ended without ours.
CLOSED_BY_PEER: Final = "connection closed by the peer"
#: Reason of a connection to a server that answers in HTTP/1.
SPEAKS_HTTP_1: Final = "the server speaks HTTP/1, not gRPC"
_FLOOD: Final = "this is how a flood looks: stop that client, or ask its makers"
_BROKEN: Final = "the client breaks HTTP/2: update or stop it"


class Http2Connection(asyncio.BufferedProtocol):
    """One connection. All methods are called on the loop's thread.

    A server passes `accept(connection, stream id, header block)`, which adds each new stream or raises
    MalformedFieldsError; a client opens streams.
    """

    __slots__ = ("_control", "_goes_on", "_input", "_life", "_loop", "_lost", "_messages", "_on_going",
                 "_on_lost", "_on_made", "_on_ready", "_on_resumed", "_output", "_reason", "_scratch",
                 "_table", "address", "arrived", "broken", "flush", "get_buffer", "limits", "listeners",
                 "on_more_room", "on_taken", "peer", "reset", "send_data", "send_end", "send_head",
                 "send_now", "streams", "transport")  # fmt: skip

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
        is_server = accept is not None
        loop = asyncio.get_running_loop()
        output = Http2Output(loop, shared.answers)
        guard = FloodGuard(loop, output, is_server)
        messages = ReceivedMessages(limits, self, shared, output)
        streams = StreamTable(is_server, output, messages, guard, on_room, self._on_no_stream)
        control = Http2Control(limits, self, output, streams, guard)
        self.limits = limits
        self.streams = streams.open
        self.peer = self.address = ""  # addresses of both ends, as grpcio writes them
        self.transport: Any = None
        # called when received bytes end inside a frame or a message, or break the protocol
        self.listeners: list[Callable[[], None]] = []
        self.arrived = 0  # bytes of all frames
        self.broken = ""  # how the peer broke the protocol
        self._on_made, self._on_ready, self.on_more_room = on_made, on_ready, on_room
        self._on_going, self._on_lost, self._on_resumed = on_going, on_lost, on_resumed
        self._loop = loop
        self._scratch = scratch
        self._output = output
        self._messages = messages
        self._table = streams
        self._control = control
        self._input = Http2Input(
            limits,
            scratch,
            output,
            messages,
            streams,
            control,
            guard,
            partial(accept, self) if accept is not None else None,
            self._refuse_foreign,
        )
        self._life = Keepalive(loop, limits, self, output, streams.open, is_server)
        self._reason = ""
        self._goes_on = False  # frames wait for the next turn of the loop
        self._lost: asyncio.Future[None] = loop.create_future()
        # What is called for each frame or message goes to its part at once.
        self.get_buffer = self._input.get_buffer  # type: ignore[method-assign]
        self.on_taken = messages.on_taken
        self.reset = streams.reset
        self.send_head = output.send_head
        self.send_data = output.send_data
        self.send_end = output.send_end
        self.send_now = output.send_now
        self.flush = output.flush

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.peer = _address(transport, "peername")
        self.address = _address(transport, "sockname")
        tls = transport.get_extra_info("ssl_object")
        self._output.begin(transport, self._table.end_ours, self.abort)
        life = self._life
        life.idle_since = life.heard_at = self._loop.time()
        self._on_made(self)
        if not self.is_open:
            return
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._refuse_foreign(NO_ALPN, True)
            return
        if not self._table.is_server:
            self._output.emit(h2.PREFACE)
            self._control.send_settings()
        life.await_greeting()

    def buffer_updated(self, nbytes: int) -> None:
        life, received, output, messages = self._life, self._input, self._output, self._messages
        life.heard_at, life.asked = self._loop.time(), False
        self.arrived += nbytes
        output.is_collecting = True
        try:
            if received.is_direct:
                received.take_direct(nbytes)
            else:
                received.take(nbytes)
            if output.is_open and received.preface_done:
                if messages.memory.is_worth_granting:
                    messages.grant_connection()
                    if messages.memory.is_full:
                        self._table.make_room()
                if messages.incomplete or messages.shared.is_exhausted:
                    messages.shared.on_received(self)
        except Http2ConnectionError as error:
            self._end_broken(error)
        output.is_collecting = False
        output.flush()
        if received.is_behind and not self._goes_on and output.is_open:
            self._goes_on = True
            self.transport.pause_reading()
            if received.rest and not received.missing:  # frames wait
                messages.shared.turns.wait(self._go_on)
            else:
                self._loop.call_soon(self._go_on)
        if self.listeners and (received.rest or received.data_left or messages.incomplete or self.broken):
            for listen in tuple(self.listeners):
                listen()

    def _go_on(self) -> None:
        """Take what was left by the turn before, after others had theirs, and read on when all is taken."""
        received = self._input
        self._goes_on = received.is_behind = False
        if received.rest and self._output.is_open:
            self.get_buffer(-1)
            self.buffer_updated(0)
        if not self._goes_on and self._life.is_reading and self._output.is_open:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        self._output.resume()
        self._on_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.end()
        self._table.is_draining = True
        self._life.stop()
        reason = self._reason or (f"{CLOSED_BY_PEER}: {exc}" if exc else CLOSED_BY_PEER)
        for stream in list(self.streams.values()):
            self._table.close(stream, we_reset=True)
            stream.owner.on_reset(h2.CONNECTION_LOST, reason, False)
        self._messages.shared.forget(self)
        if not self._lost.done():
            self._lost.set_result(None)
        self._on_lost(self, reason)

    # --- state ----------------------------------------------------------------------------------------------
    @property
    def is_open(self) -> bool:
        """Whether frames are read and sent."""
        return self._output.is_open

    @property
    def is_draining(self) -> bool:
        """Whether it takes no more streams: we said so, or the peer."""
        return self._table.is_draining

    @property
    def missing(self) -> int:
        """Bytes that the incomplete frame, or header block, still needs as far as known; 0 between frames."""
        return self._input.missing

    @property
    def may_open(self) -> bool:
        """Whether a client may open a stream now."""
        table = self._table
        return (
            self._output.is_open
            and not table.is_draining
            and self._control.settings_seen
            and len(table.open) < table.peer_max_streams
        )

    def may_send(self, stream: Http2Stream) -> bool:
        """Whether a message on `stream` would leave without waiting for a window or for the transport."""
        output = self._output
        return output.is_open and not output.is_paused and not stream.pending

    # --- shared_memory.MemoryUser ---------------------------------------------------------------------------
    @property
    def held(self) -> int:
        return self._messages.memory.held

    @property
    def received(self) -> int:
        return self._messages.received

    @property
    def waits_for_reader(self) -> bool:
        return any(each.messages and not each.needs_end for each in self.streams.values())

    @property
    def is_receiving(self) -> bool:
        return bool(self._messages.incomplete)

    def stop_reading(self) -> None:
        self._life.is_reading = False
        self.transport.pause_reading()

    def read_on(self) -> None:
        self._life.is_reading, self._life.heard_at = True, self._loop.time()
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def drop_incomplete(self, reason: str) -> None:
        for stream in list(self._messages.incomplete):
            self._table.drop(stream, reason)

    def use_budget(self, shared: SharedMemory) -> None:
        """Count what this connection holds in another budget from now on."""
        self._messages.use_budget(shared)
        self._output.use_budget(shared.answers)
        if not self._life.is_reading:
            self.read_on()

    # --- streams --------------------------------------------------------------------------------------------
    def new_stream(self, owner: StreamUser, max_message: int) -> Http2Stream:
        """Return a client's new stream; it begins with `send_head`, at once. Needs `may_open`."""
        stream = self.add_stream(self._table.new_id(), owner, max_message)
        self._note_last_id()
        return stream

    def new_direct_stream(self, owner: DirectUser, max_message: int) -> DirectStream:
        """Return a client's new stream; the first one of a connection may begin before `may_open`."""
        stream = self.add_direct_stream(self._table.new_id(), owner, max_message)
        self._note_last_id()
        return stream

    def _note_last_id(self) -> None:
        if self._table.last_id == MAX_STREAM_ID:  # there are no more ids
            self._table.is_draining = True
            self.on_going()

    def add_stream(self, stream_id: int, owner: StreamUser, max_message: int) -> Http2Stream:
        """Return the stream that belongs to `owner` from now on."""
        window = self.limits.stream_window
        stream = Http2Stream(self, owner, stream_id, window, self._output.peer_window, max_message)
        self._table.add(stream)
        return stream

    def add_direct_stream(self, stream_id: int, owner: DirectUser, max_message: int) -> DirectStream:
        """Return a stream whose messages are given to `owner` as they come."""
        window = self.limits.stream_window
        stream = DirectStream(self, owner, stream_id, window, self._output.peer_window, max_message)
        self._table.add(stream)
        return stream

    def widen(self, stream: Http2Stream, window: int) -> None:
        """Let the peer have so many unread bytes on a stream from now on."""
        stream.window = max(window, stream.window)
        if not stream.closed and not stream.peer_ended:
            self._messages.grant_stream(stream)

    # --- http2_control.ControlUser --------------------------------------------------------------------------
    def on_greeted(self) -> None:
        self._life.watch()
        self._on_ready(self)

    def on_going(self) -> None:
        self._on_going(self)

    def note_reason(self, reason: str) -> None:
        self._reason = self._reason or reason

    def end_if_drained(self) -> None:
        if self._table.is_draining and not self.streams and self.is_open:
            self._loop.call_soon(self._close_drained)

    # --- the end --------------------------------------------------------------------------------------------
    def drain(self) -> None:
        """Take no more streams; end when the last one has. Streams on their way are still served."""
        if self.is_open and not self._table.is_draining:
            self._control.begin_drain()

    def end_drain(self) -> None:
        """Take no more streams, not even those on their way."""
        if self.is_open and not self._table.is_draining:
            self._control.end_drain()

    def close(self, code: int = h2.NO_ERROR, reason: str = "") -> None:
        """End the connection when everything sent has left the write buffer."""
        if self.is_open:
            self.note_reason(reason)
            last = self._table.last_id if self._table.is_server else 0
            self._output.emit(h2.goaway_frame(last, code, reason))
            self._output.flush()
            self._linger()

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        self.note_reason(reason)
        self._output.end()
        self._table.is_draining = True
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

    def _on_no_stream(self) -> None:
        self._life.idle_since = self._loop.time()
        if self._table.is_draining:
            self.end_if_drained()

    def _close_drained(self) -> None:
        if not self.streams:
            self.close()

    def _linger(self) -> None:
        """Send nothing more, and end when the peer has taken what was sent."""
        self._output.is_open = False
        self._table.is_draining = True
        self.transport.close()
        self._life.schedule(_LINGER_S, self.transport.abort)

    def _refuse_foreign(self, reason: str, in_http_1: bool) -> None:
        """End the connection of a client that does not speak HTTP/2."""
        if not in_http_1:
            self.abort(reason)
            return
        self.transport.write(http_1_answer(reason))
        self._reason = reason
        self._linger()

    def _end_broken(self, error: Http2ConnectionError) -> None:
        if self._table.is_server:
            self.note_reason(f"{error}: {_FLOOD if error.code == h2.ENHANCE_YOUR_CALM else _BROKEN}")
        elif not self._control.settings_seen and self._scratch.startswith(b"HTTP/1."):
            self._reason = SPEAKS_HTTP_1
        self.broken = str(error)
        self.note_reason(self.broken)
        self.close(error.code, self.broken)


def _address(transport: asyncio.BaseTransport, which: str) -> str:
    name = transport.get_extra_info(which)
    if isinstance(name, tuple):
        return f"ipv6:[{name[0]}]:{name[1]}" if ":" in name[0] else f"ipv4:{name[0]}:{name[1]}"
    return f"unix:{name or transport.get_extra_info('sockname') or ''}"
