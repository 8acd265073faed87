"""Streams between the nodes of a broker group: accepts the peers', keeps two open to each peer (D10).

Owns: the Raft port with the gRPC server that shares it, and one `PeerLink` per peer. Must not: know what
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
from itertools import chain
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ledgermq.proto.entry import Buffer
from ledgermq.proto.foreign_text import safe_text
from ledgermq.rpc.grpc_options import limits_of
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.wire_limits import WireLimits

from ..config import Member, StreamLimits
from ..errors import AddressInUseError, DamagedFrameError
from ..ports.counts import PortCounts
from ..ports.front import FrontLimits, PortFront, PortVerdict, take_port
from ..ports.handover import EventLoopFront
from ..types import NodeId
from .frame_stream import FrameStream, set_options
from .hello import (
    MAX_GREETING_SIZE,
    Hello,
    Refusal,
    RefusalKind,
    Standing,
    encode_reply,
    frames_with,
    read_greeting,
    read_reply,
)
from .out_stream import GREETING_TIMEOUT_S, PREAMBLE, Gate, LogLimit, MakeFrame, OutStream, StreamKind

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
SERVER_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_CALL_SIZE),
    # No client compresses with gRPC, and decompressed data would have no bound.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Connections that speak no gRPC, or stay silent for long, make room.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
)
#: Calls of a peer at a time on one connection to the server in the event loop; grpcio has no limit.
MAX_CALLS: Final = 100_000
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
        self.stream = FrameStream(
            self._on_frame, self._on_lost, MAX_GREETING_SIZE, stall_s=transport.limits.whole_frame_s
        )
        self._transport = transport
        self._peer: NodeId | None = None  # None until the greeting is accepted
        self._timer = asyncio.get_running_loop().call_later(
            GREETING_TIMEOUT_S, self.stream.abort, "no greeting"
        )

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
        server_transport: str = "event_loop",
    ) -> None:
        """`server_transport`: who speaks gRPC on the port, grpcio or event_loop."""
        self.bind = bind
        self.limits = limits or StreamLimits()
        self._counts = counts
        self._server_transport = server_transport
        self._rpc_handlers = tuple(rpc_handlers)  # services of the layer above on the Raft port
        self.gate: Gate  # from `listen` on
        self._sockets: list[socket.socket] = []
        self._server: Any = None
        self._front: PortFront | None = None
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
        if self._server_transport == "grpcio":
            self._front = PortFront(self._judge, self._port_limits, self._counts)
            self._server = grpc.aio.server(options=SERVER_OPTIONS)
            self._server.add_insecure_port(self._front.inner_address)
        else:
            limits = limits_of(SERVER_OPTIONS, WireLimits(max_streams=MAX_CALLS))
            self._server = GrpcServer(limits, takes_compressed=False)
            serve = self._server.serve_connection
            self._front = EventLoopFront(self._judge, serve, self._port_limits, self._counts)
        self._server.add_generic_rpc_handlers(self._rpc_handlers)
        await self._server.start()
        sockets, self._sockets = self._sockets, []
        await self._front.listen(sockets)

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
        """Accept a connection that opens like a stream between nodes. All others speak gRPC."""
        size = len(PREAMBLE) + 1
        kind = next((each for each in StreamKind if each.preamble.startswith(first[:size])), None)
        if kind is None:
            return PortVerdict.PASS_ON
        if len(first) < size:
            return PortVerdict.WAIT
        if self._silent:
            connection.abort()
            return PortVerdict.TAKEN
        incoming = _Incoming(self, kind)
        if len(self._greeting) >= self._port_limits.reserve:  # the oldest makes room
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.end()
        self._greeting[incoming] = None
        connection.set_protocol(incoming.stream)
        incoming.stream.connection_made(connection)
        incoming.stream.feed(first[size:])
        if not incoming.stream.is_held:
            connection.resume_reading()
        return PortVerdict.TAKEN

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
            hello, answer = await self._judged(greeting)
        except OSError as error:
            logger.warning("greeting not settled, it comes again error=%s", error)
            incoming.end()
            return
        except DamagedFrameError as error:
            incoming.stream.end_damaged(error)
            return
        self._greeting.pop(incoming, None)
        stream = incoming.stream
        if self._silent or not stream.is_open:
            incoming.end()
            return
        # in the accepting turn: the peer's folder may be replaced while the reply is sent
        if hello is not None:
            self._take_in(incoming, hello)
        stream.send((answer,))
        if hello is None:
            stream.close()
            return
        if frames_with(hello):
            stream.check_frames(reports=True)
        stream.resume()

    def _take_in(self, incoming: _Incoming, hello: Hello) -> None:
        """Register a stream. An earlier one of its kind from that peer is dropped with all that is in it."""
        streams = self._incoming[hello.node_id]
        for former in [each for each in streams if each.kind is incoming.kind]:
            streams.discard(former)
            former.end()
        streams.add(incoming)
        incoming.accepted(hello)

    async def _judged(self, greeting: bytes) -> tuple[Hello | None, bytes]:
        """Return the greeting (None: refused) and the reply. Raises: OSError (not now), DamagedFrameError."""
        try:
            hello = read_greeting(greeting)
        except (ValueError, DecodeError) as error:
            text = f"the greeting cannot be read: {safe_text(str(error))}"
            return None, encode_reply(self.gate.hello(None), Refusal(RefusalKind.MALFORMED, text), 0)
        refused = await self.gate.admit(hello)
        answer = encode_reply(self.gate.hello(None), refused, frames_with(hello))
        self._note_judged(hello.node_id, refused)
        return (hello if refused is None else None), answer

    async def judge_reply(self, peer: NodeId, answer: Buffer) -> int | None:
        """Judge the reply to a greeting of this node. Both sides must agree. See `StreamOwner`."""
        reply = read_reply(answer)
        if reply.refusal_kind:
            refusal = Refusal(RefusalKind(reply.refusal_kind), safe_text(reply.refusal, MAX_REFUSAL_SIZE))
            self._note(self.refused_by, peer, refusal)
            if reply.hello.standing != Standing.LEARNER.value:  # a learner's own record may be the old one
                self.gate.on_refused(peer, refusal, Hello.from_proto(reply.hello))
            if refusal.kind in (RefusalKind.LEFT_BEHIND, RefusalKind.OTHER_GROUP):
                self.gate.on_other_generation(Hello.from_proto(reply.hello))
            return None
        self._note(self.refused_by, peer, None)
        mine = await self.gate.admit(Hello.from_proto(reply.hello))
        self._note_judged(peer, mine)
        return reply.frames if mine is None else None

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
