"""The front of a messaging port: looks at the first byte of a connection, and passes plaintext on.

Official clients in four languages speak TLS unless told otherwise (protocol.md 2.2). A TLS hello (0x16) on this
plaintext port is closed at once, and logged once per peer with what to switch; anything else is spliced to the
gRPC server behind. Must not: look at more than the first byte, or buffer without bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final

logger = logging.getLogger(__name__)

TLS_HANDSHAKE: Final = 0x16
#: Peers that were told already; the oldest is forgotten first.
MAX_REMEMBERED_PEERS: Final = 1024
SWITCH_TLS_OFF: Final = (
    "this port is plaintext. Switch TLS off in the client: Java ClientConfiguration enableSsl(false); "
    "Go EnableSsl=false or env rocketmq.client.enableSsl=false; C# EnableSsl(false); C++ withSsl(false); "
    "Python without tls_enable; Node sslEnabled: false; Rust set_enable_tls(false)"
)


class _Pipe(asyncio.Protocol):
    """One direction of a spliced connection: what arrives here is written to `other`."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


class _Inbound(_Pipe):
    """A client's connection; paused after its first bytes until the inner connection stands."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front
        self._first: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._front.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
            return
        assert self.transport is not None
        if self._first is None and data[0] == TLS_HANDSHAKE:
            self._front.tell_to_switch_tls_off(self.transport.get_extra_info("peername"))
            self.transport.close()
            return
        self._first = (self._first or b"") + data
        self.transport.pause_reading()
        self._front.connect(self)

    def connected(self, inner: asyncio.Transport) -> None:
        """The inner connection stands: hand over what came so far and let the rest flow."""
        assert self.transport is not None
        if self.transport.is_closing():
            inner.close()
            return
        self.other = inner
        inner.write(self._first or b"")
        self._first = b""
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._front.connections.discard(self)
        super().connection_lost(exc)


class Front:
    """Listens on one messaging address and splices to the Unix socket of the gRPC server behind."""

    def __init__(self, inner_path: str) -> None:
        self._inner_path = inner_path
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: OrderedDict[str, None] = OrderedDict()
        self.connections: set[_Inbound] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises: OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Inbound(self), host, port, backlog=1024
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and close what is still open; the gRPC server behind must have drained before."""
        if self._server is not None:
            self._server.close()
        for inbound in list(self.connections):
            if inbound.transport is not None:
                inbound.transport.close()
        for task in list(self._tasks):
            task.cancel()

    def connect(self, inbound: _Inbound) -> None:
        """Open the inner connection of a new client."""
        task = asyncio.get_running_loop().create_task(self._connect(inbound))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, inbound: _Inbound) -> None:
        outbound = _Pipe()
        outbound.other = inbound.transport
        try:
            transport, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda: outbound, self._inner_path
            )
        except OSError as error:
            logger.warning("front cannot reach the server behind it error=%s", error)
            if inbound.transport is not None:
                inbound.transport.close()
            return
        inbound.connected(transport)

    def tell_to_switch_tls_off(self, peer: object) -> None:
        """Log once per peer address what to switch."""
        host = str(peer[0]) if isinstance(peer, tuple) else str(peer)
        if host in self._told:
            return
        self._told[host] = None
        if len(self._told) > MAX_REMEMBERED_PEERS:
            self._told.popitem(last=False)
        logger.warning("tls hello refused peer=%s: %s", host, SWITCH_TLS_OFF)
