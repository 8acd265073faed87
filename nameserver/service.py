"""NameServerService on either transport of gRPC: registers brokers, answers clients, tells watchers.

Owns: the listeners (one gRPC server each, so that an answer knows which one received the call), the watch
streams, the expiry timer. Must not: decide anything that `route_table` decides.
Invariant: watchers have no queues. A woken watcher sends the newest view if it differs from the last one
sent. So a slow watcher costs one view, never an unbounded backlog.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import AsyncIterator, Mapping
from itertools import count
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto import route_pb2
from ledgermq.proto.foreign_text import safe_text
from ledgermq.rpc.grpc_options import limits_of
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.wire_limits import WireLimits

from .config import MAX_CONNECTIONS, TRANSPORTS
from .connection_limit import FullListeners, connections_per_listener
from .errors import BindError
from .registrations import MAX_REGISTRATION, Room, problem_of, refusal_of_stranger, text_problem
from .route_table import NodeKey, RouteTable, keep_topics

logger = logging.getLogger(__name__)

#: Maximum number of open watch streams per listener; more are refused.
MAX_WATCHERS = 10_000
#: Calls at a time on one connection, which a proxy may use for many clients.
_MAX_CALLS = 10_000
_EXPIRY_CHECK_S = 0.5
_CHECKS_PER_LOOK = 10  # expiry checks per check for full listeners
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second nameserver on the same port must fail, not share it
    ("grpc.max_receive_message_length", MAX_REGISTRATION),
    # No client compresses with gRPC, and decompressed data would have no bound.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Unfinished handshakes, clients whose machine vanished and idle clients release their connections.
    # Watchers and beating brokers are not idle.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # the effective one; its default is a minute
    ("grpc.max_connection_idle_ms", 600_000),
)


def now_ms() -> int:
    """Return the monotonic clock in milliseconds."""
    return time.monotonic_ns() // 1_000_000


class Changes:
    """Wakes all tasks that wait for the next change of the table."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Wake all current waiters."""
        self._event.set()
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return the event of the next change. Take it before reading the table, wait for it afterwards."""
        return self._event


def _key(beat: pb.HeartbeatBeat) -> tuple[NodeKey, int]:
    return (beat.cluster, beat.group, beat.node_id), beat.group_id


class NameServerService:
    """Calls received on one listener, see `request_handlers`. All listeners share `table` and `changes`."""

    def __init__(self, table: RouteTable, changes: Changes, listener: str, room: Room | None = None) -> None:
        self._table = table
        self._room = room or Room()
        self._changes = changes
        self._listener = listener
        self._watchers = 0  # open watch streams of this listener
        #: Stream that brought each node's newest beat. Two broker groups may have a node of the same name.
        self._beating: dict[tuple[NodeKey, int], object] = {}

    def _told(self, revision: int) -> None:
        if self._table.revision != revision:
            self._changes.tell()

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        route = request.route
        if problem := problem_of(request):
            return _refused(route_pb2.INVALID_ARGUMENT, problem)
        others = self._table.registered((route.cluster, route.group, request.node_id))
        if problem := self._room.problem(*others, route):
            return _refused(route_pb2.TOO_MANY_REQUESTS, problem)
        revision = self._table.revision
        if rivals := self._table.rivals(route):
            if not self._table.make_way(route, request.is_leader):
                return self._refuse_stranger(request, rivals)
            logger.error(
                "not listed any more: another broker group of its name leads group=%s nodes=%s leader=%s",
                route.group, ",".join(rivals), request.node_id,
            )  # fmt: skip
        # A node that does not know its broker group id yet is not listed beside nodes that do: it may belong
        # to another broker group.
        if (
            route.group_id
            or not request.knows_group_ids
            or not self._table.knows_id(route.cluster, route.group)
        ):
            self._table.register(request.node_id, request.incarnation, route, request.is_leader, now_ms())
        if self._table.revision != revision:
            logger.info(
                "registered node=%s group=%s term=%d leader=%s topics=%d",
                request.node_id, route.group, route.term, route.leader_id, len(route.topics),
            )  # fmt: skip
        self._told(revision)
        generation, master = self._table.master(route.cluster, route.group)
        return pb.RegisterResponse(expiry_ms=self._table.expiry_ms, master_id=master, generation=generation)

    def _refuse_stranger(self, request: pb.RegisterRequest, rivals: list[str]) -> pb.RegisterResponse:
        refusal = refusal_of_stranger(request.node_id, request.route, rivals)
        if self._table.strangers.note(request.node_id, request.route, now_ms()):
            logger.error("registration refused: %s", refusal.message)
        # It registered before it knew its broker group id.
        if self._table.take_back(request.node_id, request.incarnation, request.route):
            self._changes.tell()
        return pb.RegisterResponse(refusal=refusal)

    async def Heartbeat(
        self, beats: AsyncIterator[pb.HeartbeatBeat], context: Any
    ) -> AsyncIterator[pb.HeartbeatReply]:
        last: pb.HeartbeatBeat | None = None
        stream = object()
        try:
            async for beat in beats:
                # it would be sent to all clients
                if problem := text_problem("the leader id", beat.leader_id):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
                if last is not None and _key(last) != _key(beat):
                    self._forget_stream(last, stream)  # a node may learn its broker group id; the names stay
                last = beat
                self._beating[_key(beat)] = stream
                revision = self._table.revision
                known = self._table.beat(
                    beat.cluster, beat.group, beat.node_id, beat.term, beat.leader_id, now_ms(), beat.group_id
                )
                self._told(revision)
                yield pb.HeartbeatReply(register_again=not known)
        finally:
            # A stream that broke silently may end here long after the node came back on another one.
            if last is not None and self._forget_stream(last, stream):
                self._on_stream_end(last)

    def _forget_stream(self, last: pb.HeartbeatBeat, stream: object) -> bool:
        """Forget a stream. Returns whether it brought the node's newest beat."""
        if self._beating.get(_key(last)) is not stream:
            return False
        del self._beating[_key(last)]
        return True

    def _on_stream_end(self, last: pb.HeartbeatBeat) -> None:
        if self._table.suspect(last.cluster, last.group, last.node_id, now_ms(), last.group_id):
            logger.warning("heartbeat stream closed node=%s group=%s", last.node_id, last.group)
            self._changes.tell()

    async def Unregister(self, request: pb.UnregisterRequest, context: Any) -> pb.UnregisterResponse:
        drop = self._table.remove if request.group_removed else self._table.unregister
        if drop(request.cluster, request.group, request.node_id, request.group_id):
            what = "broker group removed" if request.group_removed else "unregistered"
            logger.info("%s node=%s group=%s", what, request.node_id, request.group)
            self._changes.tell()
        return pb.UnregisterResponse()

    async def GetRoute(self, request: pb.GetRouteRequest, context: Any) -> pb.GetRouteResponse:
        cluster = self._table.the_cluster(request.cluster)
        broker_groups = self._table.route(cluster, request.topic, self._listener)
        if broker_groups:
            return pb.GetRouteResponse(groups=broker_groups, cluster=cluster)
        return pb.GetRouteResponse(
            refusal=self._topic_not_found(request.cluster, cluster, request.topic), cluster=cluster
        )

    def _topic_not_found(self, asked: str, cluster: str, topic: str) -> route_pb2.Refusal:
        """Explain why there is no route. The text names similar known topics."""
        topic, known = safe_text(topic), self._table.clusters()
        if not known:
            message = "no broker group is registered at this nameserver. See: ledgermq cluster status"
            return route_pb2.Refusal(code=route_pb2.NO_QUORUM, message=message, retryable=True)
        if not cluster or cluster not in known:
            what = (
                f'cluster "{safe_text(asked)}" is not known here'
                if asked
                else "several clusters are known here, none was named"
            )
            message = (
                f"{what}. Known: {', '.join(known)}. Name one of them where the client is made: "
                f'cluster="{known[0]}"'
            )
            return route_pb2.Refusal(code=route_pb2.INVALID_ARGUMENT, message=message)
        similar = [f'"{name}"' for name in self._table.similar_topics(cluster, topic)]
        hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
        if leaderless := [view.group for view in self._table.broker_groups(cluster) if not view.leader_id]:
            # Nodes started without a majority know topics only up to their checkpoints.
            message = (
                f'whether topic "{topic}" exists in cluster "{cluster}" is not known: broker group '
                f"{', '.join(leaderless)} has no leader.{hint} Ask again when it has one. See: ledgermq "
                "cluster status"
            )
            return route_pb2.Refusal(code=route_pb2.NO_QUORUM, message=message, retryable=True)
        message = (
            f'topic "{topic}" does not exist in cluster "{cluster}".{hint} '
            f"Create it: ledgermq topic create {topic}"
        )
        return route_pb2.Refusal(code=route_pb2.TOPIC_NOT_FOUND, message=message)

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsResponse:
        cluster = self._table.the_cluster(request.cluster)
        broker_groups = self._table.broker_groups(cluster, self._listener)
        answer = pb.ListGroupsResponse(clusters=self._table.clusters())
        if request.gone_too:
            broker_groups += self._table.gone_broker_groups(cluster, self._listener)
            broker_groups.sort(key=lambda view: (view.cluster, view.group))
            now = now_ms()
            for gone in self._table.remembered(cluster):
                answer.gone.add(
                    cluster=gone.view.cluster, group=gone.view.group, silent_ms=max(0, now - gone.heard_at),
                    topics=gone.topics if request.gone_topics else (),
                )  # fmt: skip
        answer.groups.extend(broker_groups)
        answer.strangers.extend(self._table.strangers.lately(cluster, self._listener, now_ms()))
        return answer

    async def ForgetGroup(self, request: pb.ForgetGroupRequest, context: Any) -> pb.ForgetGroupResponse:
        # registered, so the names are valid
        if nodes := self._table.nodes_of(request.cluster, request.group):
            message = (
                f"broker group {request.group} lives: {', '.join(nodes)} of it "
                f"{'is' if len(nodes) == 1 else 'are'} registered. Nothing was forgotten. To take it out: "
                "ledgermq cluster drain, then remove-group. A node that has just died is dropped after "
                f"{self._table.expiry_ms / 1000:g} s: repeat it then"
            )
            refusal = route_pb2.Refusal(code=route_pb2.INVALID_ARGUMENT, message=message)
            return pb.ForgetGroupResponse(refusal=refusal)
        forgotten = self._table.forget(request.cluster, request.group)
        if forgotten:
            logger.info("broker group forgotten cluster=%s group=%s", request.cluster, request.group)
        return pb.ForgetGroupResponse(forgotten=forgotten)

    async def WatchRoutes(
        self, request: pb.WatchRoutesRequest, context: Any
    ) -> AsyncIterator[pb.WatchRoutesResponse]:
        if self._watchers >= MAX_WATCHERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_WATCHERS} clients watch already (the limit). Ask another nameserver, or poll "
                "GetRoute.",
            )
        self._watchers += 1
        sent: bytes | None = None
        try:
            while True:
                change = self._changes.next()
                answer = self._watched(request)
                encoded = answer.SerializeToString(deterministic=True)
                if encoded != sent:
                    sent = encoded
                    yield answer
                await change.wait()
        finally:
            self._watchers -= 1

    def _watched(self, request: pb.WatchRoutesRequest) -> pb.WatchRoutesResponse:
        listener = None if request.all_listeners else self._listener
        broker_groups = self._table.broker_groups(self._table.the_cluster(request.cluster), listener)
        if request.without_group:
            broker_groups = [view for view in broker_groups if view.group != request.without_group]
        if request.topics:
            wanted = set(request.topics)
            for view in broker_groups:
                keep_topics(view, wanted)
        return pb.WatchRoutesResponse(groups=broker_groups)


