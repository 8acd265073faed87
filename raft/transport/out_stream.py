"""Outgoing stream to one peer: connect, greet, write frames, notice the end, reconnect.

Owns: one connection with one call on it (D36) and a bounded queue. Must not: know Raft. Frames are made when
the stream is ready for them, so buffers hold little that is stale. While the stream is down everything is
dropped: Raft sends again.
Invariant: nothing is written before the peer has accepted the greeting.

A connection may look healthy although something between the nodes swallows its bytes. The peer therefore
reports how many bytes have arrived, independently of its disk. A stream that makes no progress while the peer
talks is reopened.

A peer of the version before does not know the call: then the same attempt goes on with plain frames. A peer
with which TLS fails is called in plaintext where the settings allow both. So each new connection tells anew
what the peer understands, and a peer that was upgraded is called at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import Buffer
from ledgermq.rpc.shared_memory import SharedMemory

from ..config import Member
from ..errors import DamagedFrameError
from ..peer_tls import ONLY_TLS, PeerTls, TlsFailedError, TlsFault, names_of
from ..ports.peer_sockets import connect
from ..types import NodeId
from .call_streams import OutgoingCall
from .former_streams import FormerOutgoing
from .hello import MAX_GREETING_SIZE, Hello, Refusal
from .stream_kind import OutgoingStream, StreamKind
from .stream_watch import StreamWatch

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
# Takes at least one item off the queue and returns the parts of a frame; the last one is its checksum.
MakeFrame = Callable[["deque[Item]"], Sequence[Buffer]]
# Takes `on_frame` and `on_lost`.
MakeStream = Callable[[Callable[[Buffer], None], Callable[[str], None]], OutgoingStream]

CONNECT_TIMEOUT_S: Final = 1.0
GREETING_TIMEOUT_S: Final = 2.0
RECONNECT_DELAY_S: Final = 0.02
RECONNECT_DELAY_MAX_S: Final = 0.08
REFUSED_DELAY_S: Final = 1.0  # after the peer refused the greeting: a person must act
LOST_HINT_DELAY_S: Final = 0.1  # without a new connection by then, the peer counts as gone (D10)
#: A completely silent peer may be busy or stopped, which a new connection does not fix. It gets this many
#: times the limit.
SILENT_TIMES: Final = 3
#: Each new connection that also stalls doubles the limit of the next one, up to this factor.
MAX_PATIENCE: Final = 8
LOG_PERIOD_S: Final = 60.0


_STUCK: Final = "nothing of it arrives at the peer"
_REFUSED_THERE: Final = (
    "when the log of that node says that it refuses this certificate, see to peer_tls_certificate here and "
    "peer_tls_ca there"
)


class Gate(Protocol):
    """Judges greetings, receives frames and events of streams, all on the loop. The node implements it."""

    def hello(self, to: NodeId | None) -> Hello:
        """Return this node's greeting. `to` is None in a reply."""

    async def admit(self, hello: Hello) -> Refusal | None:
        """Judge a peer's greeting. If it is accepted, its incarnation is stored durably on return.

        Raises: OSError (it cannot be stored now).
        """

    def on_frame(self, peer: NodeId, kind: StreamKind, frame: Buffer) -> None:
        """Handle one frame of an accepted stream. Must not block."""

    def on_refused(self, peer: NodeId, refusal: Refusal, hello: Hello) -> None:
        """Handle that a peer, not a learner, refused this node's greeting. `hello` is the peer's."""

    def on_other_generation(self, hello: Hello) -> None:
        """Handle a peer's report that the broker group goes on without this node's folder, or the peer's."""

    def on_link_up(self, peer: NodeId, kind: StreamKind) -> None:
        """Note that an outgoing stream is ready: it accepts items from now on."""

    def on_link_lost(self, peer: NodeId, kind: StreamKind, *, gone: bool) -> None:
        """Note that an outgoing stream ended.

        `gone`: the peer's process seems dead: refused, unreachable, or not reconnected within 100 ms.
        """

    def on_link_stuck(self, peer: NodeId, kind: StreamKind) -> None:
        """Note that an outgoing stream made no progress and is reopened. That says nothing about the peer."""

    def on_damaged(self, peer: NodeId | None) -> None:
        """Note that received bytes were corrupted; None: the sender is unknown. That connection has ended."""


