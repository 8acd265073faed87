"""The front of a port that more than gRPC shares: looks at the first bytes of a connection, then passes it on.

A gRPC server in Python cannot adopt a socket, so it serves on a private Unix socket, and what is not claimed by the
`judge` is spliced to it, both ways. Owns: the listening sockets, the Unix socket, the splices, and how many there are.
Must not: look at more than the first bytes, or buffer without bound.

Who connects and says nothing holds nobody up: it has a time limit, and when the port is full the one that has been
silent for longest makes room. TLS goes to a door of its own (`tls_address`) when the hello is whole, a few hellos at a time
until the server has answered them, which is where the computing is; a handshake that the client does not end has a time
limit, too. So it is the server, never a client, that decides how long a place among the few is taken.
"""

from __future__ import annotations

import asyncio
import logging
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
from .unix_door import UnixDoor

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
#: A connection that has not said what it is for, or not ended its TLS handshake, is closed after so long, s.
FIRST_BYTES_TIMEOUT_S: Final = 10.0
#: One that is silent for so long, s, makes room when the port is full; whoever has something to say says it sooner.
EVICTABLE_AFTER_S: Final = 1.0
#: When more than so many, and more than this part of the port, are silent, the oldest of them makes room however young it
#: is: a client has long been heard before its turn to go comes.
MANY_SILENT: Final = 4 * ACCEPTS_PER_TURN
MANY_SILENT_SHARE: Final = 1 / 8
#: TLS hellos that the server behind works on at the same time.
TLS_HELLOS_AT_ONCE: Final = 8
#: Bytes that all connections of a front have said and that were not passed on yet. A whole hello has 2 KiB at most, as a
#: rule, and is passed on in milliseconds.
MAX_HELD_BYTES: Final = 32 << 20


class Verdict(Enum):
    """What the first bytes of a connection say."""

    PASS_ON = "pass on"  # to the server behind
    PASS_ON_TLS = "pass on tls"  # to its door for TLS, when the hello is whole
    WAIT = "wait"  # too few bytes to tell
    TAKEN = "taken"  # the judge closed the connection, or gave it another protocol


Judge = Callable[[asyncio.Transport, bytes], Verdict]


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """How many connections a front holds. Those that the judge takes count no longer."""

    max_connections: int = 10_000
    per_address: int = 0  # 0: as many as the port takes
    reserve: int = 0  # of them, places that nothing is passed on from: who is taken always finds one


class PortFront:
    """Use: `inner_address` for the gRPC server, `await listen(sockets)`, `close()`."""

    def __init__(
        self, judge: Judge, limits: FrontLimits | None = None, counts: PortCounts | None = None
    ) -> None:
        self._judge = judge
        self._limits = limits or FrontLimits()
        self.counts = counts or PortCounts("port")
        self.counts.limit = self._limits.max_connections
        self._folder = Path(mkdtemp(prefix="ledgermq-"))
        self._doors = {Verdict.PASS_ON: UnixDoor(self._folder / "grpc")}
        self._acceptor: Acceptor | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[_Inbound] = set()
        self._silent: dict[_Inbound, None] = {}  # of them, those that are not judged; the oldest first
        self._greeting: dict[_Inbound, None] = {}  # of the silent, those that have said a part of a TLS hello
        self._held = 0  # bytes that were said and not passed on yet
        self._of_address: Counter[str] = Counter()
        self._hellos = asyncio.Semaphore(TLS_HELLOS_AT_ONCE)

    @property
    def inner_address(self) -> str:
        """Where the gRPC server must listen, before `listen`."""
        return self._doors[Verdict.PASS_ON].address

    @property
    def tls_address(self) -> str:
        """Where it must listen for TLS, when the judge ever passes that on."""
        return self._doors.setdefault(Verdict.PASS_ON_TLS, UnixDoor(self._folder / "tls")).address

    async def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Take connections on these listening sockets, which are the front's from now on. Raises: OSError."""
        hidden = [door.hide() for door in self._doors.values()]
        if all(hidden):
            shutil.rmtree(self._folder, ignore_errors=True)
        self._acceptor = Acceptor(sockets, self._admit, self.counts)

    def stop_listening(self) -> None:
        """Take no more connections; the port is free."""
        if self._acceptor is not None:
            self._acceptor.close()

    def close(self) -> None:
        """Stop listening and close what is still open; the server behind must have drained before."""
        self.stop_listening()
        for inbound in list(self._open):
            inbound.close()
        for task in list(self._tasks):
            task.cancel()
        for door in self._doors.values():
            door.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- who comes in ------------------------------------------------------------------------------------------
    def _admit(self, host: str) -> asyncio.Protocol | None:
        limits = self._limits
        if limits.per_address and self._of_address[host] >= limits.per_address:
            self.counts.refuse(Refused.ADDRESS, host)
            return None
        if len(self._open) >= limits.max_connections and not self._make_room():
            self.counts.refuse(Refused.LIMIT, host)
            return None
        inbound = _Inbound(self, host)
        self._open.add(inbound)
        self._silent[inbound] = None
        self._of_address[host] += 1
        self.counts.open = len(self._open)
        return inbound

    def _make_room(self) -> bool:
        """Close the connection that has been silent for longest, unless it came a moment ago and few are silent."""
        oldest = next(iter(self._silent), None)
        if oldest is None:
            return False
        age = asyncio.get_running_loop().time() - oldest.since
        many = max(MANY_SILENT, self._limits.max_connections * MANY_SILENT_SHARE)
        if age < EVICTABLE_AFTER_S and len(self._silent) <= many:
            return False
        oldest.end(Ended.MADE_ROOM)
        return True

    def left(self, inbound: _Inbound) -> None:
        """A connection has ended, or is somebody else's."""
        self._silent.pop(inbound, None)
        self._greeting.pop(inbound, None)
        if inbound in self._open:
            self._held -= inbound.held
            self._open.discard(inbound)
            self.counts.open = len(self._open)
            self._of_address[inbound.host] -= 1
            if not self._of_address[inbound.host]:
                del self._of_address[inbound.host]

    def judge(self, inbound: _Inbound, transport: asyncio.Transport, first: bytes) -> Verdict:
        """Ask what becomes of a connection; one that is passed on or taken is asked for no more."""
        verdict = self._judge(transport, first)
        if verdict is Verdict.PASS_ON:
            if len(self._open) - len(self._silent) >= self._limits.max_connections - self._limits.reserve:
                self.counts.refuse(Refused.LIMIT, inbound.host)
                transport.abort()
                return Verdict.TAKEN
            self.greeted(inbound)
            self._start(self._connect(inbound, _Pipe(transport), transport, verdict))
        elif verdict is Verdict.PASS_ON_TLS:
            self._greeting[inbound] = None
        elif verdict is Verdict.TAKEN:
            self.left(inbound)
        return verdict

    def hold(self, inbound: _Inbound, size: int) -> bool:
        """Note that a connection said more than can be passed on now; False: there was no room, and it is closed.

        Hellos that are not whole make room first, the oldest of them.
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
        """So many bytes are held no longer."""
        self._held -= size

    def said_hello(self, inbound: _Inbound, transport: asyncio.Transport) -> None:
        """The TLS hello of a connection is whole."""
        self._greeting.pop(inbound, None)
        self._start(self._connect_tls(inbound, transport))

    def greeted(self, inbound: _Inbound) -> None:
        """It is known what a connection is for: it need not make room any more."""
        self._silent.pop(inbound, None)

    # --- passing on --------------------------------------------------------------------------------------------
    def _start(self, passing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(passing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(
        self, inbound: _Inbound, outbound: _Pipe, client: asyncio.Transport, door: Verdict
    ) -> None:
        try:
            inner = await self._doors[door].connect(outbound, lambda: not client.is_closing())
        except OSError as error:
            self.counts.refuse(_why(error), inbound.host, error)
            client.abort()
        else:
            if inner is not None:
                inbound.connected(inner)

    async def _connect_tls(self, inbound: _Inbound, client: asyncio.Transport) -> None:
        """Pass a hello on when it is its turn; the turn ends with the server's answer."""
        async with self._hellos:
            if client.is_closing():  # it waited for too long
                return
            outbound = _TlsOutbound(client, inbound)
            await self._connect(inbound, outbound, client, Verdict.PASS_ON_TLS)
            if not client.is_closing():
                await outbound.has_answered.wait()


