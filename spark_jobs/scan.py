"""Scan: checks one slice of one node's log in one task, and returns the results as rows.

Owns: reading a slice, running all checks that need only it, and the shape of the rows (one schema for four
kinds: the slice itself, block digests, queue runs, findings). Runs on executors: no session here, no driver
state.
Must not: compare nodes; look at other slices. `agreement` connects the slices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from ledgermq.proto.block_digest import BLOCK_SIZE, block_digests
from ledgermq.proto.entry import EntryKind

from .consume_queue_checks import check_consume_queues, list_queues
from .dump_folder import Slice
from .entry_checks import SliceSummary, Where, check_entries, first_edge, last_edge
from .entry_table import EntryTable, read_entries
from .findings import NO_INDEX, Finding, Kind, merge_repeats
from .section_checks import QueueRun, check_sections

#: Maximum number of findings per kind and slice; the last one counts the rest.
MAX_PER_KIND: Final = 20
#: Columns of a block's row, named like the fields of its digest.
BLOCK_COLUMNS: Final = ("block", "entries", "size", "lane_a", "lane_b", "first_index", "last_index")


class SliceFile:
    """A segment file of a dump, opened for one slice."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.size = path.stat().st_size

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`, fewer only at the end of the file."""
        self._file.seek(offset)
        parts = []
        while size > 0 and (data := self._file.read(size)):
            parts.append(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._file.close()


def load_slice(part: Slice) -> EntryTable:
    """Read the entries that start in a slice. Raises: OSError."""
    with closing(SliceFile(Path(part.folder, part.path))) as source:
        return _load(source, part)


def _load(source: SliceFile, part: Slice) -> EntryTable:
    return read_entries(
        source,
        part.segment_start,
        part.lo,
        part.hi,
        segment_end=part.segment_end,
        at_boundary=part.at_boundary,
    )


def scan_slice(part: Slice) -> Iterator[dict[str, Any]]:
    """Yield the rows of one slice. Raises: OSError."""
    where = Where(part.node, part.path, part.commit_index, part.commit_offset)
    with closing(SliceFile(Path(part.folder, part.path))) as source:
        table = _load(source, part)
        found = list(_check_raw_bytes(source, table, part, where))
    found += check_entries(table, where)
    with_units = part.queues != "none"
    more, runs = check_sections(table, where, with_units=with_units)
    found += more
    if with_units:
        queues = list_queues(Path(part.folder))
        complete = part.queues == "complete"
        found += check_consume_queues(table, runs, queues, where, complete=complete)
    yield _row(part, "slice", part.lo, _summary(part, table, runs))
    count = int(np.searchsorted(table.positions, part.commit_offset))
    for digest in block_digests(table.headers[:count], table.computed_crc[:count], table.positions[:count]):
        fields = {name: int(digest[name]) for name in BLOCK_COLUMNS}
        yield _row(part, "block", fields["block"] * BLOCK_SIZE, fields)
    for run in runs:
        names = ("topic_id", "queue_id", "base", "next", "index", "after_damage")
        yield _row(part, "queue", run.offset, {name: getattr(run, name) for name in names})
    for finding in merge_repeats(found, MAX_PER_KIND):
        yield _row(part, "finding", finding.offset, asdict(finding))


def _check_raw_bytes(source: SliceFile, table: EntryTable, part: Slice, where: Where) -> Iterator[Finding]:
    """Compare raw blocks with checksums from the time of the dump. Damage since then is not the node's."""
    for start, size, crc in part.checksums:
        data = memoryview(table.data)[start - part.lo : start - part.lo + size]
        rest = b""
        if len(data) < size:
            rest = source.read(start - part.segment_start + len(data), size - len(data))
        if crc32c(rest, crc32c(data)) != crc:
            text = (
                f"{size:,} bytes are not those that were dumped: this copy was changed, the node may be well"
            )
            yield where.finding(Kind.CHANGED_DUMP, start, NO_INDEX, text, start + size)


def _row(part: Slice, kind: str, offset: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a row.

    Blocks and queue runs are columns, which Spark aggregates. The rest is JSON for the driver.
    """
    row: dict[str, Any] = {
        "row": kind,
        "node": part.node,
        "path": part.path,
        "slice": part.lo,
        "offset": offset,
    }
    if kind in ("block", "queue"):
        row |= fields
    else:
        row["json"] = json.dumps(fields)
    return row


def _summary(part: Slice, table: EntryTable, runs: list[QueueRun]) -> dict[str, Any]:
    headers = table.headers
    is_entry = headers["kind"] != EntryKind.FILLER
    at_commit = headers["crc"][(headers["index"] == part.commit_index) & is_entry]
    starts = [damage.start for damage in table.damaged[:1]] + table.positions[:1].tolist()
    return asdict(
        SliceSummary(
            path=part.path,
            lo=part.lo,
            entries=int(is_entry.sum()),
            size=int(headers["size"].sum(dtype="int64")),
            start=min(starts, default=table.end),
            end=table.end,
            first=first_edge(table),
            last=last_edge(table),
            last_index=int(headers["index"].max()) if len(table) else -1,
            commit_crc=int(at_commit[0]) if len(at_commit) else -1,
            records=sum(run.next - run.base for run in runs),
            over_commit=int((is_entry & (headers["index"] > part.commit_index)).sum()),
        )
    )
