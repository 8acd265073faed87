"""Measure steadiness: `python -m bench.steady [--parts full-load,soak] [--minutes 10]`.

full-load: as much as one client can send (W3, 1 KiB), beside one busy process per core. No node may start an
election. Counted: changes of the term, and the lateness of the event loops' timers.
soak: half of the rate that the client reaches alone, for the same time. The memory of the nodes must be flat:
RssAnon over time, and its slope over the second half. Prints a Markdown table. Raw figures go to a JSON file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

# Set before gRPC is loaded, as the command line and the brokers do.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import uvloop

from bench.failover.time_line import events
from bench.peers.measure import anonymous_mib, cpu_seconds
from ledgermq.client import Admin, Producer, SendReceipt
from ledgermq.client.errors import LedgerMQError
from tests.integration.cluster import Cluster

from .figures import NodeFigures, Part, between, buckets, table, value

_TOPIC: Final = "steady"
_LATENESS: Final = "ledgermq_event_loop_lateness_seconds"
_WINDOW: Final = 4000  # messages in flight in W3
_BODY: Final = os.urandom(1024)
_TICK_S: Final = 0.01  # of the soak's open loop
#: Disk limit of one node: old segments are deleted, so that a run may last.
_SETTINGS: Final = {"segment-size": "64MiB", "max-store-bytes": "4GiB"}
_BUSY: Final = "while True: pass"

#: Runs for that many seconds. Counts stored messages, and failed ones by reason.
Load = Callable[[float], Awaitable[Counter[str]]]
_STORED: Final = "stored"


def reason(error: BaseException) -> str:
    """Return why a send failed, with the same text for equal failures."""
    return re.sub(r"\d[\d,.]*", "N", f"{type(error).__name__}: {error}")[:200]


class Steady:
    """Runs the parts on one cluster."""

    def __init__(self, cluster: Cluster, producer: Producer, sample_s: float) -> None:
        self._cluster, self._producer, self._sample_s = cluster, producer, sample_s

    async def part(self, name: str, seconds: float, load: Load) -> Part:
        """Run a load for a time, and sample the nodes meanwhile."""
        names = list(self._cluster.nodes)
        before = {each: await self._metrics(each) for each in names}
        term = await self._term()
        cpu = {each: cpu_seconds(self._cluster.nodes[each].pid) for each in names}
        nodes = {each: NodeFigures(each) for each in names}
        begin, unix = time.perf_counter(), time.time()
        sampler = asyncio.create_task(self._sample(nodes, begin))
        try:
            counts = await load(seconds)
        finally:
            sampler.cancel()
            await asyncio.gather(sampler, return_exceptions=True)
        lasted = time.perf_counter() - begin
        for each, figures in nodes.items():
            after = await self._metrics(each)
            figures.cpu_share = (cpu_seconds(self._cluster.nodes[each].pid) - cpu[each]) / lasted
            figures.lateness = between(buckets(before[each], _LATENESS), buckets(after, _LATENESS))
            elections = [value(text, "ledgermq_raft_elections_total") for text in (before[each], after)]
            figures.elections = elections[1] - elections[0]
        terms = (term, await self._term())
        logs = (
            (each, self._cluster.nodes[each].log_path.read_text(errors="replace").splitlines())
            for each in names
        )
        leads = [
            event for event in events(logs, unix, time.time(), unix) if "raft.drive.leadership" in event[2]
        ]
        messages = counts.pop(_STORED, 0)
        return Part(name, lasted, messages, dict(counts), terms, list(nodes.values()), leads)

    async def _sample(self, nodes: dict[str, NodeFigures], begin: float) -> None:
        while True:
            for name, figures in nodes.items():
                level = anonymous_mib(self._cluster.nodes[name].pid)
                figures.memory.append((time.perf_counter() - begin, level))
            await asyncio.sleep(self._sample_s)

    async def _term(self) -> int:
        """Return the newest term that any node knows."""
        states = [await asyncio.to_thread(self._cluster.status, name) for name in self._cluster.nodes]
        return max(state.term for state in states if state is not None)

    async def _metrics(self, name: str) -> str:
        status, text = await asyncio.to_thread(self._cluster.http, name, "/metrics")
        if status != 200:
            raise RuntimeError(f"/metrics of {name} gave {status}")
        return text

    # --- loads ----------------------------------------------------------------------------------------------
    async def everything(self, seconds: float) -> Counter[str]:
        """Send as much as this client can."""
        counts = Counter[str]()
        end = time.perf_counter() + seconds

        async def worker() -> None:
            while time.perf_counter() < end:
                try:
                    await self._producer.send(_TOPIC, _BODY)
                except LedgerMQError as error:
                    counts[reason(error)] += 1
                else:
                    counts[_STORED] += 1

        await asyncio.gather(*(worker() for _ in range(_WINDOW)))
        return counts

    def at_rate(self, rate: float) -> Load:
        """Return a load of that many messages a second, whatever the answers do."""

        async def load(seconds: float) -> Counter[str]:
            counts = Counter[str]()

            def done(future: asyncio.Future[SendReceipt]) -> None:
                error = future.exception()
                counts[_STORED if error is None else reason(error)] += 1

            begin, sent = time.perf_counter(), 0
            while (elapsed := time.perf_counter() - begin) < seconds:
                for _ in range(int(elapsed * rate) - sent):
                    await self._producer.ready()
                    if time.perf_counter() - begin > seconds:
                        break  # far behind, it would never catch up
                    self._producer.send_nowait(_TOPIC, _BODY).add_done_callback(done)
                    sent += 1
                await asyncio.sleep(_TICK_S)
            await self._producer.flush()
            return counts

        return load


@contextmanager
def busy_cores() -> Iterator[None]:
    """Run one busy process per core."""
    running = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


async def _measure(options: argparse.Namespace) -> list[Part]:
    shutil.rmtree(options.folder, ignore_errors=True)
    cluster = Cluster(options.folder, nodes=3, settings=_SETTINGS)
    parts = []
    try:
        await asyncio.to_thread(cluster.start_all)
        nameserver = cluster.nameserver_addresses[0]
        async with Admin(nameserver) as admin:
            await admin.create_topic(_TOPIC, queues=8)
        async with Producer(nameserver) as producer:
            await producer.prepare(_TOPIC)
            steady = Steady(cluster, producer, options.sample)
            seconds = 60 * options.minutes
            if "full-load" in options.parts:
                with busy_cores():
                    parts.append(await steady.part("full-load", seconds, steady.everything))
            if "soak" in options.parts:
                rate = (await steady.everything(options.probe))[_STORED] / options.probe / 2
                parts.append(await steady.part("soak", seconds, steady.at_rate(rate)))
    finally:
        await asyncio.to_thread(cluster.stop_all)
        shutil.rmtree(options.folder, ignore_errors=True)
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parts", default="full-load,soak")
    parser.add_argument("--minutes", type=float, default=10, help="of each part")
    parser.add_argument("--probe", type=float, default=10, help="seconds to find the highest rate")
    parser.add_argument("--sample", type=float, default=5, help="seconds between two looks at the memory")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-steady/data"))
    stamp = time.strftime("%Y-%m-%dT%H%M%S", time.gmtime())
    parser.add_argument("--out", type=Path, default=Path(f"build/bench-steady/{stamp}.json"))
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - {"full-load", "soak"}:
        parser.error(f"unknown part: {', '.join(unknown)}; known: full-load, soak")
    options.folder = options.folder.resolve()
    uvloop.install()
    parts = asyncio.run(_measure(options))
    report = {
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "version": version("ledgermq"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "parts": [part.as_row() for part in parts],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(parts))
    for part in parts:
        for why, count in part.failures.items():
            print(f"{part.name}: {count:,} messages failed: {why}")
    print(f"raw figures: {options.out}")
    return 0 if all(part.terms[0] == part.terms[1] and not part.failed for part in parts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
