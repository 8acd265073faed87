"""Client ports of a node: per configured listener one server for each of two ports, and the messaging front.

A call is answered with the addresses of the listener that it arrived on, so each listener has handlers of its
own. Each port accepts a bounded number of connections, and closes useless ones: handshakes that do not
finish, clients that vanished silently, and connections that were idle for long (a client that waits for an
answer is not idle).
The servers are grpcio's, or `rpc` in the event loop: then every port has a front, which hands it the
connections that it accepted.
Owns: servers and fronts. Must not: know what the handlers do.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio

from ledgermq.raft.ports.counts import PortCounts, PortMetrics
from ledgermq.raft.ports.front import FrontLimits, Judge, PortFront, PortVerdict, take_port
from ledgermq.raft.ports.handover import EventLoopFront
from ledgermq.raft.ports.peer_sockets import set_options
from ledgermq.rpc.grpc_options import limits_of
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.shared_memory import SharedMemory
from ledgermq.rpc.wire_limits import WIDE_WINDOW, WireLimits

from ..config import ListenerConfig, split_address
from .open_connections import ConnectionWatch
from .port_policy import CLIENT_SOCKET_OPTIONS, PortPolicy
from .tls_judge import TlsJudge

logger = logging.getLogger(__name__)

Handlers = Sequence[Any]


class PortError(Exception):
    """A port cannot be opened; the text names the configuration key, the reason and the remedy."""

    def __init__(self, key: str, address: str, reason: str, remedy: str = "") -> None:
        remedy = remedy or f"Free the port or set {key} to another"
        super().__init__(f"{address} ({key}) cannot be opened: {reason}. {remedy}, then start again.")


def check_port(key: str, address: str) -> None:
    """Try to bind an address, because gRPC's own error does not say why it failed. Raises: PortError."""
    host, port = split_address(address)
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            remedy = f"Set {key} to an address of this machine (ip address shows them)"
            raise PortError(key, address, f"{host} is no address of this machine", remedy) from None
        taken = error.errno == errno.EADDRINUSE
        reason = "another process uses it (ss -tnap shows which)" if taken else (error.strerror or str(error))
        raise PortError(key, address, reason) from None


