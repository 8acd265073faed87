"""The client ports of a node: for every configured listener one gRPC server, and the front of its messaging port.

A call is answered with the addresses of the listener that it came in on, so each listener has handlers of its own.
Owns: servers and fronts. Must not: know what the handlers do.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc.aio

from ledgermq.raft.port_front import PortFront, take_port

from .config import ListenerConfig, split_address
from .front import TlsJudge

logger = logging.getLogger(__name__)

MAX_REQUEST_SIZE: Final = (
    130 << 20
)  # bytes; a 4 MiB body and its properties must fit, as in the reference server
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_REQUEST_SIZE),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
)

Handlers = Sequence[Any]


class PortError(Exception):
    """A port cannot be opened; the text says which key, why and what to do."""

    def __init__(self, key: str, address: str, reason: str) -> None:
        super().__init__(
            f"{address} ({key}) cannot be opened: {reason}. Free the port or set {key} to another, then start again."
        )


def check_port(key: str, address: str) -> None:
    """Try to bind an address; gRPC's own error does not say why it failed. Raises: PortError."""
    host, port = split_address(address)
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "another process uses it (ss -tnap shows which)" if taken else (error.strerror or str(error))
        raise PortError(key, address, reason) from None


class Listener:
    """One listener that is open."""

    def __init__(self, config: ListenerConfig) -> None:
        self.config = config
        self._log_server = grpc.aio.server(options=_OPTIONS)
        self._messaging_server = grpc.aio.server(options=_OPTIONS)
        self._front: PortFront | None = None

    async def start(self, log_handlers: Handlers, messaging_handlers: Handlers, *, tls_front: bool) -> None:
        """Open both ports. Raises: PortError."""
        config = self.config
        self._log_server.add_generic_rpc_handlers(tuple(log_handlers))
        self._messaging_server.add_generic_rpc_handlers(tuple(messaging_handlers))
        _add_port(self._log_server, "log_bind", config.log_bind)
        if tls_front:
            await self._start_front(config.messaging_bind)
        else:
            _add_port(self._messaging_server, "messaging_bind", config.messaging_bind)
        await self._log_server.start()
        await self._messaging_server.start()

    async def _start_front(self, address: str) -> None:
        """Serve on a private Unix socket behind a front that listens on `address`."""
        self._front = PortFront(TlsJudge())
        self._messaging_server.add_insecure_port(self._front.inner_address)
        try:
            await self._front.listen(take_port(address))
        except OSError as error:
            self._front.close()
            raise PortError("messaging_bind", address, os.strerror(error.errno or 0)) from None

    async def stop(self, grace: float) -> None:
        """Refuse new calls, give open ones `grace` seconds, close."""
        await asyncio.gather(self._log_server.stop(grace), self._messaging_server.stop(grace))
        if self._front is not None:
            self._front.close()


def _add_port(server: grpc.aio.Server, key: str, address: str) -> None:
    check_port(key, address)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise PortError(key, address, str(error)) from None


class Listeners:
    """All listeners of the node. `handlers(name)` returns (log port, messaging port) handlers of one of them."""

    def __init__(self, configs: Sequence[ListenerConfig], *, tls_front: bool) -> None:
        self._listeners = [Listener(config) for config in configs]
        self._tls_front = tls_front

    async def start(self, handlers: Callable[[str], tuple[Handlers, Handlers]]) -> None:
        """Open every port. Raises: PortError."""
        for listener in self._listeners:
            log, messaging = handlers(listener.config.name)
            await listener.start(log, messaging, tls_front=self._tls_front)

    async def stop(self, grace: float) -> None:
        """Close every port after at most `grace` seconds."""
        await asyncio.gather(*(listener.stop(grace) for listener in self._listeners))
