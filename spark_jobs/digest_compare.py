"""Digest dumps in the comparison: what the nodes' digests stand for, and what to fetch where they differ.

Owns: the rows and summaries that stand for log bytes which are not here, the limit on what is fetched, and
the findings about digests. Runs on the driver: the digests of a terabyte are 16 MB.
Must not: fetch (the caller passes a function), or decide what a difference means (`group_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pa_compute

from ledgermq.proto.block_digest import BLOCK_SIZE, DIGEST_DTYPE, Digests, merge_digests
from ledgermq.proto.digest_dump import NodeDigests, read_node_digests
from ledgermq.proto.digest_file import DIGESTS, SegmentDigests
from ledgermq.proto.dumped_log import UnusableDumpError
from ledgermq.proto.entry import EntryHeader, EntryKind

from .dump_folder import NodeDump
from .entry_checks import Edge, SliceSummary
from .errors import SparkJobError
from .findings import NO_INDEX, Finding, Kind, Severity

#: Most differing blocks that are fetched from each node: after a divergence all that follows may differ.
MAX_FETCHED: Final = 16

#: Fetches ranges [lo, hi) of a node's log into its dump. Raises: SparkJobError, OSError.
Fetch = Callable[[NodeDump, list[tuple[int, int]]], None]


def read_digests(dumps: Sequence[NodeDump]) -> dict[str, NodeDigests]:
    """Return the digests of the nodes that have a digest dump. Raises: SparkJobError, OSError."""
    try:
        found = {dump.node: read_node_digests(Path(dump.folder), dump) for dump in dumps if dump.has_digests}
    except UnusableDumpError as error:
        raise SparkJobError(str(error)) from None
    for each in found.values():
        each.drop_partly_fetched()
    return found


def summaries(digests: NodeDigests) -> list[SliceSummary]:
    """Return what the checks of one node need to know about the digested parts of its log."""
    return [_summary(each, digests.manifest.commit_index) for each in digests.segments]


def _summary(each: SegmentDigests, commit_index: int) -> SliceSummary:
    is_filler = each.last.kind is EntryKind.FILLER
    return SliceSummary(
        path=f"{DIGESTS}/{each.start:020d}",
        lo=each.start,
        entries=int(each.rows["entries"].sum()) - is_filler,
        size=int(each.rows["size"].sum()),
        start=each.start,
        end=each.end,
        first=_edge(each.first, each.first.prev_crc),
        last=_edge(each.last, each.last.crc),
        last_index=each.last.index,
        commit_crc=each.last.crc if each.last.index == commit_index and not is_filler else -1,
        records=0,
        over_commit=0,
    )


def _edge(header: EntryHeader, crc: int) -> Edge:
    return Edge(
        header.index, header.term, header.timestamp, crc, header.physical_offset, header.end,
        header.kind is EntryKind.FILLER, 0,
    )  # fmt: skip


def add_digests(blocks: pa.Table, digests: Mapping[str, NodeDigests], dumps: Sequence[NodeDump]) -> pa.Table:
    """Merge the nodes' digests into the block rows of the scanned bytes. `whole` is decided anew."""
    tables = []
    for dump in dumps:
        scanned = blocks.filter(pa_compute.equal(blocks["node"], dump.node))
        parts = [_rows(scanned)]
        if dump.node in digests:
            parts.append(digests[dump.node].rows)
        rows = merge_digests(np.concatenate(parts))
        begins = rows["block"] * BLOCK_SIZE
        whole = (begins >= dump.first_offset) & (begins + BLOCK_SIZE <= dump.commit_offset)
        columns = {"node": pa.repeat(pa.scalar(dump.node), len(rows)), "whole": pa.array(whole)}
        columns |= {name: pa.array(np.ascontiguousarray(rows[name])) for name in DIGEST_DTYPE.names or ()}
        tables.append(pa.table([columns[name] for name in blocks.column_names], blocks.column_names))
    table = pa.concat_tables(tables)
    return table.sort_by([("block", "ascending"), ("node", "ascending")])


def _rows(table: pa.Table) -> Digests:
    rows = np.zeros(table.num_rows, DIGEST_DTYPE)
    for name in DIGEST_DTYPE.names or ():
        if name in table.column_names:
            rows[name] = table[name].to_numpy()
    return rows


def fetch_missing(
    digests: Mapping[str, NodeDigests],
    dumps: Sequence[NodeDump],
    edges: Collection[int],
    differing: Collection[int],
    fetch: Fetch | None,
) -> list[Finding]:
    """Fetch the bytes of blocks that have to be read; return a finding per node that does not give them."""
    found = []
    for dump in dumps:
        if dump.node not in digests:
            continue
        ranges = digests[dump.node].wanted({*edges, *differing})
        if not ranges:
            continue
        try:
            if fetch is None:
                raise SparkJobError("no nameserver was named: run it again with --nameserver HOST:PORT")
            fetch(dump, ranges)
        except (SparkJobError, OSError) as error:
            digests[dump.node].drop_partly_fetched()  # it would look like damage
            found.append(_not_compared(dump, ranges, sorted(differing), str(error)))
    return found


def _not_compared(
    dump: NodeDump, ranges: Sequence[tuple[int, int]], differing: Sequence[int], reason: str
) -> Finding:
    count = len(differing)
    differ = (
        f"the digests of {count:,} block{'s' * (count != 1)} differ" if count else "a log ends in a block"
    )
    text = (
        f"{differ}, and {len(ranges):,} parts of {dump.node}'s log that tell more were not fetched: {reason}"
    )
    return Finding(
        dump.node, ranges[0][0], NO_INDEX, Kind.NOT_COMPARED, Severity.INCOMPLETE, text, ranges[-1][1]
    )


def check_digests(
    digests: Mapping[str, NodeDigests], fetched: pa.Table, damage: Sequence[Finding]
) -> Iterator[Finding]:
    """Compare what nodes digested with what their bytes give now. `damage`: found in those bytes.

    `fetched`: block rows of the fetched ranges, `slice` is where each begins. Damage since the digest was
    made is reported as such.
    """
    columns = ("node", "slice", "lane_a", "lane_b", "entries", "size")
    for node, lo, *values in zip(*(fetched[name].to_pylist() for name in columns), strict=True):
        rows, ends = digests[node].rows, digests[node].ends
        at = int(np.searchsorted(rows["first_offset"], lo))
        if at == len(rows) or rows["first_offset"][at] != lo:
            continue
        end = int(ends[at])
        if any(each.node == node and lo <= each.offset < end for each in damage):
            continue
        if tuple(values) != tuple(int(rows[name][at]) for name in ("lane_a", "lane_b", "entries", "size")):
            text = "the node's digest of a block is not that of its bytes, which are intact"
            yield Finding(node, lo, NO_INDEX, Kind.DIGEST, Severity.ERROR, text, end)
