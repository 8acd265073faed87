"""Spark part of the verification: scans all slices, compares block digests, examines differences.

Owns: every DataFrame of the job, and the (bounded) data collected from them.
Stages: *scan* reads all bytes once, without a shuffle. *agree* shuffles one row per 4 MiB block. *drill*
reads again only the blocks that differ or that hold the end of a log. Must not: decide what a difference
means (`group_checks`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.compute as pa_compute

from ledgermq.proto.block_digest import BLOCK_SIZE

from .dump_folder import NodeDump
from .dump_source import FORMAT, LedgerMQDump
from .entry_checks import SliceSummary
from .findings import Finding, Kind, Severity
from .group_checks import EntryFacts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Limits on what comes to the driver.
MAX_DRILLED: Final = 64
MAX_DIFFERENCES: Final = 5_000


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Results of the scan on the driver, by node."""

    slices: dict[str, list[SliceSummary]]
    findings: dict[str, list[Finding]]


@dataclass(frozen=True, slots=True)
class QueueResult:
    """Jumps in a queue's numbering between slices, and the offset just past its last message, by node."""

    breaks: list[Finding]
    ends: dict[str, dict[tuple[int, int], int]]


class Comparison:
    """One run over one folder of dumps. Call `scan` first, `close` at the end."""

    def __init__(self, spark: SparkSession, folder: Path, dumps: Sequence[NodeDump], slice_size: int) -> None:
        self._spark = spark
        self._folder = str(folder)
        self._dumps = dumps
        self._slice_size = slice_size
        spark.dataSource.register(LedgerMQDump)
        self._scan = self._read("scan").cache()

    def _read(self, rows: str, **options: str) -> DataFrame:
        reader = self._spark.read.format(FORMAT).option("rows", rows)
        return reader.option("slice_bytes", str(self._slice_size)).options(**options).load(self._folder)

    def scan(self) -> ScanResult:
        """Read every byte of every dump once. The rows stay cached for the next stages."""
        slices: dict[str, list[SliceSummary]] = defaultdict(list)
        findings: dict[str, list[Finding]] = defaultdict(list)
        # This reads every partition, so it fills the cache. The findings per slice are bounded.
        rows = self._scan.where("row in ('slice', 'finding')").select("row", "node", "json")
        for row in rows.collect():
            fields = json.loads(row.json)
            if row.row == "slice":
                slices[row.node].append(SliceSummary.from_fields(fields))
            else:
                findings[row.node].append(Finding.from_fields(fields))
        for parts in slices.values():
            parts.sort(key=lambda part: part.lo)
        return ScanResult(dict(slices), dict(findings))

    def _blocks(self) -> DataFrame:
        """Return one row per node and block, merged over slices. `whole`: the node committed all of it."""
        merged = (
            self._scan.where("row = 'block'")
            .groupBy("node", "block")
            .agg(*_exprs(
                "bit_xor(lane_a) as lane_a", "bit_xor(lane_b) as lane_b", "sum(entries) as entries",
                "sum(size) as size", "min(first_index) as first_index", "max(last_index) as last_index",
            ))
        )  # fmt: skip
        rows = [(dump.node, dump.first_offset, dump.commit_offset) for dump in self._dumps]
        ends = self._spark.createDataFrame(rows, "node string, first_offset long, commit_offset long")
        covers = f"block * {BLOCK_SIZE}L >= first_offset and (block + 1) * {BLOCK_SIZE}L <= commit_offset"
        columns = ("node", "block", "entries", "size", "lane_a", "lane_b", "first_index", "last_index")
        return merged.join(ends.hint("broadcast"), "node").selectExpr(*columns, f"{covers} as whole")

    def blocks(self) -> pa.Table:
        """Return all block digests, ordered by block and node."""
        return self._blocks().toArrow().sort_by([("block", "ascending"), ("node", "ascending")])

    def fetched(self) -> tuple[list[Finding], pa.Table]:
        """Check the ranges that were fetched after digest dumps. Returns the findings, and the block rows."""
        scan = self._read("scan", files="fetched").where("row in ('block', 'finding')").toArrow()
        is_block = pa_compute.equal(scan["row"], "block")
        texts = scan.filter(pa_compute.invert(is_block))["json"].to_pylist()
        return [Finding.from_fields(json.loads(text)) for text in texts], scan.filter(is_block)

    def differing_entries(self, blocks: Sequence[int]) -> list[EntryFacts]:
        """Read the entries of `blocks` again. Returns what all nodes hold at the first indexes that differ.

        Only intact entries up to each node's own commit point count.
        """
        if not blocks or len(self._dumps) < 2:
            return []
        ranges = json.dumps([[block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE] for block in blocks])
        rows = [(dump.node, dump.commit_index) for dump in self._dumps]
        commits = self._spark.createDataFrame(rows, "node string, commit_index long").hint("broadcast")
        entries = self._read("entries", ranges=ranges, files="all").join(commits, "node")
        entries = entries.where("crc_ok and index <= commit_index")
        version = "struct(kind, offset, term, size, crc)"
        differing = entries.groupBy("index", *_exprs("kind = 'filler' as filler")).agg(*_exprs(
            f"count(distinct {version}) as versions",
            "sort_array(collect_list(struct(node, offset, term, size, crc))) as held",
        ))  # fmt: skip
        found = differing.where("versions > 1").orderBy("index", "filler").limit(MAX_DIFFERENCES)
        return [
            EntryFacts(each.node, row["index"], row.filler, each.offset, each.term, each.size, each.crc)
            for row in found.collect()
            for each in row.held
        ]

    def queues(self) -> QueueResult:
        """Check the numbering of each queue across slices. (The scan has checked it inside each slice.)"""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        order = Window.partitionBy("node", "topic_id", "queue_id").orderBy("offset")
        runs = (
            self._scan.where("row = 'queue'")
            .withColumn("expected", F.lag("next").over(order))
            .withColumn("slice_before", F.lag("slice").over(order))
            .withColumn(
                "is_last",
                F.expr("lead(next) over (partition by node, topic_id, queue_id order by offset) is null"),
            )
            .withColumn("jumps", F.expr("expected != base and slice != slice_before and not after_damage"))
        )
        breaks: list[Finding] = []
        ends: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)
        for row in runs.where("is_last or jumps").collect():
            if row.is_last:
                ends[row.node][row.topic_id, row.queue_id] = row.next
            if row.jumps:
                text = f"offset {row.expected:,} is expected, the section says {row.base:,}"
                detail = f"topic {row.topic_id} queue {row.queue_id}: {text}"
                where = (row.node, row.offset, row["index"])
                breaks.append(Finding(*where, Kind.QUEUE_OFFSET, Severity.ERROR, detail, path=row.path))
        return QueueResult(breaks, dict(ends))

    def close(self) -> None:
        """Release the cached rows."""
        self._scan.unpersist()


def _exprs(*texts: str) -> list[Any]:
    from pyspark.sql import functions as F

    return [F.expr(text) for text in texts]


def differing_blocks(blocks: pa.Table) -> list[int]:
    """Return the blocks whose digests differ between nodes that have committed the whole block.

    `blocks` are in order of the blocks.
    """
    whole = blocks.filter(blocks["whole"])
    if whole.num_rows == 0:
        return []
    numbers = whole["block"].to_numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    firsts = np.repeat(starts, np.diff(starts, append=len(numbers)))
    differs = np.zeros(len(numbers), np.bool_)
    for name in ("lane_a", "lane_b", "entries", "size"):
        values = whole[name].to_numpy()
        differs |= values != values[firsts]
    found: list[int] = np.unique(numbers[differs]).tolist()
    return found


def blocks_to_drill(differing: Sequence[int], edges: Sequence[int], most: int = MAX_DRILLED) -> list[int]:
    """Choose the blocks to read again: all edge blocks, the first differing ones, a spread of the others.

    At most `most` are differing ones.
    """
    half = most // 2
    rest = list(differing[half:])
    step = max(1, len(rest) // half)
    return sorted({*edges, *differing[:half], *rest[::step][:half]})
