"""Plots of a comparison: medians with their spread over the runs, one panel per workload. PNG and SVG.

Needs the extra [bench]. Must not: measure.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .table import Row, label

#: Ours in blues, the others in colours that colour-blind readers can distinguish (Okabe and Ito, 2008).
_COLOURS = {
    "LedgerMQ": "#0072B2",
    "LedgerMQ flush=async_timed": "#56B4E9",
    "LedgerMQ flush=async_notify": "#A6D8F5",
    "RabbitMQ quorum queue": "#D55E00",
    "NATS JetStream R3": "#009E73",
    "Kafka": "#CC79A7",
    "Kafka with fsync per append": "#E3B7CF",
    "RocketMQ DLedger": "#E69F00",
    "RocketMQ DLedger with batch push": "#F0E442",
}
_OTHER = "#999999"
_INK = "#333333"
_GAPS = ("failover", "hand-over")
_BY_LATENCY = ("W1", "W5")
_COLUMNS = 2
_WIDTH_INCHES, _HEAD_INCHES, _BAR_INCHES = 13.0, 0.75, 0.34
_DPI = 120

Bars = dict[str, tuple[str, list[float]]]  # label -> (colour, one value per run)
Panels = dict[str, Bars]


def write_plots(folder: Path, rows: Sequence[Row], caption: str) -> list[Path]:
    """Write throughput.*, latency.* and write-gap.*, as far as there are figures. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    gaps = [row for row in rows if row["workload"] in _GAPS]
    timed = [row for row in rows if row["workload"] in _BY_LATENCY]
    rest = [row for row in rows if row["workload"] not in (*_GAPS, *_BY_LATENCY)]
    latency: Panels = {}
    for name in _BY_LATENCY:
        for percent in ("p50", "p99"):
            latency |= _panels(
                [row for row in timed if row["workload"] == name], f"{percent}_ms", f" {percent}"
            )
    written = []
    for name, title, unit, panels in (
        ("throughput", "Throughput (more is better)", "messages/s", _panels(rest, "rate")),
        ("latency", "Latency (less is better)", "ms", latency),
        ("write-gap", "The leader ends: longest time without an acknowledged write (less is better)", "ms",
        _panels(gaps, "gap_ms")),
    ):  # fmt: skip
        if panels:
            written += _save(_figure(title, unit, panels, caption), folder / name)
    return written


def _panels(rows: Sequence[Row], key: str, suffix: str = "") -> Panels:
    """Return the bars by workload.

    A suffix after a comma in a workload's name is a variant with its own bar.
    """
    panels: Panels = {}
    for row in rows:
        workload, _, variant = row["workload"].partition(", ")
        bars = panels.setdefault(workload + suffix, {})
        name = f"{label(row)}, {variant}" if variant else label(row)
        bars.setdefault(name, (_COLOURS.get(row["system"], _OTHER), []))[1].append(row[key])
    return panels


def _figure(title: str, unit: str, panels: Panels, caption: str) -> Any:
    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    most = max(len(bars) for bars in panels.values())
    height = _HEAD_INCHES + lines * (0.95 + _BAR_INCHES * most)
    width = _WIDTH_INCHES * columns / _COLUMNS
    figure = importlib.import_module("matplotlib.figure").Figure((width, height), _DPI, layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - _HEAD_INCHES / height), h_pad=0.1)
    figure.text(0.01, 1 - 0.12 / height, title, va="top", fontsize=14, fontweight="bold", color=_INK)
    figure.text(0.01, 1 - 0.42 / height, caption, va="top", fontsize=9, color="#666666")
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axis, (name, bars) in zip(axes, panels.items(), strict=False):
        _draw(axis, bars, most)
        axis.set_title(name, loc="left", fontsize=11, color=_INK)
        axis.set_xlabel(unit, fontsize=9, color=_INK)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return figure


def _draw(axis: Any, bars: Bars, most: int) -> None:
    """Draw a bar to each median, a line from the lowest to the highest run, and the median as a number."""
    widest = max(max(values) for _, values in bars.values())
    for place, (colour, values) in enumerate(bars.values()):
        middle = statistics.median(values)
        axis.barh(place, middle, height=0.66, color=colour)
        axis.plot(
            [min(values), max(values)], [place, place], color=_INK, linewidth=1.6, marker="|", markersize=7
        )
        axis.text(max(values) + widest * 0.02, place, _number(middle), va="center", fontsize=9, color=_INK)
    axis.set_yticks(range(len(bars)), list(bars), fontsize=9)
    axis.set_ylim(most - 0.5, -0.5)  # bars of all panels are equally thick; the first one is at the top
    axis.set_xlim(0, widest * 1.19)
    axis.locator_params(axis="x", nbins=5)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.tick_params(colors=_INK, labelsize=9)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", color="#dddddd", linewidth=0.7)
    axis.set_axisbelow(True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _save(figure: Any, stem: Path) -> list[Path]:
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        figure.savefig(path)
    return paths
