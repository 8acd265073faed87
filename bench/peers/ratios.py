"""Our figures as multiples of each peer's, run by run, so that a drift of the machine cancels out. Pure.

A peer's best way counts: if it has a leaner client, that one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .table import ECHO, Row, label

_OURS = "LedgerMQ"
_BY_KEY = {"W1": "p50_ms", "W5": "p50_ms", "failover": "gap_ms", "hand-over": "gap_ms"}
_UNITS = {"p50_ms": "p50 ms, less is better", "gap_ms": "gap ms, less is better", "rate": "msg/s"}


def ratio_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of each of our workloads, as multiples of each peer's figure; "" without a
    peer.

    `3.1 (2.9-3.4)`: median, minimum and maximum of the runs.
    """
    systems = list(dict.fromkeys(row["system"] for row in rows))
    ours = [name for name in systems if name.startswith(_OURS)]
    peers = [name for name in systems if name not in ours and name != ECHO]
    if not ours or not peers:
        return ""
    heads = [label(next(row for row in rows if row["system"] == name)) for name in peers]
    lines = [
        "### Ratios",
        "",
        f"| system | workload | figure | {' | '.join(f'/ {head}' for head in heads)} |",
    ]
    lines.append("|---" * (3 + len(peers)) + "|")
    for workload in dict.fromkeys(row["workload"] for row in rows):
        key = _BY_KEY.get(workload, "rate")
        for name in ours:
            mine = _by_run(rows, name, workload, key)
            cells = [_ratio(mine, _best(rows, peer, workload, key)) for peer in peers]
            if mine and any(cell != "-" for cell in cells):
                middle = statistics.median(mine.values())
                form = ",.0f" if middle >= 10 else ".2f"
                lines.append(f"| {name} | {workload} | {middle:{form}} {_UNITS[key]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _by_run(rows: Sequence[Row], system: str, workload: str, key: str) -> dict[int, float]:
    """Return the figure of each run; the median if a run has several."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row["system"] == system and row["workload"] == workload and key in row:
            found.setdefault(row["run"], []).append(row[key])
    return {run: statistics.median(values) for run, values in found.items()}


def _best(rows: Sequence[Row], peer: str, workload: str, key: str) -> dict[int, float]:
    """Return the peer's figures for a workload, by its best variant.

    A suffix after a comma in a name is a variant.
    """
    base = workload.partition(", ")[0]
    names = {
        row["workload"]
        for row in rows
        if row["system"] == peer and row["workload"].partition(", ")[0] == base
    }
    variants = [_by_run(rows, peer, name, key) for name in sorted(names)]
    variants = [each for each in variants if each]
    if not variants:
        return {}
    choose = max if key == "rate" else min
    return choose(variants, key=lambda each: statistics.median(each.values()))


def _ratio(mine: dict[int, float], theirs: dict[int, float]) -> str:
    ratios = [mine[run] / theirs[run] for run in mine.keys() & theirs.keys() if theirs[run]]
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
