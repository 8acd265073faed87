"""Entry index: maps a Raft index to a physical offset, in fixed-size units, one file per segment.

Owns: `entryindex/<20-digit start offset>`. Each segment has its own index file, and both are deleted
together. The open segment's file is written only at a clean stop. An index can always be rebuilt from its
segment, and a damaged file is rebuilt.
Must not: be trusted for the open segment after a crash.

File (little-endian)
     0  4   magic b"LMQI"            4  u32 version (1)        8  u32 crc32c over bytes [12, end)
    12  u32 entry count             16  u64 segment start     24  u64 first index
    32  u32 count of term runs      36  u32 filler size: 64 or 0
    40  64  header of the last entry (zeros when there is none)
   104  64  header of the filler (zeros when there is none)
   168  (u64 first index, u64 term)[runs]
        u32[entry count]  offsets of the entries, from the segment's start
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import OrderedDict
from contextlib import closing
from pathlib import Path
from typing import Final

from crc32c import crc32c

from ledgermq.proto.entry import HEADER_SIZE, decode_header, encode_header
from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..disk.files import File, FileSystem
from ..types import LogIndex, Term
from .segment import PREPARING, Segment

VERSION: Final = 1
_MAGIC: Final = b"LMQI"
_HEAD: Final = struct.Struct("<4sIIIQQII")
_HEAD_SIZE: Final = _HEAD.size + 2 * HEADER_SIZE
_RUN: Final = struct.Struct("<QQ")
_UNIT: Final = 4
#: `array("I")` must have the same layout as the units in the file.
assert array("I").itemsize == _UNIT and sys.byteorder == "little"


def index_path(folder: Path, start: int) -> Path:
    """Return the path of the index of the segment that starts at `start`."""
    return folder / f"{start:020d}"


def encode_index(segment: Segment) -> bytes:
    """Return the bytes of an index file."""
    assert segment.offsets is not None
    body = b"".join(
        (
            _HEAD.pack(
                _MAGIC, VERSION, 0, segment.count, segment.start, segment.first_index, len(segment.runs),
                len(segment.filler),
            ),
            encode_header(segment.last) if segment.last else bytes(HEADER_SIZE),
            segment.filler.ljust(HEADER_SIZE, b"\0"),
            b"".join(_RUN.pack(index, term) for index, term in segment.runs),
            segment.offsets.tobytes(),
        )
    )  # fmt: skip
    return body[:8] + struct.pack("<I", crc32c(memoryview(body)[12:])) + body[12:]


def decode_index(raw: bytes) -> Segment:
    """Decode an index file. Raises: CorruptError, NewerFormatError."""
    if len(raw) < _HEAD_SIZE or raw[:4] != _MAGIC:
        raise CorruptError("no entry index", 0)
    _, version, crc, count, start, first_index, run_count, filler_size = _HEAD.unpack_from(raw)
    if version > VERSION:
        raise NewerFormatError("entry index", version, VERSION)
    offsets_at = _HEAD_SIZE + run_count * _RUN.size
    if crc != crc32c(memoryview(raw)[12:]) or len(raw) != offsets_at + count * _UNIT:
        raise CorruptError("entry index checksum mismatch", 0)
    offsets: array[int] = array("I")
    offsets.frombytes(raw[offsets_at:])
    runs = [(LogIndex(index), Term(term)) for index, term in _RUN.iter_unpack(raw[_HEAD_SIZE:offsets_at])]
    filler_at = _HEAD.size + HEADER_SIZE
    return Segment(
        start=start,
        first_index=LogIndex(first_index),
        offsets=offsets,
        count=count,
        runs=runs,
        last=decode_header(raw, _HEAD.size) if count else None,
        filler=raw[filler_at : filler_at + filler_size],
    )


def write_index(files: FileSystem, folder: Path, segment: Segment) -> None:
    """Write the index file of a segment. Raises: OSError.

    It is not synced: it carries a checksum and can be rebuilt.
    """
    path = index_path(folder, segment.start)
    temporary = path.with_name(path.name + PREPARING)
    if files.exists(temporary):
        files.unlink(temporary)
    with closing(files.open(temporary, create=True)) as file:
        file.pwritev([encode_index(segment)], 0)
    files.rename(temporary, path)


def read_index(files: FileSystem, folder: Path, start: int) -> Segment:
    """Read an index file. Raises: FileNotFoundError, CorruptError, NewerFormatError, OSError."""
    with closing(files.open(index_path(folder, start), writable=False)) as file:
        segment = decode_index(file.pread(file.size(), 0))
    if segment.start != start:
        raise CorruptError("entry index of another segment", 0)
    return segment


def read_index_nowait(file: File) -> Segment | None:
    """Read an open index file, or return None if the page cache does not have it.

    Raises: CorruptError, NewerFormatError, OSError.
    """
    raw = file.pread_nowait(file.size(), 0)
    return None if raw is None else decode_index(raw)


class IndexCache:
    """LRU cache of the offsets of sealed segments, bounded in bytes. It always keeps at least one segment."""

    def __init__(self, max_bytes: int = 8 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._offsets: OrderedDict[int, array[int]] = OrderedDict()

    def get(self, start: int) -> array[int] | None:
        """Return the cached offsets of the segment at `start`, or None."""
        offsets = self._offsets.get(start)
        if offsets is not None:
            self._offsets.move_to_end(start)
        return offsets

    def put(self, start: int, offsets: array[int]) -> None:
        """Cache offsets, evicting the least recently used ones."""
        self.drop(start)
        self._offsets[start] = offsets
        self._bytes += len(offsets) * _UNIT
        while self._bytes > self._max_bytes and len(self._offsets) > 1:
            _, dropped = self._offsets.popitem(last=False)
            self._bytes -= len(dropped) * _UNIT

    def drop(self, start: int) -> None:
        """Forget the segment at `start`."""
        offsets = self._offsets.pop(start, None)
        if offsets is not None:
            self._bytes -= len(offsets) * _UNIT

    def drop_from(self, start: int) -> None:
        """Forget all segments that start at or after `start`."""
        for other in [other for other in self._offsets if other >= start]:
            self.drop(other)
