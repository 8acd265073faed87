"""Run the workloads against LedgerMQ and its peers, interleaved, and write raw figures and a table.

    python -m bench.peers.run [--systems ledgermq,rabbitmq,nats] [--runs 3] [--seconds 6] [--out bench/results/NAME.json]

W1 one message in flight · W2 64 in flight · W3 as many as the client can pipeline (1 KiB and 128 B) ·
W4 drain of a backlog with acknowledgements · W5 500 messages/s end to end · failover: kill -9 of the leader, and
hand-over: SIGTERM to it, each the longest time without an acknowledged write. Each run starts and stops every system, so that a drift of the machine
meets all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import os
import platform
import shutil
import signal
import statistics
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Before gRPC is loaded, as the command line and the brokers do.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import uvloop

from .measure import Meter, clock, closed_loop, open_loop, percentile, write_gap
from .system import Session, System

_SYSTEMS = {
    "ledgermq": ("bench.peers.ledgermq", "LedgerMQ"),
    "rabbitmq": ("bench.peers.rabbitmq", "RabbitMQ"),
    "nats": ("bench.peers.nats_jetstream", "NatsJetStream"),
}
#: How the leader ends, by workload.
_ENDS = {"failover": signal.SIGKILL, "hand-over": signal.SIGTERM}
_WINDOW = 2000  # what the peers' clients pipeline best with
Row = dict[str, Any]


def _row(system: System, workload: str, run: int, meter: Meter, count: int, **more: Any) -> Row:
    return {
        "system": system.name,
        "version": system.version(),
        "fsync": system.fsync,
        "workload": workload,
        "run": run,
        "count": count,
        "seconds": meter.seconds,
        "rate": count / meter.seconds,
        "client_cpu": meter.client_cpu / meter.seconds,
        "server_cpu": [cpu / meter.seconds for cpu in meter.server_cpu],
        "server_ms_per_1000": [1e6 * cpu / max(count, 1) for cpu in meter.server_cpu],
        "rss_anon_mib": meter.memory_mib,
        **more,
    }


def _latency(values: list[float]) -> Row:
    return {f"p{percent}_ms": 1e3 * percentile(values, percent) for percent in (50, 99)}


async def _produce(system: System, session: Session, run: int, seconds: float) -> list[Row]:
    rows = []
    body = os.urandom(1024)
    await closed_loop(lambda: session.send(body), 64, 1)
    for workload, in_flight, size in (("W1", 1, 1024), ("W2", 64, 1024)):
        rows.append(await _loop(system, session, workload, run, in_flight, size, seconds))
    for size, label in ((1024, "1 KiB"), (128, "128 B")):
        rows.append(await _loop(system, session, f"W3 {label}", run, _window(session), size, seconds))
        if pipeline := getattr(session, "pipeline", None):
            gc.collect()
            with Meter(system.pids()) as meter:
                count = await pipeline(os.urandom(size), _window(session), seconds)
            rows.append(_row(system, f"W3 {label}, leanest client", run, meter, count))
    return rows


async def _loop(
    system: System, session: Session, workload: str, run: int, in_flight: int, size: int, seconds: float
) -> Row:
    message = os.urandom(size)
    gc.collect()
    with Meter(system.pids()) as meter:
        latencies = await closed_loop(lambda: session.send(message), in_flight, seconds)
    return _row(system, workload, run, meter, len(latencies), **_latency(latencies))


def _window(session: Session) -> int:
    return int(getattr(session, "window", _WINDOW))


async def _drain(system: System, session: Session, run: int, count: int) -> Row:
    stored = await session.preload(os.urandom(1024), count)
    if stored < count:
        raise RuntimeError(f"{system.name}: only {stored} of {count} messages were stored")
    with Meter(system.pids()) as meter:
        got = await session.drain(stored)
    return _row(system, "W4", run, meter, got, lost=stored - got)


async def _end_to_end(system: System, session: Session, run: int, seconds: float) -> Row:
    latencies: list[float] = []
    await session.listen(lambda body: latencies.append(clock() - struct.unpack_from("<d", body)[0]))
    await asyncio.sleep(0.5)
    padding = bytes(1016)
    with Meter(system.pids()) as meter:
        sent = await open_loop(lambda: session.send(struct.pack("<d", clock()) + padding), 500, seconds)
        await asyncio.sleep(0.3)
    return _row(system, "W5", run, meter, len(latencies), sent=sent, **_latency(latencies))


async def _leader_ends(system: System, run: int, workload: str, times: int) -> list[Row]:
    rows = []
    for number in range(times):
        send, end, restore = await system.open_for_failover(f"{workload}-{run}-{number}")
        with Meter([]) as meter:
            gap, acknowledged = await write_gap(send, partial(end, _ENDS[workload]))
        await restore()
        rows.append(_row(system, workload, run, meter, len(acknowledged), gap_ms=1e3 * gap))
    return rows


async def _measure(system: System, run: int, options: argparse.Namespace, folder: Path) -> list[Row]:
    rows: list[Row] = []
    await system.start(folder)
    try:
        session = await system.open(f"s{run}")
        rows += await _produce(system, session, run, options.seconds)
        await session.close()
        session = await system.open(f"d{run}")
        rows.append(await _drain(system, session, run, options.preload))
        await session.close()
        session = await system.open(f"e{run}")
        rows.append(await _end_to_end(system, session, run, options.seconds))
        await session.close()
        for workload in _ENDS:
            rows += await _leader_ends(system, run, workload, options.failovers)
    finally:
        await system.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def table(rows: list[Row]) -> str:
    """Return the Markdown table: medians over the runs, with the spread of the rates."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    lines = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        lines += ["", f"### {workload}", ""]
        if workload in _ENDS:
            lines += ["| system | median ms | min-max ms | times |", "|---|---|---|---|"]
        else:
            lines += [
                "| system | msg/s (min-max) | p50 ms | p99 ms | CPU ms per 1,000, each node | RssAnon MiB, each node |",
                "|---|---|---|---|---|---|",
            ]
        for system in systems:
            mine = [row for row in rows if row["system"] == system and row["workload"] == workload]
            if mine:
                lines.append(_gap_line(system, mine) if workload in _ENDS else _rate_line(system, mine))
    return "\n".join(lines).strip() + "\n"


