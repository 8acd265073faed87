"""`ledgermq bench`: measure a running cluster with the workloads that the documentation quotes."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated

import typer

from .admin import Admin
from .cli_output import (
    DEFAULT_NAMESERVER,
    JsonOption,
    NameserverOption,
    err,
    out,
    print_json,
    print_table,
    run,
)
from .errors import LedgerMQError, UsageError
from .workloads import Figures, Workloads

_NAMES = ("W1", "W2", "W3", "W4", "W5")
_TITLES = {
    "W1": "one message in flight",
    "W2": "64 in flight",
    "W3": "pipelined",
    "W4": "read a backlog back",
    "W5": "500/s, send to receive",
}


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("bench")(bench)


def bench(
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    workloads: Annotated[
        str, typer.Option("--workloads", "-w", help="Which, comma-separated.")
    ] = "W1,W2,W3,W4,W5",
    size: Annotated[int, typer.Option(help="Bytes of a message body.", min=8, max=4 << 20)] = 1024,
    seconds: Annotated[float, typer.Option(help="Seconds per workload.", min=0.5, max=3600)] = 5,
    in_flight: Annotated[int, typer.Option(help="Open messages in W3.", min=1, max=100_000)] = 4000,
    queues: Annotated[int, typer.Option(help="Queues of the topic.", min=1, max=1024)] = 8,
    topic: Annotated[
        str, typer.Option(help="Use this topic and keep it; without, a new one is made and deleted.")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Measure throughput and latency of this cluster, from this machine."""
    names = [name.strip().upper() for name in workloads.split(",") if name.strip()]
    for name in names:
        if name not in _NAMES:
            raise UsageError(f'there is no workload "{name}"', "", f"Choose from {', '.join(_NAMES)}")
    if not names:
        raise UsageError("no workload is named", "", f"Choose from {', '.join(_NAMES)}")
    figures = run(_run(nameserver, names, size, seconds, in_flight, queues, topic, quiet=json))
    if json:
        print_json([each.as_dict() for each in figures])
        return
    print_table(
        ("WORKLOAD", "WHAT", "MESSAGES>", "MSG/S>", "MIB/S>", "P50 MS>", "P99 MS>", "MAX MS>"),
        (_row(each) for each in figures),
    )
    out.print("Figures hold for this machine at this moment; compare figures of one run only.")


def _row(figures: Figures) -> tuple[object, ...]:
    def latency(value: float) -> str:
        return f"{value:.2f}" if value else "-"

    return (
        figures.workload,
        _TITLES[figures.workload],
        figures.messages,
        int(figures.rate),
        f"{figures.rate * figures.bytes_per_message / (1 << 20):.1f}",
        latency(figures.p50_ms),
        latency(figures.p99_ms),
        latency(figures.max_ms),
    )


async def _run(
    nameserver: str,
    names: list[str],
    size: int,
    seconds: float,
    in_flight: int,
    queues: int,
    topic: str,
    *,
    quiet: bool,
) -> list[Figures]:
    own = not topic
    topic = topic or f"bench-{time.time_ns() // 1_000_000}"
    figures = []
    async with Admin(nameserver) as admin:
        if own:
            await admin.create_topic(topic, queues)
        try:
            runner = Workloads(nameserver, topic, size=size, seconds=seconds, in_flight=in_flight)
            for name in names:
                if not quiet:
                    err.print(f"{name} {_TITLES[name]} …")
                figures.append(await runner.run(name))
        except BaseException:
            if own:  # the failure is what the user must see, not that the topic could not be deleted either
                with contextlib.suppress(LedgerMQError):
                    await admin.delete_topic(topic)
            raise
        if own:
            await admin.delete_topic(topic)
    return figures
