"""Run the workloads against LedgerMQ and its peers, interleaved, and write raw figures, tables and plots.

    python -m bench.peers.run [--systems ledgermq,rabbitmq,kafka] [--workloads W1,W3] [--runs 3]
                              [--seconds 6]

W1 one message in flight · W2 64 in flight · W3 as many as the client can pipeline (1 KiB and 128 B) · batch:
W3 by `send_batch` · W4 drain of a backlog with acknowledgements · W5 500 messages/s end to end · W6 64
callers, one message per unary call of the official protocol, at the leader and at followers, beside an empty
handler · bodies of 100 B to 1 MiB · 1, 8 and 64 producers · 8, 1,000 and 10,000 queues · failover: kill -9
of the leader, and hand-over: SIGTERM to it, each the longest time without an acknowledged write. Each run
starts and stops every system, so that a drift of the machine affects all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

# Set before gRPC is loaded, as the command line and the brokers do.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import uvloop

from ledgermq.client.bench.workloads import GC_THRESHOLDS

from .java import HEAP, JarsError
from .plots import write_plots
from .ratios import ratio_table
from .system import System
from .table import Row, table
from .workloads import NAMES, Run, measure

#: Module, class and constructor arguments of each system.
_SYSTEMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ledgermq": ("bench.peers.ledgermq", "LedgerMQ", {}),
    "ledgermq-async_timed": ("bench.peers.ledgermq", "LedgerMQ", {"flush": "async_timed"}),
    "ledgermq-async_notify": ("bench.peers.ledgermq", "LedgerMQ", {"flush": "async_notify"}),
    "rabbitmq": ("bench.peers.rabbitmq", "RabbitMQ", {}),
    "nats": ("bench.peers.nats_jetstream", "NatsJetStream", {}),
    "kafka": ("bench.peers.kafka", "Kafka", {}),
    "kafka-fsync": ("bench.peers.kafka", "Kafka", {"flush_each": True}),
    "rocketmq": ("bench.peers.rocketmq", "RocketMQ", {}),
    "rocketmq-batch-push": ("bench.peers.rocketmq", "RocketMQ", {"batch_push": True}),
}
#: Modules whose systems run on Java, from a folder of jars.
_JAVA = ("bench.peers.kafka", "bench.peers.rocketmq")
_JARS = Path("build/bench-jars")
_USUAL = ("W1", "W2", "W3", "batch", "W4", "W5", "W6", "failover", "hand-over")


def make(key: str, jars: Path = _JARS) -> System:
    """Import a system and return it, not started."""
    module, name, options = _SYSTEMS[key]
    if module in _JAVA:
        options = {"jars": jars, **options}
    system: System = getattr(importlib.import_module(module), name)(**options)
    return system


def prepared(keys: Sequence[str], jars: Path) -> dict[str, System]:
    """Return the systems that can run here, with their jars; print why others are skipped."""
    found: dict[str, System] = {}
    for key in keys:
        system = make(key, jars)
        try:
            lacks = system.prepare() if hasattr(system, "prepare") else ""
        except JarsError as error:
            lacks = str(error)
        if lacks:
            print(f"{system.name} is skipped: {lacks}", flush=True)
        else:
            found[key] = system
    return found


async def _main(options: argparse.Namespace) -> None:
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    rows: list[Row] = []
    systems = prepared(options.systems, options.jars)
    for number in range(options.runs):
        for key, system in systems.items():
            print(f"run {number + 1}/{options.runs}: {system.name} {system.version()}", flush=True)
            folder = options.folder / f"{key}-{number}"
            run = Run(system, number, options.seconds, options.preload, options.failovers, options.warm_up)
            try:
                rows += await measure(run, options.workloads, folder)
            except TimeoutError as error:  # the hours of the others are not thrown away
                print(f"{system.name} is left out of this run, its folder is kept: {error}", flush=True)
                continue
            shutil.rmtree(folder, ignore_errors=True)
            write(options, rows)
    if rows:
        finish(options, {"rows": rows, "taken": _now()})


def write(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Write the raw figures so far, with their circumstances."""
    report = {
        "taken": _now(),
        "commit": _commit(),
        "seconds": options.seconds,
        "warm_up_s": options.warm_up,
        "preload": options.preload,
        "cores": os.cpu_count(),
        "heap_of_a_jvm": HEAP,
        "python": platform.python_version(),
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")


def _commit() -> str:
    """Return the commit of the measured checkout, with "-dirty" if files differ; "" outside of one."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return described.stdout.strip()


def finish(options: argparse.Namespace, report: dict[str, Any]) -> None:
    """Print the table, and write it and the plots where requested."""
    text = "\n".join(filter(None, (table(report["rows"]), ratio_table(report["rows"]))))
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
        print(f"tables: {options.markdown}")
    if options.plots:
        runs = 1 + max(row["run"] for row in report["rows"])
        caption = (
            f"three nodes and one client on {os.cpu_count()} cores, "
            f"{'one run' if runs == 1 else f'{runs} interleaved runs'}, {report['taken'][:10]}; "
            "bars: median, lines: least to most"
        )
        print(f"plots: {', '.join(map(str, write_plots(options.plots, report['rows'], caption)))}")
    print(f"raw figures: {options.table or options.out}")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _some(known: Sequence[str], text: str) -> list[str]:
    """Return the names of a comma-separated list. Raises: ArgumentTypeError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}")
    if not names:
        raise argparse.ArgumentTypeError(f"nothing is named; choose from {', '.join(known)}")
    return names


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="python -m bench"
    )
    parser.add_argument(
        "--systems",
        type=partial(_some, tuple(_SYSTEMS)),
        default=["ledgermq", "rabbitmq", "nats"],
        help=", ".join(_SYSTEMS),
    )
    parser.add_argument(
        "--workloads",
        type=partial(_some, NAMES),
        default=list(_USUAL),
        help=f"{', '.join(NAMES)} (default: {', '.join(_USUAL)})",
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--warm-up", type=float, default=1, help="seconds before each workload (default 1)")
    parser.add_argument("--preload", type=int, default=200_000, help="messages of W4")
    parser.add_argument("--failovers", type=int, default=3, help="times per run, of each kind")
    parser.add_argument(
        "--jars", type=Path, default=_JARS, metavar="DIR", help=f"jars of peers on Java (default: {_JARS})"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/bench-peers"))
    stamp = time.strftime("%Y-%m-%dT%H%M%S", time.gmtime())  # a run must not overwrite the figures of another
    parser.add_argument(
        "--out", type=Path, default=Path(f"build/bench-peers/{stamp}.json"), help="raw figures"
    )
    parser.add_argument("--markdown", type=Path, help="write the tables into this file")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write plots (PNG, SVG) into this folder")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="measure nothing: tables and plots of a result file"
    )
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.seconds <= 0 or options.preload < 1 or options.failovers < 0:
        parser.error("--runs and --preload begin at 1, --seconds above 0, --failovers at 0")
    if options.plots and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plots needs matplotlib: pip install 'ledgermq[bench]'")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.table:
        finish(options, json.loads(options.table.read_text()))
        return
    options.folder, options.jars = options.folder.resolve(), options.jars.resolve()
    uvloop.install()
    asyncio.run(_main(options))


if __name__ == "__main__":
    main(sys.argv[1:])
