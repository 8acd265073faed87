"""Workloads of the comparison, by name. Each takes a running system and returns rows of figures.

Owns: what is measured, and the contents of a row. Must not: start systems, print.
Workloads that a system does not support (`batch`, `W6`, `queues`) give no row for it.
A system that compiles while it runs (a JVM) is warmed by each workload itself, until its rate stands still.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import echo

from .measure import (
    Meter,
    clock,
    closed_loop,
    cpu_seconds,
    descriptors,
    files_of,
    open_loop,
    percentile,
    until_steady,
    write_gap,
)
from .system import Session, System
from .table import ECHO

#: Signal that ends the leader, by workload.
ENDS = {"failover": signal.SIGKILL, "hand-over": signal.SIGTERM}
BODIES = {"100 B": 100, "1 KiB": 1 << 10, "16 KiB": 1 << 14, "64 KiB": 1 << 16, "1 MiB": 1 << 20}
PRODUCERS = (1, 8, 64)
QUEUES = (8, 1_000, 10_000)
BATCH = 256
_LARGE = 1 << 16  # bodies from this size on are compared with the bandwidth of the echo
_OPEN_BYTES = 32 << 20  # maximum bytes in flight
_WINDOW = 2000  # best pipeline size of the peers' clients
_WARM_WINDOW_S = 3.0  # of a system that compiles while it runs
_WARM_WINDOWS = 10  # at most
_WARM_DRAINS = 4  # at most
_HOPS = 3  # a message goes to the leader and to two followers
Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One system in one run."""

    system: System
    number: int
    seconds: float
    preload: int
    failovers: int
    warm_up_s: float = 1.0

    def row(self, workload: str, meter: Meter, count: int, **more: Any) -> Row:
        return {
            "system": self.system.name,
            "version": self.system.version(),
            "acknowledged": self.system.acknowledged,
            "workload": workload,
            "run": self.number,
            "count": count,
            "seconds": meter.seconds,
            "rate": count / meter.seconds,
            "client_cpu": meter.client_cpu / meter.seconds,
            "client_ms_per_1000": 1e6 * meter.client_cpu / max(count, 1),
            "server_cpu": [cpu / meter.seconds for cpu in meter.server_cpu],
            "server_ms_per_1000": [1e6 * cpu / max(count, 1) for cpu in meter.server_cpu],
            "rss_anon_mib": meter.memory_mib,
            **more,
        }

    async def loop(
        self,
        workload: str,
        send: Callable[[], Awaitable[Any]],
        in_flight: int,
        per_call: int = 1,
        **more: Any,
    ) -> Row:
        """Keep calls open for the time of a run. A call sends `per_call` messages."""

        async def window(seconds: float) -> int:
            return per_call * len(await closed_loop(send, in_flight, seconds))

        more |= await self.warm(window)
        gc.collect()
        with Meter(self.system.pids()) as meter:
            latencies = await closed_loop(send, in_flight, self.seconds)
        more |= {"in_flight": in_flight * per_call, **_latency(latencies)}
        return self.row(workload, meter, per_call * len(latencies), **more)

    @property
    def compiles(self) -> bool:
        """Whether the system compiles while it runs, so that it becomes quicker."""
        return getattr(self.system, "compiles", False)

    async def warm(self, window: Callable[[float], Awaitable[int]]) -> Row:
        """Repeat a workload until the rate of a system that compiles stands still. Returns its rates."""
        if not self.compiles:
            return {}

        async def rate() -> float:
            begin = clock()
            return await window(_WARM_WINDOW_S) / (clock() - begin)

        rates, steady = await until_steady(rate, _WARM_WINDOWS)
        return {"warm_up_rates": rates, "steady": steady}


def _latency(values: list[float]) -> Row:
    return {f"p{percent:g}_ms": 1e3 * percentile(values, percent) for percent in (50, 90, 99, 99.9)}


