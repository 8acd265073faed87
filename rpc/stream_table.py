"""The streams of one connection: which are open, which ended lately, how they begin and end.

Owns: stream ids and the table. Must not: read frames, or end the connection.

Late frames for a stream that this side has reset are right, those for one that has ended are not: so ended
streams are remembered for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from . import http2_frames as h2
from .flood_guard import FloodGuard
from .http2_frames import Http2ConnectionError, Http2StreamError
from .http2_output import FRAMES_EXPLAINED, Http2Output
from .http2_stream import Http2Stream
from .received_messages import ReceivedMessages
from .wire_limits import MAX_STREAM_ID, REMEMBERED_STREAMS


class StreamTable:
    """Streams of one connection. All methods are called on the loop's thread."""

    __slots__ = ("_guard", "_messages", "_on_none", "_on_room", "_output", "ended", "is_draining",
                 "is_server", "last_id", "open", "peer_max_streams")  # fmt: skip

    def __init__(
        self,
        is_server: bool,
        output: Http2Output,
        messages: ReceivedMessages,
        guard: FloodGuard,
        on_room: Callable[[], None],
        on_none: Callable[[], None],
    ) -> None:
        """`on_room`: a stream has closed; `on_none`: it was the last one."""
        self.is_server = is_server
        self.open: dict[int, Http2Stream] = {}
        self.is_draining = False  # no more streams: we said so, or the peer
        self.peer_max_streams = MAX_STREAM_ID  # no limit, unless its settings say one
        self.last_id = 0  # largest stream id of the peer, or of ours for a client
        self.ended: dict[int, bool] = {}  # recent ended streams; True: we reset it, late frames are right
        self._output = output
        self._messages = messages
        self._guard = guard
        self._on_room, self._on_none = on_room, on_none

    def new_id(self) -> int:
        """Return the id of a client's new stream."""
        self.last_id += 2 if self.last_id else 1
        return self.last_id

    def add(self, stream: Http2Stream) -> None:
        """Open a stream."""
        self.open[stream.stream_id] = stream
        self._output.frames_due += FRAMES_EXPLAINED

    # --- ends -----------------------------------------------------------------------------------------------
    def end_ours(self, stream: Http2Stream) -> None:
        """Note that END_STREAM was sent."""
        stream.we_ended = True
        if stream.peer_ended:
            self.close(stream, we_reset=False)
        elif self.is_server:  # the answer is complete: the rest of the request is not wanted
            self._output.emit(h2.reset_frame(stream.stream_id, h2.NO_ERROR))
            self.close(stream, we_reset=True)

    def end_theirs(self, stream: Http2Stream) -> None:
        """Note that END_STREAM came. Raises: Http2ConnectionError."""
        stream.peer_ended = True
        if not stream.cutter.is_between:
            self.end_broken(
                Http2StreamError(h2.PROTOCOL_ERROR, stream.stream_id, "the stream ended inside a message")
            )
            return
        stream.wake_reader()
        if stream.we_ended:
            self.close(stream, we_reset=False)
        elif not self.is_server:  # the answer is complete: the server needs nothing more
            self._output.emit(h2.reset_frame(stream.stream_id, h2.NO_ERROR))
            self.close(stream, we_reset=True)
        stream.owner.on_end()

    def reset(self, stream: Http2Stream, code: int) -> None:
        """End a stream at once; its owner is not told."""
        if not stream.closed:
            self._output.emit(h2.reset_frame(stream.stream_id, code))
            self.close(stream, we_reset=True)

    def end_broken(self, error: Http2StreamError) -> None:
        """End a stream whose peer breaks the protocol. Raises: Http2ConnectionError, if it does so often."""
        stream = self.open.get(error.stream_id)
        self._output.emit(h2.reset_frame(error.stream_id, error.code))
        if stream is None:
            self.note_ended(error.stream_id, we_reset=True)
            self._guard.spend_idle()
        else:
            self._guard.spend_reset()  # a peer can make us reset its streams as well as reset them
            self.close(stream, we_reset=True)
            stream.owner.on_reset(error.code, str(error), False)

    def close(self, stream: Http2Stream, we_reset: bool) -> None:
        """Forget an ended stream and what it holds."""
        if stream.closed:
            return
        stream.closed = stream.we_ended = True
        del self.open[stream.stream_id]
        self.note_ended(stream.stream_id, we_reset)
        self._messages.hold(stream, 0)
        if stream in self._messages.incomplete:
            self._messages.end_incomplete(stream)
        self._output.forget(stream)
        stream.wake_reader()
        if not self.open:
            self._on_none()
        self._on_room()

    def note_ended(self, stream_id: int, we_reset: bool) -> None:
        """Remember a stream for a while."""
        self.ended[stream_id] = we_reset
        if len(self.ended) > REMEMBERED_STREAMS:
            del self.ended[next(iter(self.ended))]

    # --- memory ---------------------------------------------------------------------------------------------
    def drop(self, stream: Http2Stream, reason: str) -> None:
        """End a stream for whose messages there is no memory."""
        self.reset(stream, h2.ENHANCE_YOUR_CALM)
        stream.owner.on_reset(h2.ENHANCE_YOUR_CALM, reason, False)

    def make_room(self) -> None:
        """Drop the newest incomplete messages if nothing else can free the connection's memory."""
        if any(stream.messages for stream in self.open.values()):
            return
        memory, incomplete = self._messages.memory, self._messages.incomplete
        while 2 * memory.held > memory.limit and len(incomplete) > 1:
            self.drop(next(reversed(incomplete)), "too many large messages at a time")
        self._messages.grant_connection()

    # --- frames for streams that are not open ---------------------------------------------------------------
    def is_idle(self, stream_id: int) -> bool:
        """Whether a stream was never used."""
        if stream_id in self.ended:
            return False
        return stream_id > self.last_id or (not self.is_server and not stream_id & 1)

    def refuse_late(self, stream: Http2Stream | None, stream_id: int, what: str) -> None:
        """Refuse a frame for a stream that has ended, or never began; ignore it where we reset the stream.

        Raises: Http2ConnectionError.
        """
        if stream is None and (self.is_idle(stream_id) or (self.is_server and not stream_id & 1)):
            raise Http2ConnectionError(h2.PROTOCOL_ERROR, f"{what} for a stream that is not open")
        self._guard.spend_idle()
        if stream is None and what == "HEADERS" and self.ended.get(stream_id) is False:
            raise Http2ConnectionError(h2.STREAM_CLOSED, "HEADERS for a stream that has ended")
        if stream is not None or not self.ended.get(stream_id, False):
            self.end_broken(
                Http2StreamError(h2.STREAM_CLOSED, stream_id, f"{what} for a stream that has ended")
            )
