"""Checks of one node once all its slices are read: seams, missing files, and the claims of its manifest.

Owns: the checks that need more than one slice of one node. Pure; runs on the driver over slice summaries,
never over entries.   Must not: compare nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from ledgermq.proto.dump_manifest import MANIFEST

from .consume_queue_checks import list_queues
from .dump_folder import NodeDump
from .entry_checks import Edge, SliceSummary, Where, check_seam
from .findings import NO_INDEX, Finding, Kind

#: Maximum number of files named per hole; another finding counts the rest. A manifest may claim any length.
MAX_NAMED_FILES: Final = 1_000


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """Totals of what was really read of a node."""

    entries: int
    records: int  # messages in committed entries
    size: int
    last_index: int
    over_commit: int  # entries above the commit point


def totals(slices: Sequence[SliceSummary]) -> NodeTotals:
    """Sum up the slices of a node."""
    return NodeTotals(
        entries=sum(part.entries for part in slices),
        records=sum(part.records for part in slices),
        size=sum(part.size for part in slices),
        last_index=max((part.last_index for part in slices), default=-1),
        over_commit=sum(part.over_commit for part in slices),
    )


def check_node(dump: NodeDump, slices: Sequence[SliceSummary]) -> list[Finding]:
    """Return findings about seams, coverage and the manifest of one node. `slices` in log order."""
    found = list(_check_files(dump))
    found += _check_coverage(dump, slices)
    found += _check_ends(dump, slices)
    over = totals(slices).over_commit
    if over:
        where = _where(dump, "")
        entries = "1 entry" if over == 1 else f"{over:,} entries"
        text = f"{entries} above the commit point at index {dump.commit_index:,}: legal, not compared"
        found.append(
            replace(
                where.finding(Kind.NOT_COMMITTED, dump.commit_offset, dump.commit_index + 1, text), count=over
            )
        )
    return found


def check_queue_ends(dump: NodeDump, log_ends: Mapping[tuple[int, int], int]) -> Iterator[Finding]:
    """Compare the end of each queue as the node knows it with the last message in its log."""
    where = _where(dump, MANIFEST)
    files = list_queues(Path(dump.folder))
    for queue in dump.queues:
        key = (queue.topic_id, queue.queue_id)
        name = f'topic "{queue.topic}" queue {queue.queue_id}'
        in_files = files[key].end if key in files else queue.begin
        if in_files != queue.end:
            text = f"{name}: the files end at offset {in_files:,}, the manifest says {queue.end:,}"
            yield where.finding(Kind.MANIFEST, NO_INDEX, NO_INDEX, text)
        log_end = log_ends.get(key)
        if log_end is None and dump.first_index > 1:
            continue  # retention deleted its last message with the segment
        log_end = queue.begin if log_end is None else log_end
        if queue.end > log_end or (queue.end < log_end and dump.queues_complete):
            text = f"{name}: the consume queue ends at offset {queue.end:,}, the log at {log_end:,}"
            yield where.finding(Kind.CONSUME_QUEUE, NO_INDEX, NO_INDEX, text)


def name_lost_indexes(findings: Sequence[Finding], slices: Sequence[SliceSummary]) -> list[Finding]:
    """Set the index of findings at the very start of a slice; it follows from the slice before."""
    before = {
        part.lo: previous.last.index + previous.last.skipped + 1
        for previous, part in pairwise(slices)
        if previous.last is not None and previous.last.skipped >= 0 and previous.end == part.lo
    }
    return [
        replace(finding, index=before[finding.offset])
        if finding.index == NO_INDEX and finding.offset in before and finding.kind is not Kind.CHANGED_DUMP
        else finding
        for finding in findings
    ]


def _where(dump: NodeDump, path: str) -> Where:
    return Where(dump.node, path, dump.commit_index, dump.commit_offset)


def _check_files(dump: NodeDump) -> Iterator[Finding]:
    """Compare the files with the manifest's list. `_check_coverage` reports missing log bytes."""
    where = _where(dump, MANIFEST)
    folder = Path(dump.folder)
    for path, size in dump.file_sizes.items():
        file = folder / path
        if not file.is_file():
            if not path.startswith("commitlog/"):
                yield where.finding(Kind.CONSUME_QUEUE, NO_INDEX, NO_INDEX, f"{path} is missing")
        elif file.stat().st_size != size:
            text = f"{path} has {file.stat().st_size:,} bytes, the manifest says {size:,}"
            yield where.finding(Kind.MANIFEST, NO_INDEX, NO_INDEX, text)
    listed = set(dump.file_sizes)
    for segment in dump.segments:
        if segment.path not in listed:
            text = f"{segment.path} is not in the manifest"
            yield where.finding(Kind.MANIFEST, segment.start, NO_INDEX, text)


