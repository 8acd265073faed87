"""Answers to failed calls, and handlers of the unary calls of `ledgermq.v1` that the leader serves.

Calls of `ledgermq.v1` are answered with a refusal, those of official clients with a status.

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

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import route_pb2
from ledgermq.raft.errors import (
    BusyError,
    DiskFullError,
    NodeStoppedError,
    NotLeaderError,
    ProposalLostError,
    StorageError,
    TransferringError,
)
from ledgermq.raft.node.raft_node import RaftNode

from ..cluster.forwarding import refuse_not_leader
from ..cluster.known_leader import Leadership
from ..cluster.leader_calls import Call, LeaderCalls, LeaderUnavailableError
from ..cluster.members import Members
from ..errors import InvalidReceiptHandleError, LimitReachedError
from ..leader.pipeline import TooManyRequestsError
from ..metrics import Metrics
from ..reading.polls import TooManyPollsError
from ..refusals import REFUSABLE, RefusedError, refusal_of
from ..wire.status import StatusError
from .broker_group_identity import BrokerGroupIdentity
from .sessions import TooManyClientsError

#: Errors that end a forwarded call. After the first two, certainly nothing was done.
ENDING: Final = (NotLeaderError, TransferringError, ProposalLostError, NodeStoppedError)
#: Limits that were reached; the caller may repeat the call later.
_LIMITS: Final = (TooManyRequestsError, TooManyPollsError, TooManyClientsError, BusyError, DiskFullError)
#: Errors that are answered in-band.
IN_BAND: Final = (
    StatusError,
    LeaderUnavailableError,
    LimitReachedError,
    InvalidReceiptHandleError,
    *_LIMITS,
    StorageError,
)

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
    """Turns errors into refusals and statuses, and counts them."""

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

    def status(self, error: Exception) -> v2.Status:
        """Return the in-band status for an error of IN_BAND, for official clients."""
        if isinstance(error, LeaderUnavailableError):
            if error.unknown:
                error = StatusError(v2.MASTER_PERSISTENCE_TIMEOUT, str(error))
            else:
                error = StatusError(v2.HA_NOT_AVAILABLE, self.without_master() or str(error))
        elif isinstance(error, LimitReachedError):
            error = StatusError(v2.FORBIDDEN, str(error))  # a code that asks for no repeat
        elif isinstance(error, InvalidReceiptHandleError):
            error = StatusError(v2.INVALID_RECEIPT_HANDLE, str(error))
        elif not isinstance(error, StatusError):
            code = v2.TOO_MANY_REQUESTS if isinstance(error, _LIMITS) else v2.INTERNAL_SERVER_ERROR
            error = StatusError(code, str(error))
        self.count(v2.Code.Name(error.code))
        return error.status()

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
        """Return the text for a broker group with a master and without a leader; "" with a quorum."""
        config = self._raft.config
        if config.reign is None:
            return ""
        master = config.reign.master
        return (
            f"the master {master} of broker group {config.group} is away, or not ready yet: this attempt "
            f"stored nothing. Repeat it; it goes on when {master} is back, or when a slave is promoted: "
            "ledgermq cluster promote NODE. See: ledgermq cluster status"
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
