"""In-memory contents of the log: segments with their term runs, the tail cache, the base point.

Owns: the mapping from an index or offset to its segment and term; entry bytes between staging and eviction.
Must not: touch files or queue writes.
Invariants: segments are contiguous in index and every segment holds an entry. Only the last one is open.
Every truncation increments `generation`, so a slow reader can tell that its plan is stale. The indexes in the
cache are contiguous, and entries not yet written to the file are never evicted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from ledgermq.proto.entry import HEADER_SIZE, Buffer, EntryHeader

from ..types import LogIndex, Term
from .identity import Manifest
from .segment import Segment

#: Trim the lists once this many evicted items have accumulated at their head.
_SLACK: Final = 4096


class TailCache:
    """Entries `first_index` .. `last_index`, oldest first."""

    def __init__(self, max_bytes: int, first_index: LogIndex) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._head = 0  # position of the first live item in the lists; items before it are None
        self._base = first_index  # index of the item at position 0
        self._headers: list[EntryHeader | None] = []
        self._views: list[memoryview | None] = []
        self._starts: list[int] = []  # physical offsets, ascending
        self._fillers: dict[int, bytes] = {}  # by index of the entry after the filler

    @property
    def first_index(self) -> LogIndex:
        """Index of the oldest entry here (last + 1 when empty)."""
        return LogIndex(self._base + self._head)

    @property
    def last_index(self) -> LogIndex:
        return LogIndex(self._base + len(self._starts) - 1)

    @property
    def first_offset(self) -> int | None:
        """Physical offset of the oldest entry here."""
        return self._starts[self._head] if self._head < len(self._starts) else None

    @property
    def size(self) -> int:
        """Bytes of entries held."""
        return self._bytes

    def add(self, header: EntryHeader, view: memoryview, filler: bytes = b"") -> None:
        """Append an entry with the filler header before it."""
        self._headers.append(header)
        self._views.append(view)
        self._starts.append(header.physical_offset)
        self._bytes += header.size
        if filler:
            self._fillers[header.index] = filler

    def evict(self, written_index: LogIndex) -> None:
        """Evict the oldest entries over the limit. Entries after `written_index` stay."""
        while (
            self._bytes > self._max_bytes
            and self._head < len(self._starts)
            and self.first_index <= written_index
        ):
            header = self._headers[self._head]
            assert header is not None
            self._bytes -= header.size
            self._fillers.pop(header.index, None)
            self._headers[self._head] = self._views[self._head] = None
            self._head += 1
        if self._head >= _SLACK:
            del self._headers[: self._head], self._views[: self._head], self._starts[: self._head]
            self._base = LogIndex(self._base + self._head)
            self._head = 0

    def cut(self, index: LogIndex) -> None:
        """Drop the entries >= `index`."""
        position = index - self._base
        if position <= self._head:
            self.clear(index)
            return
        for header in self._headers[position:]:
            assert header is not None
            self._bytes -= header.size
            self._fillers.pop(header.index, None)
        del self._headers[position:], self._views[position:], self._starts[position:]

    def clear(self, next_index: LogIndex) -> None:
        """Drop everything. `next_index` is the index of the next entry."""
        self._headers.clear()
        self._views.clear()
        self._starts.clear()
        self._fillers.clear()
        self._bytes = self._head = 0
        self._base = next_index

    def header(self, index: LogIndex) -> EntryHeader | None:
        """Return the header of a cached entry, or None."""
        position = index - self._base
        return self._headers[position] if self._head <= position < len(self._headers) else None

    def wire(self, lo: LogIndex, hi: LogIndex, max_bytes: int) -> bytes:
        """Return wire bytes of cached entries from `lo`: at least one, up to `hi` and `max_bytes`."""
        parts: list[Buffer] = []
        size = 0
        for position in range(lo - self._base, min(hi - self._base + 1, len(self._starts))):
            view = self._views[position]
            assert view is not None
            filler = self._fillers.get(self._base + position)
            size += len(view) + (HEADER_SIZE if filler else 0)
            if parts and size > max_bytes:
                break
            if filler:
                parts.append(filler)
            parts.append(view)
        return b"".join(parts)

    def entries(self, lo: LogIndex, hi: LogIndex, max_bytes: int) -> Sequence[tuple[EntryHeader, memoryview]]:
        """Return (header, payload) of cached entries from `lo`: at least one, up to `hi` and `max_bytes`."""
        out: list[tuple[EntryHeader, memoryview]] = []
        size = 0
        for position in range(lo - self._base, min(hi - self._base + 1, len(self._starts))):
            header, view = self._headers[position], self._views[position]
            assert header is not None and view is not None
            size += header.size
            if out and size > max_bytes:
                break
            out.append((header, view[HEADER_SIZE : HEADER_SIZE + header.payload_size]))
        return out

    def bytes_at(self, offset: int, size: int) -> memoryview | None:
        """Return log bytes inside one cached entry, without a copy; None if they are not cached."""
        position = bisect_right(self._starts, offset, self._head) - 1
        if position < self._head:
            return None
        view = self._views[position]
        assert view is not None
        start = offset - self._starts[position]
        return view[start : start + size] if start + size <= len(view) else None

    def joined(self, offset: int, size: int) -> bytes:
        """Return log bytes that begin in a cached entry and may continue in the next ones, with no filler
        between.
        """
        parts: list[memoryview] = []
        position = bisect_right(self._starts, offset, self._head) - 1
        end = offset + size
        while offset < end:
            view = self._views[position]
            assert view is not None
            begin = offset - self._starts[position]
            assert 0 <= begin < len(view), "a range of log bytes lies inside one segment"
            part = view[begin : begin + end - offset]
            parts.append(part)
            offset += len(part)
            position += 1
        return b"".join(parts)


class LogContents:
    """Contents in memory. `reads.py` reads them, `commit_log.py` changes them. Event-loop thread only."""

    def __init__(self, segment_size: int, base: Manifest, segments: list[Segment], cache_bytes: int) -> None:
        self.segment_size = segment_size  # log bytes per segment file, without the trailer; never changes
        self.base = base  # state just before the first retained entry; retention moves it forward
        # Oldest first. Invariant: no gaps, none is empty, only the last one takes entries
        self._segments = segments
        # Invariant: holds every entry that is not yet written to the file
        self.cache = TailCache(cache_bytes, LogIndex(self.last_index + 1))
        self.generation = 0  # number of truncations; reads that span an increment start over

    @property
    def last(self) -> EntryHeader | None:
        """Header of the last entry; None when the log holds none."""
        return self._segments[-1].last if self._segments else None

    @property
    def first_index(self) -> LogIndex:
        """Index of the first retained entry (last_index + 1 when there is none)."""
        return self.base.first_index

    @property
    def last_index(self) -> LogIndex:
        """Index of the last staged entry; it need not be durable."""
        return self._segments[-1].last_index if self._segments else LogIndex(self.base.first_index - 1)

    @property
    def last_term(self) -> Term:
        last = self.last
        return Term(last.term) if last else self.base.prev_term

    @property
    def last_crc(self) -> int:
        """Checksum that the next entry (or filler) chains to."""
        last = self.last
        return last.crc if last else self.base.prev_crc

    @property
    def last_timestamp(self) -> int:
        """Log time (ms) of the last entry; 0 in a log that never held one."""
        last = self.last
        return last.timestamp if last else self.base.prev_timestamp

    @property
    def first_offset(self) -> int:
        """Physical offset of the first retained byte."""
        return self.base.first_offset

    @property
    def end_offset(self) -> int:
        """Physical offset just past the last entry."""
        return self._segments[-1].end_offset if self._segments else self.base.first_offset

    def segment_of(self, index: LogIndex) -> Segment:
        """Return the segment that holds an entry. Requires first_index <= index <= last_index."""
        position = bisect_right(self._segments, index, key=lambda segment: segment.first_index) - 1
        return self._segments[position]

    def segment_at(self, offset: int) -> Segment:
        """Return the segment that contains a physical offset."""
        position = bisect_right(self._segments, offset, key=lambda segment: segment.start) - 1
        return self._segments[position]

    def segment_before(self, segment: Segment) -> Segment | None:
        """Return the retained segment before this one, or None."""
        position = bisect_right(self._segments, segment.start, key=lambda other: other.start) - 2
        return self._segments[position] if position >= 0 else None

    def term_runs(self) -> list[tuple[LogIndex, Term]]:
        """Return (first index, term) of each run of entries with the same term, oldest first."""
        runs: list[tuple[LogIndex, Term]] = []
        for segment in self._segments:
            for index, term in segment.runs:
                if not runs or runs[-1][1] != term:
                    runs.append((index, term))
        return runs
