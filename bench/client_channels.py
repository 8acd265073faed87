"""Compare the client on channels of the event loop (`rpc/`) with the same client on grpc.aio's.

    python -m bench.client_channels [--seconds 3] [--rounds 3] [--server-transport grpcio] [--json FILE]

Both take turns on one broker group of three nodes: W1 (one message in flight), W2 (64), batch (`send_batch`)
and W4 (the drain of what was stored). Prints msg/s, p50 and the client's CPU per message, and the ratios of
each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import uvloop

from ledgermq.client import Admin, Producer
from ledgermq.client.cluster import channels
from tests.integration.cluster import Cluster

from .client_bench import drained, in_batches
from .peers.measure import Meter, percentile

CHANNELS: Final = ("grpcio", "event_loop")
clock: Final = time.perf_counter


def grpcio_channel(address: str, *, watch: bool = False) -> Any:
    """Return grpc.aio's channel, with the bounds and times of the client's own."""
    timeout_s = channels.WATCH_TIMEOUT_S if watch else channels.KEEPALIVE_TIMEOUT_S
    return grpc.aio.insecure_channel(
        address,
        options=(
            ("grpc.max_receive_message_length", channels.MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", channels.MAX_MESSAGE_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.keepalive_time_ms", int(1000 * channels.KEEPALIVE_S)),
            ("grpc.keepalive_timeout_ms", int(1000 * timeout_s)),
        ),
    )


@contextmanager
def using(kind: str) -> Iterator[None]:
    """Let the client open channels of a kind."""
    ours = channels.open_channel
    opened: Callable[..., Any] = {"grpcio": grpcio_channel, "event_loop": ours}[kind]
    channels.open_channel = opened
    try:
        yield
    finally:
        channels.open_channel = ours


async def sent(options: argparse.Namespace, topic: str, in_flight: int, latencies: list[float]) -> int:
    """Send for a time from so many tasks, each of which awaits its receipt."""
    body = os.urandom(options.size)
    async with Producer(options.nameserver) as producer:
        await producer.prepare(topic)
        end = clock() + options.seconds

        async def task() -> None:
            is_over = False
            while not is_over:  # at least once, however late
                begin = clock()
                await producer.send(topic, body)
                now = clock()
                latencies.append(now - begin)
                is_over = now >= end

        await asyncio.gather(*(task() for _ in range(in_flight)))
    return len(latencies)


async def figures(options: argparse.Namespace, workload: str) -> dict[str, float]:
    """Measure one workload once."""
    latencies: list[float] = []
    topic = f"channels-{time.time_ns()}"
    async with Admin(options.nameserver) as admin:
        await admin.create_topic(topic, queues=8)
    if workload == "W4":
        await in_batches(options, topic)
    with Meter(options.pids) as meter:
        if workload in ("W1", "W2"):
            count = await sent(options, topic, 1 if workload == "W1" else 64, latencies)
        else:
            count = await (in_batches if workload == "batch" else drained)(options, topic)
    async with Admin(options.nameserver) as admin:
        await admin.delete_topic(topic)
    p50 = {"p50_ms": round(1e3 * percentile(latencies, 50), 3)} if latencies else {}
    cpu = {"client_us": round(1e6 * meter.client_cpu / count, 2)}
    return {"per_s": round(count / meter.seconds), **p50, **cpu}


async def run(options: argparse.Namespace) -> None:
    """Let both kinds take turns, and print what came out."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for workload in options.workloads.split(","):
        rounds = found[workload] = {kind: [] for kind in CHANNELS}
        for number in range(options.rounds):
            for kind in CHANNELS if number % 2 else CHANNELS[::-1]:
                with using(kind):
                    rounds[kind].append(await figures(options, workload))
        for name in rounds[CHANNELS[0]][0]:
            values = {kind: [each[name] for each in rounds[kind]] for kind in CHANNELS}
            ratios = [round(b / a, 2) for a, b in zip(*values.values(), strict=True)]
            medians = {kind: statistics.median(each) for kind, each in values.items()}
            print(f"{workload:5} {name:9} {medians}  event_loop / grpcio: {ratios}", flush=True)
        if options.json:
            about = {"seconds": options.seconds, "size": options.size, "server": options.server_transport}
            options.json.write_text(json.dumps({**about, "rounds": found}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="The client on either kind of channel")
    parser.add_argument("--workloads", default="W1,W2,batch,W4")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn that sends")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1000, help="messages of one send_batch")
    parser.add_argument("--batches", type=int, default=4, help="open calls of send_batch")
    parser.add_argument("--server-transport", default="grpcio", choices=CHANNELS)
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="client-channels-") as folder:
        settings = {"server-transport": options.server_transport}
        with Cluster(Path(folder), settings=settings) as nodes:
            nodes.wait_leader()
            options.nameserver = nodes.nameserver_addresses[0]
            options.pids = [process.pid for process in nodes.nodes.values()]
            uvloop.run(run(options))


if __name__ == "__main__":
    main()
