"""A unary call of `ledgermq.v1` that the leader serves: local, forwarded, refused in-band, in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ledgermq.proto import route_pb2

from ..cluster.calls import Call
from ..refusals import REFUSABLE, RefusedError, refusal_of
from .context import NodeContext
from .ended_calls import ENDING, end_call
from .meant_group import MeantGroup

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
