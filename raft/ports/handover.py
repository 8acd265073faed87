"""Front of a port whose server runs in the same event loop: it hands the connections themselves over.

Owns: the change of a connection's protocol, with the bytes that have arrived, and TLS handshakes. Must not:
know what the server speaks.

One accept, no Unix socket, no splice: the server reads and writes the client's connection and knows the
client's address. The connection keeps its place on the port until the server has lost it. A whole TLS hello
costs a millisecond of CPU on the loop's thread, so one is answered per turn of the loop: heartbeats between
nodes come in between, however many clients connect at once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from .counts import PortCounts
from .front import FrontLimits, Inbound, Judge, PortFront

#: Makes the protocol of a connection; calls what it is given when the connection is over.
Serve = Callable[[Callable[[], None]], asyncio.BufferedProtocol]


class EventLoopFront(PortFront):
    """Usage: `await listen(sockets)`, `stop_listening()`, `close()` after the server has drained."""

    def __init__(
        self,
        judge: Judge,
        serve: Serve,
        limits: FrontLimits | None = None,
        counts: PortCounts | None = None,
        tls: ssl.SSLContext | None = None,
        on_tls_failed: Callable[[str, OSError], None] = lambda host, error: None,
    ) -> None:
        """`tls`: for connections that the judge passes on as TLS; offers HTTP/2 from now on.

        `on_tls_failed` gets the client's address, and why there was no handshake.
        """
        super().__init__(judge, limits, counts)
        self._serve = serve
        self._tls = tls
        self._on_tls_failed = on_tls_failed
        self._turn = asyncio.Lock()
        self._unsettled: dict[asyncio.BufferedProtocol, Inbound] = {}
        if tls is not None:
            tls.set_alpn_protocols(["h2"])

    def pass_on(self, inbound: Inbound, client: asyncio.Transport) -> None:
        """Give a plaintext connection to the server."""
        self._hand_over(inbound, client, inbound.take_over())

    async def pass_on_tls(self, inbound: Inbound, client: asyncio.Transport) -> None:
        """Answer a whole hello when it is its turn, and give the connection to the server after it."""
        assert self._tls is not None
        loop = asyncio.get_running_loop()
        inbox = _Inbox()
        async with self._turn:
            if client.is_closing():
                return
            hello = inbound.take_over()
            # The time limit is the front's own: it counts what it ends.
            handshake = loop.create_task(loop.start_tls(client, inbox, self._tls, server_side=True))
            try:
                await asyncio.sleep(0)  # `start_tls` puts its protocol on the connection,
                await asyncio.sleep(0)  # and that one begins: the next to come is the hello
                feed(client.get_protocol(), hello)
                await asyncio.sleep(0)  # others, before the next hello
            except BaseException:
                handshake.cancel()
                raise
        try:
            secured = await handshake
        except OSError as error:  # no TLS after all, or the client left, or the front ended it
            self._on_tls_failed(inbound.host, error)
            inbound.drop()
            return
        inbound.secured()
        # uvloop ends the handshake of a connection that was closed meanwhile as if it had succeeded.
        if secured is None or inbox.is_lost or client.is_closing():
            inbound.drop()
            return
        self._hand_over(inbound, secured, bytes(inbox.received))

    def _hand_over(self, inbound: Inbound, transport: asyncio.Transport, first: bytes) -> None:
        protocol = self._serve(lambda: self._lost(protocol, inbound))
        if not self.is_settled(inbound):
            self._unsettled[protocol] = inbound
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.resume_reading()  # before the server, which may pause it
        feed(protocol, first)

    def _lost(self, protocol: asyncio.BufferedProtocol, inbound: Inbound) -> None:
        self._unsettled.pop(protocol, None)
        self.left(inbound)

    def settle_served(self, protocol: asyncio.BufferedProtocol) -> bool:
        """Give the connection of a server's protocol a place that it keeps, if it has none yet.

        False: there was none, and the connection is closed.
        """
        inbound = self._unsettled.pop(protocol, None)
        return inbound is None or self.settle(inbound)

    def release(self, protocol: asyncio.BufferedProtocol) -> None:
        """Count the connection of a server's protocol no longer, as one that the judge takes."""
        inbound = self._unsettled.pop(protocol, None)
        if inbound is not None:
            self.left(inbound)


class _Inbox(asyncio.BufferedProtocol):
    """Keeps what a TLS client sends right behind its handshake, until the server's protocol is there."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_lost = False
        self._buffer = memoryview(bytearray(64 << 10))  # asyncio reads several records into slices of it

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def feed(protocol: Any, data: bytes) -> None:
    """Give `data` to a protocol as if it had just been received."""
    left = memoryview(data)
    while left:
        with memoryview(protocol.get_buffer(len(left))) as buffer:
            count = min(len(buffer), len(left))
            buffer[:count] = left[:count]
        if not count:
            return  # it takes nothing more: it has ended the connection
        protocol.buffer_updated(count)
        left = left[count:]
