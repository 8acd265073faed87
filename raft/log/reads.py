"""Reads of the CommitLog: from the tail cache, else the page cache, else by a read pool thread.

Owns: the plan of each read over the log's contents. LogFiles reads.
Must not: block on the disk outside a coroutine.
Invariants: entries that are not in the tail cache are in the file. Disk bytes given to `apply` are verified.
A plan made before a truncation is never used after it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, EntryKind, decode_header, verify_entry, walk_wire
from ledgermq.proto.errors import LayoutError

from ..damage import Before
from ..errors import DamagedLogError, LogCompactedError, LogTruncatedError, StorageError
from ..types import LogIndex
from .contents import LogContents
from .entry_index import index_path
from .identity import Manifest
from .open_files import LogFiles
from .segment import Segment, SegmentInfo, segment_path
from .segment_keeper import LogFolders

Entries = Sequence[tuple[EntryHeader, memoryview]]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _DiskRange:
    """A run of whole entries in one segment file."""

    position: int  # in the segment file
    size: int
    filler: bytes  # filler header sent before the entries; empty: none


@dataclass(frozen=True, slots=True)
class SegmentSketch:
    """Snapshot of what memory knows about a segment, for verifying or repairing its file."""

    start: int  # physical offset of its first byte
    chained: Before  # what its first entry (or the filler before it) must continue
    before: Before  # the last entry before it
    before_end: int  # physical offset just past that entry; a filler may follow there
    info: SegmentInfo
    is_index_saved: bool  # its entry index is in its index file


def _settled(
    read: Callable[Concatenate[LogReads, P], Awaitable[T]],
) -> Callable[Concatenate[LogReads, P], Coroutine[Any, Any, T]]:
    """Retry a read during which the log was truncated. Committed entries have not moved.

    Raises: LogTruncatedError (the wanted entries were cut off).
    """

    @wraps(read)
    async def settled(self: LogReads, /, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            generation = self.generation
            try:
                return await read(self, *args, **kwargs)
            except LogTruncatedError:
                if generation == self.generation:
                    raise

    return settled


class LogReads(LogContents):
    """The log's contents with its read paths. Event-loop thread only.

    Every read raises LogCompactedError (below the first retained entry), LogTruncatedError (past the end) and
    DamagedLogError. A method `..._nowait` returns None if it would block on the disk; its twin without the
    suffix then waits for a thread of the read pool.
    """

    def __init__(
        self,
        node: str,
        segment_size: int,
        base: Manifest,
        segments: list[Segment],
        cache_bytes: int,
        files: LogFiles,
        folders: LogFolders,
    ) -> None:
        super().__init__(segment_size, base, segments, cache_bytes)
        self._node = node
        self._files = files
        self._folders = folders

    # --- headers --------------------------------------------------------------------------------------------
    def header_nowait(self, index: LogIndex) -> EntryHeader | None:
        """Return the header of an entry."""
        self._check(index, index)
        known = self._known_header(index)
        if known is not None:
            return known
        segment = self.segment_of(index)
        offsets = self._offsets_nowait(segment)
        if offsets is None:
            return None
        position = offsets[index - segment.first_index]
        with self._reading(segment, position, HEADER_SIZE):
            raw = self._files.read_nowait(segment.start, position, HEADER_SIZE)
        return None if raw is None else self._decode(segment, position, raw, index)

    def header_now(self, index: LogIndex) -> EntryHeader:
        """Return the header of an entry, blocking this thread on the disk.

        Only truncation across segments needs it.
        """
        found = self.header_nowait(index)
        if found is not None:
            return found
        segment = self.segment_of(index)
        position = self.offsets_now(segment)[index - segment.first_index]
        with self._reading(segment, position, HEADER_SIZE):
            raw = self._files.read_now(segment.start, position, HEADER_SIZE)
        return self._decode(segment, position, raw, index)

    @_settled
    async def header_at(self, index: LogIndex) -> EntryHeader:
        """Return the header of an entry."""
        found = self.header_nowait(index)
        if found is not None:
            return found
        generation, segment = self.generation, self.segment_of(index)
        position = (await self._offsets(segment))[index - segment.first_index]
        self._unchanged(generation)
        with self._reading(segment, position, HEADER_SIZE):
            raw = await self._files.read(segment.start, position, HEADER_SIZE)
        self._unchanged(generation)
        return self._decode(segment, position, raw, index)

    # --- entries --------------------------------------------------------------------------------------------
    def read_wire_nowait(self, lo: LogIndex, hi: LogIndex, max_bytes: int) -> bytes | None:
        """Return the wire bytes of entries lo..hi (inclusive): whole entries, at least one, up to
        `max_bytes`. May end before `hi`, at the end of a segment.
        """
        self._check(lo, hi)
        if lo >= self.cache.first_index:
            return self.cache.wire(lo, hi, max_bytes)
        segment = self.segment_of(lo)
        offsets = self._offsets_nowait(segment)
        if offsets is None:
            return None
        plan = self._plan(segment, offsets, lo, hi, max_bytes)
        with self._reading(segment, plan.position, plan.size):
            raw = self._files.read_nowait(segment.start, plan.position, plan.size)
        return None if raw is None else plan.filler + raw

    @_settled
    async def read_wire(self, lo: LogIndex, hi: LogIndex, max_bytes: int) -> bytes:
        """Like `read_wire_nowait`, but wait if the data is cold."""
        found = self.read_wire_nowait(lo, hi, max_bytes)
        if found is not None:
            return found
        generation, segment = self.generation, self.segment_of(lo)
        offsets = await self._offsets(segment)
        self._unchanged(generation)
        plan = self._plan(segment, offsets, lo, hi, max_bytes)
        with self._reading(segment, plan.position, plan.size):
            raw = await self._files.read(segment.start, plan.position, plan.size)
        self._unchanged(generation)
        if len(raw) < plan.size:
            raise self._damaged(segment, plan.position + len(raw), "the file ends too early")
        return plan.filler + raw

    def entries_nowait(self, lo: LogIndex, hi: LogIndex, max_bytes: int) -> Entries | None:
        """Return (header, payload) of entries from `lo`, for apply: at least one, none after `hi`. Bytes from
        the disk are verified.
        """
        self._check(lo, hi)
        if lo >= self.cache.first_index:
            return self.cache.entries(lo, hi, max_bytes)
        raw = self.read_wire_nowait(lo, hi, max_bytes)
        return None if raw is None else self.verify(raw, lo)

    async def entries(self, lo: LogIndex, hi: LogIndex, max_bytes: int) -> Entries:
        """Like `entries_nowait`, but wait if the data is cold."""
        found = self.entries_nowait(lo, hi, max_bytes)
        return found if found is not None else self.verify(await self.read_wire(lo, hi, max_bytes), lo)

    # --- bytes ----------------------------------------------------------------------------------------------
    def read_at_nowait(self, offset: int, size: int) -> memoryview | None:
        """Return `size` unverified log bytes at a physical offset, within one segment."""
        self._check_bytes(offset, size)
        cached = self._cached_bytes(offset, size)
        if cached is not None:
            return cached
        segment, cold = self.segment_at(offset), self._cold_size(offset, size)
        with self._reading(segment, offset - segment.start, cold):
            raw = self._files.read_nowait(segment.start, offset - segment.start, cold)
        return None if raw is None else self._with_cached(raw, offset, size)

    @_settled
    async def read_at(self, offset: int, size: int) -> memoryview:
        """Like `read_at_nowait`, but wait if the data is cold."""
        found = self.read_at_nowait(offset, size)
        if found is not None:
            return found
        generation, segment = self.generation, self.segment_at(offset)
        cold = self._cold_size(offset, size)
        with self._reading(segment, offset - segment.start, cold):
            raw = await self._files.read(segment.start, offset - segment.start, cold)
        self._unchanged(generation)
        if len(raw) < cold:
            raise self._damaged(segment, offset - segment.start + len(raw), "the file ends too early")
        if cold < size:  # the rest was cached when the read was planned; by now it may be only on disk
            rest = await self.read_at(offset + cold, size - cold)
            return memoryview(b"".join((raw, rest)))
        return memoryview(raw)

    def offsets_now(self, segment: Segment) -> array[int]:
        """Return the entry offsets of a segment, blocking this thread on the disk.

        Only truncation across segments needs it.
        """
        if segment.offsets is not None:
            return segment.offsets
        with self._reading_index(segment):
            return self._files.offsets_now(segment.start)

    # --- for repairs ----------------------------------------------------------------------------------------
    def sketch(self, start: int) -> SegmentSketch | None:
        """Return what memory knows about the segment at `start`; None if the log holds no entry there (any
        more).
        """
        segments = self._segments
        if not segments or not segments[0].start <= start <= segments[-1].start:
            return None
        segment = self.segment_at(start)
        previous, base = self.segment_before(segment), self.base
        last = previous.last if previous is not None else None
        if previous is None or last is None:
            outside = base.before
            return SegmentSketch(
                segment.start, outside, outside, base.first_offset, segment.info(), segment.offsets is None
            )
        before = Before.after(last)
        chained = replace(before, crc=decode_header(previous.filler).crc if previous.filler else last.crc)
        return SegmentSketch(
            segment.start, chained, before, last.end, segment.info(), segment.offsets is None
        )

    def end_of(self, index: LogIndex) -> int:
        """Return the physical offset just past an entry of the log. May block on the disk (rare).

        Raises: StorageError.
        """
        segment = self.segment_of(index)
        if index == segment.last_index:
            return segment.end_offset
        return segment.start + self.offsets_now(segment)[index + 1 - segment.first_index]

    async def whole_entry_before(self, offset: int) -> tuple[Before, int] | None:
        """Return the last intact entry that ends at or before a physical offset in the same segment, and its
        end.

        Raises: StorageError (the index file is unusable).
        """
        segment = self.segment_at(offset)
        offsets = await self._offsets(segment)
        place = bisect_right(offsets, offset - segment.start) - 1
        for number in range(place - 1, -1, -1):
            begin, size = offsets[number], offsets[number + 1] - offsets[number]
            try:
                raw = await self._files.read(segment.start, begin, size)
                header = self._decode(segment, begin, raw, LogIndex(segment.first_index + number))
                verify_entry(raw, 0, header)
            except (OSError, LayoutError, DamagedLogError):
                continue
            return Before.after(header), header.end
        return None

    # --- inside ---------------------------------------------------------------------------------------------
    @contextmanager
    def _reading(self, segment: Segment, position: int, size: int) -> Iterator[None]:
        """Translate errors of a bad disk into this package's errors.

        The arguments are the file range being read.
        """
        try:
            yield
        except OSError as error:
            self._check_retained(segment)
            reason = f"reading {error.filename or 'it'} failed: {error.strerror}"
            raise self._damaged(segment, position, reason, size) from None

    @contextmanager
    def _reading_index(self, segment: Segment) -> Iterator[None]:
        """Translate errors of a bad disk or a damaged index file. The log itself is intact."""
        try:
            yield
        except (OSError, LayoutError) as error:
            self._check_retained(segment)
            path = index_path(self._folders.indexes, segment.start)
            raise StorageError(
                f"{self._node} cannot use {path}: {error}. It is only an index; restart the node to rebuild "
                "it"
            ) from None

    def _check_retained(self, segment: Segment) -> None:
        """Check that retention has not deleted the segment during a blocking read.

        Raises: LogCompactedError.
        """
        if segment.start < self.base.first_offset:
            raise LogCompactedError(segment.first_index, self.first_index) from None

    def _check(self, lo: LogIndex, hi: LogIndex) -> None:
        if lo < self.first_index:
            raise LogCompactedError(lo, self.first_index)
        if hi > self.last_index:
            raise LogTruncatedError(f"entry {hi} is behind the log's last entry {self.last_index}")
        assert lo <= hi

    def _check_bytes(self, offset: int, size: int) -> None:
        if offset < self.base.first_offset:
            raise LogCompactedError(offset, self.base.first_offset)
        if offset + size > self.end_offset:
            raise LogTruncatedError(f"offset {offset + size} is behind the log's end {self.end_offset}")
        assert size > 0

    def _unchanged(self, generation: int) -> None:
        if generation != self.generation:
            raise LogTruncatedError("the log was truncated while it was being read")

    def _known_header(self, index: LogIndex) -> EntryHeader | None:
        last = self.last
        return last if last is not None and last.index == index else self.cache.header(index)

    def _offsets_nowait(self, segment: Segment) -> array[int] | None:
        if segment.offsets is not None:
            return segment.offsets
        with self._reading_index(segment):
            return self._files.offsets_nowait(segment.start)

    async def _offsets(self, segment: Segment) -> array[int]:
        if segment.offsets is not None:
            return segment.offsets
        generation = self.generation
        with self._reading_index(segment):
            try:
                return self._files.keep_offsets(segment.start, await self._files.offsets(segment.start))
            finally:  # also after an error: the file may have been deleted with its entries
                self._unchanged(generation)

    def _plan(
        self, segment: Segment, offsets: array[int], lo: LogIndex, hi: LogIndex, max_bytes: int
    ) -> _DiskRange:
        """Choose the whole entries to read from a segment: at least one, none that is in the cache."""
        limit = min(hi, segment.last_index, self.cache.first_index - 1)
        first = lo - segment.first_index
        begin = offsets[first]
        # offsets[n] is also the end of the entries before n, so the last end that fits is found among them.
        behind = min(limit - segment.first_index + 2, segment.count)
        stop = (
            bisect_right(offsets, begin + max_bytes, first + 1, behind) - 1 if first + 1 < behind else first
        )
        stop = max(stop, first + 1)
        if limit == segment.last_index and segment.end_offset - segment.start <= begin + max_bytes:
            stop = segment.count
        end = offsets[stop] if stop < segment.count else segment.end_offset - segment.start
        before = self.segment_before(segment) if first == 0 else None
        return _DiskRange(begin, end - begin, before.filler if before else b"")

    def verify(self, raw: bytes, lo: LogIndex) -> Entries:
        """Check and decode wire bytes of this log that begin with entry `lo`.

        Raises: DamagedLogError (names the entry).
        """
        out: list[tuple[EntryHeader, memoryview]] = []
        view, position = memoryview(raw), 0
        try:
            for position, header in walk_wire(raw):
                verify_entry(raw, position, header)
                if header.kind is EntryKind.FILLER:
                    continue
                if header.index != lo + len(out):
                    raise self._damaged_entry(LogIndex(lo + len(out)), f"entry {header.index} stands there")
                start = position + HEADER_SIZE
                out.append((header, view[start : start + header.payload_size]))
        except LayoutError as error:
            raise self._damaged_entry(LogIndex(lo + len(out)), str(error)) from None
        return out

    def _decode(self, segment: Segment, position: int, raw: bytes, index: LogIndex) -> EntryHeader:
        try:
            header = decode_header(raw)
        except LayoutError as error:
            raise self._damaged(segment, position, str(error)) from None
        if header.index != index or header.physical_offset != segment.start + position:
            raise self._damaged(segment, position, f"another entry than {index} stands there")
        return header

    def damage_at(self, offset: int, reason: str) -> DamagedLogError:
        """Return the error for wrong bytes at a physical offset."""
        segment = self.segment_at(offset)
        return self._damaged(segment, offset - segment.start, reason)

    def _damaged_entry(self, index: LogIndex, reason: str) -> DamagedLogError:
        segment = self.segment_of(index)
        return self._damaged(segment, self.offsets_now(segment)[index - segment.first_index], reason)

    def _damaged(self, segment: Segment, position: int, reason: str, extent: int = 1) -> DamagedLogError:
        path = segment_path(self._folders.segments, segment.start)
        return DamagedLogError(self._node, path, position, segment.start + position, reason, extent=extent)

    def _cached_bytes(self, offset: int, size: int) -> memoryview | None:
        first = self.cache.first_offset
        if first is None or offset < first:
            return None
        found = self.cache.bytes_at(offset, size)
        return found if found is not None else memoryview(self.cache.joined(offset, size))

    def _cold_size(self, offset: int, size: int) -> int:
        """Return how many of the bytes must come from the file, because the cache starts after them."""
        first = self.cache.first_offset
        return size if first is None else min(size, first - offset)

    def _with_cached(self, raw: bytes, offset: int, size: int) -> memoryview:
        """Append the cached rest to bytes from the file."""
        if len(raw) == size:
            return memoryview(raw)
        rest = self.cache.joined(offset + len(raw), size - len(raw))
        return memoryview(b"".join((raw, rest)))
