"""The server end: ports, methods, calls.

Owns: listening sockets, the table of methods, the limits of connections and running calls. Must not: know
what a method does. It has the methods of `grpc.aio.Server` that generated code and services use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from .call_headers import RequestHead, read_request, read_trailers, status_fields
from .grpc_messages import ENCODINGS, GrpcMessageError
from .header_blocks import Fields, HeaderBlock, encode_block
from .http2_connection import CLOSED_BY_PEER, Http2Connection
from .http2_input import SCRATCH_SIZE
from .http2_stream import Http2Stream
from .served_call import MethodHandler, ServedCall
from .shared_memory import SharedMemory
from .wire_limits import WireLimits

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
#: Reasons of ended connections that are ordinary and not logged.
_ORDINARY: Final = ("idle", "this server stops")
#: Pause between two log lines of one reason from one host, in seconds, and reasons that are remembered.
_LOG_PAUSE_S: Final = 60.0
_LOG_REASONS: Final = 1000
_NOT_GRPC: Final[Fields] = ((b":status", b"415"), (b"content-type", b"text/plain"))
_NOT_GRPC_TEXT: Final = (
    b"this port speaks gRPC, POST with the content-type application/grpc: use a gRPC client "
    b"(gRPC-web needs a proxy that translates it)\n"
)


class _CallDetails(grpc.HandlerCallDetails):
    def __init__(self, method: str, metadata: Any) -> None:
        self.method = method
        self.invocation_metadata = metadata


class _RefusedRequest:
    """Owner of a stream whose request is refused: what it sends is dropped, and its end is answered."""

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer

    def on_head(self, block: HeaderBlock, ended: bool) -> None:
        read_trailers(block.fields)

    def on_end(self) -> None:
        self._answer()

    def on_reset(self, code: int, reason: str, unprocessed: bool) -> None: ...

    def on_bad_message(self, error: GrpcMessageError) -> None: ...


class GrpcServer:
    """A gRPC server in the running event loop.

    Usage: `add_generic_rpc_handlers` (or generated `add_…_to_server`), `add_insecure_port`,
    `add_secure_port`, `await start()`, `await stop(grace)`.
    """

    def __init__(
        self,
        limits: WireLimits = WireLimits(),  # noqa: B008  # frozen
        *,
        compression: grpc.Compression = grpc.Compression.NoCompression,
        takes_compressed: bool = True,
        lends_memory: bool = False,
        name: str = "",
        memory: SharedMemory | None = None,
        admits: Callable[[Http2Connection], bool] | None = None,
    ) -> None:
        """`compression`: of answers, where the client accepts it.

        `takes_compressed`: requests may be compressed; else such a call is refused before it is unpacked.
        `lends_memory`: handlers without a deserializer, and deserializers, get large messages as memoryview,
        which spares a copy.
        `name`: of the port in log lines, else its address. `memory`: a budget that other servers share.
        `admits(connection)` is asked before each call with a handler; False: it has ended the connection.
        """
        self.limits = limits
        self._name = name
        self._shared = memory or SharedMemory.of_servers(limits)
        self._compress = compression is grpc.Compression.Gzip
        self._takes_compressed = takes_compressed
        self._lends_memory = lends_memory
        self._admits = admits
        self._methods: dict[bytes, MethodHandler | None] = {}
        self._generic: list[Any] = []
        self._direct: dict[bytes, Callable[[Http2Connection, int], None]] = {}
        self._connections: set[Http2Connection] = set()
        self._calls: dict[Http2Connection, set[ServedCall]] = {}
        self._sockets: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._servers: list[asyncio.Server] = []
        self._scratch = bytearray(SCRATCH_SIZE)
        self._logged: dict[tuple[str, str], float] = {}
        self._is_stopping = False
        self._has_no_calls = asyncio.Event()

    # --- methods --------------------------------------------------------------------------------------------
    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[Any]) -> None:
        """Add handlers of methods: `grpc.GenericRpcHandler`."""
        self._generic.extend(generic_rpc_handlers)
        self._methods.clear()

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, MethodHandler]
    ) -> None:
        """Add the handlers of one service by the names of its methods."""
        for name, handler in method_handlers.items():
            self._methods[f"/{service_name}/{name}".encode()] = handler

    def add_direct_method(self, method: str, begin: Callable[[Http2Connection, int], None]) -> None:
        """Serve calls of `/service/method` by `begin(connection, stream id)`, which makes the call's object.

        That is a ServedDirectCall.
        """
        self._direct[method.encode("ascii")] = begin

    def _handler_of(self, head: RequestHead) -> MethodHandler | None:
        handler = self._methods.get(head.path)
        if handler is not None:
            return handler
        details = _CallDetails(head.path.decode("ascii", "replace"), head.metadata)
        for generic in self._generic:
            found: MethodHandler | None = generic.service(details)
            if found is not None:
                return found  # not remembered: a generic handler may decide by metadata
        return None

    # --- ports ----------------------------------------------------------------------------------------------
    def add_insecure_port(self, address: str) -> int:
        """Bind `host:port` or `unix:path`. Returns the port, 0 for a path. Raises: RuntimeError."""
        return self._add_port(address, None)

    def add_secure_port(self, address: str, context: ssl.SSLContext) -> int:
        """Bind a port for TLS. `context` gets ALPN h2. Returns the port. Raises: RuntimeError."""
        context.set_alpn_protocols(["h2"])
        return self._add_port(address, context)

    def _add_port(self, address: str, context: ssl.SSLContext | None) -> int:
        try:
            listener = _bound(address)
        except (OSError, ValueError) as error:
            raise RuntimeError(f"Failed to bind to address {address}: {error}") from error
        self._sockets.append((listener, context))
        return 0 if address.startswith("unix:") else int(listener.getsockname()[1])

    async def start(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        for listener, context in self._sockets:
            self._servers.append(
                await loop.create_server(
                    self._protocol,
                    sock=listener,
                    ssl=context,
                    backlog=_BACKLOG,
                    ssl_handshake_timeout=self.limits.handshake_s if context else None,
                )
            )

    async def stop(self, grace: float | None) -> None:
        """Close the ports, let calls end for `grace` seconds, cancel the others, close all connections."""
        self._is_stopping = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        for listener, _ in self._sockets:
            listener.close()
        self._sockets.clear()
        for connection in list(self._connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace or 0):
                while self._calls:  # calls that were on their way come to them
                    self._has_no_calls.clear()
                    await self._has_no_calls.wait()
        for connection in list(self._connections):
            connection.end_drain()
        calls = [call for calls in self._calls.values() for call in calls]
        tasks = [call.task for call in calls if call.task is not None]
        for call in calls:
            call.end(grpc.StatusCode.UNAVAILABLE, "the server stops")
        await asyncio.gather(*tasks, return_exceptions=True)
        await Http2Connection.close_all(list(self._connections), "this server stops")

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)

    # --- connections ----------------------------------------------------------------------------------------
    def _protocol(self) -> asyncio.BaseProtocol:
        return self.serve_connection()

    def serve_connection(self, on_lost: Callable[[], None] = lambda: None) -> Http2Connection:
        """Return the protocol of a new connection, for listeners that accept elsewhere.

        `on_lost` is called when the connection is over.
        """

        def lost(connection: Http2Connection, reason: str) -> None:
            self._on_lost(connection, reason)
            on_lost()

        return Http2Connection(
            self.limits,
            self._scratch,
            self._shared,
            accept=self._accept,
            on_made=self._on_made,
            on_lost=lost,
        )

    def _on_made(self, connection: Http2Connection) -> None:
        if self._is_stopping:
            connection.abort("this server stops")
            return
        if len(self._connections) >= self.limits.max_connections:
            connection.abort(
                f"there are {self.limits.max_connections} connections already, the limit of this port: look "
                "for clients that open many"
            )
            return
        self._connections.add(connection)

    def _on_lost(self, connection: Http2Connection, reason: str) -> None:
        self._connections.discard(connection)
        if reason not in _ORDINARY and not reason.startswith(CLOSED_BY_PEER):
            host = connection.peer.rpartition(":")[0]
            self.log_ended(host, connection.peer, reason, self._name or connection.address)

    def log_ended(self, host: str, peer: str, reason: str, port: str = "") -> None:
        """Log why a connection ended, once per kind of reason, host and minute."""
        kind, port = re.sub(r"\d+", "", reason), port or self._name
        now = asyncio.get_running_loop().time()
        last = self._logged.get((host, kind))
        if last is None or now - last >= _LOG_PAUSE_S:
            if len(self._logged) >= _LOG_REASONS:
                self._logged.clear()
            self._logged[host, kind] = now
            logger.warning("connection ended port=%s peer=%s: %s", port, peer, reason)

    # --- calls ----------------------------------------------------------------------------------------------
    def _accept(self, connection: Http2Connection, stream_id: int, block: HeaderBlock) -> None:
        """Begin a call. Raises: MalformedFieldsError."""
        head = block.meaning
        if not isinstance(head, RequestHead):
            if block.too_large:
                head = RequestHead()
                head.is_grpc, head.problem = True, "too much metadata"
                self._refuse(connection, stream_id, head, grpc.StatusCode.RESOURCE_EXHAUSTED)
                return
            head = block.meaning = read_request(block.fields)
        is_packed = head.encoding != b"identity" and not self._takes_compressed
        direct = self._direct.get(head.path)
        if direct is not None and not head.is_refused and not is_packed:
            direct(connection, stream_id)
            self._fit(connection.streams.get(stream_id), head)
            return
        handler = self._methods.get(head.path) or self._handler_of(head)
        if handler is not None and self._admits is not None and not self._admits(connection):
            return
        if handler is None or head.is_refused or is_packed:
            self._refuse(connection, stream_id, head, grpc.StatusCode.UNIMPLEMENTED)
            return
        # streams that were reset, but whose handlers still run
        if len(self._calls.get(connection, ())) >= self.limits.max_streams:
            self._refuse(connection, stream_id, head, grpc.StatusCode.RESOURCE_EXHAUSTED)
            return
        call = ServedCall(
            connection,
            head,
            handler,
            self._on_call_over,
            compress=self._compress,
            takes_compressed=self._takes_compressed,
            lends_memory=self._lends_memory,
        )
        stream = connection.add_stream(stream_id, call, self.limits.max_message)
        self._fit(stream, head)
        stream.needs_end = not handler.request_streaming
        call.stream = stream
        self._calls.setdefault(connection, set()).add(call)
        call.begin()

    @staticmethod
    def _fit(stream: Http2Stream | None, head: RequestHead) -> None:
        if stream is not None:
            stream.content_left = head.content_length
            stream.cutter.encoding = head.encoding

    def _on_call_over(self, call: ServedCall) -> None:
        running = self._calls.get(call.connection)
        if running is not None:
            running.discard(call)
            if not running:
                del self._calls[call.connection]
                if not self._calls:
                    self._has_no_calls.set()

    def _refuse(
        self, connection: Http2Connection, stream_id: int, head: RequestHead, code: grpc.StatusCode
    ) -> None:
        """Answer a request that has no call: a gRPC one at once, another one at its end."""
        details = head.problem
        if head.problem and code is grpc.StatusCode.UNIMPLEMENTED:
            code = grpc.StatusCode.INTERNAL
        elif code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            details = details or "too many cancelled calls of this connection have not ended"
        elif head.encoding not in ENCODINGS:
            name = head.encoding[:50].decode("ascii", "replace")
            details = f"Compression algorithm '{name}' is not known"
        elif head.encoding != b"identity" and not self._takes_compressed:
            details = f"Compression algorithm '{head.encoding.decode()}' is disabled."
        else:
            details = "Method not found!"
        owner = _RefusedRequest(lambda: None if head.is_grpc else _answer_stranger(connection, stream))
        stream = connection.add_stream(stream_id, owner, self.limits.max_message)
        stream.content_left = head.content_length
        stream.discards = True
        if head.is_grpc:
            connection.send_head(stream, encode_block(_refusal(code, details, self._takes_compressed)), True)


def _answer_stranger(connection: Http2Connection, stream: Http2Stream) -> None:
    """Answer a request that is no gRPC."""
    connection.send_head(stream, encode_block(_NOT_GRPC), False)
    connection.send_data(stream, b"", _NOT_GRPC_TEXT, True)


def _refusal(code: grpc.StatusCode, details: str, takes_compressed: bool) -> Fields:
    return (
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        *status_fields(code, details),
        (b"grpc-accept-encoding", b"identity,gzip" if takes_compressed else b"identity"),
    )


def _bound(address: str) -> socket.socket:
    """Return a bound socket. Raises: OSError, ValueError."""
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        place: Any = str(path)
    else:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        family, kind, protocol, _, place = socket.getaddrinfo(
            host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    try:
        listener.setblocking(False)
        if listener.family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if listener.family == socket.AF_INET6 and place[0] == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
