"""A forwarder, and the node that it calls over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError

from ledgermq.broker.cluster import lane as forward_lane
from ledgermq.broker.cluster.forwarding import Forwarder, refuse_not_leader
from ledgermq.broker.cluster.lane import ForwardError
from ledgermq.broker.cluster.lane_server import ForwardedContext, forwarded_calls_handler
from ledgermq.proto import peer_pb2

SERVICE = "test.Service"


class Service:
    """What the other node serves; it notes what reached it, and how."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.waiting: asyncio.Queue[str] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.seen: list[tuple[bytes, dict[str, str]]] = []
        self.alone = 0  # calls of their own
        self.messages: list[int] = []  # calls in each message of the stream

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.alone += not isinstance(context, ForwardedContext)
        self.seen.append((request, dict(context.invocation_metadata())))
        return request[::-1]

    async def held(self, request: bytes, context: Any) -> bytes:
        self.waiting.put_nowait(request.decode())
        try:
            await self.gate.wait()
        finally:
            self.ended.put_nowait(request.decode())
        return b"held " + request

    async def follower(self, request: bytes, context: Any) -> bytes:
        await refuse_not_leader(context, "n2", "n3")
        return b""

    async def broken(self, request: bytes, context: Any) -> bytes:
        raise ZeroDivisionError("a defect")

    async def unsendable(self, request: bytes, context: Any) -> bytes:
        raise OSError("no file \udcff")

    async def cancelled(self, request: bytes, context: Any) -> bytes:
        raise asyncio.CancelledError

    async def remaining(self, request: bytes, context: Any) -> bytes:
        return str(context.time_remaining()).encode()

    def handlers(self) -> list[Any]:
        names = ("echo", "held", "follower", "broken", "unsendable", "cancelled", "remaining")
        methods = {name: grpc.unary_unary_rpc_method_handler(getattr(self, name)) for name in names}
        return [
            grpc.method_handlers_generic_handler(SERVICE, methods),
            self._counted(forwarded_calls_handler(lambda method: methods.get(method.rpartition("/")[2]))),
        ]

    def _counted(self, handler: Any) -> Any:
        inner = handler.service(_Details(forward_lane.METHOD)).stream_stream

        async def forward(requests: Any, context: Any) -> None:
            async def counted() -> Any:
                async for raw in requests:
                    with suppress(DecodeError):
                        self.messages.append(len(peer_pb2.ForwardedCalls.FromString(raw).calls))
                    yield raw

            await inner(counted(), context)

        method = grpc.stream_stream_rpc_method_handler(forward)
        return grpc.method_handlers_generic_handler("ledgermq.v1.PeerService", {"Forward": method})


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method


class Two:
    """A forwarder and the node that it calls."""

    def __init__(self, make_server: Callable[[], Any]) -> None:
        self.service = Service()
        self._make_server = make_server
        self.server = make_server()
        self.forwarder: Forwarder
        self.unclaimed: asyncio.Queue[bytes] = asyncio.Queue()
        self.port = 0

    async def start(self, handlers: list[Any]) -> None:
        self.server = self._make_server()
        self.server.add_generic_rpc_handlers(tuple(handlers))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()

    async def call(self, name: str, request: bytes = b"", timeout: float = 3600, metadata: Any = ()) -> bytes:
        return await self.forwarder.unary("n2", f"/{SERVICE}/{name}", request, metadata, timeout)

    async def fails(self, name: str, request: bytes = b"", timeout: float = 3600) -> ForwardError:
        with pytest.raises(ForwardError) as error:
            await self.call(name, request, timeout)
        return error.value


@asynccontextmanager
async def opened(
    handlers: Callable[[Service], list[Any]] = Service.handlers,
    make_server: Callable[[], Any] = grpc.aio.server,
) -> AsyncIterator[Two]:
    """Start the node, which serves `handlers` on a server that `make_server` makes."""
    two = Two(make_server)
    await two.start(handlers(two.service))
    two.forwarder = Forwarder("n1", {"n2": f"127.0.0.1:{two.port}"}, two.unclaimed.put_nowait)
    try:
        yield two
    finally:
        await two.forwarder.close()
        await two.server.stop(0)
