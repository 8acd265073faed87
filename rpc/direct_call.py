"""Bidirectional calls whose user gets each message when it has come, and writes at once.

Owns: one such call, at either end, from its header fields to its status. Must not: queue, or know messages.

No task runs for it and no future is awaited: between the socket and the user lies no turn of the loop. That
is for streams whose messages are answered in less time than a turn takes. Other calls are easier to use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import grpc

from . import http2_frames as h2
from .call_headers import (
    AnswerHead,
    MalformedFieldsError,
    read_answer,
    read_trailers,
    request_fields,
    status_fields,
)
from .grpc_messages import Buffer, GrpcMessageError
from .header_blocks import Fields, HeaderBlock, encode_block
from .http2_connection import Http2Connection
from .http2_stream import DirectStream

_HEAD: Final[Fields] = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity"),
)
_HEAD_BLOCK: Final = encode_block(_HEAD)


class DirectCallUser(Protocol):
    """Who uses a call. Its methods must not wait; they may send, end the call or its connection."""

    def on_message(self, message: Buffer) -> None:
        """Take a message. A large one comes in the memory that it was received into.

        More of them may follow in this turn when the user has ended the connection, but not the call.
        """

    def on_sent(self) -> None:
        """Note that nothing that was sent waits for a window any more."""

    def on_over(self, code: grpc.StatusCode, details: str) -> None:
        """Note that the call is over, and not by this side. Called at most once."""


class DirectCall:
    """What both ends of a call have in common."""

    def __init__(self, connection: Http2Connection, user: DirectCallUser) -> None:
        self.connection = connection
        self.stream: DirectStream
        self._user = user
        self.on_message = user.on_message
        self.is_unreadable = False  # the call is over because of a message that could not be read
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Whether messages are sent and delivered."""
        return not self._is_over and self.connection.is_open

    @property
    def may_send(self) -> bool:
        """Whether the next message would leave without waiting for an earlier one."""
        return not self._is_over and self.connection.may_send(self.stream)

    @property
    def missing(self) -> int:
        """Bytes that the incomplete message still needs as far as known; 0 between messages."""
        cutter = self.stream.cutter
        return 0 if cutter.is_between else cutter.missing or 1

    @property
    def filled(self) -> int:
        """Bytes received of an incomplete message."""
        return self.stream.cutter.filled

    def send(self, parts: Sequence[Buffer]) -> int:
        """Send a message made of `parts`; dropped when the call is over. Returns its size."""
        return 0 if self._is_over else self.connection.send_now(self.stream, parts)

    def reset(self) -> None:
        """End the call at once."""
        self._is_over = True
        self.connection.reset(self.stream, h2.CANCEL)

    # --- DirectUser ----------------------------------------------------------------------------------------
    def on_sent(self) -> None:
        self._user.on_sent()

    def on_reset(self, code: int, reason: str, unprocessed: bool) -> None:
        self._over(grpc.StatusCode.UNAVAILABLE, reason)

    def on_bad_message(self, error: GrpcMessageError) -> None:
        self.is_unreadable = True
        self._over(error.code, error.details)

    def _over(self, code: grpc.StatusCode, details: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._user.on_over(code, details)


class ServedDirectCall(DirectCall):
    """A call of a client. Made in `begin` of `GrpcServer.add_direct_method`."""

    def __init__(
        self, connection: Http2Connection, stream_id: int, user: DirectCallUser, max_message: int
    ) -> None:
        super().__init__(connection, user)
        self.stream = connection.add_direct_stream(stream_id, self, max_message)
        connection.send_head(self.stream, _HEAD_BLOCK, False)

    def finish(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the call with a status."""
        self._is_over = True
        self.connection.send_head(self.stream, encode_block(status_fields(code, details)), True)

    def on_head(self, block: HeaderBlock, ended: bool) -> None:
        read_trailers(block.fields)

    def on_end(self) -> None:
        self.connection.send_head(self.stream, encode_block(status_fields(grpc.StatusCode.OK, "")), True)
        self._over(grpc.StatusCode.OK, "the client has ended the call")


class MadeDirectCall(DirectCall):
    """A call to a server, on a connection of the caller's. It begins at once, also before the settings."""

    def __init__(
        self,
        connection: Http2Connection,
        path: str,
        authority: str,
        user: DirectCallUser,
        max_message: int,
        *,
        is_tls: bool = False,
    ) -> None:
        super().__init__(connection, user)
        self._answer: AnswerHead | None = None
        self._has_head = False
        self.stream = connection.new_direct_stream(self, max_message)
        fields = request_fields(
            path,
            authority.encode("ascii" if authority.isascii() else "idna"),
            is_tls=is_tls,
            accepts=b"identity",
        )
        connection.send_head(self.stream, encode_block(fields), False)

    def on_head(self, block: HeaderBlock, ended: bool) -> None:
        head = read_answer(block.fields, self._has_head)
        if ended:
            self._answer = head
        elif self._has_head:
            raise MalformedFieldsError("trailers without END_STREAM")
        elif head.code is not None or head.encoding != b"identity":
            self._over(head.code or grpc.StatusCode.INTERNAL, head.details or "the answer is compressed")
            self.connection.reset(self.stream, h2.CANCEL)
        else:
            self._has_head = not head.is_informational

    def on_end(self) -> None:
        answer = self._answer
        if answer is None or answer.code is None:
            self._over(grpc.StatusCode.INTERNAL, "the answer ended without a status")
        else:
            self._over(answer.code, answer.details)
