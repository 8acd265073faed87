"""A call that a server serves, and the context that its handler gets.

Owns: one call from its header fields to its status. Must not: choose the handler.

The context has the methods of `grpc.aio.ServicerContext`. A handler may be a coroutine function, an
asynchronous generator, or a coroutine function that reads and writes through the context; requests of a
stream come from an asynchronous iterator or from `read`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

import grpc

from . import http2_frames as h2
from .call_headers import (
    Metadata,
    RequestHead,
    metadata_fields,
    read_trailers,
    status_fields,
)
from .grpc_messages import Buffer, GrpcMessageError, framed
from .header_blocks import Fields, HeaderBlock, encode_block
from .http2_connection import Http2Connection
from .http2_stream import Http2Stream

logger = logging.getLogger(__name__)

EOF: Final[Any] = vars(grpc.aio)["EOF"]  # missing in the type stubs
_HEAD: Final[Fields] = ((b":status", b"200"), (b"content-type", b"application/grpc"),
                        (b"grpc-accept-encoding", b"identity,gzip"))  # fmt: skip
_HEAD_UNPACKED: Final[Fields] = (*_HEAD[:2], (b"grpc-accept-encoding", b"identity"))
_GZIP: Final[Fields] = ((b"grpc-encoding", b"gzip"),)
_OK: Final = encode_block(((b"grpc-status", b"0"),))


class MethodHandler(Protocol):
    """What `grpc.*_rpc_method_handler` return."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], Any] | None
    response_serializer: Callable[[Any], bytes] | None
    unary_unary: Callable[..., Any] | None
    unary_stream: Callable[..., Any] | None
    stream_unary: Callable[..., Any] | None
    stream_stream: Callable[..., Any] | None


