"""What a disk really holds, read by code that shares nothing with the CommitLog's own reader.

Parses the log segments on the platter (flush mode async: in the page cache) straight from the layout in the docs of
`proto/entry.py`, as far as checksums and the chain hold. Incremental: a write below what was parsed drops the rest.
An entry's checksum covers the one before it, so (index, checksum) stands for the whole log up to it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from pathlib import Path

from crc32c import crc32c

from .file_system import NO_SEGMENT, SEGMENT_FOLDER, SimFileSystem

# magic, crc, size, kind, flags, sections, index, term, offset, timestamp, crc of the one before, payload, reserved
_HEADER = struct.Struct("<4sIIBBHQQQQIIQ")
_MAGIC = b"LMQ\x01"
_FILLER = 4


class DiskImage:
    """The log on one disk. Watches its file system."""

    def __init__(self, files: SimFileSystem, data: Path, segment_size: int) -> None:
        self._files = files
        self._folder = data / SEGMENT_FOLDER
        self._segment_size = segment_size
        self._paths: dict[int, Path] = {}
        files.on_segment_change = self._changed
        files.on_segment_gone = self._gone
        self._forget()

    def _forget(self) -> None:
        self.base = 0  # index of the entry before the first one here
        self.crcs: list[int] = []
        self.terms: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._position = -1  # physical offset to go on at; -1: not begun
        self._prev_crc = 0

    @property
    def last(self) -> int:
        """Index of the last entry that is whole."""
        self._files.advance()
        self._read_on(1 << 62)
        return self.base + len(self.crcs)

    def crc(self, index: int) -> int | None:
        """The checksum of an entry, None when it (or one before it) is not here."""
        self._files.advance()
        place = index - self.base - 1
        if place >= len(self.crcs):
            self._read_on(index)
            place = index - self.base - 1  # reading may have found the base
        return self.crcs[place] if 0 <= place < len(self.crcs) else None

    def entry(self, index: int) -> bytes | None:
        """The bytes of an entry."""
        if self.crc(index) is None:
            return None
        place = index - self.base - 1
        start, end = self._starts[place], self._ends[place]
        segment = start - start % self._segment_size
        data = self._bytes_of(segment)
        return None if data is None else bytes(data[start - segment : end - segment])

    def end_of(self, index: int) -> int:
        """Physical offset behind an entry that is here."""
        return self._ends[index - self.base - 1]

    def begin(self) -> int:
        """Physical offset of the first entry here."""
        return self._starts[0] if self._starts else 0

    def log_bytes(self, begin: int, end: int) -> bytes:
        """The platter's bytes from one physical offset to another, unverified."""
        out = b""
        while begin < end:
            segment = begin - begin % self._segment_size
            stop = min(end, segment + self._segment_size)
            data = self._bytes_of(segment) or b""
            out += bytes(data[begin - segment : stop - segment]).ljust(stop - begin, b"\xff")
            begin = stop
        return out

    def known(self) -> dict[int, int]:
        """Checksums by index of all that is here."""
        self._files.advance()
        self._read_on(1 << 62)
        return {self.base + 1 + place: crc for place, crc in enumerate(self.crcs)}

    # --- watching ------------------------------------------------------------------------------------------------
    def _changed(self, segment: int, position: int) -> None:
        if segment + position < self._position:
            self._cut(segment + position)

    def _gone(self, segment: int) -> None:
        if segment == NO_SEGMENT or not self._starts:
            self._forget()
        elif segment <= self._starts[0]:
            self._drop_before(segment + self._segment_size)
        elif segment < self._position:
            self._cut(segment)

    def _cut(self, offset: int) -> None:
        keep = bisect_right(self._ends, offset)
        if not keep:
            self._forget()
            return
        for column in (self.crcs, self.terms, self._starts, self._ends):
            del column[keep:]
        self._position, self._prev_crc = self._ends[-1], self.crcs[-1]

    def _drop_before(self, offset: int) -> None:
        gone = bisect_right(self._starts, offset - 1)
        if gone == len(self.crcs):
            self._forget()
            return
        for column in (self.crcs, self.terms, self._starts, self._ends):
            del column[:gone]
        self.base += gone

    # --- reading -------------------------------------------------------------------------------------------------
    def _bytes_of(self, segment: int) -> bytearray | None:
        files = self._files
        names = files.written_names if files.watches_written else files.durable_names
        path = self._paths.get(segment)
        if path is None:
            path = self._paths[segment] = self._folder / f"{segment:020d}"
        inode = names.get(path)
        if inode is None:
            return None
        return inode.written if files.watches_written else inode.durable

    def _first_segment(self) -> int:
        files = self._files
        names = files.written_names if files.watches_written else files.durable_names
        mine = (name.name for name in names if name.parent == self._folder and name.name.isdecimal())
        return min((int(name) for name in mine), default=-1)

    def _read_on(self, index: int) -> None:
        if self._position < 0:
            self._position = self._first_segment()
            if self._position < 0:
                return
        while self.base + len(self.crcs) < index and self._read_one():
            pass

    def _read_one(self) -> bool:
        """Take the entry or filler at the position; return whether there was one."""
        offset = self._position
        segment = offset - offset % self._segment_size
        data = self._bytes_of(segment)
        place = offset - segment
        if data is None or len(data) < place + _HEADER.size:
            return False
        magic, crc, size, kind, _, _, index, term, at, _, before, _, _ = _HEADER.unpack_from(data, place)
        if magic != _MAGIC or at != offset or size < _HEADER.size or place + size > self._segment_size:
            return False
        covered = _HEADER.size if kind == _FILLER else size
        if crc32c(bytes(data[place + 8 : place + covered])) != crc:
            return False
        if self.crcs and before != self._prev_crc:
            return False
        if kind == _FILLER:
            if place + size != self._segment_size:
                return False
            self._position, self._prev_crc = segment + self._segment_size, crc
            return True
        if not self.crcs:
            self.base = index - 1
        elif index != self.base + len(self.crcs) + 1:
            return False
        self.crcs.append(crc)
        self.terms.append(term)
        self._starts.append(offset)
        self._ends.append(offset + size)
        self._position, self._prev_crc = offset + size, crc
        return True
