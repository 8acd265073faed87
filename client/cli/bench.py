"""`ledgermq bench`: measures a running cluster with the workloads that the documentation quotes.

Owns: its options, the table, the progress line. The loops are in `workloads.py`, the plots in `plots.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..admin.admin import Admin
from ..bench import document as bench_document
from ..bench import plots as bench_plots
from ..bench.figures import Figures
from ..bench.workloads import GC_THRESHOLDS, TITLES, Settings, Workloads
from ..cluster.topic_route import BrokerGroup
from ..errors import LedgerMQError, UsageError
from .output import DEFAULT_NAMESERVER, NameserverOption, err, out, print_json, print_table, run

_BEAT_SECONDS = 0.5
_MOST_QUEUES = 1024
_COLUMNS = (
    "WORKLOAD", "WHAT", "MESSAGES>", "MSG/S>", "MIB/S>", "P50 MS>", "P90 MS>", "P99 MS>", "P99.9 MS>",
    "MAX MS>",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("bench")(bench)


def bench(
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    workloads: Annotated[
        str, typer.Option("--workloads", "-w", help="Which, comma-separated; W6: the official protocol.")
    ] = ",".join(TITLES),
    size: Annotated[int, typer.Option(help="Bytes of a message body.", min=8, max=4 << 20)] = 1024,
    seconds: Annotated[float, typer.Option(help="Seconds per workload.", min=0.5, max=3600)] = 5,
    warm_up: Annotated[
        float, typer.Option("--warm-up", help="Seconds before each that do not count.", min=0, max=600)
    ] = 0.5,
    in_flight: Annotated[int, typer.Option(help="Open messages in W3.", min=1, max=100_000)] = 4000,
    batch: Annotated[
        int, typer.Option(help="W2 and W3: messages per send_batch; 0: send one by one.", min=0, max=100_000)
    ] = 0,
    producers: Annotated[int, typer.Option(help="Producers that share W2 and W3.", min=1, max=1024)] = 1,
    callers: Annotated[int, typer.Option(help="Callers in W6.", min=1, max=10_000)] = 64,
    target: Annotated[str, typer.Option(help="Whom W6 calls: leader or follower.")] = "leader",
    rate: Annotated[float, typer.Option(help="Messages per second in W5.", min=1, max=100_000)] = 500,
    queues: Annotated[
        int, typer.Option(help="Queues of the topic in each broker group.", min=1, max=_MOST_QUEUES)
    ] = 8,
    groups: Annotated[int, typer.Option(help="Broker groups to send to; 0: all.", min=0)] = 0,
    topic: Annotated[
        str, typer.Option(help="Use this topic and keep it; without, a new one is made and deleted.")
    ] = "",
    json: Annotated[
        str,
        typer.Option(
            "--json", metavar="FILE", help="Write everything as JSON; - prints it instead of the table."
        ),
    ] = "",
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write plots (PNG, SVG) into this folder.")
    ] = None,
) -> None:
    """Measure throughput and latency of this cluster, from here."""
    names = _names(workloads)
    settings = Settings(
        size, seconds, warm_up, in_flight, batch, producers, callers, target.lower(), rate, groups
    )
    settings.check()
    bench_document.check_file(json)
    if plots is not None:
        bench_plots.check_folder(plots)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    figures, used, count, topic = run(_run(nameserver, names, settings, queues, topic, quiet=json == "-"))
    content = bench_document.document(settings, topic, count, used, figures)
    if json == "-":
        print_json(content)
    else:
        print_table(_COLUMNS, (_row(each) for each in figures))
        if any(each.messages_per_call > 1 for each in figures):
            out.print(f"Latencies of W2 and W3 are those of batches of {batch:,}.")
        out.print("Figures hold for this machine at this moment; compare figures of one run only.")
    if json not in ("", "-"):
        bench_document.write(json, content)
        out.print(escape(f"everything as JSON: {json}"))
    if plots is not None:
        written = bench_plots.write_plots(plots, figures, _caption(settings, count, used))
        err.print(escape(f"plots: {', '.join(map(str, written))}"))


def _names(text: str) -> list[str]:
    """Return the workloads of a list. Raises: UsageError."""
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TITLES:
            raise UsageError(f'there is no workload "{name}"', "", f"Choose from {', '.join(TITLES)}")
    if not names:
        raise UsageError("no workload is named", "", f"Choose from {', '.join(TITLES)}")
    return names


def _caption(settings: Settings, queues: int, groups: Iterable[BrokerGroup]) -> str:
    nodes = " + ".join(f"{len(group.nodes)}" for group in groups)
    machine = bench_document.machine()
    return (
        f"bodies of {settings.size:,} bytes, {queues:,} queues, {nodes} nodes, client on {machine['cores']} "
        f"cores ({machine['processor']}), {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}"
    )


def _row(figures: Figures) -> tuple[object, ...]:
    def latency(value: float) -> str:
        return f"{value:.2f}" if value else "-"

    values = (figures.p50_ms, figures.p90_ms, figures.p99_ms, figures.p999_ms, figures.max_ms)
    return (
        figures.workload,
        TITLES[figures.workload],
        figures.messages,
        int(figures.rate),
        f"{figures.rate * figures.bytes_per_message / (1 << 20):.1f}",
        *(latency(value) for value in values),
    )


async def _run(
    nameserver: str, names: list[str], settings: Settings, queues: int, topic: str, *, quiet: bool
) -> tuple[list[Figures], list[BrokerGroup], int, str]:
    """Return the figures, the broker groups of the cluster, the queues of the topic and its name."""
    own = not topic
    topic = topic or f"bench-{time.time_ns() // 1_000_000}"
    figures = []
    async with Admin(nameserver) as admin:
        if own:
            await admin.create_topic(topic, queues)
        try:
            found = await admin.groups()
            count = (await admin.describe_topic(topic, silent={}))[1]
            runner = Workloads(nameserver, topic, settings)
            for name in names:
                async with _progress(runner, name, quiet=quiet):
                    figures.append(await runner.run(name))
        except BaseException:
            if own:  # show the original failure, not that the topic could not be deleted either
                with contextlib.suppress(LedgerMQError):
                    await admin.delete_topic(topic)
            raise
        if own:
            await admin.delete_topic(topic)
    return figures, found, len(count), topic


@contextlib.asynccontextmanager
async def _progress(runner: Workloads, name: str, *, quiet: bool) -> AsyncIterator[None]:
    """Say on stderr what runs; on a terminal also how far it is."""
    title = f"{name} {TITLES[name]} …"
    if quiet:
        yield
        return
    if not err.is_terminal:
        err.print(title)
        yield
        return
    task = asyncio.create_task(_show(runner, title))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        _write_over("")


async def _show(runner: Workloads, title: str) -> None:
    begun = time.perf_counter()
    runner.recorder = None
    while True:
        messages = runner.recorder.messages if runner.recorder is not None else 0
        _write_over(f"{title} {time.perf_counter() - begun:.1f} s, {messages:,} messages")
        await asyncio.sleep(_BEAT_SECONDS)


def _write_over(text: str) -> None:
    """Replace the line that the cursor is in."""
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()
