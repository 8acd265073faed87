"""`ledgermq.v1.AdminService`: topics, consumer groups, offsets, status, leadership, dump, retention (D18).

Every node answers every call: changes are forwarded to the leader, listings are read locally after
read-index, messages are searched in the node's own log, and calls about one node (status, dump) are never
forwarded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc

from ledgermq.proto import admin_pb2, log_pb2, route_pb2
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.types import NodeId

from ..config import BrokerConfig
from ..refusals import REFUSABLE, RefusedError
from ..replica import Replica
from ..service.answers import LeaderHandlers, Refusals, Serve, parsed
from ..service.read_barrier import ReadBarrier
from ..state.machine import BrokerState
from .broker_group_mode import BrokerGroupModes
from .broker_group_view import NodeStatus
from .dump_call import Dumps
from .listings import describe_consumer_group, describe_topic, list_consumer_groups, list_topics
from .message_search import MessageQueries
from .promotion import Promotions
from .promotion_claims import GenerationClaims
from .topic_holds import TopicHolds

SERVICE: Final = "ledgermq.v1.AdminService"
#: Methods whose messages have another name, by that name.
_METHODS: Final = {"ListConsumerGroups": "ListGroups"}

#: Serves a request on this node; the second argument is the seconds left to the caller.
ServeHere = Callable[[Any, float | None], Awaitable[Any]]


async def transfer_leadership(
    config: BrokerConfig, raft: RaftNode, request: admin_pb2.TransferLeadershipRequest
) -> admin_pb2.TransferLeadershipResponse:
    """Transfer leadership to another node. Raises: RefusedError, RaftErrors."""
    if request.to_node and request.to_node not in config.voters:
        known = ", ".join(config.voters)
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT,
            f'node "{request.to_node}" is not in this broker group; it has {known}',
        )
    if (reign := raft.config.reign) is not None:
        raise RefusedError(
            route_pb2.NOT_SUPPORTED,
            f"broker group {config.group} has a master, {reign.master}, which alone leads. To make another "
            f"node the master, stop {reign.master} first, and then: ledgermq cluster promote NODE; nothing "
            "was changed",
        )
    if request.to_node == config.node_id:
        return admin_pb2.TransferLeadershipResponse(leader_id=request.to_node)
    leader = await raft.transfer_leadership(NodeId(request.to_node) if request.to_node else None)
    return admin_pb2.TransferLeadershipResponse(leader_id=leader)


@dataclass(eq=False, repr=False)
class AdminService:
    """The service. `handlers(listener)` returns a port's handlers; "" is the Raft port (forwarded calls).

    `changes`: the coroutine function of each call that the leader serves.
    """

    _leader_handlers: LeaderHandlers
    _changes: Mapping[str, Serve]
    _replica: Replica
    _barrier: ReadBarrier
    _modes: BrokerGroupModes
    _holds: TopicHolds
    _refusals: Refusals
    _node_status: NodeStatus
    _promotions: Promotions
    _claims: GenerationClaims
    _queries: MessageQueries
    _dumps: Dumps

    def handlers(self, listener: str) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handlers for a listener's port."""
        methods = {name: self._change(name, serve, listener) for name, serve in self._changes.items()}
        methods["GetStatus"] = self._status(listener)
        if listener:
            reads: dict[str, Callable[[BrokerState, Any], Any]] = {
                "ListTopics": list_topics,
                "DescribeTopic": lambda state, request: describe_topic(state, request, self._holds.since()),
                "ListConsumerGroups": list_consumer_groups,
                "DescribeGroup": describe_consumer_group,
                "GetProgress": lambda _, request: self._modes.progress(request),
            }
            served_here: dict[str, ServeHere] = {
                **{name: partial(self._read, read) for name, read in reads.items()},
                "Promote": lambda request, _: self._promotions.accept(request),
                "NoteClaim": lambda request, _: self._claims.note(request),
                "QueryMessages": self._queries.answer,
            }
            for name, serve in served_here.items():
                methods[_METHODS.get(name, name)] = self._here(name, serve, listener)
            methods["Dump"] = self._dump(listener)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _change(self, name: str, serve: Serve, listener: str) -> Any:
        request = getattr(admin_pb2, f"{name}Request")
        response = (
            log_pb2.CommitOffsetsResponse if name == "ResetOffsets" else getattr(admin_pb2, f"{name}Response")
        )
        return self._leader_handlers.unary(f"/{SERVICE}/{name}", request, response, serve, listener)

    def _here(self, name: str, serve: ServeHere, listener: str) -> Any:
        """Return the handler of a call that this node serves itself."""
        kind, response = getattr(admin_pb2, f"{name}Request"), getattr(admin_pb2, f"{name}Response")

        async def handle(raw: bytes, context: Any) -> Any:
            try:
                return await serve(parsed(kind, raw), context.time_remaining())
            except REFUSABLE as error:
                return response(refusal=self._refusals.of(error, listener))

        return grpc.unary_unary_rpc_method_handler(handle, response_serializer=response.SerializeToString)

    async def _read(
        self, read: Callable[[BrokerState, Any], Any], request: Any, remaining: float | None
    ) -> Any:
        await self._barrier.wait(remaining)
        return read(self._replica.state, request)

    def _status(self, listener: str) -> Any:
        async def handle(raw: bytes, context: Any) -> admin_pb2.GetStatusResponse:
            try:
                request = parsed(admin_pb2.GetStatusRequest, raw)
            except RefusedError as error:  # the response has no field for a refusal
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return self._node_status.status(listener, readers=request.readers)

        return grpc.unary_unary_rpc_method_handler(
            handle, response_serializer=admin_pb2.GetStatusResponse.SerializeToString
        )

    def _dump(self, listener: str) -> Any:
        async def handle(raw: bytes, context: Any) -> AsyncIterator[admin_pb2.DumpChunk]:
            try:
                request = parsed(admin_pb2.DumpRequest, raw)
                async for chunk in self._dumps.chunks(request):
                    yield chunk
            except REFUSABLE as error:
                yield admin_pb2.DumpChunk(refusal=self._refusals.of(error, listener))

        return grpc.unary_stream_rpc_method_handler(
            handle, response_serializer=admin_pb2.DumpChunk.SerializeToString
        )
