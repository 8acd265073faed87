"""What one connection holds of received messages, and the credit that its peer gets for more.

Owns: the count of these bytes, per stream, connection and budget, and WINDOW_UPDATE. Must not: read frames,
end a stream.
"""

from __future__ import annotations

from . import http2_frames as h2
from .flow_control import ReceiveMemory, stream_grant
from .http2_output import Http2Output
from .http2_stream import Http2Stream
from .shared_memory import MemoryUser, SharedMemory
from .wire_limits import FIRST_PIECE, FIRST_PIECE_TIMES, GENEROUS_MESSAGES, GENEROUS_PIECE, WireLimits


class ReceivedMessages:
    """The messages of all streams of one connection. All methods are called on the loop's thread."""

    __slots__ = ("_output", "incomplete", "memory", "received", "shared", "user")

    def __init__(
        self, limits: WireLimits, user: MemoryUser, shared: SharedMemory, output: Http2Output
    ) -> None:
        """`user`: the connection, for the budget `shared`."""
        self.user = user
        self._output = output
        self.shared = shared
        self.memory = ReceiveMemory(max(limits.connection_memory, 2 * limits.max_message))
        self.incomplete: dict[Http2Stream, None] = {}  # with a message in progress, oldest first
        self.received = 0  # bytes of messages in progress, since the begin

    def use_budget(self, shared: SharedMemory) -> None:
        """Count what is held in another budget from now on."""
        former, self.shared = self.shared, shared
        for budget, sign in ((former, -1), (shared, 1)):
            budget.held += sign * self.memory.held
            budget.incomplete += sign * len(self.incomplete)
        former.forget(self.user)

    def first_piece(self, received: int) -> int:
        """Return the size of the first memory of a message of which so many bytes came."""
        if self.shared.incomplete < GENEROUS_MESSAGES:
            return GENEROUS_PIECE
        return max(FIRST_PIECE, FIRST_PIECE_TIMES * received)

    def account(self, stream: Http2Stream, ends: bool) -> None:
        """Count what the stream holds now. `ends`: the DATA frame in progress is its last one."""
        self.hold(stream, stream.unread + stream.cutter.room)
        begun = stream.cutter.begun
        is_part = stream.cutter.size or (
            stream.needs_end and stream.unread and not (stream.peer_ended or ends)
        )
        if stream in self.incomplete and (not is_part or stream.begun != begun):
            self.end_incomplete(stream)
        if is_part and stream not in self.incomplete:
            self.incomplete[stream] = None
            self.shared.incomplete += 1
            stream.begun = begun

    def hold(self, stream: Http2Stream, held: int) -> None:
        """Count that a stream holds `held` bytes."""
        change = held - stream.held
        stream.held = held
        self.memory.held += change
        self.shared.held += change
        if change < 0 and self.shared.stopped:
            self.shared.on_freed(self.user)

    def end_incomplete(self, stream: Http2Stream) -> None:
        """Give the room of a large message to those that wait."""
        del self.incomplete[stream]
        self.shared.incomplete -= 1
        if not self.incomplete:
            self.shared.on_freed(self.user)
        promised, stream.promised = stream.promised, 0
        self.memory.promised -= promised
        if not promised or not self._output.is_open:
            return
        for waiting in self.incomplete:
            if 2 * waiting.cutter.size > waiting.window and not waiting.promised:
                self.grant_stream(waiting)
                if not waiting.promised:
                    break

    def on_taken(self, stream: Http2Stream) -> None:
        """Give the peer credit for a message that was read."""
        if not stream.closed:
            self.account(stream, False)
            if not stream.peer_ended:
                self.grant_stream(stream)
        self.grant_connection()

    def grant_stream(self, stream: Http2Stream) -> None:
        """Let the peer send more on a stream, if there is room for it."""
        window, size, memory = stream.window, stream.cutter.size, self.memory
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

    def grant_connection(self) -> None:
        """Let the peer send more on all streams together, if there is room for it."""
        increment = self.memory.grant()
        if increment:
            self._output.emit(h2.window_frame(0, increment))