class StreamOwner(Protocol):
    """The transport, as its streams see it."""

    @property
    def gate(self) -> Gate: ...

    @property
    def heard_at(self) -> dict[NodeId, float]:
        """Time of the last bytes from each peer, by the loop's clock."""

    @property
    def tls(self) -> PeerTls: ...

    @property
    def scratch(self) -> bytearray:
        """Memory that all connections of the loop receive into."""

    @property
    def budget(self) -> SharedMemory:
        """Budget of received bytes, of all streams to and from the peers."""

    async def judge_reply(self, peer: NodeId, reply: pb.HelloReply) -> bool:
        """Judge the peer's reply to the greeting. False: do not use the stream.

        Raises: OSError (storing failed), ValueError (unreadable reply).
        """

    def note_damaged(self, peer: NodeId | None, kind: StreamKind, reason: str) -> None:
        """Record that received bytes were corrupted."""

    def note_tls(self, peer: NodeId, reason: str, advice: str) -> None:
        """Record that there is no TLS with a peer."""


class LogLimit:
    """Limit of repeated log lines: one per key and minute. Keys come from closed sets, such as members."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        # time of the last line, and number of lines suppressed since
        self._said: dict[Hashable, tuple[float, int]] = {}

    def passes(self, key: Hashable, now: float) -> int | None:
        """Return the number of lines suppressed since the last one; None: do not log now."""
        at, kept_back = self._said.get(key, (float("-inf"), 0))
        if now - at < LOG_PERIOD_S:
            self._said[key] = at, kept_back + 1
            return None
        self._said[key] = now, 0
        return kept_back


@dataclass(slots=True)
class _Ended(Exception):
    """End of a session. `unreachable`: the peer's port does not accept connections."""

    reason: str
    unreachable: bool = False
    not_wanted: bool = False  # the peer refused the greeting
    is_unanswered: bool = False  # the peer ended the connection before it answered the greeting
    is_stuck: bool = False


class _OlderBuildError(Exception):
    """The peer does not know the call."""


