"""Image of what a disk really holds, read by code that shares nothing with the CommitLog's own reader.

Parses the log segments on the platter (async flush modes: in the page cache) directly by the layout in the
docs of `proto/entry.py`, as far as checksums and chain are valid. Incremental: a write below the parsed part
drops the rest.
An entry's checksum covers the one before it, so (index, checksum) identifies the whole log up to it.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from pathlib import Path
from typing import Any

from crc32c import crc32c

from .file_system import NO_SEGMENT, SEGMENT_FOLDER, Inode, SimFileSystem

# magic, crc, size, kind, flags, sections, index, term, offset, timestamp, previous crc, payload, reserved
_HEADER = struct.Struct("<4sIIBBHQQQQIIQ")
_MAGIC = b"LMQ\x01"
_FILLER = 4


class DiskImage:
    """Log on one disk. Watches its file system."""

    def __init__(self, files: SimFileSystem, data: Path, segment_size: int) -> None:
        self._files = files
        self._data = data
        self._folder = data / SEGMENT_FOLDER
        self._marker = data / "reset" / "marker"
        self._records: dict[Path, tuple[bytes, dict[str, Any] | None]] = {}  # parsed files, with their bytes
        self._segment_size = segment_size
        self._paths: dict[int, Path] = {}
        files.on_segment_change = self._changed
        files.on_segment_gone = self._gone
        self._forget()

    def _forget(self) -> None:
        self._base = 0
        self.crcs: list[int] = []
        self.terms: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._position = -1  # physical offset at which to continue; -1: not started
        self._prev_crc = 0

    @property
    def base(self) -> int:
        """Return the index of the entry before the first one here. Entries up to it are part of the state."""
        self._files.advance()
        if self._is_given_up and (decided := self.record("reset/marker")) is not None:
            return int(decided["first_index"]) - 1  # the next start replaces whatever is still here
        if not self.crcs:
            self._begin()
        return self._base

    @property
    def last(self) -> int:
        """Return the index of the last intact entry."""
        self._files.advance()
        self._read_on(1 << 62)
        return self.base if self._is_given_up else self._base + len(self.crcs)

    @property
    def _is_given_up(self) -> bool:
        return self._marker in self._names

    @property
    def _names(self) -> dict[Path, Inode]:
        files = self._files
        return files.written_names if files.watches_written else files.durable_names

    def crc(self, index: int) -> int | None:
        """Return the checksum of an entry; None if it (or one before it) is not here."""
        self._files.advance()
        if self._is_given_up:
            return None
        place = index - self._base - 1
        if place >= len(self.crcs):
            self._read_on(index)
            place = index - self._base - 1  # reading may have found the base
        return self.crcs[place] if 0 <= place < len(self.crcs) else None

    def entry(self, index: int) -> bytes | None:
        """Return the bytes of an entry."""
        if self.crc(index) is None:
            return None
        place = index - self._base - 1
        start, end = self._starts[place], self._ends[place]
        segment = start - start % self._segment_size
        data = self._bytes_of(segment)
        return None if data is None else bytes(data[start - segment : end - segment])

    def end_of(self, index: int) -> int:
        """Return the physical offset just past an entry that is here."""
        return self._ends[index - self._base - 1]

    def begin(self) -> int:
        """Return the physical offset of the first entry here."""
        return self._starts[0] if self._starts else 0

    def log_bytes(self, begin: int, end: int) -> bytes:
        """Return the platter's bytes between two physical offsets, unverified."""
        out = b""
        while begin < end:
            segment = begin - begin % self._segment_size
            stop = min(end, segment + self._segment_size)
            data = self._bytes_of(segment) or b""
            out += bytes(data[begin - segment : stop - segment]).ljust(stop - begin, b"\xff")
            begin = stop
        return out

    def known(self) -> dict[int, int]:
        """Return the checksums by index of everything here."""
        self._files.advance()
        if self._is_given_up:
            return {}
        self._read_on(1 << 62)
        return {self._base + 1 + place: crc for place, crc in enumerate(self.crcs)}

    def record(self, name: str) -> dict[str, Any] | None:
        """Return the fields of a small checked file in the data folder; None if it is missing or damaged."""
        self._files.advance()
        path = self._data / name
        inode = self._names.get(path)
        if inode is None:
            return None
        data = bytes(inode.written if self._files.watches_written else inode.durable)
        known = self._records.get(path)
        if known is None or known[0] != data:
            known = self._records[path] = (data, _fields(data))
        return known[1]

    # --- watching -------------------------------------------------------------------------------------------
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
        self._base += gone

    # --- reading --------------------------------------------------------------------------------------------
    def _bytes_of(self, segment: int) -> bytearray | None:
        path = self._paths.get(segment)
        if path is None:
            path = self._paths[segment] = self._folder / f"{segment:020d}"
        inode = self._names.get(path)
        if inode is None:
            return None
        return inode.written if self._files.watches_written else inode.durable

    def _begin(self) -> None:
        """Start where the manifest says. Without a readable manifest nothing is known to be here."""
        manifest = self.record("manifest")
        if manifest is None:
            self._base, self._position = 0, -1
            return
        self._base, self._position = int(manifest["first_index"]) - 1, int(manifest["first_offset"])
        self._prev_crc = int(manifest["prev_crc"])

    def _read_on(self, index: int) -> None:
        if not self.crcs:
            self._begin()
        while self._position >= 0 and self._base + len(self.crcs) < index and self._read_one():
            pass

    def _read_one(self) -> bool:
        """Parse the entry or filler at the position. Returns whether there was one."""
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
        if before != self._prev_crc:
            return False
        if kind == _FILLER:
            if place + size != self._segment_size:
                return False
            self._position, self._prev_crc = segment + self._segment_size, crc
            return True
        if index != self._base + len(self.crcs) + 1:
            return False
        self.crcs.append(crc)
        self.terms.append(term)
        self._starts.append(offset)
        self._ends.append(offset + size)
        self._position, self._prev_crc = offset + size, crc
        return True


def _fields(data: bytes) -> dict[str, Any] | None:
    """Parse `LMQ <kind> <version> <crc32c>` and the JSON object after it, which may occur twice."""
    half = len(data) // 2
    for copy in (data[:half], data[half:]) if half and half % 4096 == 0 else (data,):
        head, _, body = copy.partition(b"\n")
        words = head.split(b" ")
        if len(words) == 4 and words[3] == b"%08x" % crc32c(body):
            fields: dict[str, Any] = json.loads(body)
            return fields
    return None
