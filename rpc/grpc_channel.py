"""The client end: a channel to one address, and what stubs need of it.

Owns: the connection, its reconnects, the calls that wait for one. Must not: know a call's contents. It has
the methods of `grpc.aio.Channel` that generated stubs and the clients use.

A channel connects with the first call. After a failure, calls fail at once, but those that wait for it, and
attempts go on until one succeeds or no call has come for some time; the pauses between them grow. A
connection that the server drains is left to its calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc

from .address_race import addresses_of, first_open
from .call_headers import metadata_fields, request_fields
from .header_blocks import encode_block
from .http2_connection import Http2Connection
from .http2_input import SCRATCH_SIZE
from .made_call import (
    ClientMethod,
    MadeCall,
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)
from .shared_memory import SharedMemory
from .wire_limits import WireLimits

#: Bounds of clients that set none. A client that only waits is not asked: servers count such questions.
CLIENT_LIMITS: Final = WireLimits(max_streams=0, keepalive_s=0.0, max_idle_s=0.0)
#: Pause in seconds after a refusal when no other call is open: a server may count a call for some time after
#: it has answered it.
_REFUSED_PAUSE_S: Final = 0.02
#: Parts in which a channel's patience passes: one stall of a busy process must not use it up.
_PATIENCE_STEPS: Final = 10
#: Time in seconds after a call in which a channel goes on with attempts to connect that fail.
_WANTED_S: Final = 30.0
#: Begin of a status message when there was no connection, so that nothing was sent; gRPC's text.
_NOT_CONNECTED: Final = "failed to connect to all addresses"
_State = grpc.ChannelConnectivity


@dataclass(frozen=True, slots=True)
class Reconnects:
    """Pauses between attempts to connect, and the time that one may take; in seconds."""

    first_s: float = 0.5
    most_s: float = 10.0
    attempt_s: float = 20.0  # for each address of a name
    patience_s: float = 20.0  # of calls that do not wait for a connection; the attempt may go on


class GrpcChannel:
    """A channel to `host:port`, `dns:///host:port` or `unix:path`. Use it in one event loop.

    Usage: pass it to a generated stub; `await close()` at the end, or `async with`.
    """

    def __init__(
        self,
        target: str,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        takes_plaintext: bool = False,
        limits: WireLimits = CLIENT_LIMITS,
        reconnects: Reconnects = Reconnects(),  # frozen
    ) -> None:
        """`tls` gets ALPN h2; `server_name` is checked against the certificate in place of the host.

        `takes_plaintext`: a server with which TLS fails is spoken to without, which protects from nobody.
        """
        self.max_message = limits.max_message
        self._target = target.removeprefix("dns:///").removeprefix("ipv4:").removeprefix("ipv6:")
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._server_name = server_name
        self._takes_plaintext = takes_plaintext
        self._limits = limits
        self._reconnects = reconnects
        self._authority = _authority(
            server_name or ("localhost" if target.startswith("unix:") else self._target)
        )
        self._scratch = bytearray(SCRATCH_SIZE)
        self._shared = SharedMemory(limits.total_memory)
        self._connection: Http2Connection | None = None
        self._draining: set[Http2Connection] = set()
        self._waiting: dict[MadeCall, None] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._wanted_at = 0.0  # time of the last call without a connection
        self._state = _State.IDLE
        self._state_waiters: list[asyncio.Future[None]] = []
        self._error = ""

    # --- what stubs use -------------------------------------------------------------------------------------
    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Callable[..., UnaryUnaryCall]:
        """Return a function that calls `method`, with the arguments of `grpc.aio.UnaryUnaryMultiCallable`."""
        return self._multi(UnaryUnaryCall, method, request_serializer, response_deserializer, False)

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Callable[..., UnaryStreamCall]:
        """Return a function that calls `method`: one request, a stream of answers."""
        return self._multi(UnaryStreamCall, method, request_serializer, response_deserializer, False)

    def stream_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Callable[..., StreamUnaryCall]:
        """Return a function that calls `method`: a stream of requests, one answer."""
        return self._multi(StreamUnaryCall, method, request_serializer, response_deserializer, True)

    def stream_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Callable[..., StreamStreamCall]:
        """Return a function that calls `method`: streams in both directions."""
        return self._multi(StreamStreamCall, method, request_serializer, response_deserializer, True)

    def _multi(
        self,
        kind: type[Any],
        path: str,
        encode: Callable[[Any], bytes] | None,
        decode: Callable[[bytes], Any] | None,
        request_streaming: bool,
    ) -> Callable[..., Any]:
        head = encode_block(
            request_fields(path, self._authority, is_tls=self._tls is not None, accepts=b"identity,gzip")
        )
        method = ClientMethod(head, encode, decode, request_streaming)

        def call(
            request: Any = None,
            *,
            timeout: float | None = None,
            metadata: Iterable[Any] | None = None,
            credentials: grpc.CallCredentials | None = None,
            wait_for_ready: bool | None = None,
            compression: grpc.Compression | None = None,
        ) -> Any:
            if credentials is not None:
                raise grpc.aio.UsageError("credentials of a call are not supported: send metadata")
            return kind(
                self,
                method,
                request,
                timeout,
                metadata_fields(metadata),
                bool(wait_for_ready),
                compression is grpc.Compression.Gzip,
            )

        return call

    # --- calls ----------------------------------------------------------------------------------------------
    def place(self, call: MadeCall) -> None:
        connection = self._connection
        if connection is not None and connection.may_open and not self._waiting:
            call.begin(connection)
            return
        if self._state is _State.SHUTDOWN:
            self._fail_closed(call)
            return
        self._wanted_at = asyncio.get_running_loop().time()
        if self._state is _State.TRANSIENT_FAILURE and not call.wait_for_ready:
            call.fail(grpc.StatusCode.UNAVAILABLE, self._error)
        else:
            self._waiting[call] = None
            self._connect()

    def place_again(self, call: MadeCall) -> None:
        if self._state is _State.SHUTDOWN:
            self._fail_closed(call)
            return
        self._waiting[call] = None
        connection = self._connection
        if connection is None or connection.is_draining:
            self._connect()
        else:  # the next end of a call makes room, but there may be none
            asyncio.get_running_loop().call_later(_REFUSED_PAUSE_S, self._begin_waiting)

    def _fail_closed(self, call: MadeCall) -> None:
        call.fail(grpc.StatusCode.UNAVAILABLE, f"{_NOT_CONNECTED}; {self._target}: the channel is closed")

    def forget(self, call: MadeCall) -> None:
        self._waiting.pop(call, None)

    def _begin_waiting(self) -> None:
        connection = self._connection
        while self._waiting and connection is not None and connection.may_open:
            call = next(iter(self._waiting))
            del self._waiting[call]
            call.begin(connection)

    # --- connection -----------------------------------------------------------------------------------------
    def _connect(self) -> None:
        usable = self._connection is not None and not self._connection.is_draining
        if not usable and self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect_until_ready())

    async def _connect_until_ready(self) -> None:
        """Attempt to connect while calls come."""
        loop, reconnects = asyncio.get_running_loop(), self._reconnects
        pause_s = reconnects.first_s
        self._set_state(_State.CONNECTING)
        try:
            while True:
                patience = loop.create_task(self._lose_patience())
                try:
                    connection = await self._open()
                    if connection.is_draining:
                        raise ConnectionError("the server ended the connection at once")
                    self._connection = connection
                    break
                except (OSError, ValueError, OverflowError, RuntimeError) as error:  # a pool that has ended
                    self._fail_waiting(error)
                finally:
                    patience.cancel()
                await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
                pause_s = min(2 * pause_s, reconnects.most_s)
                if not (self._waiting or self._state_waiters or loop.time() < self._wanted_at + _WANTED_S):
                    self._set_state(_State.IDLE)
                    return
        finally:
            self._connecting = None
        self._set_state(_State.READY)
        self._begin_waiting()

    async def _lose_patience(self) -> None:
        """Fail the calls that do not wait for a connection. A loop that stood still counts as one step."""
        patience_s = self._reconnects.patience_s
        for _ in range(_PATIENCE_STEPS):
            await asyncio.sleep(patience_s / _PATIENCE_STEPS)
        self._fail_waiting(TimeoutError(f"no answer within {patience_s:g} s"))

    async def _open(self) -> Http2Connection:
        """Return a connection whose settings have come. Raises: OSError, ValueError, OverflowError."""
        try:
            return await self._open_with(self._tls)
        except TimeoutError:
            raise
        except OSError:
            if self._tls is None or not self._takes_plaintext:
                raise
        return await self._open_with(None)

    async def _open_with(self, context: ssl.SSLContext | None) -> Http2Connection:
        loop = asyncio.get_running_loop()
        path = self._target.removeprefix("unix:")
        if path != self._target:
            tls = self._tls_arguments(context, "localhost")
            return await self._greeted(lambda make: loop.create_unix_connection(make, path, **tls))
        host, _, port = self._target.rpartition(":")
        host = host.strip("[]")
        tls = self._tls_arguments(context, host)
        return await first_open(
            await addresses_of(host, int(port)),
            lambda address: self._greeted(
                lambda make: loop.create_connection(make, address, int(port), **tls)
            ),
            lambda connection: connection.abort("another address has answered"),
        )

    def _tls_arguments(self, context: ssl.SSLContext | None, host: str) -> dict[str, Any]:
        return {} if context is None else {"ssl": context, "server_hostname": self._server_name or host}

    async def _greeted(
        self, connect: Callable[..., Awaitable[tuple[Any, Http2Connection]]]
    ) -> Http2Connection:
        """Return the connection that `connect(factory)` makes once its settings have come.

        Raises: OSError.
        """
        # Why the connection is lost; "": its settings came. No exception, as nobody may wait for it any more.
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_lost(connection: Http2Connection, reason: str) -> None:
            if not ready.done():
                ready.set_result(reason)
            self._on_lost(connection)

        def make() -> Http2Connection:
            return Http2Connection(
                self._limits,
                self._scratch,
                self._shared,
                on_ready=lambda connection: None if ready.done() else ready.set_result(""),
                on_room=self._begin_waiting,
                on_going=self._on_going,
                on_lost=on_lost,
            )

        try:
            async with asyncio.timeout(self._reconnects.attempt_s) as limit:
                transport, connection = await connect(make)
                try:
                    if lost := await ready:
                        raise ConnectionError(lost)
                except BaseException:
                    transport.abort()
                    raise
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"no answer within {self._reconnects.attempt_s:g} s") from None
            raise
        return connection

    def _fail_waiting(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        self._error = (
            f"{_NOT_CONNECTED}; last error: UNKNOWN: {self._target}: "
            f"Failed to connect to remote host: {reason}"
        )
        self._set_state(_State.TRANSIENT_FAILURE)
        for call in [call for call in self._waiting if not call.wait_for_ready]:
            del self._waiting[call]
            call.fail(grpc.StatusCode.UNAVAILABLE, self._error)

    def _on_going(self, connection: Http2Connection) -> None:
        """The server takes no more calls on this connection; those that run go on."""
        if connection is self._connection:
            self._draining.add(connection)
            self._leave()

    def _on_lost(self, connection: Http2Connection) -> None:
        self._draining.discard(connection)
        if connection is self._connection:
            self._leave()

    def _leave(self) -> None:
        self._connection = None
        if self._state is not _State.SHUTDOWN:
            self._set_state(_State.IDLE)
            if self._waiting:
                self._connect()

    # --- grpc.aio.Channel -----------------------------------------------------------------------------------
    def _set_state(self, state: grpc.ChannelConnectivity) -> None:
        if self._state is not state and self._state is not _State.SHUTDOWN:
            self._state = state
            waiters, self._state_waiters = self._state_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection."""
        state = self._state
        if try_to_connect and state is _State.IDLE:
            self._connect()
        return state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return when the state is another one."""
        while self._state is last_observed_state:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._state_waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._state_waiters:
                    self._state_waiters.remove(waiter)

    async def channel_ready(self) -> None:
        """Connect, and return when it succeeded."""
        while (state := self.get_state(try_to_connect=True)) is not _State.READY:
            if state is _State.SHUTDOWN:
                raise grpc.aio.UsageError("Channel is closed.")
            await self.wait_for_state_change(state)

    async def close(self, grace: float | None = None) -> None:
        """Let calls end for `grace` seconds, cancel the others, close the connection."""
        connections = [*self._draining, *([self._connection] if self._connection is not None else [])]
        self._set_state(_State.SHUTDOWN)
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        for call in list(self._waiting):
            call.cancel()
        owners = [stream.owner for each in connections for stream in each.streams.values()]
        calls = [owner for owner in owners if isinstance(owner, MadeCall)]
        if grace and calls:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    for call in calls:
                        await call.code()
        for call in calls:
            call.cancel()
        self._connection = None
        await Http2Connection.close_all(connections, "the channel is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def was_not_sent(error: BaseException) -> bool:
    """Whether a call failed before anything of it was sent: it certainly had no effect."""
    return isinstance(error, grpc.aio.AioRpcError) and _NOT_CONNECTED in (error.details() or "")


def _authority(name: str) -> bytes:
    """Return the value of `:authority`."""
    if name.isascii():
        return name.encode("ascii")
    host, colon, port = name.partition(":")
    try:
        return host.encode("idna") + (colon + port).encode("ascii")
    except UnicodeError:  # such a name has no address, so nothing is sent
        return b"invalid"
