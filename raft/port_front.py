"""The front of a port that more than gRPC shares: looks at the first bytes of a connection, then passes it on.

A gRPC server in Python cannot adopt a socket, so it serves on a private Unix socket, and what is not claimed by the
`judge` is spliced to it, both ways. Owns: the listening sockets, the Unix socket, the splices.
Must not: look at more than the first bytes, or buffer without bound.

The Unix socket has a name only until the front listens: from then on it is reached through a descriptor, so that a
process that is killed leaves nothing behind, and nobody else on the machine finds it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
#: A connection that says nothing for so long, s, is closed, as gRPC does with one that begins no handshake.
FIRST_BYTES_TIMEOUT_S: Final = 120.0


class Verdict(Enum):
    """What the first bytes of a connection say."""

    PASS_ON = "pass on"  # to the server behind
    WAIT = "wait"  # too few bytes to tell
    TAKEN = "taken"  # the judge closed the connection, or gave it another protocol


Judge = Callable[[asyncio.Transport, bytes], Verdict]


class PortFront:
    """Use: `inner_address` for the gRPC server, `await listen(sockets)`, `close()`."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._folder = Path(mkdtemp(prefix="ledgermq-"))
        self._inner_path = str(self._folder / "grpc")
        self._handle = -1  # of the Unix socket, when it has no name any more
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[_Inbound] = set()

    @property
    def inner_address(self) -> str:
        """Where the gRPC server must listen, before `listen`."""
        return f"unix:{self._inner_path}"

    async def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Take connections on these listening sockets, which are the front's from now on. Raises: OSError."""
        self._hide_inner()
        for each in sockets:
            server = await asyncio.get_running_loop().create_server(
                lambda: _Inbound(self), sock=each, backlog=BACKLOG
            )
            self._servers.append(server)

    def _hide_inner(self) -> None:
        """Take the name of the Unix socket away, where the system can reach it without one."""
        if not hasattr(os, "O_PATH"):
            return
        handle = os.open(self._inner_path, os.O_PATH | os.O_CLOEXEC)
        unnamed = f"/proc/self/fd/{handle}"
        if not Path(unnamed).exists():  # no /proc here
            os.close(handle)
            return
        self._handle, self._inner_path = handle, unnamed
        shutil.rmtree(self._folder, ignore_errors=True)

    def stop_listening(self) -> None:
        """Take no more connections; the port is free with `close`, or a moment later."""
        loop = asyncio.get_running_loop()
        for server in self._servers:
            if not isinstance(loop, asyncio.SelectorEventLoop):
                server.close()
                continue
            # asyncio's own loop loses a connection, unclosed, when its server is closed between the accept and the turn
            # after it. So first no more accepts, and the server ends when the last of them have been seen.
            for each in server.sockets:
                loop.remove_reader(each.fileno())
            loop.call_soon(loop.call_soon, server.close)

    def close(self) -> None:
        """Stop listening and close what is still open; the server behind must have drained before."""
        for server in self._servers:
            server.close()
        for inbound in list(self._open):
            inbound.close()
        for task in list(self._tasks):
            task.cancel()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        shutil.rmtree(self._folder, ignore_errors=True)

    def judge(self, inbound: _Inbound, transport: asyncio.Transport, first: bytes) -> Verdict:
        """Ask what becomes of a connection; one that is passed on or taken is asked for no more."""
        verdict = self._judge(transport, first)
        if verdict is Verdict.PASS_ON:
            task = asyncio.get_running_loop().create_task(self._connect(inbound, transport))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif verdict is Verdict.TAKEN:
            self._open.discard(inbound)
        return verdict

    def opened(self, inbound: _Inbound) -> None:
        """A connection came in."""
        self._open.add(inbound)

    def lost(self, inbound: _Inbound) -> None:
        """A connection ended."""
        self._open.discard(inbound)

    async def _connect(self, inbound: _Inbound, client: asyncio.Transport) -> None:
        outbound = _Pipe(client)
        try:
            inner, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda: outbound, self._inner_path
            )
        except OSError as error:
            logger.warning("front cannot reach the server behind it error=%s", error)
            client.close()
            return
        inbound.connected(inner)


class _Pipe(asyncio.Protocol):
    """One direction of a splice: what arrives here is written to `other`."""

    def __init__(self, other: asyncio.Transport | None = None) -> None:
        self.transport: asyncio.Transport
        self.other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are no subclasses of asyncio.Transport

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
    """A connection that came in; when it is passed on, it is paused until the inner one stands."""

    def __init__(self, front: PortFront) -> None:
        super().__init__()
        self._front = front
        self._first = b""
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTES_TIMEOUT_S, self.transport.abort)
        self._front.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
            return
        self._first += data
        self.transport.pause_reading()  # whoever takes it begins anew: another protocol may read in another way
        if self._front.judge(self, self.transport, self._first) is Verdict.WAIT:
            self.transport.resume_reading()
        else:
            self._timer.cancel()

    def connected(self, inner: asyncio.Transport) -> None:
        """The inner connection stands: hand over what came so far and let the rest flow."""
        if self.transport.is_closing():
            inner.close()
            return
        self.other = inner
        inner.write(self._first)
        self._first = b""
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._front.lost(self)
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection."""
        self.transport.close()


def take_port(address: str) -> list[socket.socket]:
    """Listen on every address of a host `host:port`; who connects waits until it is served. Raises: OSError."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    failed = OSError(f"{address} has no address")
    for family, kind, protocol, _, where in found:
        taken = socket.socket(family, kind, protocol)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # "[::]" means every address, as it does for gRPC
                taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, where[0] != "::")
            taken.bind(where)
            taken.listen(BACKLOG)
            taken.setblocking(False)
            bound.append(taken)
        except OSError as error:  # a name may have addresses that this machine lacks, as ::1 in a container
            taken.close()
            failed = error
    if not bound:
        raise failed
    return bound
