"""Calls that a client makes: what stubs return.

Owns: one call from its request to its status. Must not: choose a connection.

The calls have the methods of grpc.aio's call objects. No task runs for a call, but one that reads from an
iterator of requests: the connection tells the call what came. A call that could not be sent yet waits in its
channel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc

from . import http2_frames as h2
from .call_headers import AnswerHead, MalformedFieldsError, Metadata, encode_timeout, read_answer
from .grpc_messages import ENCODINGS, Buffer, GrpcMessageError, framed
from .header_blocks import Fields, HeaderBlock, encode_block
from .http2_connection import Http2Connection
from .http2_stream import Http2Stream

logger = logging.getLogger(__name__)

EOF: Final[Any] = vars(grpc.aio)["EOF"]  # missing in the type stubs
#: Statuses of a stream that was reset (gRPC over HTTP/2, "HTTP2 Transport Mapping").
_OF_RESET: Final = {
    h2.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    h2.CANCEL: grpc.StatusCode.CANCELLED,
    h2.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    h2.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}
#: Attempts of a call that the server certainly did not begin.
_MAX_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class ClientMethod:
    """What all calls of one method have in common."""

    head: bytes  # header block without timeout and metadata
    encode: Callable[[Any], bytes] | None
    decode: Callable[[bytes], Any] | None
    request_streaming: bool


class CallPlace(Protocol):
    """What a call needs of its channel."""

    max_message: int

    def place(self, call: MadeCall) -> None:
        """Begin the call on a connection, or keep it until there is one."""

    def place_again(self, call: MadeCall) -> None:
        """Begin a call that the server has refused, when there may be room for it."""

    def forget(self, call: MadeCall) -> None:
        """Drop a call that waits for a connection."""


class MadeCall:
    """One call, as the owner of its stream and as what a stub returns."""

    def __init__(
        self,
        channel: CallPlace,
        method: ClientMethod,
        request: Any,
        timeout_s: float | None,
        metadata: Fields,
        wait_for_ready: bool,
        compress: bool,
    ) -> None:
        """`request`: a message, or for a stream of them an iterator or None, if `write` is used."""
        self.wait_for_ready = wait_for_ready
        self._channel = channel
        self._method = method
        self._metadata = metadata
        self._compress = compress
        self._loop = asyncio.get_running_loop()
        self._connection: Http2Connection | None = None
        self._stream: Http2Stream | None = None
        self._attempts = 0
        self._initial: Metadata | None = None
        self._trailing: Metadata = ()
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._answer: AnswerHead | None = None  # status that came with END_STREAM
        self._only: tuple[Any] | None = None  # the decoded answer
        self._cancelled_here = False
        self._wrote_all = False
        self._waiters: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[Any], None]] = []
        self._timeout_s = timeout_s
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._message: tuple[bytes, Buffer] | None = None
        if not method.request_streaming:
            self._message = framed(self._encoded(request), compress)
        if timeout_s is not None:
            self._deadline = self._loop.time() + timeout_s
            self._timer = self._loop.call_at(self._deadline, self._on_deadline)
        channel.place(self)
        if method.request_streaming and request is not None:
            self._feeder = self._loop.create_task(self._feed(request))

    def _encoded(self, message: Any) -> Buffer:
        encode = self._method.encode
        return message if encode is None else encode(message)

    # --- for the channel ------------------------------------------------------------------------------------
    def begin(self, connection: Http2Connection) -> None:
        """Send the request on a connection that may open a stream."""
        self._attempts += 1
        block = self._method.head
        if self._deadline is not None:
            left_s = self._timeout_s if self._attempts == 1 else self._deadline - self._loop.time()
            block += encode_block(((b"grpc-timeout", encode_timeout(left_s or 0.0)),))
        if self._metadata:
            block += encode_block(self._metadata)
        if self._compress:
            block += encode_block(((b"grpc-encoding", b"gzip"),))
        stream = connection.new_stream(self, self._channel.max_message)
        self._connection, self._stream = connection, stream
        connection.send_head(stream, block, False)
        if self._message is not None:
            stream.send(*self._message, end=True)
        self._wake()

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """End a call that has no stream."""
        self._finish(code, details)

    # --- StreamUser ----------------------------------------------------------------------------------------
    def on_head(self, block: HeaderBlock, ended: bool) -> None:
        head = block.meaning
        is_trailers = self._initial is not None
        stream = self._stream
        assert stream is not None
        if not isinstance(head, AnswerHead):
            if block.too_large:
                self._reset(h2.CANCEL, grpc.StatusCode.RESOURCE_EXHAUSTED, "too much metadata in the answer")
                return
            head = block.meaning = read_answer(block.fields, is_trailers)
        elif is_trailers == head.has_http_status:
            raise MalformedFieldsError("header fields in the wrong place")
        if ended:
            self._answer = head
            if not is_trailers:
                self._initial = ()
            return
        if head.is_informational:
            return
        if is_trailers:
            raise MalformedFieldsError("trailers without END_STREAM")
        if head.code is not None:  # no gRPC: what follows is not read
            self._reset(h2.CANCEL, head.code, head.details)
            return
        if head.encoding not in ENCODINGS:
            self._reset(h2.CANCEL, grpc.StatusCode.INTERNAL, "the answer's grpc-encoding is not known")
            return
        stream.cutter.encoding = head.encoding
        self._initial = head.metadata
        self._wake()

    def on_end(self) -> None:
        answer = self._answer
        if answer is None or answer.code is None:
            self._finish(grpc.StatusCode.INTERNAL, "the answer ended without a status")
        else:
            self._trailing = answer.metadata
            self._finish(answer.code, answer.details)

    def on_reset(self, code: int, reason: str, unprocessed: bool) -> None:
        if unprocessed and self._message is not None and self._attempts < _MAX_ATTEMPTS:
            self._stream = self._connection = None
            self._channel.place_again(self)
        elif code == h2.CONNECTION_LOST or unprocessed:
            self._finish(grpc.StatusCode.UNAVAILABLE, reason)
        else:
            self._finish(_OF_RESET.get(code, grpc.StatusCode.INTERNAL), f"{reason} (HTTP/2 code {code})")

    def on_bad_message(self, error: GrpcMessageError) -> None:
        self._finish(error.code, error.details)

    # --- status ---------------------------------------------------------------------------------------------
    def _finish(self, code: grpc.StatusCode, details: str) -> None:
        if self._code is not None:
            return
        if self._initial is None:
            self._initial = ()
        self._code, self._details = code, details
        if self._timer is not None:
            self._timer.cancel()
        if self._feeder is not None and self._feeder is not asyncio.current_task(self._loop):
            self._feeder.cancel()
        self._wake()
        if self._stream is not None:
            self._stream.wake_reader()
            self._stream.wake_writer()
        for callback in self._callbacks:
            callback(self)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(self) -> None:
        """Wait for the next step of the call."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _reset(self, http2_code: int, code: grpc.StatusCode, details: str) -> None:
        self._finish(code, details)
        if self._stream is not None and self._connection is not None:
            self._connection.reset(self._stream, http2_code)
        else:
            self._channel.forget(self)

    def _on_deadline(self) -> None:
        self._reset(h2.CANCEL, grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _error(self) -> BaseException:
        if self._cancelled_here:
            return asyncio.CancelledError()
        assert self._code is not None
        return grpc.aio.AioRpcError(
            self._code,
            grpc.aio.Metadata(*(self._initial or ())),
            grpc.aio.Metadata(*self._trailing),
            details=self._details,
            debug_error_string=self._details,
        )

    # --- grpc.aio's call objects ----------------------------------------------------------------------------
    def cancel(self) -> bool:
        """End the call. Returns False if it is over."""
        if self._code is not None:
            return False
        self._cancelled_here = True
        self._reset(h2.CANCEL, grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def cancelled(self) -> bool:
        """Whether the call was cancelled."""
        return self._code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """Whether the call is over."""
        return self._code is not None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback(call)` when the call is over; at once if it is."""
        if self._code is not None:
            callback(self)
        else:
            self._callbacks.append(callback)

    def time_remaining(self) -> float | None:
        """Return seconds until the deadline, or None."""
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())

    async def code(self) -> grpc.StatusCode:
        """Return the status; waits for it."""
        while self._code is None:
            await self._wait()
        return self._code

    async def details(self) -> str:
        """Return the text of the status; waits for it."""
        await self.code()
        return self._details

    async def debug_error_string(self) -> str:
        """Return the text of the status; waits for it."""
        return await self.details()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Return what came with the status; waits for it."""
        await self.code()
        return grpc.aio.Metadata(*self._trailing)

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Return the answer's metadata; waits for them."""
        while self._initial is None:
            await self._wait()
        return grpc.aio.Metadata(*self._initial)

    async def wait_for_connection(self) -> None:
        """Wait until the request was sent. Raises: grpc.aio.AioRpcError."""
        while self._stream is None and self._code is None:
            await self._wait()
        if self._code not in (None, grpc.StatusCode.OK):
            raise self._error()

    def _decoded(self, message: Buffer) -> Any:
        """Return a received message. Raises: grpc.aio.AioRpcError (it is not one of the call's type)."""
        if not isinstance(message, bytes):
            message = bytes(message)
        decode = self._method.decode
        if decode is None:
            return message
        try:
            return decode(message)
        except Exception:
            logger.debug("answer not decoded", exc_info=True)
        code, details = grpc.StatusCode.INTERNAL, "the answer cannot be decoded"
        if self._code is None:
            self._reset(h2.CANCEL, code, details)
        else:
            self._code, self._details = code, details
        raise self._error()

    async def _feed(self, requests: Any) -> None:
        """Write what an iterator of requests yields."""
        try:
            if hasattr(requests, "__aiter__"):
                async for request in requests:
                    await self._write(request)
            else:
                for request in requests:
                    await self._write(request)
            await self._end_requests()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the call is over: its status says why
        except Exception:
            self.cancel()
            raise

    async def _write(self, request: Any) -> None:
        if self._code is not None:
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._wrote_all:
            raise asyncio.InvalidStateError("RPC is half closed after calling done_writing().")
        if self._stream is None:
            await self.wait_for_connection()
        stream = self._stream
        assert stream is not None
        stream.send(*framed(self._encoded(request), self._compress))
        if stream.pending:
            await stream.wait_sent()
            if self._code not in (None, grpc.StatusCode.OK):
                raise self._error()

    async def _end_requests(self) -> None:
        if self._wrote_all or self._code is not None:
            return
        self._wrote_all = True
        if self._stream is None:
            await self.wait_for_connection()
        if self._stream is not None and self._connection is not None:
            self._connection.send_end(self._stream)

    async def _read(self) -> Any:
        """Return the next answer, or EOF at an OK end. Raises: grpc.aio.AioRpcError."""
        while True:
            stream = self._stream
            if stream is not None and stream.messages:
                return self._decoded(stream.take())
            if self._code is not None:
                if self._code is grpc.StatusCode.OK:
                    return EOF
                raise self._error()
            try:
                await (self._wait() if stream is None else self._wait_for_message(stream))
            except asyncio.CancelledError:
                self.cancel()
                raise

    async def _wait_for_message(self, stream: Http2Stream) -> None:
        if not await stream.wait_readable() and self._code is None and self._stream is stream:
            await self._wait()

    async def _only_answer(self) -> Any:
        """Return the answer of a call with one. Raises: grpc.aio.AioRpcError."""
        while self._code is None:
            try:
                await self._wait()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._code is not grpc.StatusCode.OK:
            raise self._error()
        stream = self._stream
        assert stream is not None
        if self._only is None:
            if len(stream.messages) != 1:
                self._code = grpc.StatusCode.UNIMPLEMENTED
                self._details = f"one answer is expected, {len(stream.messages)} messages came"
                raise self._error()
            self._only = (self._decoded(stream.take()),)
        return self._only[0]


class UnaryAnswerCall(MadeCall):
    """A call with one answer: await it."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._only_answer().__await__()


class StreamAnswerCall(MadeCall):
    """A call with a stream of answers: iterate, or `read`."""

    async def read(self) -> Any:
        """Return the next answer, or `grpc.aio.EOF`. Raises: grpc.aio.AioRpcError."""
        return await self._read()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self._read()) is not EOF:
            yield message


class WritingCall(MadeCall):
    """A call with a stream of requests."""

    async def write(self, request: Any) -> None:
        """Send one request; waits while the peer reads too slowly.

        Raises: grpc.aio.AioRpcError, asyncio.InvalidStateError (the call is over, or `done_writing` was
        called).
        """
        await self._write(request)

    async def done_writing(self) -> None:
        """Say that no more requests follow."""
        await self._end_requests()


class UnaryUnaryCall(UnaryAnswerCall):
    """One request, one answer."""


class UnaryStreamCall(StreamAnswerCall):
    """One request, a stream of answers."""


class StreamUnaryCall(WritingCall, UnaryAnswerCall):
    """A stream of requests, one answer."""


class StreamStreamCall(WritingCall, StreamAnswerCall):
    """A stream in both directions."""
