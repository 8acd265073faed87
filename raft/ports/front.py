"""Front of a port that gRPC shares with other protocols: passes connections on by their first bytes.

grpcio's server cannot adopt a socket. It serves a private Unix socket instead, and connections that the
`judge` does not claim are spliced to it in both directions. `handover.py` has the front of a server in the
event loop, which takes the connections themselves. Owns: the listening sockets, the Unix socket,
the splices and their number. Must not: look beyond the first bytes, or buffer without bound.

A silent connection delays no other one: it has a time limit, and when the port is full the longest-silent one
makes room. TLS connections go to a separate Unix socket (`tls_address`) once the hello is complete. Only a
few hellos are with the server at a time, until it has answered them, because that is where the CPU time goes.
A handshake that the client does not finish has a time limit too. So the server, never a client, decides how
long one of these places is taken.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

from .acceptor import ACCEPTS_PER_TURN, STARVED, Acceptor
from .counts import Ended, PortCounts, Refused
from .tls_records import ClientRecords, NoHelloError

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
#: Seconds after which a connection is closed if its purpose is unknown or its TLS handshake unfinished.
FIRST_BYTES_TIMEOUT_S: Final = 10.0
#: Seconds of silence after which a connection makes room on a full port. Real clients send sooner.
EVICTABLE_AFTER_S: Final = 1.0
#: If more connections than this, and more than this share of the port, are silent, the oldest makes room
#: however young it is. A real client has sent something long before its turn comes.
MANY_SILENT: Final = 4 * ACCEPTS_PER_TURN
MANY_SILENT_SHARE: Final = 1 / 8
#: TLS hellos that the server behind works on at the same time.
TLS_HELLOS_AT_ONCE: Final = 8
#: Bytes received by all connections of a front and not passed on yet. A complete hello usually has at most 2
#: KiB and is passed on within milliseconds.
MAX_HELD_BYTES: Final = 32 << 20
#: Seconds after which a connection that finds no room at the server behind is given up.
DOOR_TIMEOUT_S: Final = 5.0
#: Seconds between two attempts.
_PAUSE_S: Final = 0.005


class PortVerdict(Enum):
    """Judgement on the first bytes of a connection."""

    PASS_ON = "pass on"  # to the server behind
    PASS_ON_UNSETTLED = "pass on unsettled"  # to the server behind, which says later what it is for
    PASS_ON_TLS = "pass on tls"  # to its TLS socket, once the hello is complete
    WAIT = "wait"  # too few bytes to tell
    TAKEN = "taken"  # the judge closed the connection, or gave it another protocol


Judge = Callable[[asyncio.Transport, bytes], PortVerdict]


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """Connection limits of a front. Connections that the judge takes no longer count."""

    max_connections: int = 10_000
    per_address: int = 0  # 0: no limit per address
    reserve: int = 0  # places for connections that the judge takes, or that are not settled


class UnixDoor:
    """Private Unix socket of the server behind a front, with connections opened one at a time.

    It has a name only until the front listens. After that it is reached through a descriptor, so a killed
    process leaves nothing behind and no other user of the machine finds it. If the server is slow to accept,
    the kernel refuses the next connection (EAGAIN), and nothing signals when there is room again. A refused
    connection therefore retries after a pause, and later ones wait until it is through.
    """

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self.waiting = 0  # connections that wait for the server to accept
        self._path = str(path)
        self._handle = -1  # descriptor of the socket once it has no name any more
        self._turn = asyncio.Lock()

    async def connect(
        self, protocol: asyncio.Protocol, is_wanted: Callable[[], bool]
    ) -> asyncio.Transport | None:
        """Connect `protocol` and return its transport; None: it is no longer wanted.

        Raises: BlockingIOError (the server accepts none for too long), OSError.
        """
        connection = await self._reach(is_wanted)
        if connection is None:
            return None
        try:
            transport, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda: protocol, sock=connection
            )
        except BaseException:
            connection.close()
            raise
        return transport

    async def _reach(self, is_wanted: Callable[[], bool]) -> socket.socket | None:
        loop = asyncio.get_running_loop()
        until = loop.time() + DOOR_TIMEOUT_S
        self.waiting += 1
        try:
            async with self._turn:
                while is_wanted():
                    try:
                        return _connected(self._path)
                    except BlockingIOError:
                        if loop.time() >= until:
                            raise
                    await asyncio.sleep(_PAUSE_S)
                return None
        finally:
            self.waiting -= 1

    def hide(self) -> bool:
        """Reach the socket without its name from now on. False: the system does not support it."""
        if not hasattr(os, "O_PATH"):
            return False
        handle = os.open(self._path, os.O_PATH | os.O_CLOEXEC)
        unnamed = f"/proc/self/fd/{handle}"
        if not Path(unnamed).exists():  # no /proc here
            os.close(handle)
            return False
        self._handle, self._path = handle, unnamed
        return True

    def close(self) -> None:
        """Release the socket."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _connected(path: str) -> socket.socket:
    """Connect without waiting. asyncio treats "no room" on a Unix socket as "not yet"."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


class PortFront:
    """Usage: `inner_address` for the gRPC server, `await listen(sockets)`, `close()`."""

    def __init__(
        self, judge: Judge, limits: FrontLimits | None = None, counts: PortCounts | None = None
    ) -> None:
        self._judge = judge
        self._limits = limits or FrontLimits()
        self.counts = counts or PortCounts("port")
        self.counts.limit = self._limits.max_connections
        self._folder: Path | None = None  # of the Unix sockets, until they are hidden
        self._doors: dict[PortVerdict, UnixDoor] = {}
        self._acceptor: Acceptor | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[Inbound] = set()
        # connections in `_open` that are not judged or not settled yet, oldest first
        self._silent: dict[Inbound, None] = {}
        self._greeting: dict[Inbound, None] = {}  # silent ones that have sent part of a TLS hello
        self._held = 0  # bytes received and not passed on yet; invariant: at most MAX_HELD_BYTES
        self._of_address: Counter[str] = Counter()
        self._hellos = asyncio.Semaphore(TLS_HELLOS_AT_ONCE)

    @property
    def inner_address(self) -> str:
        """Address that the gRPC server must listen on, before `listen`."""
        return self._door(PortVerdict.PASS_ON, "grpc").address

    @property
    def tls_address(self) -> str:
        """Address that it must listen on for TLS, if the judge ever passes TLS on."""
        return self._door(PortVerdict.PASS_ON_TLS, "tls").address

    def _door(self, verdict: PortVerdict, name: str) -> UnixDoor:
        if verdict not in self._doors:
            self._folder = self._folder or Path(mkdtemp(prefix="ledgermq-"))
            self._doors[verdict] = UnixDoor(self._folder / name)
        return self._doors[verdict]

    async def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections on these sockets, which the front owns from now on. Raises: OSError."""
        hidden = [door.hide() for door in self._doors.values()]
        if all(hidden):
            self._remove_folder()
        self._acceptor = Acceptor(sockets, self._admit, self.counts)

    def stop_listening(self) -> None:
        """Stop accepting connections and free the port."""
        if self._acceptor is not None:
            self._acceptor.close()

    def close(self) -> None:
        """Stop listening and close all open connections. The server behind must have drained before."""
        self.stop_listening()
        for inbound in list(self._open):
            inbound.close()
        for task in list(self._tasks):
            task.cancel()
        for door in self._doors.values():
            door.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- who comes in ---------------------------------------------------------------------------------------
    def _admit(self, host: str) -> asyncio.Protocol | None:
        limits = self._limits
        if limits.per_address and self._of_address[host] >= limits.per_address:
            self.counts.refuse(Refused.ADDRESS, host)
            return None
        if len(self._open) >= limits.max_connections and not self._make_room():
            self.counts.refuse(Refused.LIMIT, host)
            return None
        inbound = Inbound(self, host)
        self._open.add(inbound)
        self._silent[inbound] = None
        self._of_address[host] += 1
        self.counts.open = len(self._open)
        return inbound

    def _make_room(self) -> bool:
        """Close the longest-silent connection, unless it is young and few are silent. False: none closed."""
        oldest = next(iter(self._silent), None)
        if oldest is None:
            return False
        age = asyncio.get_running_loop().time() - oldest.since
        many = max(MANY_SILENT, self._limits.max_connections * MANY_SILENT_SHARE)
        if age < EVICTABLE_AFTER_S and len(self._silent) <= many:
            return False
        oldest.end(Ended.MADE_ROOM)
        return True

    def left(self, inbound: Inbound) -> None:
        """Remove a connection that ended or was taken over."""
        self._silent.pop(inbound, None)
        self._greeting.pop(inbound, None)
        if inbound in self._open:
            self._held -= inbound.held
            self._open.discard(inbound)
            self.counts.open = len(self._open)
            self._of_address[inbound.host] -= 1
            if not self._of_address[inbound.host]:
                del self._of_address[inbound.host]

    def judge(self, inbound: Inbound, transport: asyncio.Transport, first: bytes) -> PortVerdict:
        """Judge a connection. One that is passed on or taken is not judged again."""
        verdict = self._judge(transport, first)
        if verdict is PortVerdict.PASS_ON:
            if not self.settle(inbound):
                return PortVerdict.TAKEN
            self.pass_on(inbound, transport)
        elif verdict is PortVerdict.PASS_ON_UNSETTLED:
            self.pass_on(inbound, transport)
        elif verdict is PortVerdict.PASS_ON_TLS:
            self._greeting[inbound] = None
        elif verdict is PortVerdict.TAKEN:
            self.left(inbound)
        return verdict

    def settle(self, inbound: Inbound) -> bool:
        """Give a connection a place that it keeps. False: there was none, and the connection is closed."""
        if len(self._open) - len(self._silent) >= self._limits.max_connections - self._limits.reserve:
            self.counts.refuse(Refused.LIMIT, inbound.host)
            inbound.drop()
            return False
        self.greeted(inbound)
        return True

    def is_settled(self, inbound: Inbound) -> bool:
        """Return whether a connection keeps its place."""
        return inbound not in self._silent

    def hold(self, inbound: Inbound, size: int) -> bool:
        """Record bytes that cannot be passed on yet. False: there was no room, and the connection is closed.

        Connections with an incomplete hello make room first, oldest first.
        """
        if inbound not in self._open:
            return False
        self._held += size
        while self._held > MAX_HELD_BYTES and self._greeting:
            next(iter(self._greeting)).end(Ended.MADE_ROOM)
        if self._held > MAX_HELD_BYTES and inbound in self._open:
            self.counts.refuse(Refused.BUSY, inbound.host)
            inbound.drop()
        return inbound in self._open

    def passed_on(self, size: int) -> None:
        """Release `size` held bytes."""
        self._held -= size

    def said_hello(self, inbound: Inbound, transport: asyncio.Transport) -> None:
        """Pass a connection on, now that its TLS hello is complete."""
        self._greeting.pop(inbound, None)
        self._start(self.pass_on_tls(inbound, transport))

    def greeted(self, inbound: Inbound) -> None:
        """Note that the purpose of a connection is known, so it need not make room any more."""
        self._silent.pop(inbound, None)

    def secured(self, inbound: Inbound) -> None:
        """Note that a TLS handshake has ended. Where there is a reserve, the server settles connections."""
        if not self._limits.reserve:
            self.greeted(inbound)

    # --- passing on -----------------------------------------------------------------------------------------
    def pass_on(self, inbound: Inbound, client: asyncio.Transport) -> None:
        """Give a plaintext connection to the server behind."""
        self._start(self._connect(inbound, _Pipe(client), client, PortVerdict.PASS_ON))

    def _start(self, passing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(passing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(
        self, inbound: Inbound, outbound: _Pipe, client: asyncio.Transport, door: PortVerdict
    ) -> None:
        try:
            inner = await self._doors[door].connect(outbound, lambda: not client.is_closing())
        except OSError as error:
            self.counts.refuse(_why(error), inbound.host, error)
            client.abort()
        else:
            if inner is not None:
                inbound.connected(inner)

    async def pass_on_tls(self, inbound: Inbound, client: asyncio.Transport) -> None:
        """Pass a whole hello on when it is its turn. The turn ends with the server's answer."""
        async with self._hellos:
            if client.is_closing():  # it waited too long
                return
            outbound = _TlsOutbound(client, inbound)
            await self._connect(inbound, outbound, client, PortVerdict.PASS_ON_TLS)
            if not client.is_closing():
                await outbound.has_answered.wait()


def _why(error: OSError) -> Refused:
    """Return why the server behind was not reached."""
    if isinstance(error, BlockingIOError):
        return Refused.BUSY
    return Refused.DESCRIPTORS if error.errno in STARVED else Refused.UNREACHABLE


class _Pipe(asyncio.Protocol):
    """One direction of a splice: data received here is written to `other`."""

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


class _TlsOutbound(_Pipe):
    """Connection to the server behind, which may still be computing its answer to a hello."""

    def __init__(self, other: asyncio.Transport, inbound: Inbound) -> None:
        super().__init__(other)
        self.has_answered = asyncio.Event()
        self._inbound = inbound

    def data_received(self, data: bytes) -> None:
        if not self.has_answered.is_set():
            self.has_answered.set()
            self._inbound.answered()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_answered.set()
        super().connection_lost(exc)


class Inbound(_Pipe):
    """Incoming connection. When passed on, it is paused until the inner connection is open."""

    def __init__(self, front: PortFront, host: str) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.host = host
        self.since = loop.time()
        self._front = front
        self._first = bytearray()
        self._is_made = self._is_over = False
        self._records: ClientRecords | None = None  # set during the TLS handshake
        self._timer = loop.call_later(FIRST_BYTES_TIMEOUT_S, self._timed_out)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._is_made = True
        if self._is_over:
            self.transport.abort()

    @property
    def held(self) -> int:
        """Bytes received and not passed on yet."""
        return len(self._first)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            if self._records is not None:
                self._follow(data)
            self.other.write(data)
            return
        self._first += data
        if not self._front.hold(self, len(data)):
            return
        if self._records is None:
            self._judge()
        elif not self._records.is_hello_whole:
            self._greet(data)

    def _judge(self) -> None:
        # the new owner resumes reading: another protocol may read in another way
        self.transport.pause_reading()
        first = bytes(self._first)
        verdict = self._front.judge(self, self.transport, first)
        if verdict is PortVerdict.WAIT:
            self.transport.resume_reading()
        elif verdict is PortVerdict.PASS_ON_TLS:
            self._records = ClientRecords()
            self._greet(first)
        else:
            self._timer.cancel()

    def _greet(self, data: bytes) -> None:
        """Continue reading until the TLS hello is complete."""
        if self._follow(data):
            if self._records is not None and self._records.is_hello_whole:
                self.transport.pause_reading()
                self._front.said_hello(self, self.transport)
            else:
                self.transport.resume_reading()

    def _follow(self, data: bytes) -> bool:
        """Follow the client's TLS handshake. False: it is none, and the connection is closed."""
        assert self._records is not None
        try:
            self._records.feed(data)
        except NoHelloError:
            self.end(Ended.NO_HELLO)
            return False
        if self._records.has_ended:
            self.secured()
        return True

    def answered(self) -> None:
        """Note that the server behind has answered the TLS hello."""
        if self._records is not None:
            self._records.is_answered = True

    def take_over(self) -> bytes:
        """Return what has arrived, for the protocol that this connection gets instead."""
        first = bytes(self._first)
        self._front.passed_on(len(first))
        self._first.clear()
        return first

    def secured(self) -> None:
        """Note that the TLS handshake has ended."""
        self._records = None
        self._timer.cancel()
        self._front.secured(self)

    def connected(self, inner: asyncio.Transport) -> None:
        """Splice to the inner connection: send what has arrived so far, then let the rest flow."""
        if self.transport.is_closing():
            inner.close()
            return
        self.other = inner
        self._front.passed_on(self.held)
        inner.write(bytes(self._first))
        self._first.clear()
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._front.left(self)
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection once everything sent has left the write buffer."""
        self._is_over = True
        if self._is_made:
            self.transport.close()

    def end(self, why: Ended) -> None:
        """Close the connection at once and count the reason."""
        self._front.counts.ended[why] += 1
        self.drop()

    def drop(self) -> None:
        """Close the connection at once without counting."""
        self._front.left(self)
        self._timer.cancel()
        self._is_over = True
        if self._is_made:
            self.transport.abort()

    def _timed_out(self) -> None:
        greeted = self._records is not None and self._records.is_hello_whole
        self.end(Ended.HANDSHAKE if greeted else Ended.SILENT)


def take_port(address: str) -> list[socket.socket]:
    """Listen on every address of `host:port`. Connections wait until they are served. Raises: OSError."""
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
        # a name may have addresses that this machine lacks, such as ::1 in a container
        except OSError as error:
            taken.close()
            failed = error
    if not bound:
        raise failed
    return bound
