"""Measure one message per unary call (W6): raw grpc.aio stubs call SendMessage of the leader, of a follower, and an echo.

    python -m bench.unary_bench [--callers 64] [--seconds 3] [--runs 3] [--size 1024]

The echo is a grpc.aio server in a process of its own whose handler returns a ready answer: what a call costs at the very
least. It is measured in turn with the group in every run, since only the ratios say something on a shared machine.
Prints calls/s, the ratio to the echo, and CPU per call of the process that was called (medians of the runs).
"""
# ruff: noqa: I001 (the order of imports matters here)

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ledgermq.client import Admin  # first: it sets how gRPC runs, which gRPC reads while it is loaded

import grpc
import grpc.aio
import uvloop

from ledgermq.proto import rocketmq_v2_pb2 as v2
from tests.integration.cluster import Cluster

from .peers.measure import clock, closed_loop, cpu_seconds, percentile, stop

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
TOPIC: Final = "unary"
WARM_UP_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """Who is called: an address, and the process behind it."""

    name: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One target in one run."""

    calls_per_second: float
    p50_ms: float
    cpu_us_per_call: float


async def echo() -> None:
    """Serve SendMessage with an answer that is ready; print the port."""
    status = v2.Status(code=v2.OK, message="OK")
    entry = v2.SendResultEntry(status=status, message_id="0" * 32, transaction_id="0" * 32, offset=1)
    answer = v2.SendMessageResponse(status=status, entries=[entry]).SerializeToString()

    async def serve(request: bytes, context: Any) -> bytes:
        return answer

    server = grpc.aio.server()
    handlers = {"SendMessage": grpc.unary_unary_rpc_method_handler(serve)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


def sender(channel: Any, size: int) -> Callable[[], Awaitable[None]]:
    """Return a function that sends one message in one call. It raises AssertionError when the answer is not OK."""
    call = channel.unary_unary(
        f"/{SERVICE}/SendMessage",
        request_serializer=v2.SendMessageRequest.SerializeToString,
        response_deserializer=v2.SendMessageResponse.FromString,
    )
    topic, body, metadata = v2.Resource(name=TOPIC), os.urandom(size), (("x-mq-client-id", "unary-bench"),)

    async def send() -> None:
        system = v2.SystemProperties(message_id=os.urandom(16).hex(), message_type=v2.NORMAL)
        message = v2.Message(topic=topic, system_properties=system, body=body)
        answer = await call(v2.SendMessageRequest(messages=[message]), metadata=metadata, timeout=30)
        assert answer.status.code == v2.OK, answer.status

    return send


async def measure(target: Target, callers: int, seconds: float, size: int) -> Figure:
    """Call one target for a time."""
    async with grpc.aio.insecure_channel(target.address) as channel:
        send = sender(channel, size)
        await closed_loop(send, callers, WARM_UP_S)
        begin, used = clock(), cpu_seconds(target.pid)
        latencies = await closed_loop(send, callers, seconds)
        took, used = clock() - begin, cpu_seconds(target.pid) - used
    return Figure(len(latencies) / took, 1e3 * percentile(latencies, 50), 1e6 * used / len(latencies))


async def run(cluster: Cluster, echo_port: int, echo_pid: int, options: argparse.Namespace) -> None:
    """Measure all targets in turn, `options.runs` times, and print the medians."""
    async with Admin(cluster.nameserver_addresses[0]) as admin:
        await admin.create_topic(TOPIC, queues=8)
    leader = await asyncio.to_thread(cluster.wait_leader)
    follower = next(name for name in cluster.nodes if name != leader)
    targets = [Target("echo", f"127.0.0.1:{echo_port}", echo_pid)]
    for name, node in (("leader", leader), ("follower", follower)):
        targets.append(Target(name, cluster.address(node, "messaging"), cluster.nodes[node].pid))
    found: dict[str, list[Figure]] = {target.name: [] for target in targets}
    for _ in range(options.runs):
        for target in targets:
            found[target.name].append(await measure(target, options.callers, options.seconds, options.size))
    for name, figures in found.items():
        ratios = [
            each.calls_per_second / base.calls_per_second
            for each, base in zip(figures, found["echo"], strict=True)
        ]
        sys.stdout.write(
            f"{name:9} {statistics.median(each.calls_per_second for each in figures):8,.0f} calls/s"
            f"  {statistics.median(ratios):5.2f} x echo ({min(ratios):.2f}-{max(ratios):.2f})"
            f"  p50 {statistics.median(each.p50_ms for each in figures):6.1f} ms"
            f"  {statistics.median(each.cpu_us_per_call for each in figures):5.0f} us of CPU per call\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="One message per unary call, beside an echo")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        uvloop.run(echo())
        return
    command = [sys.executable, "-m", "bench.unary_bench", "--echo"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with tempfile.TemporaryDirectory(prefix="unary-bench-") as folder, Cluster(Path(folder)) as cluster:
            uvloop.run(run(cluster, port, server.pid, options))
    finally:
        stop([server])


if __name__ == "__main__":
    main()
