"""Measure one message per unary call (W6): grpc.aio stubs call SendMessage of leader, follower and an echo.

    python -m bench.unary_bench [--callers 64] [--seconds 3] [--runs 3] [--size 1024]
                                [--transport grpcio --transport event_loop] [--json FILE]

The echo (bench.echo) is a grpc.aio server in a separate process whose handler returns a ready answer: the
minimum cost of a call. It takes turns with the broker group in every run, because only the ratios are
meaningful on a shared machine. So does a broker group for each server transport that is named.
Prints calls/s, the ratio to the echo, and CPU per call of the called process (medians of the runs).
"""
# ruff: noqa: I001 (the order of imports matters here)

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from .echo import EchoServer, unary  # first: it sets gRPC's options, which gRPC reads when it is loaded

import uvloop

from ledgermq.client import Admin
from tests.integration.cluster import Cluster

from .peers.measure import cpu_seconds, percentile

TOPIC: Final = "unary"
WARM_UP_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """Target of the calls: an address, and the process behind it."""

    name: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One target in one run."""

    calls_per_second: float
    p50_ms: float
    cpu_us_per_call: float


async def measure(target: Target, callers: int, seconds: float, size: int) -> Figure:
    """Call one target for a time."""
    await unary(target.address, callers=callers, seconds=WARM_UP_S, size=size, topic=TOPIC)
    used = cpu_seconds(target.pid)
    calls = await unary(target.address, callers=callers, seconds=seconds, size=size, topic=TOPIC)
    used = cpu_seconds(target.pid) - used
    return Figure(calls.rate, 1e3 * percentile(calls.latencies, 50), 1e6 * used / len(calls.latencies))


async def run(clusters: Mapping[str, Cluster], echo: EchoServer, options: argparse.Namespace) -> None:
    """Measure all targets in turn, `options.runs` times, and print the medians."""
    targets = [Target("echo", echo.address, echo.pid)]
    for transport, cluster in clusters.items():
        async with Admin(cluster.nameserver_addresses[0]) as admin:
            await admin.create_topic(TOPIC, queues=8)
        leader = await asyncio.to_thread(cluster.wait_leader)
        follower = next(name for name in cluster.nodes if name != leader)
        for role, node in (("leader", leader), ("follower", follower)):
            address = cluster.address(node, "messaging")
            targets.append(Target(f"{role} {transport}", address, cluster.nodes[node].pid))
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
            f"{name:19} {statistics.median(each.calls_per_second for each in figures):8,.0f} calls/s"
            f"  {statistics.median(ratios):5.2f} x echo ({min(ratios):.2f}-{max(ratios):.2f})"
            f"  p50 {statistics.median(each.p50_ms for each in figures):6.1f} ms"
            f"  {statistics.median(each.cpu_us_per_call for each in figures):5.0f} us of CPU per call\n"
        )
    if options.json:
        raw = {name: [asdict(each) for each in figures] for name, figures in found.items()}
        about = {"callers": options.callers, "seconds": options.seconds, "size": options.size}
        options.json.write_text(json.dumps({**about, "rounds": raw}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="One message per unary call, beside an echo")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument(
        "--transport",
        action="append",
        choices=["grpcio", "event_loop"],
        help="of the brokers; may be repeated",
    )
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        echo = stack.enter_context(EchoServer())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unary-bench-")))
        clusters = {
            transport: stack.enter_context(
                Cluster(folder / transport, settings={"server-transport": transport})
            )
            for transport in options.transport or ["grpcio"]
        }
        uvloop.run(run(clusters, echo, options))


if __name__ == "__main__":
    main()
