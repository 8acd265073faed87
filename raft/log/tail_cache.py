"""Tail cache: the last entries of the log in memory, which followers, apply and consumers read most.

Owns: entry bytes between staging and eviction.   Must not: touch files.
Invariants: indexes are contiguous. Entries not yet written to the file are never evicted. A filler is kept
with the entry that follows it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from ledgermq.proto.entry import HEADER_SIZE, Buffer, EntryHeader

from ..types import LogIndex

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
