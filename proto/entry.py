"""Layout of a log entry in the CommitLog, on the wire between nodes, and in dumps.

Little-endian. An entry is a 64-byte header, the payload, and zero padding to a multiple of 8 bytes.
The payload of RECORDS: `record.py`.

     0  u32  magic + version   b"LMQ" + version byte (1)
     4  u32  crc32c            over bytes [8, size); of a filler: over bytes [8, 64)
     8  u32  size              header + payload + padding, multiple of 8; of a filler: up to the segment's end
    12  u8   kind              EntryKind
    13  u8   flags             0
    14  u16  section count     sections in the payload (RECORDS only, else 0)
    16  u64  index             Raft log index; a filler carries the index of the entry before it
    24  u64  term
    32  u64  physical offset   position of this header in the log: entries locate themselves
    40  u64  timestamp         log time, ms since the epoch (D21), never decreasing
    48  u32  prev_crc          crc32c field of the entry (or filler) before it: the chain. 0 before the first
    52  u32  payload size      bytes, without padding
    56  u64  reserved          0

A filler closes a segment. On disk it is followed by zeros up to the segment's end. On the wire only its
header is sent, before the next entry. It is a pure function of the entry before it and the segment size.

Invariant: inside a segment of S bytes, an entry either ends exactly at S or leaves room for a filler header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import numpy as np
from crc32c import crc32c

from .errors import CorruptError, NewerFormatError
from .values import value

MAGIC: Final = b"LMQ"
VERSION: Final = 1
MAGIC_WORD: Final = int.from_bytes(MAGIC + bytes([VERSION]), "little")
HEADER_SIZE: Final = 64
ALIGNMENT: Final = 8
MAX_SECTION_COUNT: Final = 0xFFFF  # limit of the 16-bit field in the header

_HEADER: Final = struct.Struct("<IIIBBHQQQQIIQ")
assert _HEADER.size == HEADER_SIZE

#: The header as a numpy type: `np.frombuffer(header_bytes, HEADER_DTYPE)`.
HEADER_DTYPE: Final = np.dtype(
    [
        ("magic", "<u4"),
        ("crc", "<u4"),
        ("size", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("section_count", "<u2"),
        ("index", "<u8"),
        ("term", "<u8"),
        ("physical_offset", "<u8"),
        ("timestamp", "<u8"),
        ("prev_crc", "<u4"),
        ("payload_size", "<u4"),
        ("reserved", "<u8"),
    ]
)

Buffer = bytes | bytearray | memoryview


class EntryKind(IntEnum):
    """Kind of an entry. An unknown kind stops a node (D23): it must not guess."""

    RECORDS = 1  # sections of records and state commands, applied by the broker
    NOOP = 2  # first entry of a term
    CONFIGURATION = 3  # voters and learners of the broker group
    FILLER = 4  # closes a segment; has no index of its own


_KINDS: Final = {int(kind): kind for kind in EntryKind}


@value
class EntryHeader:
    """Decoded entry header. The layout above defines each field."""

    crc: int  # of everything after this field; the next entry chains to it
    size: int  # bytes in the log; invariant: a multiple of ALIGNMENT
    kind: EntryKind
    section_count: int  # 0 unless `kind` is RECORDS
    index: int  # Raft index; a filler repeats that of the entry before it
    term: int  # never lower than that of the entry before
    physical_offset: int  # of this header, as stored: entries locate themselves
    timestamp: int  # log time in ms; never lower than that of the entry before
    prev_crc: int  # `crc` of the entry or filler before it; 0 at the start of a new log
    payload_size: int  # bytes, without padding

    @property
    def end(self) -> int:
        """Physical offset just past the entry."""
        return self.physical_offset + self.size

    @property
    def wire_size(self) -> int:
        """Bytes that the entry takes between nodes. Of a filler only the header is sent."""
        return HEADER_SIZE if self.kind is EntryKind.FILLER else self.size


def padded(size: int) -> int:
    """Round `size` bytes up to the alignment of the log."""
    return (size + ALIGNMENT - 1) & ~(ALIGNMENT - 1)


def entry_size(payload_size: int) -> int:
    """Return the bytes that an entry with `payload_size` payload bytes takes in the log."""
    return HEADER_SIZE + padded(payload_size)


def fits_segment(size: int, room: int) -> bool:
    """Return whether an entry of `size` bytes may start where its segment has `room` bytes left."""
    return size == room or size + HEADER_SIZE <= room


def encode_entry(
    kind: EntryKind,
    parts: list[Buffer],
    *,
    section_count: int,
    index: int,
    term: int,
    physical_offset: int,
    timestamp: int,
    prev_crc: int,
) -> bytearray:
    """Return a whole entry: header, the joined `parts`, padding. Copies the payload once."""
    payload_size = sum(len(part) for part in parts)
    size = entry_size(payload_size)
    # joined, since a buffer of that size would be filled with zeros first
    out = bytearray().join((bytes(HEADER_SIZE), *parts, bytes(size - HEADER_SIZE - payload_size)))
    _HEADER.pack_into(
        out, 0, MAGIC_WORD, 0, size, kind, 0, section_count,
        index, term, physical_offset, timestamp, prev_crc, payload_size, 0,
    )  # fmt: skip
    struct.pack_into("<I", out, 4, crc32c(memoryview(out)[8:]))
    return out


def encode_header(header: EntryHeader) -> bytes:
    """Return the 64 bytes of a decoded header, with its own checksum."""
    return _HEADER.pack(
        MAGIC_WORD, header.crc, header.size, header.kind, 0, header.section_count, header.index, header.term,
        header.physical_offset, header.timestamp, header.prev_crc, header.payload_size, 0,
    )  # fmt: skip


def encode_filler(previous: EntryHeader, segment_end: int) -> bytearray:
    """Return the 64-byte header that closes a segment after `previous`.

    The rest of the segment stays zero.
    """
    offset = previous.end
    out = bytearray(HEADER_SIZE)
    _HEADER.pack_into(
        out, 0, MAGIC_WORD, 0, segment_end - offset, EntryKind.FILLER, 0, 0,
        previous.index, previous.term, offset, previous.timestamp, previous.crc, 0, 0,
    )  # fmt: skip
    struct.pack_into("<I", out, 4, crc32c(memoryview(out)[8:]))
    return out


def decode_header(buffer: Buffer, position: int = 0) -> EntryHeader:
    """Decode the header at `position`. Checks the structure, not the checksum (see `verify_entry`).

    Raises: CorruptError (no header there, impossible sizes), NewerFormatError.
    """
    if len(buffer) - position < HEADER_SIZE:
        raise CorruptError("entry header cut short", position)
    (
        magic, crc, size, kind, flags, section_count,
        index, term, physical_offset, timestamp, prev_crc, payload_size, reserved,
    ) = _HEADER.unpack_from(buffer, position)  # fmt: skip
    if magic != MAGIC_WORD:
        raw = magic.to_bytes(4, "little")
        if raw[:3] == MAGIC and raw[3] > VERSION:
            raise NewerFormatError("log entry", raw[3], VERSION)
        raise CorruptError("no entry magic", position)
    known_kind = _KINDS.get(kind)
    if known_kind is None:
        raise CorruptError(f"unknown entry kind {kind}", position)
    if flags or reserved:
        raise CorruptError("reserved header bits are set", position)
    filler = known_kind is EntryKind.FILLER
    if (filler and (size < HEADER_SIZE or size % ALIGNMENT or payload_size)) or (
        not filler and size != entry_size(payload_size)
    ):
        raise CorruptError("entry size does not fit its payload size", position)
    return EntryHeader(
        crc, size, known_kind, section_count, index, term, physical_offset, timestamp, prev_crc, payload_size
    )


def verify_entry(buffer: Buffer, position: int, header: EntryHeader) -> None:
    """Check the checksum of the entry at `position`, whose bytes must all be in `buffer`.

    Raises: CorruptError.
    """
    end = position + header.wire_size
    if end > len(buffer):
        raise CorruptError("entry cut short", position)
    if crc32c(memoryview(buffer)[position + 8 : end]) != header.crc:
        raise CorruptError("entry checksum mismatch", position)


def walk_wire(buffer: Buffer) -> Iterator[tuple[int, EntryHeader]]:
    """Yield (position, header) of each entry in wire form (fillers as headers only), unverified.

    Raises: CorruptError, NewerFormatError.
    """
    position, end = 0, len(buffer)
    while position < end:
        header = decode_header(buffer, position)
        yield position, header
        position += header.wire_size
    if position != end:
        raise CorruptError("last entry cut short", position)
