"""Batches of entries from a peer, checked before anything trusts them.

Owns: the checks that need no log.   Must not: stage or store.
Raft paper: the core does the consistency check of section 5.3. This module checks bytes.
"""

from __future__ import annotations

import struct
from typing import Final

from ledgermq.proto.entry import (
    HEADER_SIZE,
    Buffer,
    EntryHeader,
    EntryKind,
    fits_segment,
    verify_entry,
    walk_wire,
)
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.values import value

from ..errors import InvalidWireError
from ..types import LogIndex, Term
from .segment import max_entry_size

_SIZE: Final = struct.Struct("<I")
_INDEX: Final = struct.Struct("<Q")


@value
class WireBatch:
    """Checked entries. Fillers are left out because they can be computed."""

    buffer: memoryview  # wire bytes, fillers included
    positions: tuple[int, ...]  # position of each entry in `buffer`; invariant: ascending, one per header
    headers: tuple[EntryHeader, ...]  # invariant: indexes are consecutive, and there is at least one

    @property
    def first_index(self) -> LogIndex:
        return LogIndex(self.headers[0].index)

    @property
    def last_index(self) -> LogIndex:
        return LogIndex(self.headers[-1].index)

    def term_runs(self) -> list[tuple[LogIndex, Term]]:
        """Return (first index, term) of each run of entries with the same term."""
        runs: list[tuple[LogIndex, Term]] = []
        for header in self.headers:
            if not runs or runs[-1][1] != header.term:
                runs.append((LogIndex(header.index), Term(header.term)))
        return runs


def check_wire(buffer: Buffer, segment_size: int) -> WireBatch:
    """Verify checksums, chain, order, places and sizes of at least one entry in wire form.

    Raises: InvalidWireError.
    """
    positions: list[int] = []
    headers: list[EntryHeader] = []
    before: EntryHeader | None = None
    try:
        for position, header in walk_wire(buffer):
            verify_entry(buffer, position, header)
            _check_place(header, segment_size)
            if before is not None:
                _check_follows(before, header)
            if header.kind is not EntryKind.FILLER:
                positions.append(position)
                headers.append(header)
            before = header
    except LayoutError as error:
        raise InvalidWireError(f"entries from a peer are damaged: {error}") from None
    if before is None or before.kind is EntryKind.FILLER:
        raise InvalidWireError("entries from a peer end without an entry")
    return WireBatch(memoryview(buffer).toreadonly(), tuple(positions), tuple(headers))


def last_index_of(data: bytes) -> LogIndex:
    """Return the index of the last entry in unverified wire bytes; 0 if the sizes are impossible (damage)."""
    position, last, end = 0, 0, len(data)
    while position < end:
        if end - position < HEADER_SIZE:
            return LogIndex(0)
        last = position
        filler = data[position + 12] == EntryKind.FILLER
        size: int = HEADER_SIZE if filler else _SIZE.unpack_from(data, position + 8)[0]
        if size < HEADER_SIZE:  # also prevents an endless loop
            return LogIndex(0)
        position += size
    return LogIndex(_INDEX.unpack_from(data, last + 16)[0] if end and position == end else 0)


def _check_place(header: EntryHeader, segment_size: int) -> None:
    """Check that an entry or filler is allowed at its offset."""
    room = segment_size - header.physical_offset % segment_size
    if header.kind is EntryKind.FILLER:
        if header.size != room:
            raise InvalidWireError(f"a filler at offset {header.physical_offset} does not close its segment")
    elif header.size > max_entry_size(segment_size) or not fits_segment(header.size, room):
        raise InvalidWireError(
            f"entry {header.index} of {header.size} bytes may not stand at offset {header.physical_offset}"
            f" of segments of {segment_size} bytes"
        )


def _check_follows(before: EntryHeader, header: EntryHeader) -> None:
    """Check that an entry or filler continues the one before it."""
    step = 0 if header.kind is EntryKind.FILLER else 1
    if header.index != before.index + step:
        raise InvalidWireError(f"entry {header.index} follows entry {before.index}")
    if header.physical_offset != before.end or header.prev_crc != before.crc:
        raise InvalidWireError(f"entry {header.index} does not chain to entry {before.index}")
    if header.term < before.term or header.timestamp < before.timestamp:
        raise InvalidWireError(f"entry {header.index} goes back in term or time")
