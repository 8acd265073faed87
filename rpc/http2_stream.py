"""One stream of an HTTP/2 connection: the messages that came, and the bytes that wait for a window.

Owns: a stream's state and queues. Must not: read frames, or know what a message means.

A stream is closed when both sides have ended, or when one has reset it. Nothing is delivered to its owner
after that, and `on_reset` is called at most once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import grpc

from .grpc_messages import Buffer, GrpcMessageError, MessageCutter
from .header_blocks import HeaderBlock
from .wire_limits import MESSAGE_OVERHEAD


class StreamUser(Protocol):
    """Owner of a stream: a call. Its methods must not wait."""

    def on_head(self, block: HeaderBlock, ended: bool) -> None:
        """Take the trailers of a request, or the header fields of an answer.

        Raises: MalformedFieldsError.
        """

    def on_end(self) -> None:
        """Note that the peer sends nothing more."""

    def on_reset(self, code: int, reason: str, unprocessed: bool) -> None:
        """Note that the stream is gone. `unprocessed`: the peer certainly did nothing with it."""

    def on_bad_message(self, error: GrpcMessageError) -> None:
        """Refuse the call: its messages cannot be read any further."""


class DirectUser(StreamUser, Protocol):
    """Owner of a `DirectStream`."""

    def on_message(self, message: Buffer) -> None:
        """Take a message, while the connection reads: it may send, end the stream or the connection."""

    def on_sent(self) -> None:
        """Note that nothing is pending any more."""


class StreamCarrier(Protocol):
    """What a stream needs of its connection."""

    def on_taken(self, stream: Http2Stream) -> None:
        """Give the peer credit for a message that was read."""

    def send_data(self, stream: Http2Stream, prefix: bytes, body: Buffer, end: bool) -> None:
        """Send a message, or queue it in `stream.pending`."""


class Http2Stream:
    """State of one stream. Made by `Http2Connection`, which alone changes windows."""

    __slots__ = ("__weakref__", "_carrier", "begun", "closed", "content_left", "cutter", "discards",
                 "drained", "end_pending", "held", "messages", "needs_end", "owner", "peer_ended", "pending",
                 "pending_size", "promised", "reader", "recv_window", "send_window", "stream_id", "tail",
                 "unread", "we_ended", "window")  # fmt: skip

    def __init__(
        self,
        carrier: StreamCarrier,
        owner: StreamUser,
        stream_id: int,
        recv_window: int,
        send_window: int,
        max_message: int,
    ) -> None:
        """`max_message`: bytes of the largest message that is received."""
        self._carrier = carrier
        self.owner = owner
        self.stream_id = stream_id
        self.window = recv_window  # unread bytes that the peer may send; `Http2Connection.widen` changes it
        self.recv_window = recv_window  # what is left of it
        self.send_window = send_window
        self.peer_ended = self.we_ended = self.closed = False
        self.discards = False  # DATA is dropped: the request was refused
        self.needs_end = False  # its messages are read only when the peer has ended
        self.content_left: int | None = None  # bytes that content-length still promises
        # received
        self.cutter = MessageCutter(max_message)
        self.messages: deque[Buffer] = deque()
        self.unread = 0  # bytes of `messages`, with their overhead
        self.held = 0  # what the connection's memory counts for this stream
        self.promised = 0  # size of the incomplete message, once it has room
        self.begun = 0  # which of the cutter's messages that is
        self.reader: asyncio.Future[None] | None = None
        # to be sent
        self.pending: deque[Buffer] = deque()
        self.pending_size = 0
        self.end_pending = False  # END_STREAM follows `pending`
        self.tail: bytes | None = None  # header block of the trailers that follow `pending`
        self.drained: asyncio.Future[None] | None = None

    def deliver(self, message: Buffer) -> None:
        """Queue a received message."""
        self.messages.append(message)
        self.unread += len(message) + MESSAGE_OVERHEAD
        if self.reader is not None:
            self.wake_reader()

    def wake_reader(self) -> None:
        """Let `wait_readable` return."""
        reader, self.reader = self.reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def take(self) -> Buffer:
        """Return the oldest message. Raises: IndexError, if there is none."""
        message = self.messages.popleft()
        self.unread -= len(message) + MESSAGE_OVERHEAD
        self._carrier.on_taken(self)
        return message

    async def wait_readable(self) -> bool:
        """Return whether there is a message; False: none will come."""
        while not self.messages:
            if self.peer_ended or self.closed:
                return False
            if self.reader is not None:
                raise grpc.aio.UsageError("another reader of this call waits already")
            self.reader = asyncio.get_running_loop().create_future()
            try:
                await self.reader
            finally:
                self.reader = None
        return True

    def send(self, prefix: bytes, body: Buffer, end: bool = False) -> None:
        """Send one message as far as the windows allow; the rest waits. Dropped after `we_ended`."""
        if not self.we_ended and not self.end_pending and self.tail is None:
            self._carrier.send_data(self, prefix, body, end)

    async def wait_sent(self) -> None:
        """Wait until nothing is pending, or the stream is closed."""
        while self.pending and not self.closed:
            if self.drained is None:
                self.drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self.drained)

    def wake_writer(self) -> None:
        """Let `wait_sent` return."""
        drained, self.drained = self.drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def drop_pending(self) -> None:
        """Forget what was not sent."""
        self.pending.clear()
        self.pending_size = 0
        self.tail = None
        self.end_pending = False
        self.wake_writer()


class DirectStream(Http2Stream):
    """A stream whose owner gets each message when it has come, and is told when it can send again.

    No future, no task, no turn of the loop lies between. While it is held, messages wait within the window.
    """

    __slots__ = ("_is_held", "_user", "receive")

    def __init__(
        self,
        carrier: StreamCarrier,
        owner: DirectUser,
        stream_id: int,
        recv_window: int,
        send_window: int,
        max_message: int,
    ) -> None:
        super().__init__(carrier, owner, stream_id, recv_window, send_window, max_message)
        self._user = owner
        self.receive = owner.on_message
        self._is_held = False

    def deliver(self, message: Buffer) -> None:
        """Give the owner a received message, or queue it while the stream is held."""
        if self._is_held:
            super().deliver(message)
        elif not self.closed:
            self.receive(message)

    @property
    def is_plain(self) -> bool:
        """Whether the next message is delivered, and begins where a frame does."""
        is_closed = self.closed or self.peer_ended or self._is_held
        return not is_closed and self.cutter.is_between and self.content_left is None

    def hold(self) -> None:
        """Deliver nothing more until `release`."""
        self._is_held = True

    def release(self) -> None:
        """Deliver what waited, and whatever comes from now on."""
        self._is_held = False
        while self.messages and not self.closed and not self._is_held:
            self.receive(self.take())

    def wake_writer(self) -> None:
        """Tell the owner that nothing is pending."""
        super().wake_writer()
        if not self.closed:
            self._user.on_sent()
