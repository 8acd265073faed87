"""Segments of the CommitLog: file names, geometry, and the flush marks after the log bytes.

A segment file `commitlog/<20-digit start offset>` holds `segment_size` log bytes and a trailer of two 4 KiB
blocks that is not part of the log. Each block holds one flush mark; turns alternate between them.

Flush mark (little-endian)
     0  4   magic b"LMQF"
     4  u32 version (1)
     8  u32 crc32c over bytes [12, 48)
    12  u32 reserved, 0
    16  u64 turn        counts flush turns of the node, over all segments
    24  u64 start       physical offset from which this turn wrote
    32  u64 end         just past what it wrote
    40  u64 reserved, 0

Why marks: a turn writes many entries with one fdatasync. A power cut may keep any of its blocks and lose
others, so "an invalid entry followed by a valid one" may be a harmless torn turn. A turn begins only once the
previous turn is on stable storage, and the same fdatasync makes its mark durable. Recovery therefore knows
two things about the latest mark. Bytes before its `start` were durable: anything wrong there is damage. Bytes
after its `end` belong to a turn that never finished: nothing there was ever acknowledged.
"""

from __future__ import annotations

import errno
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crc32c import crc32c

from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, fits_segment
from ledgermq.proto.errors import NewerFormatError

from ..disk.files import File, FileSystem
from ..types import LogIndex, Term

MARK_BLOCK: Final = 4096
TRAILER_SIZE: Final = 2 * MARK_BLOCK
#: No entry is larger than segment_size / ENTRY_DIVISOR (D4).
ENTRY_DIVISOR: Final = 4
MIN_SEGMENT_SIZE: Final = 4096
PREPARING: Final = ".preparing"
_PIECE: Final = 4 << 20

_MARK: Final = struct.Struct("<4sIIIQQQQ")
_MARK_MAGIC: Final = b"LMQF"
_MARK_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class FlushMark:
    """Decoded flush mark. `start` and `end` are physical offsets."""

    turn: int  # counts up by one per flush turn; the mark with the highest turn is the latest
    start: int  # bytes before it were durable when this turn began
    end: int  # just past what it wrote; bytes after it belong to a turn that never finished


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Public description of a segment that holds entries."""

    start_offset: int  # physical
    first_index: LogIndex
    last_index: LogIndex
    last_timestamp: int  # log time (ms) of its last entry, which decides its age
    end_offset: int  # just past its last entry


@dataclass(slots=True)
class Segment:
    """Segment in memory. Invariant: if present, `offsets` has `count` ascending items."""

    # physical offset of its first byte; a multiple of the segment size
    start: int
    first_index: LogIndex  # of its first entry, or of the next one while it is empty
    # entry offsets, relative to `start`; None: they are only in the index file
    offsets: array[int] | None = field(default_factory=lambda: array("I"))
    count: int = 0  # number of entries
    # (first index, term) of each run of entries with one term
    runs: list[tuple[LogIndex, Term]] = field(default_factory=list)
    last: EntryHeader | None = None  # header of the last entry; None when there is none
    filler: bytes = b""  # header of the filler that seals it; empty if there is none

    @property
    def last_index(self) -> LogIndex:
        """Index of the last entry; first_index - 1 when there is none."""
        return LogIndex(self.first_index + self.count - 1)

    @property
    def end_offset(self) -> int:
        """Physical offset just past the last entry."""
        return self.last.end if self.last else self.start

    def add(self, header: EntryHeader) -> None:
        """Append an entry."""
        assert self.offsets is not None
        self.offsets.append(header.physical_offset - self.start)
        self.count += 1
        if not self.runs or self.runs[-1][1] != header.term:
            self.runs.append((LogIndex(header.index), Term(header.term)))
        self.last = header

    def cut(self, index: LogIndex, last: EntryHeader | None) -> None:
        """Forget the entries >= `index`. `last` is the header of the new last entry."""
        assert self.offsets is not None
        self.count = index - self.first_index
        del self.offsets[self.count :]
        while self.runs and self.runs[-1][0] >= index:
            self.runs.pop()
        self.last = last
        self.filler = b""

    def info(self) -> SegmentInfo:
        """Return the public description. The segment must hold an entry."""
        assert self.last is not None
        return SegmentInfo(self.start, self.first_index, self.last_index, self.last.timestamp, self.last.end)


def segment_path(folder: Path, start: int) -> Path:
    """Return the path of the segment that starts at physical offset `start`."""
    return folder / f"{start:020d}"


def segment_start(offset: int, segment_size: int) -> int:
    """Return the start of the segment that contains `offset`."""
    return offset - offset % segment_size


def place_entry(end_offset: int, size: int, segment_size: int) -> int:
    """Return where an entry of `size` bytes goes if the log ends at `end_offset`. A filler may come first."""
    room = segment_size - end_offset % segment_size
    return end_offset if fits_segment(size, room) else end_offset + room


def max_entry_size(segment_size: int) -> int:
    """Return the size of the largest allowed entry, including its header."""
    return segment_size // ENTRY_DIVISOR


def encode_mark(mark: FlushMark) -> bytes:
    """Return the bytes of a mark."""
    body = _MARK.pack(_MARK_MAGIC, _MARK_VERSION, 0, 0, mark.turn, mark.start, mark.end, 0)
    return body[:8] + struct.pack("<I", crc32c(body[12:])) + body[12:]


def mark_position(turn: int, segment_size: int) -> int:
    """Return the position of a turn's mark in the segment file."""
    return segment_size + (turn % 2) * MARK_BLOCK


def read_marks(file: File, segment_size: int) -> tuple[FlushMark | None, int]:
    """Return the latest valid mark of a segment file, and the number of blocks that hold something else.

    Raises: NewerFormatError, OSError.
    """
    found: list[FlushMark] = []
    unreadable = 0
    for block in range(2):
        try:
            raw = file.pread(_MARK.size, segment_size + block * MARK_BLOCK)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            unreadable += 1
            continue
        if len(raw) < _MARK.size or raw.count(0) == len(raw):
            continue
        magic, version, crc, _, turn, start, end, _ = _MARK.unpack(raw)
        if magic == _MARK_MAGIC and crc == crc32c(raw[12:]):
            if version > _MARK_VERSION:
                raise NewerFormatError("flush mark", version, _MARK_VERSION)
            found.append(FlushMark(turn, start, end))
        else:
            unreadable += 1
    return max(found, key=lambda mark: mark.turn, default=None), unreadable


def create_segment(
    files: FileSystem, folder: Path, start: int, segment_size: int, pace: Callable[[int], None] | None = None
) -> None:
    """Create an empty segment file: zeros, fsync, rename, directory fsync (rule P17).

    `pace` is called with the number of bytes after each piece and may block. Raises: OSError; no file is left
    then.
    """
    path = segment_path(folder, start)
    temporary = path.with_name(path.name + PREPARING)
    file = files.open(temporary, create=True)
    try:
        size = segment_size + TRAILER_SIZE
        for position in range(0, size, _PIECE):
            file.write_zeros(position, min(position + _PIECE, size))
            file.fdatasync()  # piece by piece: the log's own fsyncs must not queue behind a whole segment
            if pace:
                pace(_PIECE)
    except OSError:
        files.unlink(temporary)
        raise
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_directory(folder)


assert _MARK.size <= MARK_BLOCK and HEADER_SIZE < MIN_SEGMENT_SIZE // ENTRY_DIVISOR
