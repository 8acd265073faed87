"""Verification job: scan, agree, drill; then one verdict (D20).

Owns: the order of the stages and the data passed between them. Must not: print, or create the session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from ledgermq.proto.digest_dump import edge_blocks

from .agreement import MAX_DRILLED, Comparison, ScanResult, blocks_to_drill, differing_blocks
from .digest_compare import (
    MAX_FETCHED,
    Fetch,
    add_digests,
    check_digests,
    fetch_missing,
    read_digests,
    summaries,
)
from .dump_folder import DEFAULT_SLICE_SIZE, NodeDump, find_dumps
from .duplicate_ids import chosen_dump, find_duplicates
from .findings import Finding, Kind, merge_repeats
from .group_checks import (
    attribute_changes,
    check_group,
    check_states,
    explain_blocks,
    find_divergences,
)
from .node_checks import check_node, check_queue_ends, name_lost_indexes, totals
from .report_files import write_report
from .verdict import DumpVerdict, Making, make_verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class RunStage(Protocol):
    """Runs a stage and returns its result. `size`: bytes that it reads; 0: few."""

    def __call__(self, name: str, work: Callable[[], object], *, size: int = 0) -> object: ...


#: Maximum number of findings reported per kind and node; the last one counts the rest.
MAX_REPORTED: int = 50


def verify(
    spark: SparkSession,
    folder: Path,
    out: Path,
    *,
    strict: bool = False,
    command: str = "",
    slice_size: int = DEFAULT_SLICE_SIZE,
    run_stage: RunStage | None = None,
    fetch: Fetch | None = None,
    duplicates: bool = False,
) -> DumpVerdict:
    """Verify the dumps in `folder`, write the report files into `out`, and return the verdict.

    `duplicates`: also find message ids that are stored more than once.
    `fetch` gets the bytes of blocks whose digests differ from running nodes; None: it is not known where they
    are.

    Raises: SparkJobError, OSError.
    """
    began = time.monotonic()
    dumps = find_dumps(folder)
    digests = read_digests(dumps)
    searched = chosen_dump(dumps) if duplicates else None
    comparison = Comparison(spark, folder, dumps, slice_size)

    def stage(name: str, work: Callable[[], T], size: int = 0) -> T:
        result: T = run_stage(name, work, size=size) if run_stage else work()  # type: ignore[assignment]
        return result

    try:
        size = sum(segment.size for dump in dumps for segment in dump.segments)
        scanned = stage("scan", comparison.scan, size)
        for node, each in digests.items():
            parts = scanned.slices.get(node, []) + summaries(each)
            scanned.slices[node] = sorted(parts, key=lambda part: part.lo)
        findings = list(check_group(dumps))
        for dump in dumps:
            findings += _node_findings(dump, scanned)
        findings += stage("queues", lambda: _queue_findings(comparison, dumps, findings))
        blocks = stage("agree", comparison.blocks)
        if digests:
            blocks = add_digests(blocks, digests, dumps)
        differing = differing_blocks(blocks)
        edges = edge_blocks(dumps)
        drilled = blocks_to_drill(differing, edges, MAX_FETCHED if digests else MAX_DRILLED)
        missing: list[Finding] = []
        if digests:
            look = sorted({*drilled} & {*differing})
            missing = stage("fetch", lambda: fetch_missing(digests, dumps, edges, look, fetch))
            damage, fetched = stage("read", comparison.fetched)
            findings += [*damage, *check_digests(digests, fetched, damage), *missing]
        findings += find_divergences(stage("drill", lambda: comparison.differing_entries(drilled)))
        findings = attribute_changes(findings)
        unexplained = explain_blocks(differing, findings)
        if not missing:  # else it is not known whether the logs differ, or a digest is wrong
            findings += unexplained
        findings += check_states(dumps, findings)
        if searched is not None:
            findings += stage("duplicates", lambda: find_duplicates(spark, str(folder), searched, slice_size))
        sums = {dump.node: totals(scanned.slices.get(dump.node, [])) for dump in dumps}
        verdict = make_verdict(
            str(folder), dumps, sums, merge_repeats(findings, MAX_REPORTED),
            strict=strict, seconds=time.monotonic() - began,
            made=Making(time.time_ns() // 1_000_000, _software(), command),
            digests_read={node: each.read_ms for node, each in digests.items()},
        )  # fmt: skip
        stage("report", lambda: write_report(verdict, blocks, out))
    finally:
        comparison.close()
    return verdict


def _software() -> str:
    try:
        return f"ledgermq {version('ledgermq')}"
    except PackageNotFoundError:
        return "ledgermq, version unknown"


def _node_findings(dump: NodeDump, scanned: ScanResult) -> list[Finding]:
    slices = scanned.slices.get(dump.node, [])
    found = name_lost_indexes(scanned.findings.get(dump.node, []), slices)
    return found + check_node(dump, slices)


def _queue_findings(
    comparison: Comparison, dumps: Sequence[NodeDump], known: Sequence[Finding]
) -> list[Finding]:
    """Check numbering across slices, and consume queues that continue past the log."""
    damaged = {
        finding.node
        for finding in known
        if finding.kind in (Kind.CRC, Kind.MISSING_RANGE, Kind.MISSING_SEGMENT)
    }
    queues = comparison.queues()
    parts = {dump.node for dump in dumps if dump.has_digests}  # messages between slices are not here
    found = [finding for finding in queues.breaks if finding.node not in damaged | parts]
    for dump in dumps:
        if dump.has_queues and dump.node not in damaged:
            found += check_queue_ends(dump, queues.ends.get(dump.node, {}))
    return found
