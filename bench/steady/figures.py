"""Figures from samples of metrics and memory. Pure.

Histograms are Prometheus': cumulative counts by upper bound, so a percentile is known as "at most this
bound".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Buckets = Mapping[float, float]
_BUCKET: Final = re.compile(r'_bucket\{le="([^"]+)"\} (\S+)')
#: Memory growth up to this is flat: the noise of a short run is larger than that of an hour.
FLAT_MIB_PER_HOUR: Final = 10.0
#: Seconds; memory watched for less says nothing about hours.
LONG_ENOUGH_S: Final = 300.0


def buckets(text: str, name: str) -> dict[float, float]:
    """Return the cumulative counts of a histogram without labels, by upper bound.

    Raises: ValueError (not found).
    """
    found = {
        float(match[1]): float(match[2])
        for line in text.splitlines()
        if line.startswith(f"{name}_bucket{{") and (match := _BUCKET.search(line))
    }
    if not found:
        raise ValueError(f"no histogram {name}")
    return found


def value(text: str, name: str) -> float:
    """Return the value of a metric without labels. Raises: ValueError (not found)."""
    for line in text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise ValueError(f"no metric {name}")


def between(before: Buckets, after: Buckets) -> dict[float, float]:
    """Return the counts between two readings of a histogram."""
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def at_most(counted: Buckets, percent: float) -> float:
    """Return the bound that `percent` of the values do not exceed; NaN if there are none."""
    bounds = sorted(counted)
    total = counted[bounds[-1]]
    if not total:
        return math.nan
    return next(bound for bound in bounds if counted[bound] >= total * percent / 100)


def slope_per_hour(samples: Sequence[tuple[float, float]]) -> float:
    """Return the growth per hour of values at times in seconds (least squares); NaN for fewer than
    two times.
    """
    if len({at for at, _ in samples}) < 2:
        return math.nan
    middle = sum(at for at, _ in samples) / len(samples)
    level = sum(each for _, each in samples) / len(samples)
    rise = sum((at - middle) * (each - level) for at, each in samples)
    return 3600 * rise / sum((at - middle) ** 2 for at, _ in samples)


@dataclass(slots=True)
class NodeFigures:
    """One node over one part of the run. `memory`: (seconds since its start, RssAnon in MiB)."""

    name: str
    elections: float = 0.0
    lateness: dict[float, float] = field(default_factory=dict)  # as returned by `between`
    memory: list[tuple[float, float]] = field(default_factory=list)
    cpu_share: float = 0.0  # of a core

    @property
    def settled(self) -> list[tuple[float, float]]:
        """Memory of the second half. Caches fill in the first."""
        end = self.memory[-1][0] if self.memory else 0.0
        return [sample for sample in self.memory if sample[0] >= end / 2]

    @property
    def mib_per_hour(self) -> float:
        return slope_per_hour(self.settled)

    @property
    def memory_verdict(self) -> str:
        if not self.memory or self.memory[-1][0] < LONG_ENOUGH_S:
            return "too short to tell"
        return "flat" if self.mib_per_hour <= FLAT_MIB_PER_HOUR else "grows"


@dataclass(slots=True)
class Part:
    """One part of the run: its load, and its effect on every node."""

    name: str
    seconds: float
    messages: int
    failures: dict[str, int]  # messages, by reason
    terms: tuple[float, float]  # before and after
    nodes: list[NodeFigures]
    # Changes of leadership: ms after the start, source, text.
    events: list[tuple[float, str, str]] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    def as_row(self) -> dict[str, Any]:
        """Return the part for the file of raw figures."""
        return {
            "part": self.name,
            "seconds": round(self.seconds, 1),
            "messages": self.messages,
            "failed": self.failures,
            "messages_per_second": round(self.messages / self.seconds, 1),
            "terms": self.terms,
            "events": self.events,
            "nodes": [
                {
                    "node": node.name,
                    "elections": node.elections,
                    "lateness_p999_s": at_most(node.lateness, 99.9),
                    "lateness_buckets": {str(bound): count for bound, count in node.lateness.items()},
                    "cpu_share": round(node.cpu_share, 3),
                    "mib_per_hour": round(node.mib_per_hour, 2),
                    "rss_anon_mib": [[round(at, 1), round(mib, 2)] for at, mib in node.memory],
                }
                for node in self.nodes
            ],
        }


def table(parts: Sequence[Part]) -> str:
    """Return the Markdown table: one row per part and node."""
    lines = [
        "| part | msg/s | failed | elections | node | CPU, % of a core | lateness p99.9 ≤ ms | RssAnon MiB, "
        "begin → end (max) | slope of the second half, MiB/h |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for part in parts:
        changes = part.terms[1] - part.terms[0]
        for node in part.nodes:
            levels = [mib for _, mib in node.memory]
            memory = f"{levels[0]:.0f} → {levels[-1]:.0f} ({max(levels):.0f})" if levels else "-"
            lines.append(
                f"| {part.name}, {part.seconds:.0f} s | {part.messages / part.seconds:,.0f} | {part.failed} "
                f"| {changes:.0f} | {node.name} | {100 * node.cpu_share:.0f} | "
                f"{1e3 * at_most(node.lateness, 99.9):g} | {memory} | {node.mib_per_hour:+.1f} "
                f"({node.memory_verdict}) |"
            )
    return "\n".join(lines) + "\n"
