"""Servers and channels of both kinds, and a service of bytes that they serve and call."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final

import grpc
import uvloop

from ledgermq.rpc.grpc_channel import GrpcChannel
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.wire_limits import WireLimits
from tests.tls import CERTIFICATE, KEY

#: (server, client): each of ours with grpcio, and with each other.
PAIRS: Final = (("wire", "grpcio"), ("grpcio", "wire"), ("wire", "wire"))
EOF: Final[Any] = vars(grpc.aio)["EOF"]
#: Bounds of servers in tests, under those of the product where a test would take long.
LIMITS: Final = WireLimits(max_message=5 << 20)
_OPTIONS: Final = (("grpc.max_receive_message_length", 5 << 20), ("grpc.max_send_message_length", -1))


def run(test: Callable[[], Coroutine[Any, Any, None]], *, on_uvloop: bool = False) -> None:
    """Run a test in a loop of its own."""

    async def bounded() -> None:
        async with asyncio.timeout(120):
            await test()

    (uvloop.run if on_uvloop else asyncio.run)(bounded())


class Service:
    """What the tests call. `started` and `ended` count handlers."""

    def __init__(self) -> None:
        self.started = self.ended = 0
        self.go_on = asyncio.Event()

    async def echo(self, request: bytes, context: Any) -> bytes:
        for key, value in context.invocation_metadata():
            if key == "x-initial":
                await context.send_initial_metadata((("x-initial", value),))
            elif key == "x-trailing-bin":
                context.set_trailing_metadata((("x-trailing-bin", value),))
        return request

    async def status(self, request: bytes, context: Any) -> bytes:
        code, _, message = request.partition(b" ")
        context.set_code(next(each for each in grpc.StatusCode if each.value[0] == int(code)))
        context.set_details(message.decode())
        return b""

    async def abort(self, request: bytes, context: Any) -> bytes:
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION, request.decode(), (("x-why-bin", b"\0\xff"), ("x-why", "it"))
        )
        raise AssertionError

    async def remaining(self, request: bytes, context: Any) -> bytes:
        left = context.time_remaining()
        return b"none" if left is None else b"%.3f" % left

    async def sleep(self, request: bytes, context: Any) -> bytes:
        self.started += 1
        try:
            await self.go_on.wait()
            return b"woken"
        finally:
            self.ended += 1

    async def broken(self, request: bytes, context: Any) -> bytes:
        raise ValueError("a bug")

    async def repeat(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        count, _, body = request.partition(b" ")
        for _ in range(int(count)):
            yield body

    async def endless(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.started += 1
        try:
            while True:
                yield request
        finally:
            self.ended += 1

    async def size(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        total = 0
        async for request in requests:
            total += len(request)
        return b"%d" % total

    async def mirror(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def by_hand(self, _: object, context: Any) -> None:
        while (request := await context.read()) is not EOF:
            await context.write(request)

    async def unread(self, _: object, context: Any) -> None:
        self.started += 1
        await self.go_on.wait()
        while (request := await context.read()) is not EOF:
            await context.write(b"%d" % len(request))

    def handlers(self) -> Any:
        """Return the service `test.Service`."""
        unary, answers = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        both = grpc.stream_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            "test.Service",
            {
                "Echo": unary(self.echo),
                "Status": unary(self.status),
                "Abort": unary(self.abort),
                "Remaining": unary(self.remaining),
                "Sleep": unary(self.sleep),
                "Broken": unary(self.broken),
                "Repeat": answers(self.repeat),
                "Endless": answers(self.endless),
                "Size": grpc.stream_unary_rpc_method_handler(self.size),
                "Mirror": both(self.mirror),
                "ByHand": both(self.by_hand),
                "Unread": both(self.unread),
            },
        )


@contextlib.asynccontextmanager
async def serving(
    kind: str, limits: WireLimits = LIMITS, *, tls: bool = False, **arguments: Any
) -> AsyncIterator[tuple[Any, str, Service]]:
    """Yield (server, address, service) of a started server."""
    service = Service()
    if kind == "wire":
        server: Any = GrpcServer(limits, **arguments)
    else:
        server = grpc.aio.server(
            options=(*_OPTIONS, ("grpc.max_concurrent_streams", limits.max_streams)), **arguments
        )
    server.add_generic_rpc_handlers((service.handlers(),))
    if not tls:
        port = server.add_insecure_port("127.0.0.1:0")
    elif kind == "wire":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE, KEY)
        port = server.add_secure_port("127.0.0.1:0", context)
    else:
        pair = (KEY.read_bytes(), CERTIFICATE.read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    try:
        yield server, f"127.0.0.1:{port}", service
    finally:
        service.go_on.set()
        await server.stop(0.2)


def channel_to(kind: str, address: str, *, tls: bool = False, **arguments: Any) -> Any:
    """Return a channel; close it."""
    if kind == "wire":
        if tls:
            context = ssl.create_default_context(cafile=str(CERTIFICATE))
            arguments |= {"tls": context, "server_name": "localhost"}
        return GrpcChannel(address, limits=arguments.pop("limits", LIMITS), **arguments)
    options: list[tuple[str, Any]] = [*_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    if not tls:
        return grpc.aio.insecure_channel(address, options=options, **arguments)
    options.append(("grpc.ssl_target_name_override", "localhost"))
    credentials = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())
    return grpc.aio.secure_channel(address, credentials, options=options, **arguments)


class Stub:
    """The methods of the service, over a channel of either kind."""

    def __init__(self, channel: Any) -> None:
        for name in ("Echo", "Status", "Abort", "Remaining", "Sleep", "Broken", "Missing"):
            setattr(self, name.lower(), channel.unary_unary(f"/test.Service/{name}"))
        self.elsewhere = channel.unary_unary("/test.Other/Echo")
        self.repeat = channel.unary_stream("/test.Service/Repeat")
        self.endless = channel.unary_stream("/test.Service/Endless")
        self.size = channel.stream_unary("/test.Service/Size")
        self.mirror = channel.stream_stream("/test.Service/Mirror")
        self.by_hand = channel.stream_stream("/test.Service/ByHand")
        self.unread = channel.stream_stream("/test.Service/Unread")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@contextlib.asynccontextmanager
async def pair(
    kinds: tuple[str, str], limits: WireLimits = LIMITS, *, tls: bool = False
) -> AsyncIterator[tuple[Any, Service]]:
    """Yield (stub, service): a server of the first kind, a client of the second."""
    async with (
        serving(kinds[0], limits, tls=tls) as (_, address, service),
        channel_to(kinds[1], address, tls=tls) as channel,
    ):
        yield Stub(channel), service


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; the test's time is the limit."""
    while not condition():  # noqa: ASYNC110  # counters of a service
        await asyncio.sleep(0.005)


async def error_of(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    """Return the error that a call ends with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call succeeded")