class Listener:
    """The two ports of one listener: log and messaging."""

    def __init__(
        self, config: ListenerConfig, policy: PortPolicy, metrics: PortMetrics, memory: SharedMemory
    ) -> None:
        """`memory`: for requests to all listeners, when the event loop serves them."""
        self.config = config
        self._policy = policy
        limit = policy.max_connections
        self._log_counts = metrics.add("log", config.name, limit)
        self._messaging_counts = metrics.add("messaging", config.name, limit)
        self._in_loop = policy.transport == "event_loop"
        self._log_server = _server(policy, limit, self._log_counts, memory)
        limit_of_server = None if policy.front and not self._in_loop else limit
        self._messaging_server = _server(policy, limit_of_server, self._messaging_counts, memory)
        self._fronts: list[PortFront] = []

    @property
    def uncounted(self) -> Mapping[int, PortCounts]:
        """The ports that grpcio accepts connections on by itself, by port number."""
        if self._in_loop:
            return {}
        ports = {split_address(self.config.log_bind)[1]: self._log_counts}
        if not self._policy.front:
            ports[split_address(self.config.messaging_bind)[1]] = self._messaging_counts
        return ports

    async def start(self, log_handlers: Handlers, messaging_handlers: Handlers) -> None:
        """Open both ports. Raises: PortError."""
        config = self.config
        self._log_server.add_generic_rpc_handlers(tuple(log_handlers))
        self._messaging_server.add_generic_rpc_handlers(tuple(messaging_handlers))
        if self._in_loop:
            await self._start_in_loop()
        else:
            _add_port(self._log_server, "log_bind", config.log_bind)
            if self._policy.front:
                await self._start_front(config.messaging_bind)
            else:
                _add_port(self._messaging_server, "messaging_bind", config.messaging_bind)
        await self._log_server.start()
        await self._messaging_server.start()

    async def _start_front(self, address: str) -> None:
        """Serve on private Unix sockets behind a front that listens on `address`."""
        policy = self._policy
        front = PortFront(
            TlsJudge(
                self._messaging_counts.name, plaintext=policy.plaintext, tls=policy.credentials is not None
            ),
            FrontLimits(policy.max_connections, policy.per_address),
            self._messaging_counts,
        )
        self._messaging_server.add_insecure_port(front.inner_address)
        if policy.credentials is not None:
            self._messaging_server.add_secure_port(front.tls_address, policy.credentials)
        await self._listen(front, "messaging_bind", address)

    async def _start_in_loop(self) -> None:
        """Hand the connections of both ports to the servers in the event loop."""
        policy, limits = self._policy, FrontLimits(self._policy.max_connections)
        serve = self._log_server.serve_connection
        front = EventLoopFront(TlsJudge(self._log_counts.name), serve, limits, self._log_counts)
        await self._listen(front, "log_bind", self.config.log_bind)
        judge: Judge = _pass_on
        if policy.front:
            name = self._messaging_counts.name
            judge = TlsJudge(name, plaintext=policy.plaintext, tls=policy.tls is not None)
            limits = FrontLimits(policy.max_connections, policy.per_address)
        serve = self._messaging_server.serve_connection
        front = EventLoopFront(judge, serve, limits, self._messaging_counts, policy.tls)
        await self._listen(front, "messaging_bind", self.config.messaging_bind)

    async def _listen(self, front: PortFront, key: str, address: str) -> None:
        """Open a port for a front. Raises: PortError."""
        self._fronts.append(front)
        try:
            sockets = take_port(address)
            for each in sockets:
                set_options(each, CLIENT_SOCKET_OPTIONS)
            await front.listen(sockets)
        except OSError as error:
            front.close()
            raise PortError(key, address, os.strerror(error.errno or 0)) from None

    async def stop(self, grace: float) -> None:
        """Refuse new calls, give open ones `grace` seconds, then close."""
        for front in self._fronts:
            front.stop_listening()
        await asyncio.gather(self._log_server.stop(grace), self._messaging_server.stop(grace))
        for front in self._fronts:
            front.close()


def _server(policy: PortPolicy, max_connections: int | None, counts: PortCounts, memory: SharedMemory) -> Any:
    """Return a server of the policy's transport."""
    options = policy.server_options(max_connections)
    if policy.transport == "grpcio":
        return grpc.aio.server(options=options)
    # Without a time for idle connections among the options they stay open.
    limits = limits_of(options, WireLimits(stream_window=WIDE_WINDOW, max_idle_s=0))
    return GrpcServer(limits, takes_compressed=False, name=counts.name, memory=memory)


def _pass_on(transport: asyncio.Transport, first: bytes) -> PortVerdict:
    """Judge a port that only the server behind it uses."""
    return PortVerdict.PASS_ON


def _add_port(server: grpc.aio.Server, key: str, address: str) -> None:
    check_port(key, address)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise PortError(key, address, str(error)) from None


class Listeners:
    """All listeners of the node."""

    def __init__(self, configs: Sequence[ListenerConfig], policy: PortPolicy, metrics: PortMetrics) -> None:
        memory = SharedMemory.of_servers(WireLimits())
        self._listeners = [Listener(config, policy, metrics, memory) for config in configs]
        self._watch = ConnectionWatch(
            {port: counts for each in self._listeners for port, counts in each.uncounted.items()}
        )

    async def start(self, handlers: Callable[[str], tuple[Handlers, Handlers]]) -> None:
        """Open every port. `handlers(name)` returns a listener's (log, messaging) handlers.

        Raises: PortError.
        """
        for listener in self._listeners:
            log, messaging = handlers(listener.config.name)
            await listener.start(log, messaging)
        self._watch.start()

    async def stop(self, grace: float) -> None:
        """Close every port after at most `grace` seconds."""
        await self._watch.stop()
        await asyncio.gather(*(listener.stop(grace) for listener in self._listeners))
