"""`ledgermq.v1.AdminService`: topics, consumer groups, offsets, status, leadership, dump, retention (D18).

Every node answers every call: changes are forwarded to the leader, listings are read locally after
read-index, messages are searched in the node's own log, and calls about one node (status, dump) are never
forwarded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
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
from .changes import ConsumerGroupChanges, TopicChanges
from .deliveries import Deliveries
from .dump_call import Dumps
from .listings import describe_group, describe_topic, list_groups, list_topics
from .message_search import MessageQueries
from .promotion import Promotions
from .promotion_claims import GenerationClaims

SERVICE: Final = "ledgermq.v1.AdminService"


@dataclass(eq=False, repr=False)
class LeadershipTransfer:
    """Transfers leadership to another node."""

    _config: BrokerConfig
    _raft: RaftNode

    async def transfer(
        self, request: admin_pb2.TransferLeadershipRequest
    ) -> admin_pb2.TransferLeadershipResponse:
        """Transfer leadership. Raises: RefusedError, RaftErrors."""
        config = self._config
        if request.to_node and request.to_node not in config.voters:
            known = ", ".join(config.voters)
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT, f'node "{request.to_node}" is not in this group; it has {known}'
            )
        if (reign := self._raft.config.reign) is not None:
            raise RefusedError(
                route_pb2.NOT_SUPPORTED,
                f"group {config.group} has a master, {reign.master}, which alone leads. To make another node "
                f"the master,"
                f" stop {reign.master} first, and then: ledgermq cluster promote NODE; nothing was changed",
            )
        if request.to_node == config.node_id:
            return admin_pb2.TransferLeadershipResponse(leader_id=request.to_node)
        leader = await self._raft.transfer_leadership(NodeId(request.to_node) if request.to_node else None)
        return admin_pb2.TransferLeadershipResponse(leader_id=leader)


def changes_by_name(
    topics: TopicChanges,
    groups: ConsumerGroupChanges,
    deliveries: Deliveries,
    modes: BrokerGroupModes,
    leadership: LeadershipTransfer,
    clean: Serve,
) -> dict[str, Serve]:
    """Return the coroutine function of each call that the leader serves. `clean`: that of retention."""
    return {
        "CreateTopic": topics.create,
        "UpdateTopic": topics.update,
        "DeleteTopic": topics.delete,
        "CreateGroup": groups.create,
        "DeleteGroup": groups.delete,
        "ResetOffsets": groups.reset_offsets,
        "GetDeliveries": deliveries.get,
        "ReleaseParked": deliveries.release,
        "TransferLeadership": leadership.transfer,
        "Clean": clean,
        "SetBrokerGroupMode": modes.set,
    }


@dataclass(eq=False, repr=False)
class AdminService:
    """The service. `handlers(listener)` returns a port's handlers; "" is the Raft port (forwarded calls)."""

    _leader_handlers: LeaderHandlers
    _changes: Mapping[str, Serve]
    _replica: Replica
    _barrier: ReadBarrier
    _modes: BrokerGroupModes
    _refusals: Refusals
    _node_calls: NodeCalls

    def handlers(self, listener: str) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handlers for a listener's port."""
        methods = {name: self._change(name, serve, listener) for name, serve in self._changes.items()}
        if listener:
            methods |= {
                "ListTopics": self._read("ListTopics", list_topics, listener),
                "DescribeTopic": self._read("DescribeTopic", describe_topic, listener),
                "ListGroups": self._read("ListConsumerGroups", list_groups, listener),
                "DescribeGroup": self._read("DescribeGroup", describe_group, listener),
                "GetProgress": self._read(
                    "GetProgress", lambda _, request: self._modes.progress(request), listener
                ),
            }
        methods |= self._node_calls.methods(listener)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _change(self, name: str, serve: Serve, listener: str) -> Any:
        request = getattr(admin_pb2, f"{name}Request")
        response = (
            log_pb2.CommitOffsetsResponse if name == "ResetOffsets" else getattr(admin_pb2, f"{name}Response")
        )
        return self._leader_handlers.unary(f"/{SERVICE}/{name}", request, response, serve, listener)

    def _read(self, name: str, serve: Callable[[BrokerState, Any], Any], listener: str) -> Any:
        kind, response = getattr(admin_pb2, f"{name}Request"), getattr(admin_pb2, f"{name}Response")

        async def handle(raw: bytes, context: Any) -> Any:
            try:
                request = parsed(kind, raw)
                await self._barrier.wait(context.time_remaining())
                return serve(self._replica.state, request)
            except REFUSABLE as error:
                return response(refusal=self._refusals.of(error, listener))

        return grpc.unary_unary_rpc_method_handler(handle, response_serializer=response.SerializeToString)


@dataclass(eq=False, repr=False)
class NodeCalls:
    """The calls about one node, which serves them itself."""

    _node_status: NodeStatus
    _promotions: Promotions
    _claims: GenerationClaims
    _queries: MessageQueries
    _dumps: Dumps
    _refusals: Refusals

    def methods(self, listener: str) -> dict[str, Any]:
        """Return the handlers for a listener's port, by method."""
        methods = {"GetStatus": self._status(listener)}
        if listener:
            methods |= {
                "Promote": self._promote(listener),
                "NoteClaim": self._note_claim(listener),
                "Dump": self._dump(listener),
                "QueryMessages": self._query(listener),
            }
        return methods

    def _query(self, listener: str) -> Any:
        async def handle(raw: bytes, context: Any) -> admin_pb2.QueryMessagesResponse:
            try:
                request = parsed(admin_pb2.QueryMessagesRequest, raw)
                return await self._queries.answer(request, context.time_remaining())
            except REFUSABLE as error:
                return admin_pb2.QueryMessagesResponse(refusal=self._refusals.of(error, listener))

        return grpc.unary_unary_rpc_method_handler(
            handle, response_serializer=admin_pb2.QueryMessagesResponse.SerializeToString
        )

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

    def _promote(self, listener: str) -> Any:
        async def handle(raw: bytes, context: Any) -> admin_pb2.PromoteResponse:
            try:
                return await self._promotions.accept(parsed(admin_pb2.PromoteRequest, raw))
            except RefusedError as error:
                return admin_pb2.PromoteResponse(refusal=self._refusals.of(error, listener))

        return grpc.unary_unary_rpc_method_handler(
            handle, response_serializer=admin_pb2.PromoteResponse.SerializeToString
        )

    def _note_claim(self, listener: str) -> Any:
        async def handle(raw: bytes, context: Any) -> admin_pb2.NoteClaimResponse:
            try:
                return await self._claims.note(parsed(admin_pb2.NoteClaimRequest, raw))
            except RefusedError as error:
                return admin_pb2.NoteClaimResponse(refusal=self._refusals.of(error, listener))

        return grpc.unary_unary_rpc_method_handler(
            handle, response_serializer=admin_pb2.NoteClaimResponse.SerializeToString
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