def _why(error: OSError) -> Refused:
    """Tell why the server behind was not reached."""
    if isinstance(error, BlockingIOError):
        return Refused.BUSY
    return Refused.DESCRIPTORS if error.errno in STARVED else Refused.UNREACHABLE


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


class _TlsOutbound(_Pipe):
    """The connection to the server behind, which may still compute its answer to a hello."""

    def __init__(self, other: asyncio.Transport, inbound: _Inbound) -> None:
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


class _Inbound(_Pipe):
    """A connection that came in; when it is passed on, it is paused until the inner one stands."""

    def __init__(self, front: PortFront, host: str) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.host = host
        self.since = loop.time()
        self._front = front
        self._first = bytearray()
        self._is_made = self._is_over = False
        self._records: ClientRecords | None = None  # while its TLS handshake lasts
        self._timer = loop.call_later(FIRST_BYTES_TIMEOUT_S, self._timed_out)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._is_made = True
        if self._is_over:
            self.transport.abort()

    @property
    def held(self) -> int:
        """Bytes that were said and not passed on yet."""
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
        self.transport.pause_reading()  # whoever takes it begins anew: another protocol may read in another way
        first = bytes(self._first)
        verdict = self._front.judge(self, self.transport, first)
        if verdict is Verdict.WAIT:
            self.transport.resume_reading()
        elif verdict is Verdict.PASS_ON_TLS:
            self._records = ClientRecords()
            self._greet(first)
        else:
            self._timer.cancel()

    def _greet(self, data: bytes) -> None:
        """Read on until the TLS hello is whole."""
        if self._follow(data):
            if self._records is not None and self._records.is_hello_whole:
                self.transport.pause_reading()
                self._front.said_hello(self, self.transport)
            else:
                self.transport.resume_reading()

    def _follow(self, data: bytes) -> bool:
        """Notice what the client has done of its TLS handshake; False: it is none, and the connection is closed."""
        assert self._records is not None
        try:
            self._records.feed(data)
        except NoHelloError:
            self.end(Ended.NO_HELLO)
            return False
        if self._records.has_ended:
            self._records = None
            self._timer.cancel()
            self._front.greeted(self)
        return True

    def answered(self) -> None:
        """The server behind has answered the TLS hello."""
        if self._records is not None:
            self._records.is_answered = True

    def connected(self, inner: asyncio.Transport) -> None:
        """The inner connection stands: hand over what came so far and let the rest flow."""
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
        """Close the connection when what was sent is under way."""
        self._is_over = True
        if self._is_made:
            self.transport.close()

    def end(self, why: Ended) -> None:
        """Close the connection at once; it is not counted from now on."""
        self._front.counts.ended[why] += 1
        self.drop()

    def drop(self) -> None:
        """Close the connection at once, counted or not."""
        self._front.left(self)
        self._timer.cancel()
        self._is_over = True
        if self._is_made:
            self.transport.abort()

    def _timed_out(self) -> None:
        greeted = self._records is not None and self._records.is_hello_whole
        self.end(Ended.HANDSHAKE if greeted else Ended.SILENT)


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
