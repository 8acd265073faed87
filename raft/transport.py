"""Streams between the nodes of a group: accepts those of the peers, keeps two open to each of them (D10).

Owns: the gRPC server on the Raft port, one `PeerLink` per peer. Must not: know what the frames mean, nor decide who
may talk: it asks the `Gate`. A frame is handed up only from a stream whose greeting was accepted and whose sender's
incarnation is still the known one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ledgermq.proto import raft_pb2 as pb

from .config import Member
from .errors import AddressInUseError
from .hello import Hello, Refusal, RefusalKind, Standing
from .out_stream import END_OF_STREAM, GREETING_TIMEOUT_S, Frame, MakeFrame, OutStream, StreamKind
from .types import NodeId

logger = logging.getLogger(__name__)

ControlItem = TypeVar("ControlItem")
AppendItem = TypeVar("AppendItem")
CONTROL_LIMIT: Final = 1024  # queued control messages per peer; the oldest goes first
APPEND_LIMIT: Final = 1024  # the core's inflight limit is far below

SERVER_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


class Gate(Protocol):
    """Decides on greetings and takes what comes in; implemented by the node."""

    def hello(self, to: NodeId | None) -> Hello:
        """Return this node's greeting; `to` is None in an answer."""

    async def admit(self, hello: Hello) -> Refusal | None:
        """Judge a peer's greeting; when it is accepted, its incarnation is stored durably on return.

        Raises: OSError (it cannot be stored now).
        """

    def on_frame(self, peer: NodeId, kind: StreamKind, frame: Frame) -> None:
        """Take one frame of an accepted stream. Runs on the loop and must not wait."""

    def on_refused(self, peer: NodeId, refusal: Refusal, group_id: int) -> None:
        """A peer that is no learner refused this node's greeting; `group_id` is the peer's (0: it does not know)."""

    def on_link_up(self, peer: NodeId, kind: StreamKind) -> None:
        """An outgoing stream is ready."""

    def on_link_lost(self, peer: NodeId, kind: StreamKind, *, gone: bool) -> None:
        """An outgoing stream ended; `gone`: the peer's process seems dead."""


class PeerLink(Generic[ControlItem, AppendItem]):
    """The two outgoing streams to one peer."""

    def __init__(
        self,
        peer: Member,
        gate: Gate,
        control: MakeFrame[ControlItem],
        append: MakeFrame[AppendItem],
        on_answered: Callable[[NodeId, Refusal | None], None],
        on_judged: Callable[[NodeId, Refusal | None], None],
    ) -> None:
        """`on_answered` hears what the peer said to this node's greeting, `on_judged` what this node said to the peer's."""
        self.peer = peer
        self._gate = gate
        self._on_answered = on_answered
        self._on_judged = on_judged
        self.control = OutStream(StreamKind.CONTROL, peer.address, self, control, CONTROL_LIMIT)
        self.append = OutStream(StreamKind.APPEND, peer.address, self, append, APPEND_LIMIT)

    def greeting(self, kind: StreamKind) -> Frame:
        """Return the serialized Hello that opens a stream."""
        return self._gate.hello(self.peer.node_id).to_proto().SerializeToString()

    async def on_accepted(self, kind: StreamKind, answer: Frame) -> bool:
        """Judge the peer's answer; both sides must agree."""
        reply = pb.HelloReply.FromString(answer)
        if reply.refusal_kind:
            refusal = Refusal(RefusalKind(reply.refusal_kind), reply.refusal)
            self._on_answered(self.peer.node_id, refusal)
            if reply.hello.standing != Standing.LEARNER.value:  # else its own record may be the old one
                self._gate.on_refused(self.peer.node_id, refusal, reply.hello.group_id)
            return False
        self._on_answered(self.peer.node_id, None)
        theirs = Hello.from_proto(reply.hello)
        mine = await self._gate.admit(theirs)
        self._on_judged(self.peer.node_id, mine)
        return mine is None

    def on_up(self, kind: StreamKind) -> None:
        """Pass on that a stream is ready."""
        self._gate.on_link_up(self.peer.node_id, kind)

    def on_lost(self, kind: StreamKind, *, gone: bool) -> None:
        """Pass on that a stream ended."""
        self._gate.on_link_lost(self.peer.node_id, kind, gone=gone)

    def start(self) -> None:
        """Begin to connect both streams."""
        self.control.start()
        self.append.start()

    async def close(self) -> None:
        """Close both streams at once."""
        await asyncio.gather(self.control.close(), self.append.close())


