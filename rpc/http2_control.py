"""Frames that carry neither header fields nor messages: SETTINGS, PING, GOAWAY, RST_STREAM, WINDOW_UPDATE.

Owns: what they do to a connection and to its streams, and the sending of settings and of the last stream.
Must not: read bytes.
"""

from __future__ import annotations

from typing import Final, Protocol

from . import http2_frames as h2
from .flood_guard import FloodGuard
from .http2_frames import Http2ConnectionError, Http2StreamError
from .http2_output import Http2Output
from .stream_table import StreamTable
from .wire_limits import (
    MAX_HEADER_LIST,
    MAX_SENT_FRAME,
    MAX_STREAM_ID,
    MAX_WINDOW,
    STREAMS_PER_IDLE_FRAME,
    WireLimits,
)

_DRAIN_PING: Final = b"draining"


class ControlUser(Protocol):
    """The connection."""

    def on_greeted(self) -> None:
        """Note that the peer's first settings came."""

    def on_more_room(self) -> None:
        """Note that the peer may take more streams."""

    def on_going(self) -> None:
        """Note that the peer takes no more streams."""

    def note_reason(self, reason: str) -> None:
        """Keep the first reason why the connection ends."""

    def end_if_drained(self) -> None:
        """End the connection if it takes no more streams and has none."""


class Http2Control:
    """Control frames of one connection. All methods are called on the loop's thread.

    All `take_…` raise Http2ConnectionError or Http2StreamError when the peer breaks the protocol.
    """

    __slots__ = ("_guard", "_limits", "_output", "_streams", "_user", "settings_seen")

    def __init__(
        self,
        limits: WireLimits,
        user: ControlUser,
        output: Http2Output,
        streams: StreamTable,
        guard: FloodGuard,
    ) -> None:
        self.settings_seen = False
        self._limits = limits
        self._user = user
        self._output = output
        self._streams = streams
        self._guard = guard

    # --- sent -----------------------------------------------------------------------------------------------
    def send_settings(self) -> None:
        """Send what must be the first frame; a server after the client's preface, or it is no HTTP/2."""
        limits = self._limits
        first = (h2.ENABLE_PUSH, 0)
        if self._streams.is_server:
            first = (h2.MAX_CONCURRENT_STREAMS, limits.max_streams)
        self._output.emit(
            h2.settings_frame(
                (
                    first,
                    (h2.INITIAL_WINDOW_SIZE, limits.stream_window),
                    (h2.MAX_FRAME_SIZE, limits.max_data_frame),
                    (h2.MAX_HEADER_LIST_SIZE, MAX_HEADER_LIST),
                )
            )
        )

    def begin_drain(self) -> None:
        """Tell a client to open no more streams; its answer to the PING shows which are on their way."""
        self._output.emit(h2.goaway_frame(MAX_STREAM_ID, h2.NO_ERROR, "this server stops"))
        self._output.emit(h2.frame(h2.PING, 0, 0, _DRAIN_PING))

    def end_drain(self) -> None:
        """Tell a client which stream is the last one. Later ones are dropped."""
        self._streams.is_draining = True
        self._output.emit(h2.goaway_frame(self._streams.last_id, h2.NO_ERROR, "this server stops"))
        self._user.end_if_drained()

    # --- received -------------------------------------------------------------------------------------------
    def take_window_update(self, stream_id: int, increment: int) -> None:
        if not self._guard.spend_explained():
            self._guard.spend_idle()
        output = self._output
        if not stream_id:
            if not increment:
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
            output.window += increment
            if output.window > MAX_WINDOW:
                raise Http2ConnectionError(h2.FLOW_CONTROL_ERROR, "a window of more than 2^31-1 bytes")
            output.pump()
            return
        stream = self._streams.open.get(stream_id)
        if stream is None:
            if self._streams.is_idle(stream_id):
                raise Http2ConnectionError(h2.PROTOCOL_ERROR, "WINDOW_UPDATE for a stream that is not open")
            return
        if not increment:
            raise Http2StreamError(h2.PROTOCOL_ERROR, stream_id, "WINDOW_UPDATE of 0 bytes")
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise Http2StreamError(h2.FLOW_CONTROL_ERROR, stream_id, "a window of more than 2^31-1 bytes")
        if stream.pending:
            output.unblock(stream)

    def take_reset(self, stream_id: int, code: int) -> None:
        stream = self._streams.open.get(stream_id)
        if not stream_id or (stream is None and self._streams.is_idle(stream_id)):
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "RST_STREAM for a stream that is not open")
        if stream is not None or not self._guard.spend_explained():
            self._guard.spend_reset()
        if stream is not None:
            self._streams.close(stream, we_reset=False)
            stream.owner.on_reset(code, "the peer has ended the call", code == h2.REFUSED_STREAM)

    def take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Http2ConnectionError(h2.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        streams = self._streams
        if self._output.ping_due and not flags & h2.ACK:
            self._output.ping_due = False  # a peer measures its bandwidth by what came before the answer
        else:
            self._guard.spend_idle()
        if not flags & h2.ACK:
            self._output.emit(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif payload == _DRAIN_PING and streams.is_server and not streams.is_draining:
            self.end_drain()

    def take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & h2.ACK:
            self._guard.spend_idle()
            if payload:
                raise Http2ConnectionError(
                    h2.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with a payload"
                )
            return
        settings = dict(h2.read_settings(payload))  # of a repeated one the last value counts
        changed = len(self._streams.open) if h2.INITIAL_WINDOW_SIZE in settings else 0
        self._guard.spend_idle(1 + changed // STREAMS_PER_IDLE_FRAME)
        self._output.emit(h2.frame(h2.SETTINGS, h2.ACK, 0))
        for identifier, value in settings.items():
            if identifier == h2.INITIAL_WINDOW_SIZE:
                self._output.change_windows(value, self._streams.open.values())
            elif identifier == h2.MAX_FRAME_SIZE:
                self._output.peer_frame_size = min(value, MAX_SENT_FRAME)
            elif identifier == h2.MAX_CONCURRENT_STREAMS:
                self._streams.peer_max_streams = value
                self._user.on_more_room()
        if not self.settings_seen:
            self.settings_seen = True
            self._user.on_greeted()

    def take_goaway(self, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, "GOAWAY on a stream")
        last, code, text = h2.read_goaway(payload)
        self._guard.spend_idle()
        streams = self._streams
        if streams.is_server:
            return  # a client that goes: it ends its streams itself
        streams.is_draining = True
        reason = f"the server ends the connection: {text or f'code {code}'}"
        if code:
            self._user.note_reason(reason)
        for stream in [each for each in streams.open.values() if each.stream_id > last]:
            streams.close(stream, we_reset=False)
            stream.owner.on_reset(h2.REFUSED_STREAM, reason, True)
        self._user.on_going()
        self._user.end_if_drained()
