"""Streams between the nodes of a broker group: accepts the peers', keeps two open to each peer (D36).

Owns: the Raft port with its gRPC server, and one `PeerLink` per peer. Must not: know what
frames mean, or decide which peers to accept: it asks the `Gate`. Frames are delivered only from a stream
whose greeting was accepted and whose sender still has the known incarnation.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import Buffer
from ledgermq.proto.foreign_text import safe_text
from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.http2_connection import Http2Connection
from ledgermq.rpc.http2_input import SCRATCH_SIZE
from ledgermq.rpc.shared_memory import SharedMemory
from ledgermq.rpc.wire_limits import WireLimits

from ..config import Member, StreamLimits
from ..errors import AddressInUseError, DamagedFrameError
from ..peer_tls import NO_TLS, ONLY_PLAINTEXT, ONLY_TLS, PeerTls, serving_failed
from ..ports.counts import PortCounts
from ..ports.front import FrontLimits, PortVerdict, take_port
from ..ports.handover import EventLoopFront
from ..ports.peer_sockets import set_options
from ..ports.tls_records import HANDSHAKE
from ..types import NodeId
from .call_streams import IncomingCall
from .former_streams import PREAMBLE_SIZE, FormerIncoming, preamble_of
from .hello import MAX_GREETING_SIZE, Hello, Refusal, RefusalKind, Standing, reply_of
from .out_stream import GREETING_TIMEOUT_S, Gate, LogLimit, MakeFrame, OutStream
from .stream_kind import IncomingStream, StreamKind

logger = logging.getLogger(__name__)

ControlItem = TypeVar("ControlItem")
AppendItem = TypeVar("AppendItem")
CONTROL_LIMIT: Final = 1024  # queued control messages per peer; the oldest is dropped first
APPEND_LIMIT: Final = 1024  # far above the core's inflight limit
#: Maximum length of a refusal from a peer, in characters. The longest of ours names a few nodes.
MAX_REFUSAL_SIZE: Final = 2_000

#: Maximum bytes of one call on the Raft port: a client's request forwarded by another node (130 MiB) plus
#: overhead.
MAX_CALL_SIZE: Final = 131 << 20
#: Connections that speak no gRPC, or stay silent for long, make room. A node forwards up to 4,096 calls of
#: clients in one call, and large ones in a call each; beyond the limit its channel lets them wait.
_PORT_LIMITS: Final = WireLimits(
    max_streams=2_000,
    max_message=MAX_CALL_SIZE,
    max_data_frame=2 << 20,  # an ordinary append is one
    handshake_s=10.0,
    max_idle_s=600.0,
)
#: Connections of the Raft port besides the peers' streams, if there are enough descriptors.
PORT_CONNECTIONS: Final = 256


def port_limits(descriptors: int) -> FrontLimits:
    """Return the Raft port's limits for so many descriptors. Only streams may use the reserve."""
    places = max(min(PORT_CONNECTIONS, descriptors // 16), 16)
    return FrontLimits(places, reserve=places * 3 // 8)


@dataclass(frozen=True, slots=True)
class PeerLink(Generic[ControlItem, AppendItem]):
    """Both outgoing streams to one peer."""

    control: OutStream[ControlItem]
    append: OutStream[AppendItem]


class _Incoming:
    """Stream opened by a peer: its greeting, then its frames."""

    def __init__(self, transport: Transport[Any, Any], kind: StreamKind) -> None:
        self.incarnation = 0
        self.kind = kind
        self.stream: IncomingStream  # set at once, by `take_call` or `take_former`
        self.connection: Http2Connection | None = None  # of a call
        self._transport = transport
        self._peer: NodeId | None = None  # None until the greeting is accepted
        self._timer = asyncio.get_running_loop().call_later(GREETING_TIMEOUT_S, self._not_greeted)

    def take_call(self, connection: Http2Connection, stream_id: int) -> None:
        """Use a call that a peer began."""
        self.connection = connection
        self.stream = IncomingCall(
            connection, stream_id, self._on_frame, self._on_lost, self._transport.limits.whole_frame_s
        )

    def take_former(self) -> FormerIncoming:
        """Return the protocol of a connection that a peer of the version before opened."""
        stream = self.stream = FormerIncoming(
            self._on_frame, self._on_lost, MAX_GREETING_SIZE, stall_s=self._transport.limits.whole_frame_s
        )
        return stream

    def accepted(self, hello: Hello) -> None:
        """Deliver frames from now on."""
        self._peer, self.incarnation = hello.node_id, hello.incarnation
        limits = self._transport.limits
        is_append = self.kind is StreamKind.APPEND
        self.stream.max_frame_size = limits.append_frame if is_append else limits.control_frame

    def end(self) -> None:
        """Deliver nothing more, and end the stream for the peer."""
        self._timer.cancel()
        self.stream.abort()

    def _not_greeted(self) -> None:
        self.stream.abort("no greeting")

    def _on_frame(self, frame: Buffer) -> None:
        if self._peer is not None:
            self._transport.on_frame(self._peer, self.kind, frame)
            return
        self._timer.cancel()
        self.stream.hold()
        self._transport.judge_greeting(self, frame)

    def _on_lost(self, reason: str) -> None:
        self._timer.cancel()
        self._transport.on_incoming_lost(self, self._peer, reason)


class Transport(Generic[ControlItem, AppendItem]):
    """Usage: `await listen(gate)`, `connect()`, `links[peer].control.put(…)`, `await close()`."""

    def __init__(
        self,
        bind: str,
        peers: tuple[Member, ...],
        make_control: MakeFrame[ControlItem],
        make_append: MakeFrame[AppendItem],
        rpc_handlers: Sequence[grpc.GenericRpcHandler[Any, Any]] = (),
        counts: PortCounts | None = None,
        limits: StreamLimits | None = None,
        tls: PeerTls = NO_TLS,
    ) -> None:
        self.bind = bind
        self.tls = tls
        self.limits = limits or StreamLimits()
        self._counts = counts or PortCounts("raft")
        self._rpc_handlers = tuple(rpc_handlers)  # services of the layer above on the Raft port
        self.gate: Gate  # from `listen` on
        self._sockets: list[socket.socket] = []
        self._server: GrpcServer | None = None
        self._front: EventLoopFront | None = None
        self.scratch = bytearray(SCRATCH_SIZE)
        # Strangers' requests take nothing of it: every peer has room for a message on each stream.
        self.budget = SharedMemory(len(peers) * (self.limits.append_frame + self.limits.control_frame))
        self._silent = False
        self._port_limits = port_limits(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        # Streams not accepted yet, oldest first; at most as many as the reserve.
        self._greeting: dict[_Incoming, None] = {}
        self._judging: set[asyncio.Task[None]] = set()
        self._incoming: dict[NodeId, set[_Incoming]] = {peer.node_id: set() for peer in peers}
        self._logged: set[tuple[NodeId, RefusalKind]] = set()  # (peer, kind) already logged
        self._log_limit = LogLimit()
        self.refused: dict[NodeId, Refusal] = {}  # peers whose last greeting this node refused
        self.refused_at: dict[NodeId, float] = {}  # time of that refusal in monotonic seconds
        self.refused_by: dict[NodeId, Refusal] = {}  # peers that refused this node's last greeting
        self.heard_at: dict[NodeId, float] = {}  # when each peer was last heard, by the loop's clock
        stall_s = self.limits.stall_s
        self.links = {
            peer.node_id: PeerLink(
                OutStream(StreamKind.CONTROL, peer, self, make_control, CONTROL_LIMIT, stall_s),
                OutStream(StreamKind.APPEND, peer, self, make_append, APPEND_LIMIT, stall_s),
            )
            for peer in peers
        }

    def open_port(self) -> None:
        """Open the Raft port without serving it yet. Raises: AddressInUseError."""
        try:
            self._sockets = take_port(self.bind)
        except OSError:
            raise AddressInUseError(self.bind) from None
        for each in self._sockets:
            set_options(each)

    async def listen(self, gate: Gate) -> None:
        """Serve the streams, and the services of the layer above.

        The gate is not given to the constructor because the parts behind it send through this transport.
        """
        self.gate = gate
        server = self._server = GrpcServer(
            _PORT_LIMITS, takes_compressed=False, admits=self._admits_calls, name=self._counts.name
        )
        for kind in StreamKind:
            server.add_direct_method(kind.method, partial(self._take_call, kind))
        server.add_generic_rpc_handlers(self._rpc_handlers)
        self._front = EventLoopFront(
            self._judge,
            server.serve_connection,
            self._port_limits,
            self._counts,
            self.tls.serving,
            self._note_handshake,
        )
        sockets, self._sockets = self._sockets, []
        await self._front.listen(sockets)

    def _admits_calls(self, connection: Http2Connection) -> bool:
        return self._front is None or self._front.settle_served(connection)

    def serve_also(self, handler: grpc.GenericRpcHandler[Any, Any]) -> None:
        """Add a service to the Raft port. Call it before `listen`."""
        self._rpc_handlers = (handler, *self._rpc_handlers)

    def connect(self) -> None:
        """Start connecting to every peer."""
        for link in self.links.values():
            link.control.start()
            link.append.start()

    async def close(self) -> None:
        """Close every stream and the port at once."""
        self._silent = True
        for each in self._sockets:
            each.close()
        if self._front is not None:
            self._front.stop_listening()
        streams = [stream for link in self.links.values() for stream in (link.control, link.append)]
        await asyncio.gather(*(stream.close() for stream in streams))
        self._end_incoming()
        if self._server is not None:
            await self._server.stop(0)
        if self._front is not None:
            self._front.close()

    def silence(self) -> None:
        """Send nothing more and ignore all peers. Call `close` afterwards."""
        self._silent = True
        for link in self.links.values():
            link.control.silence()
            link.append.silence()
        self._end_incoming()

    def _end_incoming(self) -> None:
        for task in self._judging:
            task.cancel()
        ended = [*self._greeting, *chain(*self._incoming.values())]
        self._greeting.clear()
        for streams in self._incoming.values():
            streams.clear()
        for incoming in ended:
            incoming.end()

    def end_incoming(self, peer: NodeId, incarnation: int | None = None) -> None:
        """End the streams that `peer` opened to this node, except those of `incarnation`. It may reconnect.

        Frames of a former data folder that are still in them must not count.
        """
        for incoming in list(self._incoming[peer]):
            if incoming.incarnation != incarnation:
                self._incoming[peer].discard(incoming)
                incoming.end()

    def is_connected(self, peer: NodeId) -> bool:
        """Return whether this node and `peer` are connected in both directions."""
        return self.links[peer].control.connected and self.is_heard(peer)

    def is_heard(self, peer: NodeId) -> bool:
        """Return whether the peer has a stream open to this node."""
        return bool(self._incoming[peer])

    # --- what comes in --------------------------------------------------------------------------------------
    def _judge(self, connection: asyncio.Transport, first: bytes) -> PortVerdict:
        """Accept a connection that opens like a stream of the version before. All others speak gRPC."""
        if first[0] == HANDSHAKE:
            if self.tls.serving is not None:
                return PortVerdict.PASS_ON_TLS
            return self._refuse(connection, ONLY_PLAINTEXT)
        if not self.tls.takes_plaintext:
            if h2.PREFACE.startswith(first[: len(h2.PREFACE)]):  # a node reads the reason
                goaway = h2.goaway_frame(0, h2.INADEQUATE_SECURITY, ONLY_TLS)
                connection.write(h2.settings_frame(()) + goaway)
            return self._refuse(connection, ONLY_TLS)
        size = PREAMBLE_SIZE
        kind = next((each for each in StreamKind if preamble_of(each).startswith(first[:size])), None)
        if kind is None:
            return PortVerdict.PASS_ON_UNSETTLED
        if len(first) < size:
            return PortVerdict.WAIT
        if self._silent:
            connection.abort()
            return PortVerdict.TAKEN
        stream = self._expect_greeting(kind).take_former()
        connection.set_protocol(stream)
        stream.connection_made(connection)
        stream.feed(first[size:])
        if not stream.is_held:
            connection.resume_reading()
        return PortVerdict.TAKEN

    def _refuse(self, connection: asyncio.Transport, reason: str) -> PortVerdict:
        """Close a connection that may not be used like this, and log why."""
        peer = connection.get_extra_info("peername")
        self._log_ended(str(peer[0]) if isinstance(peer, tuple) else "", reason)
        connection.close()
        return PortVerdict.TAKEN

    def _note_handshake(self, host: str, error: OSError) -> None:
        """Log why a TLS handshake failed."""
        if reason := serving_failed(error):
            self._log_ended(host, reason)

    def _log_ended(self, host: str, reason: str) -> None:
        if self._server is not None:
            self._server.log_ended(host, host, reason)

    def _take_call(self, kind: StreamKind, connection: Http2Connection, stream_id: int) -> None:
        """Accept a call of a stream. A connection that did not greet on one opens no other of the kind."""
        if self._silent or any(
            each.connection is connection and each.kind is kind for each in self._greeting
        ):
            connection.abort("")
        else:
            self._expect_greeting(kind).take_call(connection, stream_id)

    def _expect_greeting(self, kind: StreamKind) -> _Incoming:
        if len(self._greeting) >= self._port_limits.reserve:  # the oldest makes room
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.end()
        incoming = _Incoming(self, kind)
        self._greeting[incoming] = None
        return incoming

    def on_frame(self, peer: NodeId, kind: StreamKind, frame: Buffer) -> None:
        """Handle one frame of an accepted stream."""
        self.heard_at[peer] = asyncio.get_running_loop().time()
        self.gate.on_frame(peer, kind, frame)

    def on_incoming_lost(self, incoming: _Incoming, peer: NodeId | None, reason: str) -> None:
        """Handle the end of a stream that a peer opened."""
        if incoming.stream.is_damaged:
            self.note_damaged(peer, incoming.kind, reason)
        self._greeting.pop(incoming, None)
        if peer is not None:
            self._incoming[peer].discard(incoming)

    def judge_greeting(self, incoming: _Incoming, frame: Buffer) -> None:
        """Answer the greeting of a stream. Its frames are read once it is accepted."""
        task = asyncio.get_running_loop().create_task(self._answer(incoming, bytes(frame)))
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)

    async def _answer(self, incoming: _Incoming, greeting: bytes) -> None:
        try:
            hello, refused = await self._judged(incoming.stream, greeting)
        except OSError as error:
            logger.warning("greeting not settled, it comes again error=%s", error)
            incoming.end()
            return
        except DamagedFrameError as error:
            incoming.stream.end_damaged(error)
            return
        except Exception:  # a bug of ours; what a stranger may send is no reason to end the node
            logger.exception("greeting not judged, it comes again")
            incoming.end()
            return
        self._greeting.pop(incoming, None)
        stream = incoming.stream
        if self._silent or not stream.is_open:
            incoming.end()
            return
        # in the accepting turn: the peer's folder may be replaced while the reply is sent
        if hello is not None and refused is None:
            self._take_in(incoming, hello)
        stream.answer(reply_of(self.gate.hello(None), refused), hello)
        if hello is not None and refused is None:
            stream.begin(hello)

    def _take_in(self, incoming: _Incoming, hello: Hello) -> None:
        """Register a stream. An earlier one of its kind from that peer is dropped with all that is in it."""
        streams = self._incoming[hello.node_id]
        for former in [each for each in streams if each.kind is incoming.kind]:
            streams.discard(former)
            former.end()
        streams.add(incoming)
        if incoming.connection is not None and self._front is not None:
            self._front.release(incoming.connection)
            incoming.connection.use_budget(self.budget)
        incoming.accepted(hello)

    async def _judged(self, stream: IncomingStream, greeting: bytes) -> tuple[Hello | None, Refusal | None]:
        """Return the greeting (None: unreadable) and its refusal.

        Raises: OSError (not now), DamagedFrameError.
        """
        try:
            hello = stream.read_greeting(greeting)
        except (ValueError, DecodeError) as error:
            text = f"the greeting cannot be read: {safe_text(str(error))}"
            return None, Refusal(RefusalKind.MALFORMED, text)
        refused = await self.gate.admit(hello)
        self._note_judged(hello.node_id, refused)
        return hello, refused

    async def judge_reply(self, peer: NodeId, reply: pb.HelloReply) -> bool:
        """Judge the reply to a greeting of this node. Both sides must agree. See `StreamOwner`."""
        if reply.refusal_kind:
            refusal = Refusal(RefusalKind(reply.refusal_kind), safe_text(reply.refusal, MAX_REFUSAL_SIZE))
            self._note(self.refused_by, peer, refusal)
            if reply.hello.standing != Standing.LEARNER.value:  # a learner's own record may be the old one
                self.gate.on_refused(peer, refusal, Hello.from_proto(reply.hello))
            if refusal.kind in (RefusalKind.LEFT_BEHIND, RefusalKind.OTHER_GROUP):
                self.gate.on_other_generation(Hello.from_proto(reply.hello))
            return False
        self._note(self.refused_by, peer, None)
        mine = await self.gate.admit(Hello.from_proto(reply.hello))
        self._note_judged(peer, mine)
        return mine is None

    # --- what is noted --------------------------------------------------------------------------------------
    def _note_judged(self, peer: NodeId, refusal: Refusal | None) -> None:
        """Record this node's answer to the latest greeting of a peer."""
        self._note(self.refused, peer, refusal)
        if peer in self.refused:
            self.refused_at[peer] = time.monotonic()

    def note_damaged(self, peer: NodeId | None, kind: StreamKind, reason: str) -> None:
        """Log that received bytes were corrupted, once per peer and minute."""
        self.gate.on_damaged(peer)
        before = self._log_limit.passes(peer, asyncio.get_running_loop().time())
        if before is not None:
            logger.warning(
                "connection ended peer=%s stream=%s reason=%r before=%d: it is made again; see to the "
                "network",
                peer or "(not known)", kind.value, reason, before,
            )  # fmt: skip

    def note_tls(self, peer: NodeId, reason: str, advice: str) -> None:
        """Log that there is no TLS with a peer, once per peer, advice and minute."""
        before = self._log_limit.passes((peer, advice), asyncio.get_running_loop().time())
        if before is not None:
            logger.warning(
                "no TLS with the peer peer=%s reason=%r before=%d: %s", peer, reason, before, advice
            )

    def _note(self, refusals: dict[NodeId, Refusal], peer: NodeId, refusal: Refusal | None) -> None:
        if refusal is None:
            refusals.pop(peer, None)
        elif peer in self.links:
            refusals[peer] = refusal
            self._log_refusal(peer, refusal)
        else:  # not a member: a greeting may carry any name
            before = self._log_limit.passes(RefusalKind, asyncio.get_running_loop().time())
            if before is not None:
                logger.error(
                    "stranger refused before=%d: %s", before, safe_text(refusal.text, MAX_REFUSAL_SIZE)
                )

    def _log_refusal(self, peer: NodeId, refusal: Refusal) -> None:
        """Log each reason once per peer, not once per attempt."""
        if (peer, refusal.kind) not in self._logged:
            self._logged.add((peer, refusal.kind))
            logger.error("peer refused peer=%s reason=%s: %s", peer, refusal.kind.name.lower(), refusal.text)
