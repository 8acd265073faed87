"""Cost per message of our own client: its CPU, and that of the leader and the followers meanwhile.

    python -m bench.client_bench [--size 1024] [--seconds 4] [--workloads W3,batch,W4] [--profile PREFIX]

W3: one awaitable per message, `--in-flight` of them. batch: `--batches` callers of `send_batch`. W4: the
drain of the stored messages, with commits. On a busy machine CPU per message says more than wall time, but
compare only figures of one session. `--serve` starts a cluster and prints its nameserver and pids for other
runs (`--nameserver`, `--pids`), so that two versions of the client can take turns on it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import uvloop

from bench.peers.measure import Meter
from ledgermq.client import Admin, Message, Producer, PullConsumer
from tests.integration.cluster import Cluster

clock = time.perf_counter
Work = Callable[[argparse.Namespace, str], Awaitable[int]]


async def repeated(send: Callable[[], Awaitable[int]], tasks: int, seconds: float) -> int:
    """Send repeatedly from `tasks` tasks.

    Returns the number of messages, as the sum of the results of `send`.
    """
    end, sent = clock() + seconds, 0

    async def task() -> None:
        nonlocal sent
        while clock() < end:
            count = await send()
            sent += count

    await asyncio.gather(*(task() for _ in range(tasks)))
    return sent


async def awaited_one_by_one(options: argparse.Namespace, topic: str) -> int:
    """Send from many tasks, each waiting for its receipt. Returns the number of messages."""
    body = os.urandom(options.size)
    async with Producer(options.nameserver) as producer:
        await producer.prepare(topic)

        async def one() -> int:
            await producer.send(topic, body)
            return 1

        return await repeated(one, options.in_flight, options.seconds)


async def in_batches(options: argparse.Namespace, topic: str) -> int:
    """Send lists of messages from a few tasks. Building the messages counts."""
    body = os.urandom(options.size)
    async with Producer(options.nameserver) as producer:
        await producer.prepare(topic)

        async def batch() -> int:
            messages = [Message(topic, body) for _ in range(options.batch)]
            return len(await producer.send_batch(messages))

        return await repeated(batch, options.batches, options.seconds)


async def drained(options: argparse.Namespace, topic: str) -> int:
    """Read everything back, read each body, commit after each poll."""
    got = 0
    async with PullConsumer(options.nameserver, group=f"drain-{time.time_ns()}") as consumer:
        await consumer.subscribe(topic)
        end = sum(end for _, _, _, end in await consumer.offsets(topic))
        while got < end:
            for message in await consumer.poll(4096, timeout_ms=5_000):
                got += bool(message.body)
            await consumer.commit()
    return got


WORKS: dict[str, Work] = {"W3": awaited_one_by_one, "batch": in_batches, "W4": drained}


async def measure(options: argparse.Namespace) -> None:
    topic = f"client-bench-{time.time_ns()}"
    async with Admin(options.nameserver) as admin:
        await admin.create_topic(topic, queues=8)
    for name in options.workloads.split(","):
        profiler = cProfile.Profile() if options.profile else contextlib.nullcontext()
        with Meter(options.pids) as meter, profiler:
            count = await WORKS[name](options, topic)
        if isinstance(profiler, cProfile.Profile):
            profiler.dump_stats(f"{options.profile}.{name}")
        figures = {"workload": name, "messages": count, "msg/s": round(count / meter.seconds)}
        per_message = {"client us": round(meter.client_cpu / count * 1e6, 2)}
        servers = sorted((round(cpu / count * 1e6, 2) for cpu in meter.server_cpu), reverse=True)
        print(json.dumps({**figures, **per_message, "nodes us": servers}), flush=True)
    async with Admin(options.nameserver) as admin:
        await admin.delete_topic(topic)


@contextlib.contextmanager
def cluster() -> Iterator[tuple[str, list[int]]]:
    """Three nodes with their data in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="client-bench-") as folder, Cluster(Path(folder)) as nodes:
        nodes.wait_leader()
        yield nodes.nameserver_addresses[0], [process.pid for process in nodes.nodes.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU per message of the client")
    parser.add_argument(
        "--workloads", default="W3,batch,W4", help=f"of {', '.join(WORKS)}; W4 reads what is stored"
    )
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each workload that sends")
    parser.add_argument("--in-flight", type=int, default=4000, help="open messages of W3")
    parser.add_argument("--batch", type=int, default=1000, help="messages of one send_batch")
    parser.add_argument("--batches", type=int, default=4, help="open calls of send_batch")
    parser.add_argument("--profile", default="", help="prefix of cProfile files of the client")
    parser.add_argument("--nameserver", default="", help="use this cluster")
    parser.add_argument("--pids", type=json.loads, default=[], help="of its nodes, as a JSON list")
    parser.add_argument("--serve", action="store_true", help="only run a cluster, until SIGINT or SIGTERM")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if options.nameserver:
        uvloop.run(measure(options))
        return
    with cluster() as (options.nameserver, options.pids):
        if options.serve:
            print(
                f"--nameserver {options.nameserver} --pids {json.dumps(options.pids, separators=(',', ':'))}",
                flush=True,
            )
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
        else:
            uvloop.run(measure(options))


if __name__ == "__main__":
    main()
