"""The CommitLog, which is also the Raft log (D3, D4), as the event-loop thread sees it.

Owns: the log's in-memory state and the changes staged for the disk. Staging is synchronous and never blocks.
`persist` hands the staged changes to the flusher, in order. Must not: write files, decide about terms or
commitment.
Invariants: only staging and truncation move last_index and end_offset. Entry bytes are the same on every
replica at the same offset. Entries not yet written to the file are in the tail cache.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ledgermq.proto.entry import (
    HEADER_SIZE,
    Buffer,
    EntryHeader,
    EntryKind,
    decode_header,
    encode_entry,
    encode_filler,
    entry_size,
)

from ..errors import EntryTooLargeError, InvalidWireError
from ..types import HardState, LogIndex, Term
from .identity import Manifest
from .open_files import LogFiles
from .reads import LogReads
from .segment import Segment, SegmentInfo, max_entry_size, place_entry, segment_start
from .segment_keeper import LogFolders, SegmentKeeper, disk_full
from .wire_batch import WireBatch, check_wire
from .writer import Append, PersistOp, Truncate

#: Prepare the next segment once 1/4 of the open one is used.
_PREPARE_AT = 4
#: Share of the last segment that proposals must leave free on a full disk. It is reserved for what the broker
#: group needs to recover: the first entry of a term and the deletion of old segments.
_RESERVED_PART = 16
_MAX_RESERVED = 1 << 20


class _Submitted(NamedTuple):
    seq: int
    generation: int
    last_index: LogIndex


class CommitLog(LogReads):
    """Facade of the log. Call it from the event-loop thread only. Only coroutines may wait for the disk."""

    def __init__(
        self,
        node: str,
        segment_size: int,
        base: Manifest,
        segments: list[Segment],
        cache_bytes: int,
        files: LogFiles,
        folders: LogFolders,
        *,
        keeper: SegmentKeeper,
        submit: Callable[[PersistOp], None],
    ) -> None:
        super().__init__(node, segment_size, base, segments, cache_bytes, files, folders)
        self._keeper = keeper
        self._submit = submit
        self._staged: list[Append | Truncate] = []
        self._submitted: deque[_Submitted] = deque()
        self._written_index = self.last_index
        self._prepared = -1
        self.max_entry_size = max_entry_size(segment_size)

    # --- staging --------------------------------------------------------------------------------------------
    def check_proposal(self, size: int, *, urgent: bool) -> None:
        """Check room for an entry of this leader, as `check_room` does.

        An entry that is not `urgent` must leave a reserve in the last segment. Raises: DiskFullError.
        """
        self.check_room(size if urgent else size + min(self.segment_size // _RESERVED_PART, _MAX_RESERVED))

    def check_room(self, size: int) -> None:
        """Check that `size` more log bytes can be staged, before the core accepts them.

        Raises: DiskFullError.
        """
        start = segment_start(self.end_offset, self.segment_size)
        wanted = start if start == self.end_offset else start + self.segment_size
        if (
            self.end_offset + size + HEADER_SIZE > wanted
            and self._keeper.full
            and not self._keeper.has(wanted)
        ):
            raise disk_full(self._folders.data)

    def stage_entry(
        self,
        kind: EntryKind,
        parts: list[Buffer],
        *,
        section_count: int,
        index: LogIndex,
        term: Term,
        timestamp: int,
    ) -> EntryHeader:
        """Leader: encode one entry at the tail, in memory. Call `persist` next.

        Raises: EntryTooLargeError, DiskFullError (nothing was staged).
        """
        assert index == self.last_index + 1 and term >= self.last_term and timestamp >= self.last_timestamp
        size = entry_size(sum(map(len, parts)))
        if size > self.max_entry_size:
            raise EntryTooLargeError(size, self.max_entry_size)
        offset, filler = self._place(size)
        prev_crc = decode_header(filler).crc if filler else self.last_crc
        data = encode_entry(
            kind,
            parts,
            section_count=section_count,
            index=index,
            term=term,
            physical_offset=offset,
            timestamp=timestamp,
            prev_crc=prev_crc,
        )
        header = decode_header(data)
        view = memoryview(data).toreadonly()
        self._take(header, view, filler)
        self._stage_bytes(header, view)
        return header

    def check_wire(self, buffer: Buffer, prev_term: Term) -> WireBatch:
        """Follower: verify checksums, chaining, indexes, offsets and sizes before the core sees the message.

        `prev_term` is the message's term of the entry before the batch. Raises: InvalidWireError.
        """
        batch = check_wire(buffer, self.segment_size)
        if batch.first_index == self.last_index + 1 and prev_term == self.last_term:
            # Only the core can place a batch that overlaps our entries or does not follow our last entry, and
            # the leader must be told about the mismatch. `stage_wire` checks such a batch against the log.
            self._check_chains(batch.headers[0])
        return batch

    def stage_wire(self, batch: WireBatch, lo: LogIndex) -> None:
        """Follower: append the entries >= `lo` of a checked batch at the tail, in memory.

        `lo` is last_index + 1.

        Raises: DiskFullError; InvalidWireError (the entry does not chain to this log, so the logs differ
        where they must be equal). Entries before the failing one stay staged; see `last_index`.
        """
        assert lo == self.last_index + 1 and batch.first_index <= lo <= batch.last_index
        skipped = lo - batch.first_index
        for position, header in zip(batch.positions[skipped:], batch.headers[skipped:], strict=True):
            filler = self._check_chains(header)
            view = batch.buffer[position : position + header.size]
            self._take(header, view, filler)
            self._stage_bytes(header, view)

    def truncate_from(self, index: LogIndex) -> None:
        """Remove the entries >= `index` from memory.

        The next `persist` removes them on disk, before later appends.
        """
        assert self.first_index <= index <= self.last_index
        before = self.header_now(LogIndex(index - 1)) if index > self.first_index else None
        segment = self.segment_of(index)
        if index == segment.first_index:
            # A filler is cut together with the entry it precedes, so the log then ends in the previous
            # segment.
            previous = self.segment_before(segment)
            segment = previous if previous is not None else segment
        segment.offsets = array("I", self.offsets_now(segment))
        while self._segments[-1] is not segment:
            self._segments.pop()
        segment.cut(index, before)
        if not segment.count:
            self._segments.pop()
        self.cache.cut(index)
        self.generation += 1
        self._files.forget_from(segment.start)
        self._written_index = min(self._written_index, LogIndex(index - 1))
        self._prepared = min(self._prepared, segment.start)
        self._staged.append(Truncate(self.end_offset, index, self.last_term))

    def persist(self, seq: int, hard_state: HardState | None = None) -> None:
        """Queue `hard_state`, then everything staged or truncated so far, in order.

        The storage calls `on_durable(seq)` on the loop once all of it is on stable storage (async flush
        modes: written).
        """
        staged, self._staged = self._staged, []
        self._submitted.append(_Submitted(seq, self.generation, self.last_index))
        self._submit(PersistOp(seq, hard_state, staged))

    def note_written(self, seq: int) -> None:
        """Record that all operations up to `seq` are in the file, and evict their entries from the cache if
        needed.
        """
        while self._submitted and self._submitted[0].seq <= seq:
            done = self._submitted.popleft()
            # An operation submitted before a truncation says nothing about the entries now at those indexes.
            if done.generation == self.generation:
                self._written_index = done.last_index
        self.cache.evict(self._written_index)

    # --- retention ------------------------------------------------------------------------------------------
    def segments(self) -> Sequence[SegmentInfo]:
        """The retained segments that hold entries, oldest first."""
        return [segment.info() for segment in self._segments]

    @property
    def deleting(self) -> int:
        """Number of segments that `delete_segments_before` dropped but whose files still occupy
        disk space.
        """
        return self._keeper.deleting

    def delete_segments_before(self, index: LogIndex) -> Sequence[SegmentInfo]:
        """Drop whole segments whose last index < `index`, but never the last segment that holds entries.

        The caller guarantees that their entries are committed, applied and covered by the state checkpoint.
        Memory drops the segments at once. In the background the manifest is made durable, then the files are
        unlinked.
        """
        count = 0
        while count < len(self._segments) - 1 and self._segments[count].last_index < index:
            count += 1
        if not count:
            return []
        gone, self._segments[:count] = self._segments[:count], []
        last = gone[-1].last
        assert last is not None and gone[-1].last_index <= self._written_index
        filler = gone[-1].filler
        self.base = Manifest(
            first_index=self._segments[0].first_index,
            first_offset=self._segments[0].start,
            prev_term=Term(last.term),
            prev_crc=decode_header(filler).crc if filler else last.crc,
            prev_timestamp=last.timestamp,
        )
        for segment in gone:
            self._files.forget(segment.start)
        self._keeper.delete(self.base, [segment.start for segment in gone])
        return [segment.info() for segment in gone]

    # --- entry index ----------------------------------------------------------------------------------------
    def save_index(self, segment: Segment) -> None:
        """Queue writing the index file of a sealed segment.

        Its offsets are dropped from memory afterwards.
        """
        snapshot = replace(segment, runs=list(segment.runs))
        offsets = segment.offsets
        assert offsets is not None

        def saved() -> None:
            # A truncation may have reopened the segment meanwhile. It has a new offsets array then.
            if segment.offsets is offsets:
                segment.offsets = None
                self._files.keep_offsets(segment.start, offsets)

        self._keeper.save_index(snapshot, saved)

    def open_segment(self) -> Segment | None:
        """Return the segment that takes the next entries, or None if it holds no entry yet."""
        return self._segments[-1] if self._segments else None

    # --- inside ---------------------------------------------------------------------------------------------
    def _place(self, size: int) -> tuple[int, bytes]:
        """Return the offset for the next entry of `size` bytes, and the filler header before it (empty:
        none).

        Raises: DiskFullError.
        """
        offset = place_entry(self.end_offset, size, self.segment_size)
        if offset % self.segment_size == 0 and self._keeper.full and not self._keeper.has(offset):
            raise disk_full(self._folders.data)
        if offset == self.end_offset:
            return offset, b""
        assert self.last is not None
        return offset, bytes(encode_filler(self.last, offset))

    def _check_chains(self, header: EntryHeader) -> bytes:
        """Check that an entry from a peer continues this log.

        Returns the filler header before it (empty: none).

        Raises: InvalidWireError, DiskFullError.
        """
        offset, filler = self._place(header.size)
        prev_crc = decode_header(filler).crc if filler else self.last_crc
        if header.physical_offset != offset or header.prev_crc != prev_crc:
            raise InvalidWireError(
                f"entry {header.index} from a peer (offset {header.physical_offset}, chained to"
                f" {header.prev_crc:08x}) does not continue this log (offset {offset}, {prev_crc:08x})"
            )
        if header.term < self.last_term or header.timestamp < self.last_timestamp:
            raise InvalidWireError(f"entry {header.index} from a peer goes back in term or time")
        return filler

    def _take(self, header: EntryHeader, view: memoryview, filler: bytes) -> None:
        """Add an entry to memory. If it opens a segment, seal the previous one first."""
        start = segment_start(header.physical_offset, self.segment_size)
        if not self._segments or self._segments[-1].start != start:
            if self._segments:
                self._seal(self._segments[-1], filler)
            self._segments.append(Segment(start, LogIndex(header.index)))
        self._segments[-1].add(header)
        self.cache.add(header, view, filler)
        if (
            header.end - start > self.segment_size // _PREPARE_AT
            and self._prepared < start + self.segment_size
        ):
            self._prepared = start + self.segment_size
            self._keeper.prepare(self._prepared)

    def _seal(self, segment: Segment, filler: bytes) -> None:
        """Seal a segment: stage its filler and queue its index file."""
        if filler:
            header = decode_header(filler)
            segment.filler = filler
            self._staged.append(
                Append(
                    header.physical_offset, header.end, [filler], HEADER_SIZE, LogIndex(header.index),
                    Term(header.term),
                )
            )  # fmt: skip
        self.save_index(segment)

    def _stage_bytes(self, header: EntryHeader, view: memoryview) -> None:
        """Stage an entry's bytes for writing. Adjacent bytes join the previous append."""
        index, term = LogIndex(header.index), Term(header.term)
        last = self._staged[-1] if self._staged else None
        touches = isinstance(last, Append) and last.offset + last.size == header.physical_offset
        if touches and header.physical_offset % self.segment_size:
            assert isinstance(last, Append)
            last.buffers.append(view)
            last.size += header.size
            last.end, last.last_index, last.last_term = header.end, index, term
        else:
            self._staged.append(Append(header.physical_offset, header.end, [view], header.size, index, term))
