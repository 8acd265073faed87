"""gRPC calls between simulated nodes: ordered streams over links that lose, delay and cut.

Owns: the behaviour of a connection on top of the network. It resends what is lost, never reorders, and breaks
if it cannot get through or a process at either end dies. Each side notices that some time later. The code
under test finds its usual GrpcChannel.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import grpc.aio

from ledgermq.raft.reset.receiver import END_OF_STREAM

if TYPE_CHECKING:
    from .node import SimNode
    from .world import World

MS = 1000
_BREAKS = 0.3  # share of lost frames after which a connection is given up
_CUT_OFF = object()  # to the server: the caller is gone


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details, "")


class _Details(NamedTuple):
    method: str


class Port:
    """Services of one life of a node."""

    def __init__(self) -> None:
        self._handlers: list[Any] = []

    def serve_also(self, handler: grpc.GenericRpcHandler[Any, Any]) -> None:
        """Add a service."""
        self._handlers.append(handler)

    def find(self, method: str) -> Any:
        """Return the handler of a method; None if it is not served."""
        found = (handler.service(_Details(method)) for handler in self._handlers)
        return next((handler for handler in found if handler is not None), None)


class Packet(NamedTuple):
    """A frame for one end of a call."""

    call: Call
    to_server: bool
    item: Any


class Calls:
    """All calls of a run."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self._open: list[Call] = []

    def channel(self, address: str, **_: object) -> Channel:
        """Return what the code under test gets for a GrpcChannel."""
        loop: Any = asyncio.get_running_loop()
        client = next(node for node in self.world.nodes.values() if node.loop is loop)
        return Channel(self, client, self.world.nodes[address.partition(":")[0]])

    def open(self, call: Call, raw: bytes) -> None:
        """Send the request of a new call."""
        self._open.append(call)
        if call.server.port is None:
            self.cut(call)  # refused
        else:
            self.put(call, raw, to_server=True)

    def put(self, call: Call, item: Any, *, to_server: bool) -> int:
        """Send a frame; returns its arrival time (us). Nothing arrives on a broken connection, nor an end."""
        world, rng = self.world, self.rng
        if call not in self._open:
            return world.now
        ends = (call.client.name, call.server.name)
        source, target = ends if to_server else ends[::-1]
        delays = world.network.deliveries(source, target, world.now)
        if delays:
            delay = delays[0]
        elif rng.random() < _BREAKS:
            self.cut(call)
            return world.now
        else:
            delay = rng.randint(200, 1500) * MS  # the transport resends it
        at = max(call.last[to_server] + 1, world.now + delay)
        call.last[to_server] = at
        world.later(at - world.now, target, "call", Packet(call, to_server, item))
        return at

    def cut(self, call: Call) -> None:
        """Break the connection. Both ends notice."""
        if self.end(call):
            gone = _error(grpc.StatusCode.UNAVAILABLE, "connection lost")
            self._tell(call, gone, to_server=False)
            self._tell(call, _CUT_OFF, to_server=True)

    def hang_up(self, call: Call) -> None:
        """Cancel a call from the caller's side."""
        if self.end(call):
            self._tell(call, _CUT_OFF, to_server=True)

    def end(self, call: Call) -> bool:
        """Forget a call. Returns whether it was open."""
        if call not in self._open:
            return False
        self._open.remove(call)
        return True

    def _tell(self, call: Call, item: Any, *, to_server: bool) -> None:
        name = call.server.name if to_server else call.client.name
        self.world.later(self.rng.randint(1, 2000) * MS, name, "call", Packet(call, to_server, item))

    def process_ended(self, node: SimNode) -> None:
        """Break the connections of a node."""
        for call in [call for call in self._open if node in (call.server, call.client)]:
            self.cut(call)

    def on_packet(self, node: SimNode, packet: Packet) -> None:
        """Handle the arrival of a frame."""
        call = packet.call
        if packet.to_server:
            call.at_server(node, packet.item)
        else:
            if packet.item is END_OF_STREAM:
                self.end(call)
            call.at_client(packet.item)


class Channel:
    """Replacement of GrpcChannel."""

    def __init__(self, calls: Calls, client: SimNode, server: SimNode) -> None:
        self._calls = calls
        self._client = client
        self._server = server
        self._mine: list[Call] = []

    def unary_stream(self, method: str) -> Callable[[bytes], Call]:
        """Return a function that opens a stream of frames."""
        return lambda raw: self._open(method, raw)

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
    ) -> Callable[..., Awaitable[Any]]:
        """Return a function that sends a request and waits for one answer."""

        async def ask(request: Any, timeout: float) -> Any:
            call = self._open(method, request_serializer(request))
            try:
                async with asyncio.timeout(timeout):
                    return response_deserializer(await call.read())
            except TimeoutError:
                raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time") from None
            finally:
                self._calls.hang_up(call)

        return ask

    async def close(self, grace: float | None) -> None:
        """End the calls."""
        for call in self._mine:
            self._calls.hang_up(call)

    def _open(self, method: str, raw: bytes) -> Call:
        call = Call(self._calls, self._client, self._server, method)
        self._mine.append(call)
        self._calls.open(call, raw)
        return call


@dataclass(eq=False)
class Call:
    """One call: the caller's `read`, and the task that answers."""

    calls: Calls
    client: SimNode
    server: SimNode
    method: str
    #: Arrival time of the last frame: [to the client, to the server].
    last: list[int] = field(default_factory=lambda: [0, 0])
    _inbox: deque[Any] = field(default_factory=deque)
    _waiter: asyncio.Future[None] | None = None
    _task: asyncio.Task[None] | None = None

    async def read(self) -> Any:
        """Return the next frame, END_OF_STREAM after the last one. Raises: AioRpcError."""
        while not self._inbox:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item = self._inbox.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def at_client(self, item: Any) -> None:
        """Handle a frame, the end, or an error that arrived."""
        self._inbox.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def at_server(self, node: SimNode, item: Any) -> None:
        """Handle the arrived request, or the end of the connection."""
        if item is _CUT_OFF:
            if self._task is not None:
                self._task.cancel()
            return
        handler = node.port.find(self.method) if node.port is not None else None
        if handler is None:
            self.calls.cut(self)
        else:
            assert node.loop is not None
            self._task = node.loop.create_task(self._serve(handler, item))

    async def _serve(self, handler: Any, raw: bytes) -> None:
        if handler.response_streaming:
            frames = handler.unary_stream(raw, None)
            try:
                async for frame in frames:
                    await self._send(frame)
            finally:
                await frames.aclose()
        else:
            decode = handler.request_deserializer or bytes  # without a deserializer gRPC passes the bytes
            answer = await handler.unary_unary(decode(raw), None)
            await self._send(handler.response_serializer(answer))
        self.calls.put(self, END_OF_STREAM, to_server=False)

    async def _send(self, frame: bytes) -> None:
        """Send a frame. Now and then the window is full, and it waits until the frame has arrived."""
        at = self.calls.put(self, frame, to_server=False)
        if self.calls.rng.random() < 0.7:
            await asyncio.sleep(max(0, at - self.calls.world.now) / 1e6)
