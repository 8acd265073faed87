"""Take one message in flight (W1) apart: time stamps of client, leader and followers, hop by hop.

    python -m bench.hops [--count 5000] [--size 1024] [--json FILE]

Three nodes on this machine; the stamps cost each process about a microsecond per event. A hop that is called
"wire and wake-up" begins when a process has handed bytes to its socket, and ends when the event loop of the
other hands them to the protocol: the kernel's loopback, the wake-up of the process, and what its loop was
doing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench.peers.measure import percentile
from ledgermq.client import Admin, Producer
from tests.integration.cluster import Cluster

from .chain import ASIDE, HOPS, Chain, Stamps, chain_of
from .probe import Event, install, load

TOPIC = "hops"
WARM_UP = 500


async def send_one_by_one(nameserver: str, count: int, size: int) -> list[tuple[int, int]]:
    """Send `count` messages, each after the receipt of the last; return (sent, receipt) in ns."""
    async with Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=8)
    spans = []
    async with Producer(nameserver) as producer:
        body = bytes(size)
        for _ in range(WARM_UP):
            await producer.send(TOPIC, body)
        for _ in range(count):
            sent = time.monotonic_ns()
            await producer.send(TOPIC, body)
            spans.append((sent, time.monotonic_ns()))
    return spans


def chains(cluster: Cluster, leader: str, spans: list[tuple[int, int]], mine: list[Event]) -> list[Chain]:
    """Return the chains of all messages whose stamps are complete."""
    stamps = {name: Stamps(load(cluster.folder / f"{name}.stamps")) for name in cluster.nodes}
    followers = {cluster.nodes[name].ports["raft"]: stamps[name] for name in cluster.nodes if name != leader}
    client, ports = Stamps(sorted(mine)), cluster.nodes[leader].ports
    found = []
    for sent, done in spans:
        try:
            found.append(
                chain_of(sent, done, client, stamps[leader], followers, (ports["log"], ports["raft"]))
            )
        except (LookupError, ValueError):
            continue
    return found


def table(found: list[Chain], spans: list[tuple[int, int]]) -> str:
    """Return the hops with p50, p90 and p99 in µs, and the whole way."""
    lines = [f"{'hop':62} {'p50':>7} {'p90':>7} {'p99':>7} us"]
    rows = [(name, [each.hops[i] for each in found]) for i, name in enumerate(HOPS)]
    rows += [(f"  {name}", [each.aside[i] for each in found]) for i, name in enumerate(ASIDE)]
    for name, values in rows:
        lines.append(f"{name:62} " + " ".join(f"{percentile(values, p) / 1e3:7.0f}" for p in (50, 90, 99)))
    whole = [done - sent for sent, done in spans]
    lines.append(
        f"{'send to receipt':62} " + " ".join(f"{percentile(whole, p) / 1e3:7.0f}" for p in (50, 90, 99))
    )
    lines.append(f"{len(found):,} of {len(spans):,} messages with complete stamps")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="One message in flight, hop by hop")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--json", type=Path, help="file for the chains, in ns")
    options = parser.parse_args()
    mine = install()
    with (
        tempfile.TemporaryDirectory(prefix="hops-") as folder,
        Cluster(Path(folder), module="bench.hops.node") as cluster,
    ):
        leader = cluster.wait_leader()
        spans = uvloop.run(send_one_by_one(cluster.nameserver, options.count, options.size))
        for name in cluster.nodes:
            cluster.terminate(name)
        found = chains(cluster, leader, spans, mine)
    sys.stdout.write(table(found, spans) + "\n")
    if options.json:
        raw = {
            "hops": HOPS,
            "aside": ASIDE,
            "chains": [[each.hops, each.aside] for each in found],
            "spans": spans,
        }
        options.json.write_text(json.dumps(raw) + "\n")
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main())
