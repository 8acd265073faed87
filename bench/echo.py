"""Reference that does not change with LedgerMQ: gRPC with handlers that do nothing, in a separate process.

    with EchoServer() as server:
        calls = await unary(server.address, callers=64, seconds=1)

`python -m bench.echo` is the server: it prints its port and ends when its input ends. Handlers: `SendMessage`
of the official protocol, answered at once, and a stream that sends every message back. Brokers and this
server have the same gRPC settings and the same event loop.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

# Set before gRPC is loaded, as the command line and the brokers do.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import grpc
import uvloop
from grpc import aio

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc

ROOT = Path(__file__).resolve().parent.parent
_STREAM = "/bench.Echo/Stream"
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)
_MIB = 1 << 20
_WINDOW = 4  # messages of 1 MiB in flight
_METADATA = (("x-mq-client-id", "echo"), ("x-mq-language", "PYTHON"))  # sent by callers of a broker too
clock = time.perf_counter


@dataclass(frozen=True)
class Calls:
    """Measurements of unary calls or of messages on a stream."""

    latencies: list[float]  # seconds
    seconds: float
    client_cpu: float  # CPU seconds of this process

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds


class EchoServer:
    """The server as a child process. `pid` allows counting its CPU time."""

    address = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.echo"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            raise RuntimeError("the echo server did not start")
        self.address = f"127.0.0.1:{int(port)}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=20)  # closes its input

    @property
    def pid(self) -> int:
        return self._process.pid


async def unary(
    address: str, *, callers: int, seconds: float, size: int = 1024, topic: str = "echo"
) -> Calls:
    """Call `SendMessage` from `callers` callers with one open call each.

    Raises: AssertionError (an answer is not OK).
    """
    message = v2.Message(topic=v2.Resource(name=topic), body=os.urandom(size))
    message.system_properties.message_type = v2.NORMAL
    async with aio.insecure_channel(address, options=_OPTIONS) as channel:
        stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(channel)
        number = 0

        async def call() -> None:
            nonlocal number
            number += 1
            request = v2.SendMessageRequest(messages=[message])
            system = request.messages[0].system_properties
            system.message_id = f"01{number:032X}"
            system.born_timestamp.FromMilliseconds(time.time_ns() // 1_000_000)
            answer = await stub.SendMessage(request, timeout=10, metadata=_METADATA)
            assert answer.status.code == v2.OK, answer.status

        return await _repeat(call, callers, seconds)


async def stream(address: str, *, seconds: float, size: int = 1024) -> Calls:
    """Send one message at a time on an open stream, and wait until it is back."""
    body = os.urandom(size)
    async with aio.insecure_channel(address, options=_OPTIONS) as channel:
        pipe = _open(channel)

        async def there_and_back() -> None:
            await pipe.write(body)
            await pipe.read()

        calls = await _repeat(there_and_back, 1, seconds)
        await pipe.done_writing()
        return calls


async def bandwidth(address: str, *, seconds: float) -> float:
    """Return bytes per second in both directions together, for 1 MiB messages on a stream."""
    body = os.urandom(_MIB)
    async with aio.insecure_channel(address, options=_OPTIONS) as channel:
        pipe = _open(channel)
        begin, back = clock(), 0
        for _ in range(_WINDOW):
            await pipe.write(body)
        while clock() - begin < seconds:
            await pipe.read()
            back += 1
            await pipe.write(body)
        end = clock()
        await pipe.done_writing()
        for _ in range(_WINDOW):
            await pipe.read()
        return 2 * back * _MIB / (end - begin)


def _open(channel: Any) -> Any:
    """Open the stream. Messages are bytes."""
    return channel.stream_stream(_STREAM)()


async def _repeat(call: Callable[[], Awaitable[None]], callers: int, seconds: float) -> Calls:
    latencies: list[float] = []
    await call()  # opens the connection
    begin, cpu = clock(), time.process_time()
    end = begin + seconds

    async def worker() -> None:
        now = clock()
        while True:  # at least once, however slow the machine is
            before = now
            await call()
            now = clock()
            latencies.append(now - before)
            if now >= end:
                return

    await asyncio.gather(*(worker() for _ in range(callers)))
    return Calls(latencies, clock() - begin, time.process_time() - cpu)


class _Messaging(rocketmq_v2_pb2_grpc.MessagingServiceServicer):
    def __init__(self) -> None:
        self._answer = v2.SendMessageResponse(status=v2.Status(code=v2.OK))
        self._answer.entries.add(status=v2.Status(code=v2.OK), message_id="0" * 34, offset=1)

    async def SendMessage(self, request: v2.SendMessageRequest, context: Any) -> v2.SendMessageResponse:
        return self._answer


async def _back(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


async def _serve() -> None:
    server = aio.server(options=_OPTIONS)
    rocketmq_v2_pb2_grpc.add_MessagingServiceServicer_to_server(_Messaging(), server)
    _, service, method = _STREAM.split("/")
    handler = grpc.stream_stream_rpc_method_handler(_back)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    await server.stop(0)


if __name__ == "__main__":
    uvloop.run(_serve())
