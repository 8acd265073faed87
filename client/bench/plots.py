"""Plots of a run of `ledgermq bench`, as PNG and SVG: latency by workload, throughput over time.

Owns: their appearance. Needs the extra [bench]. Must not: measure.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import MissingExtraError, UsageError
from .figures import Figures
from .workloads import TITLES

#: Colours that colour-blind people can tell apart (Okabe and Ito, 2008).
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_COLOUR_OF: Final = dict(zip(TITLES, COLOURS, strict=True))  # the same in every plot
_INK: Final = "#333333"
_MARKS: Final = (("p50", "p50_ms", "-"), ("p99", "p99_ms", "--"), ("p99.9", "p999_ms", ":"))
_WIDTH_INCHES: Final = 9.0
_HEAD_INCHES: Final = 0.75
_PANEL_INCHES: Final = 1.7
_DPI: Final = 130


def check_folder(folder: Path) -> None:
    """Check before the run that plots can be made. Raises: MissingExtraError, UsageError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("--plots", "bench", "matplotlib")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the folder {folder} for the plots cannot be made: {error.strerror}",
            "",
            "Name another: --plots DIR",
        ) from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"the folder {folder} cannot be written", "", "Name another: --plots DIR")


def write_plots(folder: Path, figures: Sequence[Figures], caption: str) -> list[Path]:
    """Write latency.* and throughput.* to the folder; return the files. `caption`: shown under each title."""
    written: list[Path] = []
    timed = [each for each in figures if each.histogram]
    if timed:
        written += _save(_latency(timed, caption), folder / "latency")
    steady = [each for each in figures if each.rates()]
    if steady:
        written += _save(_throughput(steady, caption), folder / "throughput")
    return written


def panels(count: int, title: str, caption: str) -> tuple[Any, list[Any]]:
    """Return a figure with `count` stacked panels and a common x axis, in the style of all plots."""
    figure_class = importlib.import_module("matplotlib.figure").Figure
    height = _HEAD_INCHES + _PANEL_INCHES * count + 0.5
    figure = figure_class(figsize=(_WIDTH_INCHES, height), dpi=_DPI, layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - _HEAD_INCHES / height))
    figure.text(0.01, 1 - 0.12 / height, title, va="top", fontsize=14, fontweight="bold", color=_INK)
    figure.text(0.01, 1 - 0.42 / height, caption, va="top", fontsize=9, color="#666666")
    axes = list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="both", color="#dddddd", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.tick_params(colors=_INK, labelsize=9)
    figure.align_ylabels(axes)
    return figure, axes


def _latency(figures: Sequence[Figures], caption: str) -> Any:
    """Plot one panel per workload: the share of calls in each bar, on a common logarithmic axis."""
    figure, axes = panels(len(figures), "Latency", caption)
    ratio = 10**0.05  # between the bounds of a bar
    for axis, each in zip(axes, figures, strict=True):
        colour = _COLOUR_OF[each.workload]
        total = sum(count for _, count in each.histogram)
        lefts = [bound / ratio for bound, _ in each.histogram]
        widths = [bound - bound / ratio for bound, _ in each.histogram]
        shares = [100 * count / total for _, count in each.histogram]
        axis.bar(lefts, shares, widths, align="edge", color=colour, alpha=0.75, linewidth=0)
        for name, attribute, style in _MARKS:
            value = getattr(each, attribute)
            axis.axvline(value, color=_INK, linestyle=style, linewidth=1.3, label=f"{name}  {_ms(value)} ms")
        axis.set_title(_title(each), loc="left", fontsize=10, color=_INK)
        axis.set_ylabel("% of calls", fontsize=9, color=_INK)
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    axes[0].set_xscale("log")
    axes[-1].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes[-1].set_xlabel("latency in ms (logarithmic)", fontsize=9, color=_INK)
    return figure


def _throughput(figures: Sequence[Figures], caption: str) -> Any:
    """Plot one panel per workload, each with its own scale from 0."""
    figure, axes = panels(len(figures), "Throughput over time", caption)
    for axis, each in zip(axes, figures, strict=True):
        colour = _COLOUR_OF[each.workload]
        times, rates = zip(*each.rates(), strict=True)
        axis.plot(times, rates, color=colour, linewidth=1.6, marker="o", markersize=2.5)
        axis.fill_between(times, rates, color=colour, alpha=0.15, linewidth=0)
        axis.axhline(each.rate, color=_INK, linewidth=1.1, linestyle="--", label=f"mean  {each.rate:,.0f}/s")
        axis.set_ylim(0, 1.15 * max(rates) or 1)
        axis.set_title(_title(each), loc="left", fontsize=10, color=_INK)
        axis.set_ylabel("messages/s", fontsize=9, color=_INK)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    axes[-1].set_xlim(left=0)
    axes[-1].set_xlabel(
        f"seconds since the begin (in steps of {figures[0].bucket_s:g} s)", fontsize=9, color=_INK
    )
    return figure


def _title(figures: Figures) -> str:
    batch = f", batches of {figures.messages_per_call:,}" if figures.messages_per_call > 1 else ""
    return f"{figures.workload}  {TITLES[figures.workload]}{batch}: {figures.messages:,} messages"


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _save(figure: Any, stem: Path) -> list[Path]:
    """Write the plot as PNG and as SVG."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        figure.savefig(path)
    return paths