def _check_coverage(dump: NodeDump, slices: Sequence[SliceSummary]) -> Iterator[Finding]:
    """Follow the log from its first to its last byte.

    Reports every hole and every seam that does not match.
    """
    position = dump.first_offset
    last: Edge | None = None
    holes = False
    present = {segment.start for segment in dump.segments}
    for part in slices:
        where = _where(dump, part.path)
        if part.start > position:
            yield from _hole(dump, position, part.start, last, present)
            holes = True
        elif part.start < position and part.entries:
            text = f"entries overlap: one ends at {position:,}, the next starts at {part.start:,}"
            yield where.finding(Kind.OFFSET, part.start, part.first.index if part.first else NO_INDEX, text)
        if part.first is not None:
            if last is not None:
                seam = replace(last, skipped=-1) if holes else last
                yield from check_seam(seam, part.first, where)
            last, holes = part.last, False
        elif last is not None and part.end > part.start:
            last = replace(last, skipped=-1)  # nothing in that slice could be trusted
        position = max(position, part.end)
    if position < dump.end_offset:
        yield from _hole(dump, position, dump.end_offset, last, present)


def _hole(dump: NodeDump, start: int, end: int, last: Edge | None, present: set[int]) -> Iterator[Finding]:
    """Report missing bytes: whole segment files, and ranges inside a file."""
    index = last.index + last.skipped + 1 if last is not None and last.skipped >= 0 else NO_INDEX
    if last is None:
        index = dump.first_index
    size = dump.segment_size
    for _ in range(MAX_NAMED_FILES):
        if start >= end:
            return
        segment = start - start % size
        stop = min(end, segment + size)
        whole = start in (segment, dump.first_offset) and segment not in present and start not in present
        path = f"commitlog/{segment:020d}"
        where = _where(dump, path)
        if whole:
            yield where.finding(
                Kind.MISSING_SEGMENT, start, index, f"{path} is missing ({stop - start:,} bytes)", stop
            )
        else:
            text = f"{stop - start:,} bytes are missing in {path}"
            yield where.finding(Kind.MISSING_RANGE, start, index, text, stop)
        start, index = stop, NO_INDEX
    if start < end:
        text = f"and all that follows up to {end:,} ({end - start:,} bytes)"
        rest = _where(dump, MANIFEST).finding(Kind.MISSING_SEGMENT, start, index, text, end)
        yield replace(rest, count=(end - start + size - 1) // size)


def _check_ends(dump: NodeDump, slices: Sequence[SliceSummary]) -> Iterator[Finding]:
    """Compare the manifest's first and last entry with those that were read."""
    where = _where(dump, MANIFEST)
    first = next((part.first for part in slices), None)
    if first and first.skipped == 0 and first.offset == dump.first_offset and first.index != dump.first_index:
        text = f"the log starts with index {first.index:,}, the manifest says {dump.first_index:,}"
        yield where.finding(Kind.MANIFEST, first.offset, first.index, text)
    if dump.commit_index < dump.first_index:
        return
    crcs = [part.commit_crc for part in slices if part.commit_crc >= 0]
    if crcs and dump.commit_crc and dump.commit_crc not in crcs:
        text = (
            f"the entry at the commit point has checksum {crcs[0]:08x}, the manifest says "
            f"{dump.commit_crc:08x}"
        )
        yield where.finding(Kind.MANIFEST, NO_INDEX, dump.commit_index, text)
    read = max((part.last_index for part in slices), default=-1)
    if read < dump.commit_index:
        text = f"the log ends with index {max(read, 0):,}, the manifest says {dump.commit_index:,}"
        yield where.finding(Kind.MANIFEST, NO_INDEX, dump.commit_index, text)
