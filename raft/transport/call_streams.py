"""Both ends of a stream between two nodes: a call of RaftService, sealed messages, reports of what arrived.

Owns: checksums, the count of received and sent bytes, and the detection of an incomplete message that stands
still. Must not: know what a frame means, or who the peer is. A large message is received into its own memory
and stays there: its entries are staged and cached without a copy. Nothing is delivered after `abort`, and
nothing that was corrupted on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import Buffer
from ledgermq.rpc.direct_call import MadeDirectCall, ServedDirectCall
from ledgermq.rpc.http2_connection import Http2Connection
from ledgermq.rpc.shared_memory import SharedMemory
from ledgermq.rpc.wire_limits import WireLimits

from ..errors import DamagedFrameError
from .hello import (
    MAX_GREETING_SIZE,
    Hello,
    encode_arrived,
    encode_first_answer,
    encode_first_frame,
    read_arrived,
    read_first_answer,
    read_first_frame,
)
from .seal import seal_of, unsealed
from .stream_kind import REPORT_AFTER_S, StreamKind
from .stream_watch import StreamWatch

#: Bytes on their way that a peer may have: twice those of all appends in flight, so that none waits for a
#: window of which up to a half is saved up before it is granted.
_WINDOW: Final = 20 << 20
#: Of connections that this node opens. The peer is watched by `OutStream`, and sends answers only.
_CALLER_LIMITS: Final = WireLimits(
    max_streams=0, max_message=MAX_GREETING_SIZE, keepalive_s=0.0, max_idle_s=0.0
)


class IncomingCall:
    """An `IncomingStream`: the end of the node that was called."""

    def __init__(
        self,
        connection: Http2Connection,
        stream_id: int,
        on_frame: Callable[[Buffer], None],
        on_lost: Callable[[str], None],
        stall_s: float,
    ) -> None:
        """`on_lost(reason)` is called once, when the stream ends.

        A message that has begun must be complete, or have grown by a fair amount, within `stall_s`.
        """
        self.is_open = True
        self.is_damaged = False
        self._connection = connection
        self._on_frame, self._on_lost = on_frame, on_lost
        self._loop = asyncio.get_running_loop()
        self._reports = False
        self._taken = 0  # bytes of whole messages since the greeting
        self._watch = StreamWatch(stall_s)
        self._watch_timer: asyncio.TimerHandle | None = None
        self._report_timer: asyncio.TimerHandle | None = None
        self._held = False
        self._call = ServedDirectCall(connection, stream_id, self, MAX_GREETING_SIZE)
        connection.listeners.append(self._on_input)

    @property
    def max_frame_size(self) -> int:
        """Bytes of the largest message that is received."""
        return self._call.stream.cutter.max_size

    @max_frame_size.setter
    def max_frame_size(self, size: int) -> None:
        self._call.stream.cutter.max_size = size

    def read_greeting(self, frame: Buffer) -> Hello:
        """Decode the first frame. Raises: ValueError, DecodeError."""
        return read_first_frame(frame)

    def answer(self, reply: pb.HelloReply, theirs: Hello | None) -> None:
        """Reply to the greeting. A refusal ends the stream, and a connection without another one."""
        if not self.is_open:
            return
        self._send(encode_first_answer(reply))
        if reply.refusal_kind:
            self._end()
            self._call.finish(grpc.StatusCode.FAILED_PRECONDITION, reply.refusal)
            self._leave()
            self._on_lost("refused")

    def begin(self, theirs: Hello) -> None:
        """Deliver frames, and report how many bytes have arrived, from now on."""
        if not self.is_open:
            return
        self._reports, self._held, self._taken = True, False, 0
        self._connection.widen(self._call.stream, _WINDOW)
        self._call.stream.release()
        if self.is_open and self._missing:
            self._on_input()

    def hold(self) -> None:
        """Deliver nothing until `begin`."""
        self._held = True
        self._call.stream.hold()

    def abort(self, reason: str = "") -> None:
        """End the stream at once, and its connection with it if it has no other one."""
        if not self.is_open:
            return
        self._end()
        if len(self._connection.streams) > 1:
            self._call.reset()
        else:
            self._connection.abort("")
        self._on_lost(reason)

    def end_damaged(self, error: DamagedFrameError) -> None:
        """End the stream at once: what was meant is unknown."""
        self.is_damaged = True
        self.abort(str(error))

    def _send(self, message: bytes) -> None:
        self._call.send((message, seal_of(message)))

    def _end(self) -> None:
        self.is_open = False
        for timer in (self._watch_timer, self._report_timer):
            if timer is not None:
                timer.cancel()
        self._connection.listeners.remove(self._on_input)

    def _leave(self) -> None:
        """End a connection that nobody counts any more."""
        if not self._connection.streams:
            self._connection.close()

    # --- DirectCallUser -------------------------------------------------------------------------------------
    def on_message(self, message: Buffer) -> None:
        if not self.is_open:
            return
        self._taken += len(message)
        if self._report_timer is None and self._reports:
            self._report_timer = self._loop.call_later(REPORT_AFTER_S, self._report)
        try:
            frame = unsealed(message)
        except DamagedFrameError as error:
            self.end_damaged(error)
        else:
            self._on_frame(frame)

    def on_sent(self) -> None:
        pass  # answers are small, and a report that waits is followed by a newer one

    def on_over(self, code: grpc.StatusCode, details: str) -> None:
        if self._call.is_unreadable or self._connection.broken:
            self.end_damaged(DamagedFrameError(details))
        elif self.is_open:
            self._end()
            self._leave()
            self._on_lost(details)

    # --- what has come -------------------------------------------------------------------------------------
    def _on_input(self) -> None:
        """Schedule a report of an incomplete message, and the check that it is completed."""
        if self._connection.broken:
            self.end_damaged(DamagedFrameError(self._connection.broken))
            return
        if self._reports and self._report_timer is None:
            self._report_timer = self._loop.call_later(REPORT_AFTER_S, self._report)
        if self._watch_timer is None and not self._held and self._missing:
            self._look()

    @property
    def _missing(self) -> int:
        return self._connection.missing or self._call.missing

    def _report(self) -> None:
        self._report_timer = None
        if self._call.may_send:
            self._send(encode_arrived(self._taken + self._call.filled))

    def _look(self) -> None:
        self._watch_timer = None
        missing, received = self._missing, self._connection.arrived
        if not self.is_open or self._held or not missing:
            return
        stood_s = self._watch.look(self._loop.time(), received + missing, received)
        if stood_s >= self._watch.limit_s:
            self.abort(f"a message began and did not go on for {stood_s:.1f} s")
        else:
            self._watch_timer = self._loop.call_later(self._watch.interval_s, self._look)


class OutgoingCall:
    """An `OutgoingStream`: the end of the node that calls, with the connection of the call."""

    def __init__(
        self,
        address: str,
        scratch: bytearray,
        budget: SharedMemory,
        on_frame: Callable[[Buffer], None],
        on_lost: Callable[[str], None],
        on_writable: Callable[[], None],
    ) -> None:
        """`scratch`, `budget`: see Http2Connection. `on_lost(reason)` is called once, when it ends.

        `on_writable` is called when the stream accepts frames again.
        """
        self.sent = 0
        self.is_unknown_there = False
        self._address = address
        self._on_frame, self._on_lost, self._on_writable = on_frame, on_lost, on_writable
        self._reason = ""
        self._is_damaged = self._is_aborted = False
        self._call: MadeDirectCall | None = None
        self.protocol = Http2Connection(
            _CALLER_LIMITS,
            scratch,
            budget,
            on_lost=lambda connection, reason: on_lost(self._reason or reason),
            on_resumed=self.on_sent,
        )
        self.protocol.listeners.append(self._on_input)

    @property
    def is_open(self) -> bool:
        """Whether frames are sent and delivered."""
        return self._call is not None and self._call.is_open

    @property
    def may_send(self) -> bool:
        """Whether the next frame would leave at once."""
        return not self._is_aborted and self._call is not None and self._call.may_send

    @property
    def is_damaged(self) -> bool:
        """Whether the peer's bytes were changed on the way."""
        is_unreadable = self._call is not None and self._call.is_unreadable
        return self._is_damaged or is_unreadable or bool(self.protocol.broken)

    def greet(self, kind: StreamKind, hello: Hello) -> None:
        """Begin the call with the greeting."""
        if self.protocol.is_open:
            self._call = MadeDirectCall(
                self.protocol,
                kind.method,
                self._address,
                self,
                MAX_GREETING_SIZE,
                is_tls=self.protocol.transport.get_extra_info("sslcontext") is not None,
            )
            frame = encode_first_frame(hello)
            self._call.send((frame, seal_of(frame)))

    def read_reply(self, frame: Buffer) -> pb.HelloReply:
        """Decode the first answer. Raises: ValueError, DecodeError."""
        return read_first_answer(frame)

    def begin(self, reply: pb.HelloReply) -> None:
        """Count the bytes that are sent from now on."""
        self.sent = 0

    def read_arrived(self, frame: Buffer) -> int:
        """Decode a report. Raises: DecodeError."""
        return read_arrived(frame)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write one frame, whose last part is its checksum."""
        if self._call is not None:
            self.sent += self._call.send(parts)

    def abort(self, reason: str = "") -> None:
        """End the call and its connection at once."""
        self._is_aborted = True
        self._reason = self._reason or reason
        self.protocol.abort(reason)

    # --- DirectCallUser -------------------------------------------------------------------------------------
    def on_message(self, message: Buffer) -> None:
        if self._is_aborted:
            return
        try:
            answer = unsealed(message)
        except DamagedFrameError as error:
            self._is_damaged = True
            self.abort(str(error))
        else:
            self._on_frame(answer)

    def on_sent(self) -> None:
        if self.may_send:
            self._on_writable()

    def on_over(self, code: grpc.StatusCode, details: str) -> None:
        self.is_unknown_there = code is grpc.StatusCode.UNIMPLEMENTED
        self.abort(details)

    def _on_input(self) -> None:
        if self.protocol.broken:  # do not wait until everything has been written
            self.abort(self.protocol.broken)