def _refused(code: route_pb2.RefusalCode, message: str) -> pb.RegisterResponse:
    retryable = code == route_pb2.TOO_MANY_REQUESTS
    return pb.RegisterResponse(refusal=route_pb2.Refusal(code=code, message=message, retryable=retryable))


class NameServer:
    """A complete nameserver: its listeners, one table, the expiry timer."""

    def __init__(
        self,
        listeners: Mapping[str, str],
        expiry_ms: int,
        max_connections: int = MAX_CONNECTIONS,
        room: Room | None = None,
        transport: str = TRANSPORTS[0],
    ) -> None:
        """`listeners` maps each listener's name to its host:port. Port 0 takes a free one.

        `transport`: one of TRANSPORTS.
        """
        self.table = RouteTable(expiry_ms)
        self.addresses: dict[str, str] = {}  # bound addresses by listener; set by start()
        self._listeners = dict(listeners)
        self._room = room or Room()
        self._changes = Changes()
        self._servers: list[aio.Server | GrpcServer] = []
        self._transport = transport
        self._expiry: asyncio.Task[None] | None = None
        self._limit = connections_per_listener(max_connections, len(listeners))
        self._full = FullListeners(self._limit, {})  # gets the ports in start()

    async def start(self) -> None:
        """Listen on every address, or on none. Raises: BindError."""
        for name, address in self._listeners.items():
            options = (*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", self._limit))
            server: aio.Server | GrpcServer
            if self._transport == "grpcio":
                server = aio.server(options=options)
            else:
                limits = limits_of(options, WireLimits(max_streams=_MAX_CALLS))
                server = GrpcServer(limits, name=f"nameserver/{name}")
            service = NameServerService(self.table, self._changes, name, self._room)
            server.add_generic_rpc_handlers((request_handlers(service),))
            try:
                port = server.add_insecure_port(address)
            except RuntimeError as error:
                # gRPC releases the port of a server only if the server was started.
                await asyncio.gather(*(each.start() for each in self._servers))
                await self.stop(0)
                raise _bind_error(name, address) from error
            self.addresses[name] = f"{address.rpartition(':')[0]}:{port}"
            self._servers.append(server)
        for server in self._servers:
            await server.start()
        ports = {name: int(address.rpartition(":")[2]) for name, address in self.addresses.items()}
        self._full = FullListeners(self._limit, ports)
        self._expiry = asyncio.create_task(self._expire_nodes(), name="nameserver-expiry")

    async def stop(self, grace_s: float = 0.2) -> None:
        """Close all streams and ports."""
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        self._servers.clear()
        self.addresses.clear()

    async def _expire_nodes(self) -> None:
        for check in count():
            if check % _CHECKS_PER_LOOK == 0:
                await self._full.look()
            await asyncio.sleep(_EXPIRY_CHECK_S)
            revision = self.table.revision
            for cluster, broker_group, node_id in self.table.expire(now_ms()):
                logger.warning(
                    "node silent, dropped cluster=%s group=%s node=%s", cluster, broker_group, node_id
                )
            if self.table.revision != revision:
                self._changes.tell()


def _bind_error(listener: str, address: str) -> BindError:
    """Return why an address cannot be listened on; gRPC's own error does not say it."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            return BindError(listener, address, f"{host} is no address of this machine", taken=False)
        if error.errno != errno.EADDRINUSE:
            return BindError(listener, address, error.strerror or str(error), taken=True)
    return BindError(listener, address, "another process uses the port", taken=True)


class _NoRequestError(Exception):
    """The bytes of a call are not the message that the method expects."""


def request_handlers(service: Any) -> grpc.GenericRpcHandler[Any, Any]:
    """Return handlers for every method of NameServerService. `service` has a method of each name.

    gRPC's own deserializers answer UNKNOWN and log a traceback per call. Here requests stay bytes until a
    handler decodes them. The refusal of other bytes is in-band if the answer has a field for it, else the
    status INVALID_ARGUMENT.
    """
    descriptor = pb.DESCRIPTOR.services_by_name["NameServerService"]
    return grpc.method_handlers_generic_handler(
        descriptor.full_name,
        {method.name: _handler(method, getattr(service, method.name)) for method in descriptor.methods},
    )


def _handler(method: MethodDescriptor, serve: Any) -> Any:
    """Return the gRPC handler of one method."""
    request_type, response_type = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

    def decoded(raw: bytes) -> Any:
        try:
            return request_type.FromString(raw)
        except DecodeError:
            name = method.input_type.name
            raise _NoRequestError(f"the request cannot be decoded: it is no {name}") from None

    async def one(raw: bytes, context: Any) -> Any:
        try:
            request = decoded(raw)
        except _NoRequestError as error:
            if "refusal" not in method.output_type.fields_by_name:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            refusal = route_pb2.Refusal(code=route_pb2.INVALID_ARGUMENT, message=str(error))
            return response_type(refusal=refusal)
        return await serve(request, context)

    async def stream(raw: Any, context: Any) -> AsyncIterator[Any]:
        async def requests() -> AsyncIterator[Any]:
            async for each in raw:
                yield decoded(each)

        try:
            async for answer in serve(requests() if method.client_streaming else decoded(raw), context):
                yield answer
        except _NoRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    encode = response_type.SerializeToString
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(stream, response_serializer=encode)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(stream, response_serializer=encode)
    return grpc.unary_unary_rpc_method_handler(one, response_serializer=encode)