@dataclass(slots=True, eq=False)
class _Incoming:
    """One accepted stream of a peer."""

    incarnation: int
    task: asyncio.Task[Any]


class Transport(Generic[ControlItem, AppendItem]):
    """Use: `await listen()`, `connect()`, `links[peer].control.put(…)`, `await close()`."""

    def __init__(
        self,
        bind: str,
        peers: tuple[Member, ...],
        gate: Gate,
        make_control: MakeFrame[ControlItem],
        make_append: MakeFrame[AppendItem],
        rpc_handlers: Sequence[grpc.GenericRpcHandler[Any, Any]] = (),
    ) -> None:
        self.bind = bind
        self._rpc_handlers = tuple(rpc_handlers)  # what the layer above serves on the Raft port
        self._gate = gate
        self._server: Any = None
        self._listening = False
        self._silent = False
        self._incoming: dict[NodeId, set[_Incoming]] = {peer.node_id: set() for peer in peers}
        self._logged: set[tuple[NodeId, RefusalKind]] = set()
        self.refused: dict[NodeId, Refusal] = {}  # peers whose last greeting this node refused
        self.refused_at: dict[NodeId, float] = {}  # when that was, monotonic seconds
        self.refused_by: dict[NodeId, Refusal] = {}  # peers that refused this node's last greeting
        self.links = {
            peer.node_id: PeerLink(
                peer, gate, make_control, make_append, self._note_refused_by, self._note_judged
            )
            for peer in peers
        }

    def open_port(self) -> None:
        """Take the Raft port; nothing is served yet. Raises: AddressInUseError."""
        if not _can_bind(self.bind):  # gRPC would print lines of its own before it fails
            raise AddressInUseError(self.bind)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        try:
            self._server.add_insecure_port(self.bind)
        except RuntimeError:
            raise AddressInUseError(self.bind) from None

    async def listen(self) -> None:
        """Serve the streams, and what the layer above serves to the other nodes on this port."""
        handlers = {
            StreamKind.CONTROL.value: grpc.stream_stream_rpc_method_handler(
                self._handler(StreamKind.CONTROL)
            ),
            StreamKind.APPEND.value: grpc.stream_stream_rpc_method_handler(self._handler(StreamKind.APPEND)),
        }
        service = grpc.method_handlers_generic_handler("ledgermq.v1.RaftService", handlers)
        self._server.add_generic_rpc_handlers((service, *self._rpc_handlers))
        await self._server.start()
        self._listening = True

    def serve_also(self, handler: grpc.GenericRpcHandler[Any, Any]) -> None:
        """Serve more on the Raft port; before `listen`."""
        self._rpc_handlers = (handler, *self._rpc_handlers)

    def connect(self) -> None:
        """Begin to connect to every peer."""
        for link in self.links.values():
            link.start()

    async def close(self) -> None:
        """Close every stream and the port at once."""
        await asyncio.gather(*(link.close() for link in self.links.values()))
        if self._server is not None:
            if not self._listening:
                await self._server.start()  # gRPC gives back only the port of a server that has run
            await self._server.stop(0)

    def silence(self) -> None:
        """Say nothing more to anybody and listen to nobody; `close` must follow."""
        self._silent = True
        for link in self.links.values():
            link.control.silence()
            link.append.silence()
        for streams in self._incoming.values():
            for stream in list(streams):
                streams.discard(stream)
                stream.task.cancel()

    def drop_other_incarnations(self, peer: NodeId, incarnation: int) -> None:
        """End the incoming streams of a peer's former data folder: whatever is still in them must not count."""
        for stream in list(self._incoming[peer]):
            if stream.incarnation != incarnation:
                self._incoming[peer].discard(stream)
                stream.task.cancel()

    def is_heard(self, peer: NodeId) -> bool:
        """Tell whether the peer has a stream open to this node."""
        return bool(self._incoming[peer])

    def _handler(self, kind: StreamKind) -> Callable[[Any, Any], Awaitable[None]]:
        async def serve(_requests: Any, context: Any) -> None:
            await self._serve(kind, context)

        return serve

    async def _serve(self, kind: StreamKind, context: Any) -> None:
        greeted = None if self._silent else await self._greeted(context)
        if greeted is None or self._silent:
            return
        hello, answer = greeted
        if hello is None:
            await context.write(answer)
            return
        task = asyncio.current_task()
        assert task is not None
        stream = _Incoming(hello.incarnation, task)
        streams = self._incoming[hello.node_id]
        streams.add(stream)  # in the turn that accepted it: its folder may be replaced while it is answered
        try:
            await context.write(answer)
            await self._receive(kind, hello.node_id, stream, context)
        except asyncio.CancelledError:
            if stream in streams:
                raise  # the server stops
            task.uncancel()  # `drop_other_incarnations`, `silence`: a return ends the stream for the peer too
        finally:
            streams.discard(stream)

    async def _receive(self, kind: StreamKind, peer: NodeId, stream: _Incoming, context: Any) -> None:
        streams, on_frame, read, eof = self._incoming[peer], self._gate.on_frame, context.read, END_OF_STREAM
        while True:
            frame = await read()
            if frame is eof or stream not in streams:
                return
            on_frame(peer, kind, frame)

    async def _greeted(self, context: Any) -> tuple[Hello | None, bytes] | None:
        """Take and judge the greeting; return it (None: it is refused) and the answer. None: say nothing."""
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                first = await context.read()
        except TimeoutError:
            return None
        if first is END_OF_STREAM:
            return None
        try:
            hello = Hello.from_proto(pb.Hello.FromString(first))
        except (ValueError, DecodeError) as error:
            refusal = Refusal(RefusalKind.MALFORMED, f"the greeting cannot be read: {error}")
            return None, _reply(self._gate.hello(None), refusal)
        try:
            refused = await self._gate.admit(hello)
        except OSError as error:
            logger.warning("greeting not settled peer=%s, it comes again error=%s", hello.node_id, error)
            return None
        answer = _reply(self._gate.hello(None), refused)
        self._note_judged(hello.node_id, refused)
        if refused is not None:
            return None, answer
        return hello, answer

    def _note_judged(self, peer: NodeId, refusal: Refusal | None) -> None:
        """Keep what this node said to the last greeting of a peer."""
        self._note(self.refused, peer, refusal)
        if peer in self.refused:
            self.refused_at[peer] = time.monotonic()

    def _note_refused_by(self, peer: NodeId, refusal: Refusal | None) -> None:
        """Keep what a peer said to the last greeting of this node."""
        self._note(self.refused_by, peer, refusal)

    def _note(self, refusals: dict[NodeId, Refusal], peer: NodeId, refusal: Refusal | None) -> None:
        if refusal is None:
            refusals.pop(peer, None)
            return
        if peer in self.links:  # a greeting may bear any name
            refusals[peer] = refusal
        self._log_refusal(peer, refusal)

    def _log_refusal(self, peer: NodeId, refusal: Refusal) -> None:
        """Log each reason once per peer, not once per attempt."""
        if (peer, refusal.kind) not in self._logged:
            self._logged.add((peer, refusal.kind))
            logger.error("peer refused peer=%s reason=%s: %s", peer, refusal.kind.name.lower(), refusal.text)


def _can_bind(address: str) -> bool:
    """Tell whether the port can be taken on one of the addresses of a host, as gRPC would take it."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
        except OSError:
            continue
        return True
    return False


def _reply(hello: Hello, refusal: Refusal | None) -> bytes:
    reply = pb.HelloReply(hello=hello.to_proto())
    if refusal is not None:
        reply.refusal, reply.refusal_kind = refusal.text, refusal.kind.value
    return reply.SerializeToString()
