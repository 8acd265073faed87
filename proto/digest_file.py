"""File with the block digests of one log segment: `blockdigest/<20-digit start of the segment>`.

Pure. A node writes it beside its log once it has read and verified the entries; a digest dump copies it.
What it claims: at `read_from_ms` to `read_to_ms` the node read the bytes [start, end) of its log from its
disk, their checksums and their chain were right, and the blocks have these digests. It says nothing about
the disk since then.

Little-endian:
     0   4  magic b"LMQD"            4  u32 version (1)        8  u32 crc32c over bytes [12, end)
    12  u32 rows                    16  u64 incarnation of the node's data folder
    24  u64 start of the segment    32  u64 end: physical offset just past the last digested entry
    40  u64 read_from_ms            48  u64 read_to_ms         56  u64 reserved, 0
    64  64  header of the first entry
   128  64  header of the last entry, or of the filler that closes the segment
   192  64 bytes per row: DIGEST_DTYPE (block_digest.py), by block
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from crc32c import crc32c

from .block_digest import BLOCK_SIZE, DIGEST_DTYPE, Digests
from .entry import HEADER_SIZE, EntryHeader, decode_header, encode_header
from .errors import CorruptError, NewerFormatError

#: Name of the folder, in a node's data folder and in a dump.
DIGESTS: Final = "blockdigest"
VERSION: Final = 1
_MAGIC: Final = b"LMQD"
_HEAD: Final = struct.Struct("<4sIIIQQQQQQ")
_ROWS_AT: Final = _HEAD.size + 2 * HEADER_SIZE
_ROW: Final = DIGEST_DTYPE.itemsize
#: A segment has at most 4 GiB and may begin and end inside a block.
MAX_ROWS: Final = (4 << 30) // BLOCK_SIZE + 1
MAX_FILE_SIZE: Final = _ROWS_AT + MAX_ROWS * _ROW
_LARGEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class SegmentDigests:
    """Digests of the entries in [start, end) of one segment. Offsets are physical, times in ms."""

    incarnation: int
    start: int  # of the segment
    end: int  # just past `last`
    read_from_ms: int
    read_to_ms: int
    first: EntryHeader
    last: EntryHeader  # an entry, or the filler that closes the segment
    rows: Digests

    def ends(self) -> list[int]:
        """Return for each row the offset just past its last entry: where the next row's first entry is."""
        return [*self.rows["first_offset"][1:].tolist(), self.end]


def encode_digests(digests: SegmentDigests) -> bytes:
    """Return the bytes of a file."""
    d = digests
    raw = bytearray(
        _HEAD.pack(
            _MAGIC, VERSION, 0, len(d.rows), d.incarnation, d.start, d.end, d.read_from_ms, d.read_to_ms, 0
        )
    )
    raw += encode_header(d.first) + encode_header(d.last) + d.rows.tobytes()
    raw[8:12] = struct.pack("<I", crc32c(memoryview(raw)[12:]))
    return bytes(raw)


def decode_digests(raw: bytes) -> SegmentDigests:
    """Decode a file and check that it agrees with itself.

    Raises: CorruptError, NewerFormatError.
    """
    if len(raw) < _ROWS_AT or raw[:4] != _MAGIC:
        raise CorruptError("not a file of block digests", 0)
    _, version, crc, count, incarnation, start, end, read_from, read_to, _ = _HEAD.unpack_from(raw)
    if version > VERSION:
        raise NewerFormatError("block digests", version, VERSION)
    if version != VERSION or crc != crc32c(memoryview(raw)[12:]):
        raise CorruptError("the checksum of its block digests is wrong", 0)
    if not 0 < count <= MAX_ROWS or len(raw) != _ROWS_AT + count * _ROW:
        raise CorruptError(f"{len(raw)} bytes cannot hold {count} block digests", 12)
    first, last = decode_header(raw, _HEAD.size), decode_header(raw, _HEAD.size + HEADER_SIZE)
    rows = np.frombuffer(raw, DIGEST_DTYPE, count, _ROWS_AT)
    digests = SegmentDigests(incarnation, start, end, read_from, read_to, first, last, rows)
    if max(start, end, read_from, read_to, incarnation) > _LARGEST or not _is_whole(digests):
        raise CorruptError("its block digests contradict each other", _ROWS_AT)
    return digests


def _is_whole(digests: SegmentDigests) -> bool:
    """Return whether the rows cover [start, end) without gaps, from the first entry to the last one."""
    rows, first, last = digests.rows, digests.first, digests.last
    offsets = rows["first_offset"]
    ends = np.append(offsets[1:], digests.end)
    return bool(
        first.physical_offset == digests.start == offsets[0]
        and last.end == digests.end
        and last.physical_offset >= offsets[-1]
        and first.index == rows["first_index"][0]
        and last.index == rows["last_index"][-1]
        and np.all(offsets >= 0)
        and np.all(rows["block"] == offsets // BLOCK_SIZE)
        and np.all(np.diff(rows["block"]) > 0)
        and np.all(rows["size"] == ends - offsets)
        and np.all(rows["entries"] >= 1)
        and np.all(rows["entries"] <= rows["size"] // HEADER_SIZE)
        and np.all(rows["first_index"] <= rows["last_index"])
        and np.all(rows["first_index"][1:] - rows["last_index"][:-1] <= 1)
        and np.all(rows["first_index"][1:] >= rows["last_index"][:-1])
    )
