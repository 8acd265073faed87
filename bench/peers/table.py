"""Markdown table of a comparison: medians over the runs, with the spread of the rates. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

#: System name in the rows of the echo reference.
ECHO = "gRPC echo"
_GAPS = ("failover", "hand-over")
#: Columns of only some workloads: key of the row, head, format.
_MORE = (
    ("payload_mib_s", "payload MiB/s", ",.0f"),
    ("bandwidth_ratio", "payload x 3 hops / echo bandwidth", ".2f"),
    ("echo_ratio", "x echo", ".2f"),
    ("few_queues_ratio", "x 8 queues", ".2f"),
)
_EACH_NODE = (("files", "files, each node"), ("disk_mib", "MiB on disk"), ("descriptors", "descriptors"))


def label(row: Row) -> str:
    """Return the system with its version."""
    return f"{row['system']} {row['version']}"


def table(rows: Sequence[Row]) -> str:
    """Return one table per workload, in the order of the rows."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    lines: list[str] = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        of = [row for row in rows if row["workload"] == workload]
        groups = [[row for row in of if row["system"] == system] for system in systems]
        columns, line = _gap_columns() if workload in _GAPS else _rate_columns(of)
        lines += ["", f"### {workload}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        lines += [f"| {' | '.join(line(mine))} |" for mine in groups if mine]
    return "\n".join(lines).strip() + "\n"


def _gap_columns() -> tuple[list[str], Any]:
    def line(rows: list[Row]) -> list[str]:
        gaps = [row["gap_ms"] for row in rows]
        return [
            label(rows[0]),
            f"{statistics.median(gaps):,.0f}",
            f"{min(gaps):,.0f}-{max(gaps):,.0f}",
            f"{len(gaps)}",
        ]

    return ["system", "median ms", "min-max ms", "times"], line


def _rate_columns(of: Sequence[Row]) -> tuple[list[str], Any]:
    more = [each for each in _MORE if any(each[0] in row for row in of)]
    nodes = [each for each in _EACH_NODE if any(each[0] in row for row in of)]
    columns = [
        "system",
        "acknowledged when",
        "msg/s (min-max)",
        *(head for _, head, _ in more),
        "p50 ms",
        "p99 ms",
    ]
    columns += [
        "CPU ms per 1,000, each node",
        "client",
        "RssAnon MiB, each node",
        *(head for _, head in nodes),
    ]

    def line(rows: list[Row]) -> list[str]:
        rates = [row["rate"] for row in rows]
        cells = [label(rows[0]), _acknowledged(rows[0])]
        cells.append(f"{statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})")
        cells += [_median(rows, key, form) for key, _, form in more]
        cells += [_median(rows, "p50_ms", ".2f"), _median(rows, "p99_ms", ".2f")]
        cells += [_each(rows, "server_ms_per_1000"), _median(rows, "client_ms_per_1000", ",.0f")]
        return [*cells, _each(rows, "rss_anon_mib"), *(_each(rows, key) for key, _ in nodes)]

    return columns, line


def _acknowledged(row: Row) -> str:
    """Return what an acknowledgement means; older raw files only say whether it was flushed."""
    return str(row["acknowledged"]) if "acknowledged" in row else f"fsync: {row['fsync']}"


def _median(rows: Sequence[Row], key: str, form: str) -> str:
    values = [row[key] for row in rows if key in row]
    return format(statistics.median(values), form) if values else "-"


def _each(rows: Sequence[Row], key: str) -> str:
    """Return the medians node by node, the busiest first."""
    per_node = zip(*(sorted(row[key], reverse=True) for row in rows if row.get(key)), strict=False)
    return " / ".join(f"{statistics.median(values):,.0f}" for values in per_node) or "-"
