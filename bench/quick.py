"""A guard against slow-downs in less than two minutes: `make bench-quick`, or `python -m bench.quick`.

Starts three nodes and runs every workload briefly, in several rounds, with a fixed reference before and after
each. Prints ratios beside those of a committed baseline. Such figures show "slower by a third"; for "by 5 %"
run `python -m bench`. Options: --update writes the baseline, --strict makes a slow-down an error.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ledgermq.client.admin.admin import Admin
from ledgermq.client.bench.document import machine, versions
from ledgermq.client.bench.workloads import Settings, Workloads
from ledgermq.client.cli.output import text_table
from ledgermq.client.event_loop import new_event_loop
from ledgermq.client.local.cluster import LocalCluster
from ledgermq.client.local.processes import signals_as_interrupt

from . import echo
from .disk import append_and_flush
from .quick_compare import (
    BUSY_PERCENT,
    Line,
    Measured,
    Reference,
    Rounds,
    Sample,
    compare,
    conclusion,
    fold,
    new_baseline,
)

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "bench" / "results" / "quick-baseline.json"
_TICKS = os.sysconf("SC_CLK_TCK")
_QUEUES = 8
_BATCH = 256
_REFERENCE_SHARE = 0.4  # of the time of a workload
_SMALL = "W3 128 B send_batch"
_SMALL_BYTES, _SMALL_BATCH, _SMALL_IN_FLIGHT = 128, 1000, 16_000
_RUNS = ("W1", "W5", "W6", "W2", "W3", "W3 send_batch", "W4", _SMALL)  # those that leave work behind: last
_IDLE_CPU, _IDLE_SECONDS, _IDLE_PATIENCE = 0.25, 0.2, 3.0


class Guard:
    """The cluster and the echo server under measurement."""

    def __init__(self, nameserver: str, pids: Sequence[int], server: echo.EchoServer, folder: Path) -> None:
        self._nameserver, self._pids, self._server, self._folder = nameserver, pids, server, folder

    async def reference(self, seconds: float) -> Reference:
        gc.collect()
        before = cpu_seconds([self._server.pid])
        calls = await echo.unary(self._server.address, callers=64, seconds=seconds)
        cpu = calls.client_cpu + cpu_seconds([self._server.pid]) - before
        trips = await echo.stream(self._server.address, seconds=seconds / 2)
        flushes = await asyncio.to_thread(append_and_flush, self._folder, seconds / 2)
        return Reference(
            calls.rate,
            1e6 * cpu / len(calls.latencies),
            1e3 * statistics.median(trips.latencies),
            1e3 * statistics.median(flushes),
        )

    async def round(self, number: int, seconds: float) -> dict[str, Measured]:
        """Run every workload once on a new topic, with the reference before, between and after them."""
        topic = f"quick-{number}"
        plain = Settings(seconds=seconds, warm_up_s=0.0)
        one_by_one = Workloads(self._nameserver, topic, plain)
        in_batches = Workloads(
            self._nameserver, topic, Settings(seconds=seconds, warm_up_s=0.0, batch=_BATCH)
        )
        small_batches = Workloads(
            self._nameserver,
            topic,
            Settings(
                size=_SMALL_BYTES, seconds=seconds, warm_up_s=0.0, in_flight=_SMALL_IN_FLIGHT,
                batch=_SMALL_BATCH,
            ),
        )  # fmt: skip
        found = {}
        async with Admin(self._nameserver) as admin:
            await admin.create_topic(topic, _QUEUES)
            before = await self.reference(seconds * _REFERENCE_SHARE)
            runners = {"W3 send_batch": in_batches, _SMALL: small_batches}
            for name in _RUNS:
                runner = runners.get(name, one_by_one)
                await self._until_idle()
                sample = await self._sample(runner, name.split(" ")[0])
                after = await self.reference(seconds * _REFERENCE_SHARE)
                found[name] = Measured(sample, before.mean(after))
                before = after
            await admin.delete_topic(topic)
        return found

    async def _until_idle(self) -> None:
        """Wait until the nodes have finished the work of the previous workload, but not for long."""
        end = time.monotonic() + _IDLE_PATIENCE
        while time.monotonic() < end:
            before = cpu_seconds(self._pids)
            await asyncio.sleep(_IDLE_SECONDS)
            if cpu_seconds(self._pids) - before < _IDLE_CPU * _IDLE_SECONDS:
                return

    async def _sample(self, runner: Workloads, workload: str) -> Sample:
        gc.collect()
        nodes, client = cpu_seconds(self._pids), time.process_time()
        figures = await runner.run(workload)
        cpu = cpu_seconds(self._pids) - nodes + time.process_time() - client
        return Sample(figures.rate, figures.p50_ms, 1e6 * cpu / max(figures.messages, 1))


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the user and system time of processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


class Others:
    """CPU use of programs that are not under measurement."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._begin = self._now()

    def _now(self) -> tuple[float, float, float]:
        """Return the time, busy seconds of all cores, and those of the processes under measurement."""
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        idle = int(fields[3]) + int(fields[4])
        busy = (sum(map(int, fields)) - idle) / _TICKS
        return time.monotonic(), busy, cpu_seconds(self._pids) + time.process_time()

    def percent(self) -> float:
        """Return their share of all cores since the start."""
        seconds, busy, ours = (now - then for now, then in zip(self._now(), self._begin, strict=True))
        return max(0.0, 100 * (busy - ours) / (seconds * (os.cpu_count() or 1)))


