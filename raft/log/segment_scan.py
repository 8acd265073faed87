"""Segment scan: reads a segment from its first byte and reports how far it is valid.

Owns: nothing.   Must not: change a file, or decide what a finding means (recovery.py does).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final

from ledgermq.proto.entry import (
    ALIGNMENT,
    HEADER_SIZE,
    MAGIC_WORD,
    EntryHeader,
    EntryKind,
    decode_header,
    fits_segment,
    verify_entry,
)
from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..damage import Before
from ..disk.files import File
from ..types import LogIndex
from .segment import Segment, max_entry_size

_CHUNK: Final = 2 << 20  # measured: larger pieces are slower to read, because their memory is never reused
_BLOCK: Final = 512  # smallest unit of a disk that can be unreadable
_MAGIC_BYTES: Final = MAGIC_WORD.to_bytes(4, "little")
#: Comparing with zeros is twenty times as fast as stripping them, and most of a log's last segment is zeros.
_PIECE: Final = 1 << 20
_ZEROS: Final = bytes(_PIECE)


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """Result of a scan: `segment` holds the valid entries up to `end`, a position in the file."""

    segment: Segment
    end: int
    sealed: bool  # the next entry belongs to the next segment
    reason: str  # why the scan stopped; empty: sealed, or only zeros where the next entry would start
    # what the next entry must continue: the last valid entry, or the filler that seals the segment
    before: Before


def read_around(file: File, size: int, position: int) -> bytes:
    """Read like `pread`, with zeros in place of unreadable blocks, which are damage like any other.

    Raises: OSError for every error but EIO.
    """
    try:
        return file.pread(size, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    out = bytearray()
    while len(out) < size:
        want = min(_BLOCK - (position + len(out)) % _BLOCK, size - len(out))
        try:
            piece = file.pread(want, position + len(out))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            piece = bytes(want)
        if not piece:
            break
        out += piece
    return bytes(out)


class _Window:
    """Sequential reader of a file in large pieces."""

    def __init__(self, file: File, size: int, chunk: int) -> None:
        self._file = file
        self._size = size
        self._chunk = chunk
        self._start = 0
        self._data = b""

    def at(self, position: int, size: int) -> tuple[bytes, int]:
        """Return (data, index into it) such that `size` bytes at `position` are inside, or fewer at the end
        of the file.
        """
        if position < self._start or position + size > self._start + len(self._data):
            self._start = position
            self._data = read_around(self._file, min(max(size, self._chunk), self._size - position), position)
        return self._data, position - self._start


def scan_segment(
    file: File,
    start: int,
    segment_size: int,
    before: Before,
    position: int = 0,
    limit: int | None = None,
    chunk: int = _CHUNK,
    headers: bytearray | None = None,
) -> SegmentScan:
    """Verify the entries of a segment one by one: checksum, chain, order, place.

    Starts at `position`, where the entry after `before` must be. Ignores everything that begins at or after
    `limit` (both are positions in the file). Everything below `limit` was accepted earlier, so nothing there
    is of a newer build. Reads `chunk` bytes at a time. `headers` receives the 64 bytes of each valid
    entry and filler. Raises: NewerFormatError, OSError.
    """
    segment = Segment(start, LogIndex(before.index + 1))
    window = _Window(file, segment_size, chunk)
    stop = segment_size if limit is None else min(limit, segment_size)
    while position < stop:
        data, place = window.at(position, HEADER_SIZE)
        if data[place : place + HEADER_SIZE].count(0) == HEADER_SIZE:
            return SegmentScan(segment, position, False, "", before)
        try:
            header = decode_header(data, place)
            check_continues(header, before, start + position, segment_size, position)
            data, place = window.at(position, header.wire_size)
            verify_entry(data, place, header)
        except CorruptError as error:
            return SegmentScan(segment, position, False, error.reason, before)
        except NewerFormatError as error:
            # The checksum does not cover the version. A newer build would not have written old-format entries
            # after it.
            if limit is None and find_valid_entry(file, start, segment_size, position + 1) is None:
                raise
            return SegmentScan(segment, position, False, str(error), before)
        before = Before.after(header)
        if headers is not None:
            headers += data[place : place + HEADER_SIZE]
        if header.kind is EntryKind.FILLER:
            segment.filler = bytes(data[place : place + HEADER_SIZE])
            return SegmentScan(segment, segment_size, True, "", before)
        segment.add(header)
        position += header.size
    return SegmentScan(segment, position, position == segment_size, "", before)


def check_continues(
    header: EntryHeader, before: Before, offset: int, segment_size: int, position: int
) -> None:
    """Check the place and chain of an entry or filler. Raises: CorruptError."""
    filler = header.kind is EntryKind.FILLER
    room = segment_size - position
    if header.physical_offset != offset or header.prev_crc != before.crc:
        raise CorruptError("an entry that does not continue the one before it", position)
    if header.index != before.index + (0 if filler else 1) or header.term < before.term:
        raise CorruptError("an entry out of order", position)
    if (header.size != room) if filler else not fits_segment(header.size, room):
        raise CorruptError("an entry that does not fit its segment", position)
    if not filler and header.size > max_entry_size(segment_size):
        raise CorruptError("an entry above the size limit", position)


def find_valid_entry(file: File, start: int, segment_size: int, position: int) -> int | None:
    """Return the first position >= `position` with an entry that names its own place and has a good checksum.

    Raises: NewerFormatError, OSError.
    """
    for begin in range(position, segment_size, _CHUNK):
        # Magics are aligned, so none spans two pieces that begin at aligned positions.
        begin &= ~(ALIGNMENT - 1)
        data = read_around(file, min(_CHUNK, segment_size - begin), begin)
        place = data.find(_MAGIC_BYTES)
        while place >= 0:
            found = begin + place
            if found >= position and found % ALIGNMENT == 0 and _is_entry(file, start + found, found):
                return found
            place = data.find(_MAGIC_BYTES, place + 1)
    return None


def _is_entry(file: File, offset: int, position: int) -> bool:
    """Return whether a whole valid entry or filler is at a position."""
    try:
        raw = read_around(file, HEADER_SIZE, position)
        header = decode_header(raw)
        if header.physical_offset != offset:
            return False
        verify_entry(read_around(file, header.wire_size, position), 0, header)
    except (CorruptError, NewerFormatError):
        return False
    return True


def last_nonzero(file: File, position: int, end: int) -> int:
    """Return the position just past the last nonzero byte in [position, end); `position` if all are zero."""
    while end > position:
        begin = max(position, end - _PIECE)
        data = read_around(file, end - begin, begin)
        if data != (_ZEROS if len(data) == _PIECE else bytes(len(data))):
            return begin + len(data.rstrip(b"\0"))
        end = begin
    return position
