"""Answers to failed calls of `ledgermq.v1`, and handlers of its unary calls that the leader serves.

A call that another node forwarded to this one ends with a gRPC status if this node does not lead (any more).
The forwarding node then looks for the leader again, or answers its client. A call that a client made to this
node directly is always answered with a refusal instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError

from ledgermq.proto import route_pb2
from ledgermq.raft.errors import NodeStoppedError, NotLeaderError, ProposalLostError, TransferringError
from ledgermq.raft.node.raft_node import RaftNode

from ..cluster.forwarding import refuse_not_leader
from ..cluster.known_leader import Leadership
from ..cluster.leader_calls import Call, LeaderCalls
from ..cluster.members import Members
from ..metrics import Metrics
from ..refusals import REFUSABLE, RefusedError, refusal_of
from .broker_group_identity import BrokerGroupIdentity

#: Errors that end a forwarded call. After the first two, certainly nothing was done.
ENDING: Final = (NotLeaderError, TransferringError, ProposalLostError, NodeStoppedError)

Serve = Callable[[Any], Awaitable[Any]]


def parsed(kind: Any, raw: bytes) -> Any:
    """Decode a request. Raises: RefusedError (gRPC itself would answer UNKNOWN and log a traceback)."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT, f"the request cannot be decoded: it is no {kind.DESCRIPTOR.name}"
        ) from None


@dataclass(eq=False, repr=False)
class Refusals:
    """Turns errors into refusals, and counts them."""

    _raft: RaftNode
    _leadership: Leadership
    _members: Members
    _metrics: Metrics

    def of(self, error: Exception, listener: str) -> route_pb2.Refusal:
        """Return the refusal for an error, with the leader's address on that listener."""
        leader_id = self._leadership.leader_id
        found = refusal_of(error, leader_id, self._members.addresses(leader_id, listener))
        if found.code == route_pb2.NO_QUORUM and (text := self.without_master()):
            found.message = text
        self.count(route_pb2.RefusalCode.Name(found.code))
        return found

    async def end_call(self, grpc_context: Any, error: Exception) -> NoReturn:
        """End a call with the status that says whether it was certainly not carried out.

        Raises: what gRPC's abort does.
        """
        if isinstance(error, NotLeaderError | TransferringError):
            await refuse_not_leader(grpc_context, self._leadership.node_id, self._leadership.leader_id)
        await grpc_context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        raise AssertionError("abort raises")

    def count(self, code: str) -> None:
        """Count a refusal by the name of its code."""
        self._metrics.refusals.labels(code).inc()

    def without_master(self) -> str:
        """Return the text for a broker group with a master and without a leader; "" in a quorum group."""
        config = self._raft.config
        if config.reign is None:
            return ""
        master = config.reign.master
        return (
            f"the master {master} of group {config.group} is away, or not ready yet: this attempt stored "
            f"nothing. Repeat it; it goes on when {master} is back, or when a slave is promoted: ledgermq "
            "cluster promote NODE. See: ledgermq cluster status"
        )


@dataclass(eq=False, repr=False)
class LeaderHandlers:
    """Makes handlers of unary calls that the leader serves: local, forwarded or refused in-band."""

    _calls: LeaderCalls
    _identity: BrokerGroupIdentity
    _refusals: Refusals

    def unary(self, method: str, request_type: Any, response_type: Any, serve: Serve, listener: str) -> Any:
        """Return the handler of `method` ("/service/name") for a port of that listener."""

        async def handle(raw: bytes, grpc_context: Any) -> bytes:
            call, meant = Call.of(grpc_context, listener), self._identity.meant_by(grpc_context)

            async def local() -> bytes:
                meant.check()
                request = parsed(request_type, raw)
                if call.perhaps_done and "perhaps_done" in request_type.DESCRIPTOR.fields_by_name:
                    request.perhaps_done = True
                return bytes((await serve(request)).SerializeToString())

            try:
                meant.check()
                return await self._calls.unary(method, raw, call, local)
            except ENDING as error:
                if call.forwarded:
                    await self._refusals.end_call(grpc_context, error)
                refused: Exception = error
            except REFUSABLE as error:
                refused = error
            refusal = self._refusals.of(refused, call.listener)
            return bytes(response_type(refusal=refusal).SerializeToString())

        return grpc.unary_unary_rpc_method_handler(handle)
