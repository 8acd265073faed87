"""Measure the write gap of a failover: `python -m bench.failover [--times 20] [--ways kill,hand-over,...]`.

Ends the leader of a broker group of three nodes repeatedly. Two steady writers run meanwhile: our client, and
the official Python client in a separate process. Ways:

    control         nothing ends: stalls of this machine itself
    kill            kill -9
    hand-over       SIGTERM
    silent          SIGSTOP, later SIGCONT: nothing is reset or refused
    silent-host     the same, and the nameserver falls silent with the leader
    container-kill  docker kill
    lost-host       docker network disconnect

At the end every acknowledged message must be there exactly once. Prints a Markdown table. Raw figures and a
time line of each end go to a JSON file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

# Set before gRPC is loaded, as the command line and the brokers do.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

from .gaps import Ledger, Trial, as_row, table
from .groups import GROUPS, why_no_containers
from .trials import Trials

_ALL = [way for ways, _ in GROUPS for way in ways]


async def _measure(options: argparse.Namespace) -> tuple[list[Trial], dict[str, Ledger]]:
    trials: list[Trial] = []
    ledgers: dict[str, Ledger] = {}
    for ways, make in GROUPS:
        wanted = [way for way in options.ways if way in ways]
        if not wanted:
            continue
        folder = options.folder / wanted[0]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        group = make(folder, options.subnet)
        runner = Trials(
            group, folder, pause_ms=options.pause_ms, steady_s=options.steady, official=options.official
        )
        try:
            await runner.start()
            with _load(options.load):
                for way, number in product(wanted, range(options.times)):
                    trials.append(await runner.run(way, number))
                    _show(trials[-1], options.verbose)
            for client, ledger in (await runner.finish()).items():
                ledgers[f"{', '.join(wanted)}: {client}"] = ledger
        finally:
            await runner.stop()
    return trials, ledgers


def _show(trial: Trial, verbose: bool) -> None:
    gaps = ", ".join(f"{client} {gap:.0f} ms" for client, gap in trial.gaps.items())
    back = ", ".join(f"{client} {gap:.0f} ms" for client, gap in trial.return_gaps.items())
    print(f"{trial.way} {trial.number + 1}: {gaps}; on return {back}; load {trial.load:.1f}", flush=True)
    if verbose:
        _show_events(trial)


def _show_events(trial: Trial) -> None:
    for what, found in (("end", trial.events), ("return", trial.return_events)):
        for at, who, text in found:
            print(f"    {what:6} {at:8.1f}  {who:16} {text[:170]}")


def _show_slowest(trials: list[Trial], count: int) -> None:
    """Print the time lines that explain the tail. Those of all trials are in the file of raw figures."""
    for trial in sorted(trials, key=lambda trial: -trial.longest)[:count]:
        print(f"\nslow: {trial.way} {trial.number + 1}, {trial.longest:.0f} ms at load {trial.load:.1f}")
        _show_events(trial)


@contextmanager
def _load(loops: int) -> Iterator[None]:
    """Keep that many busy loops running during the measurement."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def _report(options: argparse.Namespace, trials: list[Trial], ledgers: dict[str, Ledger]) -> dict[str, Any]:
    return {
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "version": version("ledgermq"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "pause_ms": options.pause_ms,
        "busy_loops": options.load,
        "trials": [as_row(trial) for trial in trials],
        "ledgers": {name: asdict(ledger) for name, ledger in ledgers.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ways", default=",".join(_ALL), help="which ends, of: %(default)s")
    parser.add_argument("--times", type=int, default=20, help="ends per way")
    parser.add_argument("--steady", type=float, default=1.0, help="seconds of writing before each end")
    parser.add_argument("--pause-ms", type=float, default=2.0, help="between two writes of a writer")
    parser.add_argument("--without-official", dest="official", action="store_false", help="only our client")
    parser.add_argument("--subnet", default="172.31.207", help="first three bytes of the containers' network")
    parser.add_argument("--load", type=int, default=0, help="busy loops that run beside the measurement")
    parser.add_argument("--slowest", type=int, default=3, help="print the time lines of so many slowest ends")
    parser.add_argument("--verbose", action="store_true", help="print the time line of each end")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-failover"))
    stamp = time.strftime("%Y-%m-%dT%H%M%S", time.gmtime())
    parser.add_argument("--out", type=Path, default=Path(f"build/bench-failover/{stamp}.json"))
    options = parser.parse_args()
    options.ways = options.ways.split(",")
    if unknown := set(options.ways) - set(_ALL):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(_ALL)}")
    container_ways = set(options.ways) & set(GROUPS[1][0])
    if container_ways and (missing := why_no_containers()):
        print(f"without {', '.join(sorted(container_ways))}: {missing}", flush=True)
        options.ways = [way for way in options.ways if way not in container_ways]
    options.folder = options.folder.resolve()
    trials, ledgers = asyncio.run(_measure(options))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(_report(options, trials, ledgers), indent=1) + "\n")
    _show_slowest(trials, options.slowest)
    print(
        f"\n{options.load} busy loops; load {trials[0].load:.1f} to {trials[-1].load:.1f}\n"
        + table(trials, options.load)
    )
    for name, ledger in ledgers.items():
        state = "each exactly once" if ledger.is_balanced else f"NOT BALANCED: {ledger}"
        print(f"{name}: {ledger.acknowledged:,} acknowledged, {state} ({ledger.unknown} unknown)")
    print(f"raw figures: {options.out}")
    return 0 if all(ledger.is_balanced for ledger in ledgers.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