class ServedCall:
    """One call, as the owner of its stream and as the context of its handler."""

    def __init__(
        self,
        connection: Http2Connection,
        head: RequestHead,
        handler: MethodHandler,
        on_over: Callable[[ServedCall], None],
        *,
        compress: bool,
        takes_compressed: bool,
        lends_memory: bool,
    ) -> None:
        """`on_over` is called when the handler has returned. `compress`: answers with gzip, if accepted.

        `takes_compressed`: tell the client that requests may be compressed.
        `lends_memory`: hand large messages on as memoryview, without a copy.
        """
        self.connection = connection
        self.stream: Http2Stream  # the server sets it at once
        self.task: asyncio.Task[None] | None = None
        self._head = head
        self._handler = handler
        self._on_over = on_over
        self._lends_memory = lends_memory
        self._head_base = _HEAD if takes_compressed else _HEAD_UNPACKED
        self._compress = compress and b"gzip" in head.accept_encoding
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head_sent = False
        self._initial: Metadata = ()
        self._trailing: Metadata = ()
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._is_over = False
        self._is_cancelled = False
        self._callbacks: list[Callable[[Any], None]] = []

    # --- start ----------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Start the handler now, or when the request is complete; begin the deadline."""
        loop = asyncio.get_running_loop()
        if self._head.timeout_s is not None:
            self._deadline = loop.time() + self._head.timeout_s
            self._timer = loop.call_at(self._deadline, self._on_deadline)
        if self._handler.request_streaming:
            self._start()

    def _start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(self._on_done)  # also of a task that was cancelled before it ran

    # --- StreamUser ----------------------------------------------------------------------------------------
    def on_head(self, block: HeaderBlock, ended: bool) -> None:
        read_trailers(block.fields)

    def on_end(self) -> None:
        if self.task is None and not self._is_over:
            self._start()

    def on_reset(self, code: int, reason: str, unprocessed: bool) -> None:
        self._cancel()

    def on_bad_message(self, error: GrpcMessageError) -> None:
        self._finish(error.code, error.details)
        self._cancel()

    # --- the call -------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        """Serve the call and send its status."""
        handler = self._handler
        try:
            if handler.request_streaming:
                serve = handler.stream_stream if handler.response_streaming else handler.stream_unary
                request: Any = self._requests()
            else:
                serve = handler.unary_stream if handler.response_streaming else handler.unary_unary
                request = self._only_request()
            assert serve is not None
            answer = serve(request, self)
            if handler.response_streaming and hasattr(answer, "__aiter__"):
                async with contextlib.aclosing(answer):
                    async for message in answer:
                        await self.write(message)
                self._finish(self._code or grpc.StatusCode.OK, self._details)
            else:
                message = await answer
                if handler.response_streaming or self._code not in (None, grpc.StatusCode.OK):
                    self._finish(self._code or grpc.StatusCode.OK, self._details)
                else:
                    self._answer(message)
        except _RefusedError as error:
            self._finish(error.code, error.details)
        except grpc.aio.AbortError:
            self._finish(self._code or grpc.StatusCode.UNKNOWN, self._details)
        except asyncio.CancelledError:
            self._is_cancelled = True
            self._finish(grpc.StatusCode.CANCELLED, "the server ended the call")
            if not self.stream.closed:
                raise
        except Exception as error:  # a handler's bug ends its call, not the connection
            if self._code not in (None, grpc.StatusCode.OK):
                self._finish(self._code, self._details)
            elif not self._is_over:
                logger.exception("handler failed method=%s", self._head.path.decode("ascii", "replace"))
                self._finish(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_over = True
        self._on_over(self)
        for callback in self._callbacks:
            callback(self)

    def _decoded(self, message: Buffer) -> Any:
        """Raises: _RefusedError."""
        if not self._lends_memory and not isinstance(message, bytes):
            message = bytes(message)
        decode = self._handler.request_deserializer
        if decode is None:
            return message
        try:
            return decode(message)  # type: ignore[arg-type]
        except Exception:
            logger.debug("request not decoded method=%s", self._head.path, exc_info=True)
            raise _RefusedError(grpc.StatusCode.INTERNAL, "Exception deserializing request!") from None

    def _only_request(self) -> Any:
        """Raises: _RefusedError."""
        messages = self.stream.messages
        if len(messages) != 1:
            raise _RefusedError(
                grpc.StatusCode.UNIMPLEMENTED, f"one request is expected, {len(messages)} messages came"
            )
        return self._decoded(self.stream.take())

    async def _requests(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    def _encoded(self, message: Any) -> Buffer:
        encode = self._handler.response_serializer
        if encode is None:
            if not isinstance(message, bytes | bytearray | memoryview):
                raise _RefusedError(grpc.StatusCode.INTERNAL, "Failed to serialize response!")
            return message
        try:
            return encode(message)
        except Exception:
            logger.exception("answer not encoded method=%s", self._head.path.decode("ascii", "replace"))
            raise _RefusedError(grpc.StatusCode.INTERNAL, "Failed to serialize response!") from None

    def _answer(self, message: Any) -> None:
        """Send the only answer with head and trailers."""
        body = self._encoded(message)
        if self._is_over or self.stream.closed:
            return
        self._send_head()
        self.stream.send(*framed(body, self._compress))
        self._finish(grpc.StatusCode.OK, self._details)

    def _send_head(self) -> None:
        if not self._head_sent:
            self._head_sent = True
            self.connection.send_head(self.stream, encode_block(self._head_fields()), False)

    def _head_fields(self) -> Fields:
        fields = self._head_base + _GZIP if self._compress else self._head_base
        return fields + metadata_fields(self._initial) if self._initial else fields

    def _finish(self, code: grpc.StatusCode, details: str) -> None:
        """Send the status; once."""
        if self._is_over:
            return
        self._is_over = True
        self._code, self._details = code, details
        if self.stream.closed:
            return
        if code is grpc.StatusCode.OK and not details and not self._trailing:
            block = _OK
        else:
            block = encode_block(status_fields(code, details) + metadata_fields(self._trailing))
        if not self._head_sent:  # trailers only
            self._head_sent = True
            block = encode_block(self._head_fields()) + block
        self.connection.send_head(self.stream, block, True)

    def _on_deadline(self) -> None:
        if self.task is None or not self.task.done():
            self._finish(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            if not self.stream.closed:  # messages that the peer does not read are in the way
                self.connection.reset(self.stream, h2.CANCEL)
            self._cancel()

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self.task is not None:
            self.task.cancel()
        elif self._timer is not None:
            self._timer.cancel()
        if self.task is None:
            self._is_over = True
            self._on_over(self)

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """End the call from outside: the server stops."""
        self._finish(code, details)
        self._cancel()

    # --- grpc.aio.ServicerContext ---------------------------------------------------------------------------
    async def read(self) -> Any:
        """Return the next request, or `grpc.aio.EOF`."""
        if self.stream.messages or await self.stream.wait_readable():
            return self._decoded(self.stream.take())
        if self.stream.closed and self._is_cancelled:
            raise asyncio.CancelledError
        return EOF

    async def write(self, message: Any) -> None:
        """Send one answer; waits while the peer reads too slowly."""
        body = self._encoded(message)
        if self._is_over or self.stream.closed:
            raise asyncio.CancelledError if self._is_cancelled else grpc.aio.UsageError("the call is over")
        self._send_head()
        stream = self.stream
        stream.send(*framed(body, self._compress))
        if stream.pending:
            await stream.wait_sent()

    async def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> None:
        """Send the header fields now."""
        if self._head_sent:
            raise grpc.aio.UsageError("initial metadata was sent already")
        self._initial = tuple(initial_metadata)
        self._send_head()

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[Any] | None = ()
    ) -> NoReturn:
        """End the call with a status that is not OK. Raises: grpc.aio.AbortError, always."""
        if code is grpc.StatusCode.OK:
            code, details = grpc.StatusCode.UNKNOWN, "abort() was called with the status OK"
        if trailing_metadata:
            self._trailing = tuple(trailing_metadata)
        self._code, self._details = code, details
        self._finish(code, details)
        raise grpc.aio.AbortError("Locally aborted.")

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the call with `status`. Raises: grpc.aio.AbortError, always."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        """Set what is sent with the status."""
        self._trailing = tuple(trailing_metadata)

    def invocation_metadata(self) -> Metadata:
        """Return the metadata of the request."""
        return self._head.metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status that is sent when the handler returns."""
        self._code = code

    def set_details(self, details: str) -> None:
        """Set the text that goes with the status."""
        self._details = details

    def code(self) -> grpc.StatusCode | None:
        """Return the status as far as it is known."""
        return self._code

    def details(self) -> str:
        """Return the text of the status."""
        return self._details

    def trailing_metadata(self) -> Metadata:
        """Return what is sent with the status."""
        return self._trailing

    def set_compression(self, compression: grpc.Compression) -> None:
        """Choose the compression of the answers; before the first of them."""
        if self._head_sent:
            raise grpc.aio.UsageError("the header fields were sent already")
        self._compress = compression is grpc.Compression.Gzip and b"gzip" in self._head.accept_encoding

    def disable_next_message_compression(self) -> None:
        """Do nothing: a message that would grow is not compressed anyhow."""

    def peer(self) -> str:
        """Return the peer's address, like `ipv4:127.0.0.1:5000`."""
        return self.connection.peer

    def peer_identities(self) -> Iterable[bytes] | None:
        """Return None: client certificates are read from `auth_context`."""
        return None

    def peer_identity_key(self) -> str | None:
        """Return None, as `peer_identities` does."""
        return None

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the TLS peer's certificate (DER) as `x509_der`, if it showed one."""
        tls = self.connection.transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        return {"x509_der": [certificate]} if certificate else {}

    def time_remaining(self) -> float | None:
        """Return seconds until the deadline, or None."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def cancelled(self) -> bool:
        """Whether the call was cancelled."""
        return self._is_cancelled

    def done(self) -> bool:
        """Whether the call is over."""
        return self._is_over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback(context)` when the handler has returned."""
        self._callbacks.append(callback)


class _RefusedError(Exception):
    """The call ends with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