def _window(session: Session, size: int) -> int:
    return max(8, min(int(getattr(session, "window", _WINDOW)), _OPEN_BYTES // size))


def _sender(session: Session, size: int) -> Callable[[], Awaitable[Any]]:
    body = os.urandom(size)
    return lambda: session.send(body)


async def _warm_up(run: Run, session: Session) -> None:
    await closed_loop(_sender(session, 1024), 64, run.warm_up_s)


async def one_in_flight(run: Run, session: Session) -> list[Row]:
    return [await run.loop("W1", _sender(session, 1024), 1)]


async def many_in_flight(run: Run, session: Session) -> list[Row]:
    return [await run.loop("W2", _sender(session, 1024), 64)]


async def pipelined(run: Run, session: Session) -> list[Row]:
    """One awaitable per message, and also the leanest client if that is a different one."""
    rows = []
    for size, label in ((1024, "1 KiB"), (128, "128 B")):
        window = _window(session, size)
        rows.append(await run.loop(f"W3 {label}", _sender(session, size), window))
        if pipeline := getattr(session, "pipeline", None):
            for open_at_once in getattr(session, "pipeline_windows", (window,)):
                call = partial(pipeline, os.urandom(size), open_at_once)
                warm = await run.warm(call)
                gc.collect()
                with Meter(run.system.pids()) as meter:
                    count = await call(run.seconds)
                name = f"W3 {label}, leanest client"
                name += f", {open_at_once:,} in flight" if open_at_once > window else ""
                rows.append(run.row(name, meter, count, in_flight=open_at_once, **warm))
    return rows


async def in_batches(run: Run, session: Session) -> list[Row]:
    """The same with `send_batch`."""
    make = getattr(session, "batch", None)
    if make is None:
        return []
    rows = []
    for size, label in ((1024, "1 KiB"), (128, "128 B")):
        window = _window(session, size)
        for open_at_once in getattr(session, "batch_windows", (window,)):
            send, calls = make(os.urandom(size), BATCH), max(2, open_at_once // BATCH)
            name = f"W3 {label}, send_batch"
            name += f", {open_at_once:,} in flight" if open_at_once > window else ""
            rows.append(await run.loop(name, send, calls, BATCH))
    return rows


async def drain(run: Run, session: Session) -> list[Row]:
    rates: list[float] = []

    async def warm() -> float:
        spare = await run.system.open(f"W4-{run.number}-warm-{len(rates)}")
        row = await _drain(run, spare)
        await spare.close()
        rates.append(row["rate"])
        return rates[-1]

    steady = (await until_steady(warm, _WARM_DRAINS))[1] if run.compiles else None
    row = await _drain(run, session)
    return [row if steady is None else {**row, "warm_up_rates": rates, "steady": steady}]


async def _drain(run: Run, session: Session) -> Row:
    stored = await session.preload(os.urandom(1024), run.preload)
    if stored < run.preload:
        raise RuntimeError(f"{run.system.name}: only {stored} of {run.preload} messages were stored")
    with Meter(run.system.pids()) as meter:
        got = await session.drain(stored)
    return run.row("W4", meter, got, lost=stored - got)


async def end_to_end(run: Run, session: Session) -> list[Row]:
    latencies: list[float] = []
    await session.listen(lambda body: latencies.append(clock() - struct.unpack_from("<d", body)[0]))
    await asyncio.sleep(0.5)
    padding = bytes(1016)

    async def send() -> None:
        await session.send(struct.pack("<d", clock()) + padding)

    if run.compiles:  # the rate of an open loop is fixed, so it cannot tell when to stop
        await open_loop(send, 500, _WARM_WINDOWS * _WARM_WINDOW_S / 2)
        await asyncio.sleep(0.3)
        latencies.clear()
    with Meter(run.system.pids()) as meter:
        sent = await open_loop(send, 500, run.seconds)
        await asyncio.sleep(0.3)
    return [run.row("W5", meter, len(latencies), sent=sent, **_latency(latencies))]


async def unary_calls(run: Run, session: Session) -> list[Row]:
    """64 callers of the official protocol, at the leader and at followers, between two runs of an empty
    handler.
    """
    callers = getattr(session, "callers", None)
    if callers is None:
        return []
    rows: list[Row] = []
    with echo.EchoServer() as server:
        rates = [await _echo(run, server, rows)]
        for target, label in (("leader", "W6, at the leader"), ("follower", "W6, at followers")):
            async with callers(target, os.urandom(1024)) as calls:
                row = await run.loop(label, partial(_next_call, itertools.cycle(calls)), 64)
            rates.append(await _echo(run, server, rows))
            row["echo_ratio"] = row["rate"] / ((rates[-2] + rates[-1]) / 2)
            rows.append(row)
    return rows


async def _next_call(turns: Iterator[Callable[[], Awaitable[Any]]]) -> None:
    await next(turns)()


async def _echo(run: Run, server: echo.EchoServer, rows: list[Row]) -> float:
    before = cpu_seconds(server.pid)
    calls = await echo.unary(server.address, callers=64, seconds=run.seconds / 2)
    meter = Meter([], calls.seconds, calls.client_cpu, [cpu_seconds(server.pid) - before])
    row = run.row("W6, empty handler", meter, len(calls.latencies), **_latency(calls.latencies))
    rows.append({**row, "system": ECHO, "version": version("grpcio"), "acknowledged": "-"})
    return calls.rate


async def bodies(run: Run, session: Session) -> list[Row]:
    """Bodies from 100 B to 1 MiB; large ones beside the bandwidth of an echo of 1 MiB messages."""
    rows = []
    with echo.EchoServer() as server:
        for label, size in BODIES.items():
            more: Row = {}
            before = await echo.bandwidth(server.address, seconds=run.seconds / 3) if size >= _LARGE else 0
            row = await run.loop(f"bodies of {label}", _sender(session, size), _window(session, size))
            more["payload_mib_s"] = row["rate"] * size / (1 << 20)
            if size >= _LARGE:
                echoed = (before + await echo.bandwidth(server.address, seconds=run.seconds / 3)) / 2
                more["echo_mib_s"] = echoed / (1 << 20)
                more["bandwidth_ratio"] = _HOPS * row["rate"] * size / echoed
            rows.append({**row, **more})
    return rows


async def producers(run: Run, session: Session) -> list[Row]:
    """1 KiB, as many as fit, from 1, 8 and 64 producers that share the messages in flight."""
    rows = []
    for count in PRODUCERS:
        session = await run.system.open(f"p{run.number}-{count}", producers=count)
        await _warm_up(run, session)
        label = f"{count} producer{'s' * (count > 1)}"
        rows.append(await run.loop(label, _sender(session, 1024), _window(session, 1024)))
        await session.close()
    return rows


async def queues(run: Run, folder: Path) -> list[Row]:
    """1 KiB with few and many queues, chosen by default, each on separate nodes; and their open files.

    Every queue gets messages first. Descriptors are counted under load, files after a stop, which writes
    everything out.
    """
    system: Any = run.system
    if not hasattr(system, "folders"):
        return []
    rows: list[Row] = []
    for count in QUEUES:
        await system.start(folder)
        try:
            session = await system.open(f"q{run.number}", queues=count)
            await session.fill_every_queue()
            await _warm_up(run, session)
            row = await run.loop(f"{count:,} queues", _sender(session, 1024), _window(session, 1024))
            row["descriptors"] = descriptors(system.pids())
            row["few_queues_ratio"] = row["rate"] / (rows[0]["rate"] if rows else row["rate"])
            await session.close()
        finally:
            await system.stop()
        row["files"], row["disk_mib"] = (
            list(each) for each in zip(*map(files_of, system.folders()), strict=True)
        )
        rows.append(row)
    return rows


async def leader_ends(workload: str, run: Run, session: Session) -> list[Row]:
    rows = []
    for number in range(run.failovers):
        send, end, restore = await run.system.open_for_failover(f"{workload}-{run.number}-{number}")
        with Meter([]) as meter:
            gap, acknowledged = await write_gap(send, partial(end, ENDS[workload]))
        await restore()
        rows.append(run.row(workload, meter, len(acknowledged), gap_ms=1e3 * gap))
    return rows


Workload = Callable[[Run, Session], Awaitable[list[Row]]]
#: Workloads that share nodes, in this order, each with its own session.
WORKLOADS: dict[str, Workload] = {
    "W1": one_in_flight,
    "W2": many_in_flight,
    "W3": pipelined,
    "batch": in_batches,
    "W4": drain,
    "W5": end_to_end,
    "W6": unary_calls,
    "bodies": bodies,
    "producers": producers,
    **{name: partial(leader_ends, name) for name in ENDS},
}
#: Workloads that begin with an empty queue, or need no session.
_COLD = ("W4", "W5", "producers", *ENDS)
#: Workloads with separate nodes.
ALONE = {"queues": queues}
NAMES = (*WORKLOADS, *ALONE)


async def measure(run: Run, names: list[str], folder: Path) -> list[Row]:
    """Run the workloads of these names on one system, which is started and stopped here."""
    rows: list[Row] = []
    shared = [name for name in WORKLOADS if name in names]
    if shared:
        try:
            await run.system.start(folder)
            for name in shared:
                session = await run.system.open(f"{name}-{run.number}")
                if name not in _COLD:
                    await _warm_up(run, session)
                rows += await WORKLOADS[name](run, session)
                await session.close()
        finally:
            await run.system.stop()
    for name in (name for name in ALONE if name in names):
        rows += await ALONE[name](run, folder)
    return rows
