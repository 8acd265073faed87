"""`ledgermq.v1.LogService`: bulk produce and fetch for LedgerMQ's own clients and Spark (D18).

Every node serves Fetch, the leader serves Produce (`produce.py`); for offsets see `consumer_offsets.py`, for
batches that are written exactly once `batches.py`.
Must not: decode records.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from ledgermq.proto import log_pb2
from ledgermq.proto.call_metadata import CONSUMER_GROUP

from ..reading.live_readers import LiveReader, LiveReaders
from ..refusals import REFUSABLE
from ..service.answers import LeaderHandlers, Refusals, parsed
from ..service.broker_group_identity import BrokerGroupIdentity, MeantBrokerGroup
from ..wire.validation import group_problem
from .batches import Batches
from .consumer_offsets import ConsumerOffsets
from .fetch import Fetches
from .membership import Memberships
from .produce import ProduceStreams

SERVICE: Final = "ledgermq.v1.LogService"
_EOF: Final[Any] = vars(grpc.aio)["EOF"]  # missing in the type stubs


class LogService:
    """The service. `handlers(listener)` returns a port's handlers; "" is the Raft port (forwarded calls)."""

    def __init__(
        self,
        leader_handlers: LeaderHandlers,
        produce: ProduceStreams,
        fetches: FetchStreams,
        offsets: ConsumerOffsets,
        memberships: Memberships,
        batches: Batches,
        identity: BrokerGroupIdentity,
        refusals: Refusals,
    ) -> None:
        self._leader_handlers = leader_handlers
        self._produce = produce
        self._fetches = fetches
        self._offsets = offsets
        self._memberships = memberships
        self._batches = batches
        self._identity = identity
        self._refusals = refusals

    def handlers(self, listener: str) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handlers of a listener's log port."""
        commit = self._leader_handlers.unary(
            f"/{SERVICE}/CommitOffsets",
            log_pb2.CommitOffsetsRequest,
            log_pb2.CommitOffsetsResponse,
            self._offsets.commit,
            listener,
        )
        begin = self._leader_handlers.unary(
            f"/{SERVICE}/BeginBatch",
            log_pb2.BeginBatchRequest,
            log_pb2.BeginBatchResponse,
            self._batches.begin,
            listener,
        )
        finish = self._leader_handlers.unary(
            f"/{SERVICE}/FinishBatch",
            log_pb2.FinishBatchRequest,
            log_pb2.FinishBatchResponse,
            self._batches.finish,
            listener,
        )
        forwarded = {"CommitOffsets": commit, "BeginBatch": begin, "FinishBatch": finish}
        if not listener:
            return grpc.method_handlers_generic_handler(SERVICE, forwarded)
        methods = {
            **forwarded,
            "Produce": grpc.stream_stream_rpc_method_handler(
                self._produce.handler(listener), response_serializer=log_pb2.ProduceResponse.SerializeToString
            ),
            "Membership": grpc.stream_stream_rpc_method_handler(
                self._memberships.handler(listener),
                response_serializer=log_pb2.MembershipResponse.SerializeToString,
            ),
            "Fetch": grpc.unary_unary_rpc_method_handler(self._fetches.serve_one),
            "FetchStream": grpc.stream_stream_rpc_method_handler(self._fetches.serve),
            "QueryOffsets": grpc.unary_unary_rpc_method_handler(
                self._query_offsets,
                response_serializer=log_pb2.QueryOffsetsResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _query_offsets(self, raw: bytes, context: Any) -> log_pb2.QueryOffsetsResponse:
        try:
            meant = self._identity.meant_by(context)
            meant.check()
            request = parsed(log_pb2.QueryOffsetsRequest, raw)
            stale = await self._offsets.wait_until_new(request, context.time_remaining())
            meant.check()
            answer = await self._offsets.query(request)
            answer.stale = stale
            return answer
        except REFUSABLE as error:
            return log_pb2.QueryOffsetsResponse(refusal=self._refusals.of(error, ""))


class FetchStreams:
    """Serves Fetch and FetchStream, and registers the readers of streams."""

    def __init__(
        self, fetches: Fetches, readers: LiveReaders, identity: BrokerGroupIdentity, refusals: Refusals
    ) -> None:
        self._fetches = fetches
        self._readers = readers
        self._identity = identity
        self._refusals = refusals

    async def serve_one(self, raw: bytes, context: Any) -> bytes:
        """Answer one fetch."""
        return await self._fetched(raw, self._identity.meant_by(context))

    async def serve(self, _requests: Any, context: Any) -> None:
        """Write one answer per request; the client sends the next request after it has taken the last."""
        meant = self._identity.meant_by(context)
        consumer_group = str(dict(context.invocation_metadata() or ()).get(CONSUMER_GROUP, ""))
        if group_problem(consumer_group):
            consumer_group = ""  # the name is shown to people; a reader without a consumer group is allowed
        with self._readers.open(consumer_group) as reader:
            while (raw := await context.read()) is not _EOF:
                await context.write(await self._fetched(raw, meant, reader))

    async def _fetched(self, raw: bytes, meant: MeantBrokerGroup, reader: LiveReader | None = None) -> bytes:
        try:
            meant.check()
            request = parsed(log_pb2.FetchRequest, raw)
            if reader is not None:
                reader.request = request
            found = await self._fetches.fetch(request)
            meant.check()
            return found
        except REFUSABLE as error:
            response = log_pb2.FetchResponse(
                refusal=self._refusals.of(error, ""), node_id=self._fetches.node_id
            )
            return bytes(response.SerializeToString())
