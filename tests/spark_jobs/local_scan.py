"""The checks of one node without Spark: what the job does with a node's slices, in one process."""

from __future__ import annotations

import json
from pathlib import Path

from ledgermq.spark_jobs.dump_folder import NodeDump, read_dump, slices_of
from ledgermq.spark_jobs.entry_checks import SliceSummary
from ledgermq.spark_jobs.findings import Finding, Kind, Severity
from ledgermq.spark_jobs.node_checks import check_node, name_lost_indexes
from ledgermq.spark_jobs.scan import scan_slice


def scan_node(
    folder: Path, *, slice_size: int = 1 << 30
) -> tuple[NodeDump, list[SliceSummary], list[Finding]]:
    """Scan all slices of one dump and check its seams and manifest."""
    dump = read_dump(folder)
    slices, findings = [], []
    for part in slices_of(dump, slice_size):
        for row in scan_slice(part):
            if row["row"] == "slice":
                slices.append(SliceSummary.from_fields(json.loads(row["json"])))
            elif row["row"] == "finding":
                findings.append(Finding.from_fields(json.loads(row["json"])))
    return dump, slices, name_lost_indexes(findings, slices) + check_node(dump, slices)


def faults(folder: Path, *, slice_size: int = 1 << 30) -> list[Finding]:
    """Return the errors of one node, in log order, without those that only say that the copy was changed."""
    _, _, findings = scan_node(folder, slice_size=slice_size)
    return sorted(f for f in findings if f.severity is Severity.ERROR and f.kind is not Kind.CHANGED_DUMP)
