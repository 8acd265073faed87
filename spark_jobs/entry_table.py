"""Entry table: entries in a range of one segment file, found without trusting any index.

Owns: the walk by sizes from a known boundary, and finding the next boundary after damage.
Must not: judge what the entries say (`entry_checks` does), know Spark, trust the manifest.

An entry is *self-located* if its header holds its own physical offset. The walk goes from one self-located
header to the next by size. So bytes that only look like a header (a message whose body is a copy of a log)
are never examined. Headers are searched only after damage, and a hit counts only if its checksum is right.

Invariant: entries and damaged ranges together cover the walked range without overlap.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from ledgermq.proto.entry import ALIGNMENT, HEADER_DTYPE, HEADER_SIZE, MAGIC_WORD, EntryKind, entry_size

#: magic, size, kind, physical offset, payload size
_PROBE: Final = struct.Struct("<I4xIB19xQ12xI")
_STEP: Final = 4 << 20
_KINDS: Final = frozenset(int(kind) for kind in EntryKind)

Int64s = npt.NDArray[np.int64]


class ByteSource(Protocol):
    """A file that is read in pieces. `size` is its length in bytes."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`, fewer only at the end of the file."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [start, end) of the log in which no entry is readable. Offsets are physical."""

    start: int
    end: int
    looks_like_entry: bool  # there is (part of) a header at `start`, so one entry was damaged there
    absent: bool  # the file ends before `end`, or holds only zeros there


@dataclass(slots=True)
class EntryTable:
    """Result of the walk over one range. The arrays run in parallel, one element per entry."""

    base: int  # physical offset of data[0]
    data: bytearray
    positions: Int64s  # physical offset at which the entry really is
    headers: npt.NDArray[np.void]  # HEADER_DTYPE, as stored
    computed_crc: npt.NDArray[np.uint32]
    damaged: list[DamagedRange]
    end: int  # physical offset just past the last entry or damaged range

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def intact(self) -> npt.NDArray[np.bool_]:
        """Return for each entry whether its checksum is right."""
        return np.asarray(self.headers["crc"] == self.computed_crc)

    def payload(self, row: int) -> memoryview:
        """Return the payload bytes of the entry in `row`."""
        start = int(self.positions[row]) - self.base + HEADER_SIZE
        return memoryview(self.data)[start : start + int(self.headers["payload_size"][row])]


def read_entries(
    source: ByteSource, segment_start: int, lo: int, hi: int, *, segment_end: int, at_boundary: bool
) -> EntryTable:
    """Find the entries whose headers start in [lo, hi) of a segment (physical offsets; multiples of 8).

    `at_boundary`: an entry must start at `lo` (the start of a segment). Otherwise `lo` is a hint: without a
    header there, the next intact entry is searched. `segment_end` bounds sizes. The last entry may extend
    past `hi`. The walk never goes past the end of the file.
    """
    return _Walk(source, segment_start, lo, hi, segment_end).run(at_boundary)


class _Walk:
    """State of one walk: a buffer that grows on demand, and the results so far."""

    def __init__(self, source: ByteSource, segment_start: int, lo: int, hi: int, segment_end: int) -> None:
        self.source = source
        self.segment_start = segment_start
        self.lo = lo
        self.file_end = segment_start + source.size
        self.hi = min(hi, self.file_end)
        self.segment_end = segment_end
        self.data = bytearray(source.read(lo - segment_start, max(0, self.hi - lo)))
        self.positions: list[int] = []
        self.damaged: list[DamagedRange] = []

    def run(self, at_boundary: bool) -> EntryTable:
        position = self.lo if at_boundary or self._starts_here() else self._search(self.lo)
        while position < self.hi:
            position = self._follow(position)
            if position >= self.hi:
                break
            size = self._size_at(position)
            if size:
                self.positions.append(position)
                position += size
            else:
                position = self._recover(position)
        return self._table(max(position, self.lo))

    def _starts_here(self) -> bool:
        """Return whether an entry, intact or not, starts at the very beginning, as the caller was told."""
        return _looks_like_header(bytes(self.data[:HEADER_SIZE]), self.lo)

    def _follow(self, position: int) -> int:
        """Step over ordinary entries that are completely in the buffer: the hot loop.

        Returns where it stopped.
        """
        data, lo, unpack = self.data, self.lo, _PROBE.unpack_from
        last_header, have, end = min(self.hi - lo, len(data) - HEADER_SIZE + 1), len(data), self.segment_end
        at, append = position - lo, self.positions.append
        while at < last_header:
            magic, size, kind, offset, payload_size = unpack(data, at)
            if magic != MAGIC_WORD or offset != at + lo or not 0 < kind < EntryKind.FILLER:
                break
            if size != HEADER_SIZE + ((payload_size + 7) & ~7) or at + size > have or lo + at + size > end:
                break
            append(offset)
            at += size
        return at + lo

    def _size_at(self, position: int) -> int:
        """Return the bytes to step over from a header at `position`; 0 if there is none to follow."""
        at = position - self.lo
        if not self._ensure(at + HEADER_SIZE):
            return 0
        magic, size, kind, offset, payload_size = _PROBE.unpack_from(self.data, at)
        if (
            magic != MAGIC_WORD
            or kind not in _KINDS
            or not self._size_fits(position, size, kind, payload_size)
        ):
            return 0
        if kind != EntryKind.FILLER and not self._ensure(at + size):
            return 0
        # An intact entry at the wrong place (entries before it were dropped or swapped) is still an entry.
        return size if offset == position or self._crc_fits(position) else 0

    def _size_fits(self, position: int, size: int, kind: int, payload_size: int) -> bool:
        if kind == EntryKind.FILLER:
            return size >= HEADER_SIZE and size % ALIGNMENT == 0 and position + size <= self.segment_end
        return size == entry_size(payload_size) and position + size <= self.segment_end

    def _ensure(self, size: int) -> bool:
        """Extend the buffer to at least `size` bytes. Returns whether the file had them."""
        have = len(self.data)
        if have < size:
            want = max(size - have, min(_STEP, self.file_end - self.lo - have))
            self.data += self.source.read(self.lo - self.segment_start + have, want)
        return len(self.data) >= size

    def _crc_at(self, position: int) -> tuple[int, int]:
        """Return (stored, computed) checksum of the entry at `position`, which must be in the buffer."""
        at = position - self.lo
        _, size, kind, _, _ = _PROBE.unpack_from(self.data, at)
        end = at + (HEADER_SIZE if kind == EntryKind.FILLER else size)
        stored = int.from_bytes(self.data[at + 4 : at + 8], "little")
        with memoryview(self.data) as view, view[at + 8 : end] as checked:
            return stored, crc32c(checked)

    def _crc_fits(self, position: int) -> bool:
        stored, computed = self._crc_at(position)
        return stored == computed

    def _recover(self, position: int) -> int:
        """Record the damage at `position`. Returns where the walk continues."""
        start = position
        if self.positions and self.positions[-1] + self._stored_size(self.positions[-1]) == position:
            last = self.positions[-1]
            # The entry before this one is damaged itself, so its size may be wrong.
            if not self._crc_fits(last):
                self.positions.pop()
                start = last
        resume = self._search(start + ALIGNMENT)
        at = start - self.lo
        head = bytes(self.data[at : at + HEADER_SIZE])
        absent = not any(self.data[at : resume - self.lo])
        self.damaged.append(DamagedRange(start, resume, _looks_like_header(head, start), absent))
        return resume

    def _stored_size(self, position: int) -> int:
        return int.from_bytes(self.data[position - self.lo + 8 : position - self.lo + 12], "little")

    def _search(self, start: int) -> int:
        """Return the first offset >= `start` with an intact self-located entry; else `hi`."""
        shifted = start
        while start < self.hi:
            self._ensure(start - self.lo + _STEP)
            found, start = self._candidate(start, located=True)
            if found >= 0:
                return min(found, self.hi)
        # Nothing in the rest of the range is at its own place: entries may have been moved together.
        while shifted < self.hi:
            found, shifted = self._candidate(shifted, located=False)
            if found >= 0:
                return min(found, self.hi)
        return self.hi

    def _candidate(self, start: int, *, located: bool) -> tuple[int, int]:
        """Search the buffer from `start`. Returns (offset or -1, where to continue)."""
        first = start - self.lo
        count = (len(self.data) - first) // ALIGNMENT
        if count <= HEADER_SIZE // ALIGNMENT:
            return -1, self.hi
        words = np.frombuffer(self.data, "<u8", count, first)
        usable = count - HEADER_SIZE // ALIGNMENT + 1
        hits = (words[:usable] & 0xFFFFFFFF) == MAGIC_WORD
        if located:
            here = np.arange(start, start + usable * ALIGNMENT, ALIGNMENT, dtype=np.uint64)
            hits &= words[4 : 4 + usable] == here
        offsets = [start + int(hit) * ALIGNMENT for hit in np.flatnonzero(hits)]
        del words  # it pins the buffer, which may have to grow
        for offset in offsets:
            if offset >= self.hi:
                break
            if self._size_at(offset) and self._crc_fits(offset):
                return offset, offset
        return -1, start + usable * ALIGNMENT

    def _table(self, end: int) -> EntryTable:
        positions = np.array(self.positions, np.int64)
        headers = _gather_headers(self.data, positions - self.lo)
        sizes = np.where(headers["kind"] == EntryKind.FILLER, HEADER_SIZE, headers["size"].astype(np.int64))
        starts = positions - self.lo
        with memoryview(self.data) as view:
            spans = zip((starts + 8).tolist(), (starts + sizes).tolist(), strict=True)
            computed = np.fromiter((crc32c(view[a:b]) for a, b in spans), np.uint32, len(positions))
        return EntryTable(self.lo, self.data, positions, headers, computed, self.damaged, end)


def _gather_headers(data: bytearray, positions: Int64s) -> npt.NDArray[np.void]:
    """Copy the headers at `positions` (bytes from the buffer's start, multiples of 8) into one array."""
    if len(positions) == 0:
        return np.empty(0, HEADER_DTYPE)
    words = np.frombuffer(data, "<u8", len(data) // 8)
    gathered = words[(positions // 8)[:, None] + np.arange(HEADER_SIZE // 8)]
    return np.ascontiguousarray(gathered).view(HEADER_DTYPE).reshape(-1)


def _looks_like_header(head: bytes, position: int) -> bool:
    """Return whether enough of a header is left to tell that an entry started here."""
    if len(head) < HEADER_SIZE:
        return False
    return head[:4] == MAGIC_WORD.to_bytes(4, "little") or int.from_bytes(head[32:40], "little") == position
