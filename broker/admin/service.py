"""`ledgermq.v1.AdminService`: topics, consumer groups, offsets, status, leadership, dump, retention (D18).

Every node answers every call: changes go to the leader, listings are read locally after read-index, messages are looked up
in the node's own log, and what concerns one node (status, dump) is never forwarded.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc

from ledgermq.proto import admin_pb2, log_pb2, route_pb2
from ledgermq.raft.types import NodeId

from ..native.log_service import up_to_date
from ..refusals import REFUSABLE, RefusedError
from ..service.context import NodeContext
from ..service.handlers import Serve, leader_handler, parsed, refusal
from . import broker_group_mode as group_mode
from . import changes as admin_changes
from . import deliveries, promotion, promotion_claims
from . import reads as admin_reads
from .broker_group_view import status
from .dump_call import dump_chunks
from .message_query import MessageQueries

SERVICE: Final = "ledgermq.v1.AdminService"


async def transfer_leadership(
    context: NodeContext, request: admin_pb2.TransferLeadershipRequest
) -> admin_pb2.TransferLeadershipResponse:
    """Hand the lead over. Raises: RefusedError, RaftErrors."""
    if request.to_node and request.to_node not in context.config.voters:
        known = ", ".join(context.config.voters)
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT, f'node "{request.to_node}" is not in this group; it has {known}'
        )
    if (reign := context.raft.config.reign) is not None:
        raise RefusedError(
            route_pb2.NOT_SUPPORTED,
            f"group {context.config.group} has a master, {reign.master}, which alone leads. To make another node the master,"
            f" stop {reign.master} first, and then: ledgermq cluster promote NODE; nothing was changed",
        )
    if request.to_node == context.config.node_id:
        return admin_pb2.TransferLeadershipResponse(leader_id=request.to_node)
    leader = await context.raft.transfer_leadership(NodeId(request.to_node) if request.to_node else None)
    return admin_pb2.TransferLeadershipResponse(leader_id=leader)


class AdminService:
    """Make handlers for each port with `handlers(listener)`; "" is the Raft port, where forwarded calls come in."""

    def __init__(self, context: NodeContext, clean: Serve) -> None:
        self._context = context
        self._started = time.monotonic()
        self._queries = MessageQueries(context)
        self._changes: dict[str, tuple[Any, Any, Serve]] = {
            "CreateTopic": (
                admin_pb2.CreateTopicRequest,
                admin_pb2.CreateTopicResponse,
                admin_changes.create_topic,
            ),
            "UpdateTopic": (
                admin_pb2.UpdateTopicRequest,
                admin_pb2.UpdateTopicResponse,
                admin_changes.update_topic,
            ),
            "DeleteTopic": (
                admin_pb2.DeleteTopicRequest,
                admin_pb2.DeleteTopicResponse,
                admin_changes.delete_topic,
            ),
            "CreateGroup": (
                admin_pb2.CreateGroupRequest,
                admin_pb2.CreateGroupResponse,
                admin_changes.create_group,
            ),
            "DeleteGroup": (
                admin_pb2.DeleteGroupRequest,
                admin_pb2.DeleteGroupResponse,
                admin_changes.delete_group,
            ),
            "ResetOffsets": (
                admin_pb2.ResetOffsetsRequest,
                log_pb2.CommitOffsetsResponse,
                admin_changes.reset_offsets,
            ),
            "GetDeliveries": (
                admin_pb2.GetDeliveriesRequest,
                admin_pb2.GetDeliveriesResponse,
                deliveries.get_deliveries,
            ),
            "ReleaseParked": (
                admin_pb2.ReleaseParkedRequest,
                admin_pb2.ReleaseParkedResponse,
                deliveries.release_parked,
            ),
            "TransferLeadership": (
                admin_pb2.TransferLeadershipRequest,
                admin_pb2.TransferLeadershipResponse,
                transfer_leadership,
            ),
            "Clean": (admin_pb2.CleanRequest, admin_pb2.CleanResponse, clean),
            "SetBrokerGroupMode": (
                admin_pb2.SetBrokerGroupModeRequest,
                admin_pb2.SetBrokerGroupModeResponse,
                group_mode.set_mode,
            ),
        }

    def handlers(self, listener: str) -> grpc.GenericRpcHandler[Any, Any]:
        """Return what a port of that listener serves."""
        methods = {
            name: leader_handler(self._context, f"/{SERVICE}/{name}", request, response, serve, listener)
            for name, (request, response, serve) in self._changes.items()
        }
        methods["GetStatus"] = self._status(listener)
        if listener:
            methods |= {
                "ListTopics": self._read("ListTopics", admin_reads.list_topics, listener),
                "DescribeTopic": self._read("DescribeTopic", admin_reads.describe_topic, listener),
                "ListGroups": self._read("ListConsumerGroups", admin_reads.list_groups, listener),
                "DescribeGroup": self._read("DescribeGroup", admin_reads.describe_group, listener),
                "GetProgress": self._read("GetProgress", group_mode.get_progress, listener),
                "Promote": self._promote(listener),
                "NoteClaim": self._note_claim(listener),
                "Dump": self._dump(listener),
                "QueryMessages": self._query(listener),
            }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _read(self, name: str, serve: Callable[[NodeContext, Any], Any], listener: str) -> Any:
        kind, response = getattr(admin_pb2, f"{name}Request"), getattr(admin_pb2, f"{name}Response")

        async def handle(raw: bytes, context: Any) -> Any:
            try:
                request = parsed(kind, raw)
                await up_to_date(self._context, context.time_remaining())
                return serve(self._context, request)
            except REFUSABLE as error:
                return response(refusal=refusal(self._context, error, listener))

        return grpc.unary_unary_rpc_method_handler(handle, response_serializer=response.SerializeToString)

    def _query(self, listener: str) -> Any:
        async def handle(raw: bytes, context: Any) -> admin_pb2.QueryMessagesResponse:
            try:
                request = parsed(admin_pb2.QueryMessagesRequest, raw)
                return await self._queries.answer(request, context.time_remaining())
            except REFUSABLE as error:
                return admin_pb2.QueryMessagesResponse(refusal=refusal(self._context, error, listener))

        return grpc.unary_unary_rpc_method_handler(
            handle, response_serializer=admin_pb2.QueryMessagesResponse.SerializeToString
        )

    def _status(self, listener: str) -> Any:
        async def handle(raw: bytes, context: Any) -> admin_pb2.GetStatusResponse:
            try:
                request = parsed(admin_pb2.GetStatusRequest, raw)
            except RefusedError as error:  # its response has no place for a refusal
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return status(self._context, listener, self._started, readers=request.readers)

        return grpc.unary_unary_rpc_method_handler(
            handle, response_serializer=admin_pb2.GetStatusResponse.SerializeToString
        )

    def _promote(self, listener: str) -> Any:
        async def handle(raw: bytes, context: Any) -> admin_pb2.PromoteResponse:
            try:
                return await promotion.accept(self._context, parsed(admin_pb2.PromoteRequest, raw))
            except RefusedError as error:
                return admin_pb2.PromoteResponse(refusal=refusal(self._context, error, listener))

        return grpc.unary_unary_rpc_method_handler(
            handle, response_serializer=admin_pb2.PromoteResponse.SerializeToString
        )

    def _note_claim(self, listener: str) -> Any:
        async def handle(raw: bytes, context: Any) -> admin_pb2.NoteClaimResponse:
            try:
                return await promotion_claims.note(self._context, parsed(admin_pb2.NoteClaimRequest, raw))
            except RefusedError as error:
                return admin_pb2.NoteClaimResponse(refusal=refusal(self._context, error, listener))

        return grpc.unary_unary_rpc_method_handler(
            handle, response_serializer=admin_pb2.NoteClaimResponse.SerializeToString
        )

    def _dump(self, listener: str) -> Any:
        async def handle(raw: bytes, context: Any) -> AsyncIterator[admin_pb2.DumpChunk]:
            try:
                request = parsed(admin_pb2.DumpRequest, raw)
                async for chunk in dump_chunks(self._context, request):
                    yield chunk
            except REFUSABLE as error:
                yield admin_pb2.DumpChunk(refusal=refusal(self._context, error, listener))

        return grpc.unary_stream_rpc_method_handler(
            handle, response_serializer=admin_pb2.DumpChunk.SerializeToString
        )