class OutStream(Generic[Item]):
    """Use: `start()`, `put(item)`, `await close()`. All on the loop thread."""

    def __init__(
        self,
        kind: StreamKind,
        peer: Member,
        owner: StreamOwner,
        make_frame: MakeFrame[Item],
        limit: int,
        stall_s: float,
    ) -> None:
        """`limit`: maximum queue length. `stall_s`: shorter stalls are ignored."""
        self.kind = kind
        self.peer = peer
        self.connected = False
        self.is_closed_there = False  # the last attempt was refused or timed out
        self._owner = owner
        self._make_frame = make_frame
        self._queue: deque[Item] = deque(maxlen=limit)  # when full, the oldest item is dropped
        self._stream: OutgoingStream | None = None  # set once it is greeted
        self._task: asyncio.Task[None] | None = None
        self._hint: asyncio.TimerHandle | None = None
        self._was_connected = False
        self._watch = StreamWatch(stall_s)
        self._watch_timer: asyncio.TimerHandle | None = None
        self._arrived = 0  # bytes of this connection that the peer reported as received
        # factor of the stall limit; above 1: connections stalled, and none has made progress since
        self._patience = 1
        self._stuck_at = 0.0  # when the last stalled connection was given up
        self._log_limit = LogLimit()

    def start(self) -> None:
        """Start connecting."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"{self.kind.value} {self.peer.address}"
        )

    async def close(self) -> None:
        """Stop at once. Queued items are dropped."""
        self.silence()
        if self._task is not None:
            await asyncio.wait([self._task])

    def silence(self) -> None:
        """End the stream for good. Call `close` afterwards."""
        self.connected = False
        self._queue.clear()
        if self._stream is not None:
            self._stream.abort("silenced")
        for timer in (self._hint, self._watch_timer):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def put(self, item: Item) -> None:
        """Send one item. It is dropped if the stream is down: Raft sends again."""
        stream = self._stream
        if self.connected and stream is not None:
            self._queue.append(item)
            self._write()

    def _write(self) -> None:
        queue, stream = self._queue, self._stream
        if self.connected and stream is not None:
            while queue and stream.may_send:
                stream.send(self._make_frame(queue))
            if self._watch_timer is None and stream.sent > self._arrived:
                self._look()

    async def _run(self) -> None:
        delay = 0.0
        while True:
            try:
                await self._session()
            except _Ended as end:
                was = self.connected
                self._disconnected(end)
                # A peer whose process ended refuses at once. A peer that only cut the connection accepts
                # again at once.
                delay = 0.0 if was else min(max(delay * 2, RECONNECT_DELAY_S), RECONNECT_DELAY_MAX_S)
                await asyncio.sleep(REFUSED_DELAY_S if end.not_wanted else delay)

    async def _session(self) -> None:
        """Run one connection until it ends. Always raises _Ended."""
        await self._with_tls()
        try:
            await self._use(self._call)
        except _OlderBuildError:
            before = self._log_limit.passes(_OlderBuildError, asyncio.get_running_loop().time())
            if before is not None:
                logger.info(
                    "peer speaks plain frames, as the version before stream=%s peer=%s",
                    self.kind.value, self.peer.address,
                )  # fmt: skip
            await self._use(self._former)

    async def _with_tls(self) -> None:
        """Run one connection with TLS, if this node has it. Returns where plaintext is to be tried.

        Raises: _Ended.
        """
        owner, peer = self._owner, self.peer
        if owner.tls.calling is None:
            return
        try:
            await self._use(self._call, owner.tls.calling)
        except _OlderBuildError:
            raise _Ended("it does not know the streams of this build") from None
        except TlsFailedError as error:
            if error.fault is TlsFault.SILENT:
                raise _Ended(error.reason) from None
            reason, advice, waits = error.reason, error.advice, error.fault is not TlsFault.ENDED
            if error.fault is TlsFault.OTHER_NAME:
                reason = f"{reason}, but for {await self._names_there()}"
        except _Ended as end:
            if not end.is_unanswered:
                raise
            # A certificate of this node is refused behind its end of the handshake.
            reason, advice, waits = end.reason, _REFUSED_THERE, True
        owner.note_tls(peer.node_id, reason, advice)
        if not owner.tls.takes_plaintext:
            raise _Ended(reason, not_wanted=waits)

    async def _names_there(self) -> str:
        """Return what the peer's certificate is for, by a connection for that alone."""
        try:
            transport = await connect(
                self.peer.address, asyncio.Protocol(), CONNECT_TIMEOUT_S, self._owner.tls.asking
            )
        except (OSError, TlsFailedError):
            return "another one"
        names = names_of(transport.get_extra_info("peercert"))
        transport.abort()
        return names

    def _call(self, on_frame: Callable[[Buffer], None], on_lost: Callable[[str], None]) -> OutgoingStream:
        owner = self._owner
        return OutgoingCall(self.peer.address, owner.scratch, owner.budget, on_frame, on_lost, self._write)

    def _former(self, on_frame: Callable[[Buffer], None], on_lost: Callable[[str], None]) -> OutgoingStream:
        return FormerOutgoing(on_frame, on_lost, MAX_GREETING_SIZE, self._write)

    async def _use(self, make: MakeStream, tls: ssl.SSLContext | None = None) -> None:
        """Run one connection until it ends. Raises: _Ended, _OlderBuildError, TlsFailedError; one always."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Buffer] = loop.create_future()
        lost: asyncio.Future[str] = loop.create_future()

        def on_frame(frame: Buffer) -> None:  # the reply to the greeting, then reports of received bytes
            if not answered.done():
                answered.set_result(frame)
            elif self._stream is not None:
                self._note_arrived(self._stream, frame)

        def on_lost(reason: str) -> None:
            if not lost.done():  # cancelled together with the task that waits for it
                lost.set_result(reason)

        stream = make(on_frame, on_lost)
        try:
            await connect(self.peer.address, stream.protocol, CONNECT_TIMEOUT_S, tls)
        except socket.gaierror as error:
            raise _Ended(f"its name is not known: {error.strerror}") from None
        except OSError as error:  # refused, unreachable, or timed out
            raise _Ended(str(error) or "no connection in time", unreachable=True) from None
        try:
            stream.greet(self.kind, self._owner.gate.hello(self.peer.node_id))
            await self._greeted(stream, answered, lost)
            reason = await lost
            if stream.is_damaged:
                self._owner.note_damaged(self.peer.node_id, self.kind, reason)
            raise _Ended(reason, is_stuck=reason == _STUCK)
        finally:
            self._stream = None
            stream.abort()

    async def _greeted(
        self, stream: OutgoingStream, answered: asyncio.Future[Buffer], lost: asyncio.Future[str]
    ) -> None:
        """Return once the stream is usable. Raises: _Ended, _OlderBuildError."""
        await asyncio.wait((answered, lost), timeout=GREETING_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if stream.is_unknown_there:
            raise _OlderBuildError
        if not answered.done():
            if not lost.done():
                raise _Ended("no answer to the greeting")
            if ONLY_TLS in lost.result():
                self._owner.note_tls(self.peer.node_id, "it takes TLS only", ONLY_TLS)
            raise _Ended(lost.result(), is_unanswered=True)
        reply = await self._accepted(stream, answered.result())
        if reply is None:
            raise _Ended("the peer does not want this stream", not_wanted=True)
        if lost.done():
            raise _Ended(lost.result())
        stream.begin(reply)
        self._queue.clear()
        self._arrived = 0
        self._watch.begin()
        self._stream = stream
        self.connected = self._was_connected = True
        if self._hint is not None:
            self._hint.cancel()
            self._hint = None
        self._owner.gate.on_link_up(self.peer.node_id, self.kind)

    async def _accepted(self, stream: OutgoingStream, answer: Buffer) -> pb.HelloReply | None:
        """Return the reply if both sides agree. Raises: _Ended."""
        try:
            reply = stream.read_reply(answer)
            return reply if await self._owner.judge_reply(self.peer.node_id, reply) else None
        except DamagedFrameError as error:
            self._owner.note_damaged(self.peer.node_id, self.kind, str(error))
            raise _Ended(str(error)) from None
        except (OSError, ValueError, DecodeError) as error:
            # A full disk, or the reply of a newer build. Keep trying: ending the stream for good would
            # silence it for good.
            logger.warning(
                "greeting not settled, trying again stream=%s peer=%s error=%s",
                self.kind.value, self.peer.address, error,
            )  # fmt: skip
            return None
        except Exception:  # a bug of ours
            logger.exception(
                "greeting not judged, trying again stream=%s peer=%s", self.kind.value, self.peer.address
            )
            return None

    def _disconnected(self, end: _Ended) -> None:
        self.is_closed_there = end.unreachable
        if self.connected:
            loop = asyncio.get_running_loop()
            before = self._log_limit.passes(self.kind, loop.time())
            if before is not None:
                logger.info(
                    "stream lost stream=%s peer=%s reason=%r before=%d",
                    self.kind.value, self.peer.address, end.reason, before,
                )  # fmt: skip
            self.connected = False
            self._queue.clear()
            if end.is_stuck:  # do not suspect the peer: it may be starved, and lead
                self._owner.gate.on_link_stuck(self.peer.node_id, self.kind)
            else:
                self._owner.gate.on_link_lost(self.peer.node_id, self.kind, gone=False)
                self._hint = loop.call_later(LOST_HINT_DELAY_S, self._gone)
        if end.unreachable and self._was_connected:
            self._gone()

    # --- what has arrived ----------------------------------------------------------------------------------
    def _note_arrived(self, stream: OutgoingStream, report: Buffer) -> None:
        """Record the peer's report of how many bytes of this connection it has received."""
        try:
            arrived = stream.read_arrived(report)
        except (ValueError, DecodeError):
            stream.abort("a report of received bytes cannot be read")
            return
        if not self._arrived <= arrived <= stream.sent:
            stream.abort(f"the peer has {arrived} bytes of {stream.sent}, and had {self._arrived}")
            return
        self._arrived = arrived
        self._owner.heard_at[self.peer.node_id] = now = asyncio.get_running_loop().time()
        self._watch.moved(now, arrived)
        if self._watch.has_moved:
            self._patience = 1

    @property
    def _limit_s(self) -> float:
        return self._watch.limit_s * self._patience

    @property
    def was_stuck(self) -> bool:
        """True if a connection stalled and was given up, and nothing has moved since."""
        return self._patience > 1

    def is_stalled(self) -> bool:
        """Return whether the connection after a stalled one stalls too, or cannot be opened."""
        if not self.was_stuck:
            return False
        if self.connected:
            return self._watch.stood_s >= self._limit_s / 2
        return asyncio.get_running_loop().time() - self._stuck_at >= self._limit_s / 2

    def _look(self) -> None:
        """End a stalled connection. Reschedules itself while bytes are in flight."""
        self._watch_timer = None
        stream, watch = self._stream, self._watch
        if stream is None or not stream.is_open or stream.sent <= self._arrived:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        stood_s = watch.look(now, stream.sent, self._arrived)
        if watch.has_moved:
            self._patience = 1
        limit_s = self._limit_s
        speaks = self._owner.heard_at.get(self.peer.node_id, -math.inf) > now - limit_s / 2
        if stood_s >= (limit_s if speaks else SILENT_TIMES * limit_s):
            self._patience, self._stuck_at = min(2 * self._patience, MAX_PATIENCE), now
            watch.begin()
            stream.abort(_STUCK)
        else:
            self._watch_timer = loop.call_later(watch.interval_s, self._look)

    def _gone(self) -> None:
        if self._hint is not None:
            self._hint.cancel()
            self._hint = None
        if self._was_connected:  # reported once per lost connection
            self._was_connected = False
            self._owner.gate.on_link_lost(self.peer.node_id, self.kind, gone=True)