async def measure(guard: Guard, options: argparse.Namespace) -> list[dict[str, Measured]]:
    """Run the rounds; fewer if the next one would not fit into the time."""
    begin = time.monotonic()
    print("three nodes and the reference are up; warming up ...", flush=True)
    await guard.round(0, min(options.seconds, 0.2))  # warm-up
    rounds: list[dict[str, Measured]] = []
    longest = 0.0
    while len(rounds) < options.rounds:
        started = time.monotonic()
        if rounds and started - begin + longest > options.budget:
            print(f"stopped after {len(rounds)} rounds: more do not fit into {options.budget:g} s")
            break
        print(f"round {len(rounds) + 1} of {options.rounds} ...", flush=True)
        rounds.append(await guard.round(len(rounds) + 1, options.seconds))
        longest = max(longest, time.monotonic() - started)
    return rounds


def run(options: argparse.Namespace) -> tuple[list[dict[str, Measured]], float]:
    """Start everything, measure, end everything.

    Returns the measurements, and the CPU percent of other programs.
    """
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-quick-", dir=options.folder))
    cluster = LocalCluster(folder / "cluster")
    with signals_as_interrupt():
        try:
            plan = cluster.prepare(3, free_ports_only=True)
            cluster.start()
            with echo.EchoServer() as server:
                pids = [process.pid for process in cluster.nodes.values()]
                guard = Guard(plan.nameserver, pids, server, folder)
                others = Others([*pids, server.pid])
                with asyncio.Runner(loop_factory=new_event_loop) as runner:
                    return runner.run(measure(guard, options)), others.percent()
        finally:
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)


def show(rounds: Sequence[Mapping[str, Measured]], lines: Sequence[Line]) -> None:
    """Print the references, the figures behind the ratios, and the ratios."""
    references = [each.reference for found in rounds for each in found.values()]
    middle = {
        name: statistics.median(getattr(each, name) for each in references) for name in Reference.__slots__
    }
    print(
        f"\nreference: echo {middle['echo_rate']:,.0f} calls/s with {middle['echo_cpu_us']:.0f} us of CPU "
        f"each, stream round trip {middle['stream_ms']:.3f} ms, append and flush {middle['flush_ms']:.3f} "
        "ms\n"
    )
    figures = []
    for name in rounds[0]:
        of = [found[name].sample for found in rounds]
        rate, p50, cpu = (statistics.median(getattr(each, key) for each in of) for key in Sample.__slots__)
        figures.append((name, f"{rate:,.0f}", f"{p50:.2f}" if p50 else "-", f"{cpu:.1f}"))
    _print(("WORKLOAD", "MSG/S>", "P50 MS>", "CPU US PER MESSAGE>"), figures)
    _print(
        ("RATIO TO THE REFERENCE", "NOW>", "MIN-MAX>", "BASELINE>", "CHANGE>", "BAND>", ""),
        [
            (
                line.name,
                f"{line.now:.3g}",
                f"{line.least:.3g}-{line.most:.3g}",
                "-" if line.baseline is None else f"{line.baseline:.3g}",
                "-" if line.slower_percent is None else f"{line.slower_percent:+.0f} %",
                f"{line.band_percent:g} %",
                line.verdict,
            )
            for line in lines
        ],
    )
    print("CHANGE: how much more a message takes than in the baseline; below 0 it takes less.")


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print("\n".join(text_table(columns, rows)) + "\n")


def read_baseline(path: Path) -> dict[str, Any] | None:
    """Return the baseline; None if there is none. Raises: ValueError."""
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}; make it again: --update") from error
    return found


def _where(rounds: Rounds, others_percent: float) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit.stdout.strip(),
        "rounds": len(next(iter(rounds.values()))),
        "others_percent": round(others_percent),
        "versions": versions(),
        "machine": machine(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.quick", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4, help="at most so many (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="per workload (default %(default)s)")
    parser.add_argument(
        "--budget", type=float, default=95.0, help="seconds for all rounds (default %(default)s)"
    )
    parser.add_argument("--update", action="store_true", help="write the baseline")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when something is slower")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build", help="where the data go, for the time of the run"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("at least one round, and more than 0 seconds")
    try:
        baseline = read_baseline(options.baseline)
        compare({}, baseline)  # before any measurement
    except ValueError as error:
        if not options.update:
            print(f"error: {error}", file=sys.stderr)
            return 2
        baseline = None
    measured, others_percent = run(options)
    rounds = fold(measured)
    lines = compare(rounds, baseline, others_percent)
    show(measured, lines)
    if baseline is not None and baseline["machine"]["cores"] != os.cpu_count():
        print(f"The baseline was taken with {baseline['machine']['cores']} cores; here are {os.cpu_count()}.")
    if others_percent > BUSY_PERCENT:
        print(
            f"Other programs used {others_percent:.0f} % of the cores meanwhile: times and rates are not "
            "judged, CPU time is."
        )
    print(conclusion(lines))
    if options.update:
        options.baseline.write_text(
            json.dumps(new_baseline(rounds, _where(rounds, others_percent)), indent=1) + "\n"
        )
        again = "; take it again when nothing else runs" if others_percent > BUSY_PERCENT else ""
        print(f"the baseline is written: {options.baseline}{again}")
        return 0
    return 1 if options.strict and any(line.slower for line in lines) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