def _gap_line(system: str, rows: list[Row]) -> str:
    gaps = [row["gap_ms"] for row in rows]
    return f"| {system} {rows[0]['version']} | {statistics.median(gaps):,.0f} | {min(gaps):,.0f}-{max(gaps):,.0f} | {len(gaps)} |"


def _rate_line(system: str, rows: list[Row]) -> str:
    def median(key: str, form: str) -> str:
        values = [row[key] for row in rows if key in row]
        return format(statistics.median(values), form) if values else "-"

    def each(key: str) -> str:
        per_node = zip(*(sorted(row[key], reverse=True) for row in rows), strict=True)
        return " / ".join(f"{statistics.median(values):,.0f}" for values in per_node)

    rates = [row["rate"] for row in rows]
    return (
        f"| {system} {rows[0]['version']} | {statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f}) "
        f"| {median('p50_ms', '.2f')} | {median('p99_ms', '.2f')} | {each('server_ms_per_1000')} | {each('rss_anon_mib')} |"
    )


async def _main(options: argparse.Namespace) -> None:
    rows: list[Row] = []
    for run in range(options.runs):
        for key in options.systems.split(","):
            module, name = _SYSTEMS[key]
            make: Callable[[], System] = getattr(importlib.import_module(module), name)
            system = make()
            print(f"run {run + 1}/{options.runs}: {system.name} {system.version()}", flush=True)
            rows += await _measure(system, run, options, options.folder / f"{key}-{run}")
            report = {
                "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "rows": rows,
            }
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(rows))
    print(f"raw figures: {options.out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--systems", default="ledgermq,rabbitmq,nats")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--preload", type=int, default=200_000)
    parser.add_argument("--failovers", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("build/bench-peers"))
    stamp = time.strftime("%Y-%m-%dT%H%M%S", time.gmtime())  # a run must not overwrite the figures of another
    parser.add_argument("--out", type=Path, default=Path(f"build/bench-peers/{stamp}.json"))
    parser.add_argument("--table", type=Path, help="only print the table of a result file")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())["rows"]))
        return
    options.folder = options.folder.resolve()
    uvloop.install()
    asyncio.run(_main(options))


if __name__ == "__main__":
    main()
