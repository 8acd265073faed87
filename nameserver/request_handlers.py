"""Request handlers: pass decoded messages to the service, and refuse bytes that are not a request.

gRPC's own deserializers answer UNKNOWN and log a traceback per call. Here requests stay bytes until this
module decodes them. The refusal is in-band if the answer has a field for it, else the status
INVALID_ARGUMENT.
Must not: know what the calls mean.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto import route_pb2


class _NoRequestError(Exception):
    """The bytes of a call are not the message that the method expects."""


def request_handlers(service: Any) -> grpc.GenericRpcHandler[Any, Any]:
    """Return handlers for every method of NameServerService. `service` has a method of each name."""
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
