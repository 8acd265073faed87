"""Reader of records and sections in the CommitLog: ConsumeQueue → record → section.

Owns: the path from a record to its section and its entry.   Must not: block on a disk on the event loop (a
cold read goes to the log's read pool), or read entries that are not applied: offsets come from ConsumeQueues
only.
Invariant: no data of an entry is returned before its checksum was verified in this process.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import numpy as np

from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, decode_header, verify_entry
from ledgermq.proto.errors import CorruptError, NewerFormatError
from ledgermq.proto.record import SECTION_HEADER_SIZE, RecordView, decode_record
from ledgermq.proto.values import value
from ledgermq.raft.errors import DamagedLogError, LogCompactedError

from ..state.machine import BrokerState

_DISTANCE: Final = struct.Struct("<I")
#: Base queue offset, count, size, checksum, entry distance: bytes 8 to 32 of a section header
#: (proto/record.py).
_SECTION_FIELDS: Final = struct.Struct("<qIIII")
#: Maximum of remembered entries with a verified checksum.
_CHECKED_ENTRIES: Final = 8192
#: Maximum of repairs per read; each repairs one place.
_MAX_REPAIRS: Final = 4

_T = TypeVar("_T")


class ReadableLog(Protocol):
    """The part of CommitLog that LogReader uses."""

    @property
    def segment_size(self) -> int: ...

    def damage_at(self, offset: int, reason: str) -> DamagedLogError: ...

    def read_at_nowait(self, offset: int, size: int) -> memoryview | None: ...

    async def read_at(self, offset: int, size: int) -> memoryview: ...


@value
class StoredSection:
    """Place of a section in the log."""

    physical_offset: int  # of its header
    first_queue_offset: int
    count: int  # records
    total_size: int  # header and body, bytes
    store_timestamp: int  # log time (ms) of its entry

    @property
    def end_queue_offset(self) -> int:
        return self.first_queue_offset + self.count

    def holds(self, queue_offset: int) -> bool:
        """Tell whether it holds the record at that offset of its queue."""
        return self.first_queue_offset <= queue_offset < self.end_queue_offset


class LogReader:
    """Reader of a CommitLog. Errors of the log (compacted, damaged) are passed on."""

    def __init__(
        self, log: ReadableLog, repair: Callable[[DamagedLogError], Awaitable[bool]] | None = None
    ) -> None:
        """`repair` is called before a DamagedLogError is raised; True: the bytes are repaired, read again."""
        self._log = log
        self._repair = repair
        # Headers of verified entries by physical offset, oldest first.
        self._checked: OrderedDict[int, EntryHeader] = OrderedDict()

    async def read(self, offset: int, size: int) -> memoryview:
        """Return log bytes; without waiting if memory or the page cache has them."""
        data = self._log.read_at_nowait(offset, size)
        return data if data is not None else await self._log.read_at(offset, size)

    async def section_of(self, record_offset: int) -> StoredSection:
        """Return the section of the record at `record_offset`. Raises: DamagedLogError, LogCompactedError."""
        return await self._repaired(lambda: self._section_of(record_offset))

    async def _section_of(self, record_offset: int) -> StoredSection:
        (distance,) = _DISTANCE.unpack(await self.read(record_offset + 4, 4))
        position = record_offset - distance
        self._check_inside(position, record_offset)
        head = await self.read(position, SECTION_HEADER_SIZE)
        base, count, size, _, entry_distance = _SECTION_FIELDS.unpack_from(head, 8)
        entry = await self._entry_at(position - entry_distance, record_offset)
        return StoredSection(position, base, count, SECTION_HEADER_SIZE + size, entry.timestamp)

    async def _entry_at(self, offset: int, record_offset: int) -> EntryHeader:
        """Return the header of the entry that holds a record, its checksum verified once."""
        found = self._checked.get(offset)
        if found is None or record_offset >= found.end:
            self._check_inside(offset, record_offset)
            try:
                found = decode_header(await self.read(offset, HEADER_SIZE))
                if found.physical_offset != offset or not offset < record_offset < found.end:
                    raise self._damaged(record_offset, "the record does not lead to its entry")
                verify_entry(await self.read(offset, found.size), 0, found)
            except CorruptError as error:
                raise self._damaged(offset, error.reason) from None
            except NewerFormatError as error:
                raise self._damaged(offset, str(error)) from None
            self._checked[offset] = found
            if len(self._checked) > _CHECKED_ENTRIES:
                self._checked.popitem(last=False)
        return found

    def _check_inside(self, offset: int, record_offset: int) -> None:
        """Check that an offset is before the record, in its segment. Raises: DamagedLogError."""
        if not record_offset - record_offset % self._log.segment_size <= offset < record_offset:
            raise self._damaged(record_offset, "the record does not lead to its entry")

    def _damaged(self, offset: int, reason: str) -> DamagedLogError:
        return self._log.damage_at(offset, reason)

    async def _repaired(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """Read. If the log is damaged there, repair it and read again. Raises: DamagedLogError."""
        for _ in range(_MAX_REPAIRS):
            try:
                return await read()
            except DamagedLogError as error:
                if self._repair is None or not await self._repair(error):
                    raise
        return await read()

    async def section_bytes(self, section: StoredSection) -> memoryview:
        """Return header and body."""
        return await self._repaired(lambda: self.read(section.physical_offset, section.total_size))

    async def record(self, offset: int, size: int) -> RecordView:
        """Return one record."""
        return decode_record(await self._repaired(lambda: self.read(offset, size)))


class AppliedQueues(Protocol):
    """The part of Replica that QueueReader uses."""

    @property
    def state(self) -> BrokerState: ...

    async def units(self, topic_id: int, queue_id: int, offset: int, count: int) -> np.ndarray: ...


class QueueReader:
    """Reader of the ConsumeQueues and the log."""

    def __init__(self, queues: AppliedQueues, log: LogReader) -> None:
        self._queues = queues
        self._log = log

    async def section_at(self, topic_id: int, queue_id: int, offset: int) -> StoredSection | None:
        """Return the section that holds a queue offset; None: the offset is no longer stored.

        Raises: QueueNotFoundError, LogCompactedError.
        """
        units = await self._queues.units(topic_id, queue_id, offset, 1)
        return await self._log.section_of(int(units["physical_offset"][0])) if len(units) else None

    async def section_bytes(self, section: StoredSection) -> memoryview:
        """Return header and body of a section. Raises: LogCompactedError."""
        return await self._log.section_bytes(section)

    async def stored_at(self, topic_id: int, queue_id: int, offset: int) -> int | None:
        """Return the log time (ms) at which a message was stored; None: it is no longer stored.

        Raises: as `section_at`.
        """
        section = await self.section_at(topic_id, queue_id, offset)
        return None if section is None else section.store_timestamp

    async def offset_at_time(self, topic_id: int, queue_id: int, timestamp: int) -> int:
        """Return the first queue offset stored at or after `timestamp` (log time, ms), or the queue's end.

        Raises: QueueNotFoundError.
        """
        queue = self._queues.state.queues.named(topic_id, queue_id)
        low, high = queue.begin, queue.end
        while low < high:
            middle = (low + high) // 2
            try:
                section = await self.section_at(topic_id, queue_id, middle)
            except LogCompactedError:
                section = None
            if section is None or section.store_timestamp < timestamp:
                low = middle + 1 if section is None else min(section.end_queue_offset, high)
            else:
                high = max(section.first_queue_offset, low)
        return low
