"""A unary call of `ledgermq.v1` that the leader serves: local, forwarded, refused in-band, in one place.

Calls that another node passed on to this one, which does not lead (any more), end without an answer: that node looks for the leader
again, or tells its client. Calls of clients that came to this node themselves must not end so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError

from ledgermq.proto import route_pb2
from ledgermq.raft.errors import NodeStoppedError, NotLeaderError, ProposalLostError, TransferringError

from ..cluster.calls import Call
from ..cluster.forwarding import refuse_not_leader
from ..refusals import REFUSABLE, RefusedError, refusal_of
from .context import NodeContext
from .meant_group import MeantGroup

#: What ends a call so. The first two are definite: nothing was done.
ENDING: Final = (NotLeaderError, TransferringError, ProposalLostError, NodeStoppedError)


async def end_call(context: NodeContext, grpc_context: Any, error: Exception) -> NoReturn:
    """End the call with the status that says whether it was certainly not carried out. Raises: what gRPC's abort does."""
    if isinstance(error, NotLeaderError | TransferringError):
        await refuse_not_leader(grpc_context, context.leadership.node_id, context.leadership.leader_id)
    await grpc_context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    raise AssertionError("abort raises")


Serve = Callable[[NodeContext, Any], Awaitable[Any]]


def refusal(context: NodeContext, error: Exception, listener: str) -> route_pb2.Refusal:
    """Return the refusal for an error, with the leader's address as that listener's callers reach it; count it."""
    found = refusal_of(error, context.leadership.leader_id, context.leader_addresses(listener))
    if found.code == route_pb2.NO_QUORUM and (text := context.without_master()):
        found.message = text
    context.metrics.refusals.labels(route_pb2.RefusalCode.Name(found.code)).inc()
    return found


def parsed(kind: Any, raw: bytes) -> Any:
    """Decode a request. Raises: RefusedError: gRPC itself would answer UNKNOWN and log a trace."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT, f"the request cannot be decoded: it is no {kind.DESCRIPTOR.name}"
        ) from None


def leader_handler(
    context: NodeContext, method: str, request_type: Any, response_type: Any, serve: Serve, listener: str
) -> Any:
    """Return the handler of `method` ("/service/name") for a port of that listener."""

    async def handle(raw: bytes, grpc_context: Any) -> bytes:
        call, meant = Call.of(grpc_context, listener), MeantGroup(context, grpc_context)

        async def local() -> bytes:
            meant.check()
            request = parsed(request_type, raw)
            if call.perhaps_done and "perhaps_done" in request_type.DESCRIPTOR.fields_by_name:
                request.perhaps_done = True
            return bytes((await serve(context, request)).SerializeToString())

        try:
            meant.check()
            return await context.calls.unary(method, raw, call, local)
        except ENDING as error:
            if call.forwarded:
                await end_call(context, grpc_context, error)
            refused: Exception = error
        except REFUSABLE as error:
            refused = error
        return bytes(response_type(refusal=refusal(context, refused, call.listener)).SerializeToString())

    return grpc.unary_unary_rpc_method_handler(handle)
