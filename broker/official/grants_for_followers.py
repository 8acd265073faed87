"""The leader's side of receives at followers: grants, reads for a follower, leases given back (D17).

Served on the Raft port. Owns: the handlers. Must not: read the log for a grant; the follower that asked reads
the messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from ledgermq.proto import peer_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.raft.errors import LogCompactedError, NodeStoppedError, StorageError

from ..cluster.lane_server import unless_arrived
from ..cluster.leader_calls import Call, LeaderCalls
from ..leader.selection import Delivery
from ..reading.log_reader import LogReader
from ..refusals import RefusedError
from ..replica import Replica
from ..service.answers import ENDING, IN_BAND, LeaderHandlers, Refusals, parsed
from ..service.sessions import SignsOfLife
from ..state.commands import ReleaseLeases
from .give_backs import METHOD as GIVE_BACK
from .give_backs import deliveries_of_peer, give_back
from .receive_at_follower import GRANT
from .receive_at_leader import LeaderReceives, RecordReader


@dataclass(eq=False, repr=False)
class GrantService:
    """The service of the leader that followers call. Get its handler with `handler()`."""

    _replica: Replica
    _receives: LeaderReceives
    _reader: LogReader
    _calls: LeaderCalls
    _leader_handlers: LeaderHandlers
    _clients: SignsOfLife
    _refusals: Refusals

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler for the Raft port. Requests and answers are bytes."""
        methods = {
            "Grant": grpc.unary_unary_rpc_method_handler(self._grant),
            "ReadGranted": grpc.unary_stream_rpc_method_handler(self._read_granted),
            "GiveBack": self._leader_handlers.unary(
                GIVE_BACK,
                peer_pb2.GrantedMessages,
                peer_pb2.GiveBackAnswer,
                partial(give_back, self._replica.releases),
                "",
            ),
        }
        return grpc.method_handlers_generic_handler("ledgermq.v1.PeerService", methods)

    async def _grant(self, raw: bytes, grpc_context: Any) -> bytes:
        call = Call.of(grpc_context, "")

        async def local() -> bytes:
            request = parsed(v2.ReceiveMessageRequest, raw)
            answer, noted = await self._receives.grant(request, call)
            if noted is not None:
                unless_arrived(grpc_context, partial(self._not_arrived, noted))
            return answer.SerializeToString()

        try:
            self._clients.heard(call.client_id, here=False)
            return await self._calls.unary(GRANT, raw, call, local)
        except RefusedError as error:  # the request cannot be decoded
            await grpc_context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("abort raises") from error
        except IN_BAND as error:
            return peer_pb2.GrantAnswer(status=self._refusals.status(error)).SerializeToString()
        except ENDING as error:
            await self._refusals.end_call(grpc_context, error)

    def _not_arrived(self, granted: ReleaseLeases) -> None:
        """Release a grant whose stream ended. A new leader releases recent grants by itself."""
        if self._replica.view is not None:
            self._replica.releases.propose(granted)

    async def _read_granted(self, raw: bytes, grpc_context: Any) -> AsyncIterator[bytes]:
        """Stream the records of granted messages from this node's log.

        This also works after leadership is lost, because a grant is committed. Before this node has applied
        the grant it refuses: the messages would seem deleted.
        """
        try:
            granted = parsed(peer_pb2.GrantedMessages, raw)
            records = RecordReader(self._reader)
            applied = self._replica.state.applied_index
            if any(each.lease_id > applied for each in granted.messages):
                await grpc_context.abort(
                    grpc.StatusCode.UNAVAILABLE,
                    "this node was started again and has not applied the grant yet",
                )
            for delivery in deliveries_of_peer(granted):
                found = await self._record(records, granted.topic_id, delivery)
                yield found.SerializeToString()
        except RefusedError as error:
            await grpc_context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except (StorageError, NodeStoppedError) as error:
            await grpc_context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def _record(
        self, records: RecordReader, topic_id: int, delivery: Delivery
    ) -> peer_pb2.GrantedRecord:
        """Return one message; an empty one when retention deleted it or its topic is gone."""
        queue = self._replica.state.queues.get(topic_id, delivery.queue_id)
        if queue is None or not queue.begin <= delivery.queue_offset < queue.end:
            return peer_pb2.GrantedRecord()
        try:
            record, store_timestamp = await records.read(delivery)
        except LogCompactedError:
            return peer_pb2.GrantedRecord()
        raw = memoryview(record.buffer)[record.position : record.position + record.size]
        return peer_pb2.GrantedRecord(record=bytes(raw), store_timestamp=store_timestamp)
