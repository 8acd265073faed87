"""Reads records and sections of committed entries out of the CommitLog, by the physical offsets of the ConsumeQueues.

Owns: the way from a record to its section and its entry. Must not: wait for a disk on the loop (a cold read goes to the
log's read pool), or look at anything that was not applied: offsets come from ConsumeQueues only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Protocol

from ledgermq.proto.entry import HEADER_SIZE, decode_header
from ledgermq.proto.record import SECTION_HEADER_SIZE, RecordView, decode_record

_DISTANCE: Final = struct.Struct("<I")
#: Base queue offset, count, size, checksum, entry distance: bytes 8 to 32 of a section header (proto/record.py).
_SECTION_FIELDS: Final = struct.Struct("<qIIII")


class LogReads(Protocol):
    """The part of CommitLog that is read here."""

    def read_at_nowait(self, offset: int, size: int) -> memoryview | None: ...

    async def read_at(self, offset: int, size: int) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class StoredSection:
    """A section as it stands in the log, without its bytes."""

    physical_offset: int
    first_queue_offset: int
    count: int
    total_size: int  # header and body, bytes
    store_timestamp: int  # ms of log time, of its entry

    @property
    def end_queue_offset(self) -> int:
        return self.first_queue_offset + self.count

    def holds(self, queue_offset: int) -> bool:
        """Tell whether the record of that offset of the same queue is inside."""
        return self.first_queue_offset <= queue_offset < self.end_queue_offset


class LogReader:
    """Reads through a CommitLog. Errors of the log (compacted, damaged) pass through."""

    def __init__(self, log: LogReads) -> None:
        self._log = log

    async def read(self, offset: int, size: int) -> memoryview:
        """Return log bytes, at once when memory or the page cache has them."""
        data = self._log.read_at_nowait(offset, size)
        return data if data is not None else await self._log.read_at(offset, size)

    async def section_of(self, record_offset: int) -> StoredSection:
        """Return the section of the record at `record_offset`."""
        (distance,) = _DISTANCE.unpack(await self.read(record_offset + 4, 4))
        position = record_offset - distance
        head = await self.read(position, SECTION_HEADER_SIZE)
        base, count, size, _, entry_distance = _SECTION_FIELDS.unpack_from(head, 8)
        entry = decode_header(await self.read(position - entry_distance, HEADER_SIZE))
        return StoredSection(position, base, count, SECTION_HEADER_SIZE + size, entry.timestamp)

    async def section_bytes(self, section: StoredSection) -> memoryview:
        """Return header and body."""
        return await self.read(section.physical_offset, section.total_size)

    async def record(self, offset: int, size: int) -> RecordView:
        """Return one record."""
        return decode_record(await self.read(offset, size))
