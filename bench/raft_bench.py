"""Measure the consensus layer alone: three RaftNodes in three processes, proposals in the leader's process.

    python bench/raft_bench.py [--folder DIR] [--profile FILE]

Prints, from propose to commit: one entry in flight (p50, p99 in ms), and large entries as fast as the window
allows (MB/s of payload); then the resources of each node process (CPU seconds, RssAnon). No client, no client
RPC.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import json
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from ledgermq.proto.entry import EntryHeader
from ledgermq.raft.config import Member, RaftConfig
from ledgermq.raft.errors import NotLeaderError, TransferFailedError
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.state_machine import Proposal
from ledgermq.raft.types import LogIndex, NodeId, Term

NAMES = ("n1", "n2", "n3")


class CountingStateMachine:
    """Counts applied entries, and nothing else."""

    def __init__(self) -> None:
        self.last_applied_index = LogIndex(0)

    def load(self) -> LogIndex:
        return self.last_applied_index

    def apply(self, entries: Sequence[tuple[EntryHeader, memoryview]]) -> None:
        self.last_applied_index = LogIndex(entries[-1][0].index)

    def on_leader_ready(self, term: Term, timestamp: int) -> None: ...

    def on_leader_lost(self, term: Term) -> None: ...

    def on_leader_changed(self, leader_id: NodeId | None, term: Term) -> None: ...


async def one_in_flight(node: RaftNode, count: int, size: int) -> dict[str, float]:
    body = bytes(size)
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        await node.propose([body], 1).committed
        times.append((time.perf_counter() - begin) * 1000)
    times.sort()
    return {"p50_ms": round(times[count // 2], 3), "p99_ms": round(times[count * 99 // 100], 3)}


async def many_in_flight(node: RaftNode, total: int, size: int, window: int) -> dict[str, float]:
    body = bytes(size)
    waiting: list[Proposal] = []
    begin = time.perf_counter()
    for _ in range(total // size):
        waiting.append(node.propose([body], 1))
        if len(waiting) >= window:
            await waiting.pop(0).committed
    for proposal in waiting:
        await proposal.committed
    seconds = time.perf_counter() - begin
    return {"MB/s": round(total / seconds / 1e6, 1), "entries/s": round(total / size / seconds)}


async def serve(name: str, addresses: list[str], folder: Path, options: argparse.Namespace) -> None:
    members = tuple(Member(NodeId(n), a) for n, a in zip(NAMES, addresses, strict=True))
    config = RaftConfig(
        cluster_id="bench", group="g0", node_id=NodeId(name), members=members,
        data_dir=folder / name, segment_size=256 << 20,
    )  # fmt: skip
    node = RaftNode(config, CountingStateMachine())
    await node.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if name != NAMES[0]:
        while not stop.is_set():  # the first node measures: any other leader transfers leadership
            if node.is_leader_ready:
                with contextlib.suppress(TransferFailedError, NotLeaderError):
                    await node.transfer_leadership(NodeId(NAMES[0]))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.1)
    else:
        while not node.is_leader_ready:  # noqa: ASYNC110 (set-up of a measurement)
            await asyncio.sleep(0.01)
        gc.collect()
        gc.freeze()  # as a broker process does
        await run_workloads(node, options.profile, options.count, options.only_small)
    flushes = node.storage.statistics()
    times = {
        "fsyncs": flushes.fsync_count,
        "fsync_p50_ms": flushes.fsync_p50_ms,
        "fsync_p99_ms": flushes.fsync_p99_ms,
    }
    print(json.dumps({"node": name, **usage(), **times}), flush=True)
    await node.stop(transfer=False)


async def run_workloads(node: RaftNode, profile: str, count: int, only_small: bool) -> None:
    await one_in_flight(node, 300, 1024)
    profiler = cProfile.Profile() if profile else None
    if profiler:
        profiler.enable()
    begin = time.process_time()
    result = await one_in_flight(node, count, 1024)
    result["leader_cpu_ms_per_entry"] = round((time.process_time() - begin) * 1000 / count, 3)
    print(json.dumps({"W1 1 KiB": result}), flush=True)
    if profiler:
        profiler.disable()
        profiler.dump_stats(profile + ".w1")
        profiler = cProfile.Profile()
        profiler.enable()
    for size, window in () if only_small else ((64 << 10, 64), (256 << 10, 64), (4096, 256)):
        result = await many_in_flight(node, (768 << 20) if size > 8192 else (64 << 20), size, window)
        print(json.dumps({f"{size >> 10} KiB x {window}": result}), flush=True)
        if profiler:
            profiler.disable()
            profiler.dump_stats(f"{profile}.{size >> 10}k")
            profiler = cProfile.Profile()
            profiler.enable()


def usage() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    lines = Path("/proc/self/status").read_text().splitlines()
    anon = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    return {"cpu_s": round(used.ru_utime + used.ru_stime, 2), "rss_anon_mib": anon >> 10}


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of the consensus layer")
    parser.add_argument("--folder", default="", help="where the data goes (default: a temporary folder)")
    parser.add_argument("--profile", default="", help="prefix of cProfile files of the leader")
    parser.add_argument("--count", type=int, default=2000, help="entries of the one-in-flight workload")
    parser.add_argument("--only-small", action="store_true", help="leave out the large entries")
    parser.add_argument("--node", default="", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="raft-bench-"))
    if options.node:
        uvloop.run(serve(options.node, options.addresses.split(","), folder, options))
        return
    addresses = ",".join(free_address() for _ in NAMES)
    command = [sys.executable, __file__, "--folder", str(folder), "--addresses", addresses]
    command += ["--count", str(options.count)] + ["--only-small"] * options.only_small
    if options.profile:
        command += ["--profile", options.profile]
    nodes = [subprocess.Popen([*command, "--node", name]) for name in NAMES]
    try:
        nodes[0].wait()
    finally:
        for node in nodes:
            node.terminate()
            node.wait()
        if not options.folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
