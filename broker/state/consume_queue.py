"""ConsumeQueues: an index from queue offsets to the records' physical offsets in the CommitLog (D13).

A unit is 20 bytes, little-endian: i64 physical offset of the record · i32 its size · i64 tag hash. A file
holds 300,000 units. A unit has no room for a checksum of its own, and a flipped bit in one would silently
send a reader to another place of the log, or past a filter. The state therefore has a crc32c over the units
of each block, the last one up to the queue's end. They are built with the queue, so they are equal on all
nodes, and stored in checkpoints.

Owns: the ends of all queues, the checksums of their blocks, and the tails in memory.
Must not: touch files (consume_queue_files.py does).
Invariants: begin <= end; tail_start <= written <= end. Units below `written` are in files and never change.
Queues are built from committed entries only, so they are never truncated. A tail array is never modified in
place below `end`, and is replaced when it grows or is trimmed, so a thread may write out a view of it. Units
from a file are used only after the checksum of their block is verified.
"""

from __future__ import annotations

import struct
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from crc32c import crc32c

from ledgermq.proto.entry import HEADER_SIZE, Buffer, EntryHeader, EntryKind
from ledgermq.proto.errors import CorruptError
from ledgermq.proto.record import (
    RECORD_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    TAG_WORD,
    RecordWords,
    SectionHeader,
    SectionKind,
    walk_sections,
)

from ..errors import ConsumeQueueError, QueueNotFoundError

UNIT_DTYPE: Final = np.dtype([("physical_offset", "<i8"), ("size", "<i4"), ("tag_hash", "<i8")])
UNIT_SIZE: Final = UNIT_DTYPE.itemsize
UNITS_PER_FILE: Final = 300_000
#: Number of units that are read, verified and cached together. A file is a whole number of blocks.
BLOCK_UNITS: Final = 2_000
_BLOCK_BYTES: Final = BLOCK_UNITS * UNIT_SIZE
#: Number of units per queue that stay in memory after they are written.
TAIL_UNITS: Final = 1_000
_CACHED_BLOCKS: Final = 256
assert UNIT_SIZE == 20
assert UNITS_PER_FILE % BLOCK_UNITS == 0

_UNIT: Final = struct.Struct("<qiq")
_SIZE: Final = struct.Struct("<I")
_TAG: Final = struct.Struct("<q")
_FIRST: Final = np.zeros(1, np.int64)
_FIRST.flags.writeable = False

QueueKey = tuple[int, int]  # topic id, queue id


def record_starts(body: Buffer, count: int) -> np.ndarray:
    """Return the positions (int64) of the records in the body of a committed section.

    The section's checksum is trusted.
    Raises: CorruptError (the sizes do not fill the body: a bug in our own writer).
    """
    if count == 1 and len(body) >= RECORD_HEADER_SIZE and _SIZE.unpack_from(body)[0] == len(body):
        return _FIRST
    words = np.frombuffer(body, "<u4")
    end = len(words)
    size = int(words[0]) // 4 if end else 0
    if size * count == end and count and bool((words[::size] == words[0]).all()):
        return np.arange(count, dtype=np.int64) * (4 * size)  # fast path: records of equal size
    starts, position, item = [0] * count, 0, words.item
    for i in range(count):
        if position >= end:
            break
        starts[i] = position
        position += max(item(position) >> 2, RECORD_HEADER_SIZE // 4)
    else:
        if position == end:
            return np.array(starts, np.int64) * 4
    raise CorruptError("records do not fill their section", 4 * position)


def record_sections(
    header: EntryHeader, payload: memoryview
) -> Iterator[tuple[SectionHeader, memoryview, int]]:
    """Yield (header, body, physical offset of the body) of the sections of records in a committed entry."""
    if header.kind is EntryKind.RECORDS:
        for position, section in walk_sections(payload, header.section_count):
            if section.kind is SectionKind.RECORDS:
                start = position + SECTION_HEADER_SIZE
                body = payload[start : start + section.size]
                yield section, body, header.physical_offset + HEADER_SIZE + start


def units_of(body: Buffer, starts: np.ndarray, physical_offset: int) -> np.ndarray:
    """Return the units of the records at `starts`; `physical_offset` is that of the body."""
    if len(starts) == 1:  # fast path: array operations cost more than one record
        start = int(starts[0])
        (size,), (tag_hash,) = _SIZE.unpack_from(body, start), _TAG.unpack_from(body, start + 8 * TAG_WORD)
        return np.frombuffer(_UNIT.pack(start + physical_offset, size, tag_hash), UNIT_DTYPE)
    units = np.empty(len(starts), UNIT_DTYPE)
    units["physical_offset"] = starts + physical_offset
    words = RecordWords(body, starts)
    units["size"] = words.column(0)  # its low half
    units["tag_hash"] = words.column(TAG_WORD).view(np.int64)
    return units


class QueueSums:
    """Block checksums of one queue.

    Invariant: `complete` holds the checksums from `first_block` to the last complete block; `open` is that of
    the incomplete block at the queue's end, 0 while that block is empty.
    """

    __slots__ = ("complete", "first_block", "open")

    def __init__(self, first_block: int = 0, complete: bytes = b"", open_sum: int = 0) -> None:
        self.first_block = first_block
        self.complete: array[int] = array("I", complete)
        self.open = open_sum  # of the units of the last, incomplete block

    @classmethod
    def behind_hole(cls, end: int) -> QueueSums:
        """Return the checksums of a queue that begins at `end`; its sparse files read as zeros before it."""
        return cls(
            end // BLOCK_UNITS, b"", crc32c(bytes(end % BLOCK_UNITS * UNIT_SIZE)) if end % BLOCK_UNITS else 0
        )

    def append(self, raw: Buffer, end: int) -> None:
        """Extend the checksums by the units that were added to a queue that ended at `end`."""
        view, done = memoryview(raw), 0
        while done < len(view):
            room = _BLOCK_BYTES - (end * UNIT_SIZE + done) % _BLOCK_BYTES
            part = view[done : done + room]
            self.open = crc32c(part, self.open)
            done += len(part)
            if len(part) == room:
                self.complete.append(self.open)
                self.open = 0

    def of_block(self, block: int) -> int:
        """Return the checksum over the units of a block, up to the queue's end."""
        place = block - self.first_block
        return self.complete[place] if place < len(self.complete) else self.open

    def from_block(self, block: int) -> tuple[int, bytes, int]:
        """Return (first block, complete, open) without the blocks before `block`: the arguments of a copy."""
        gone = max(block - self.first_block, 0)
        return self.first_block + gone, self.complete[gone:].tobytes(), self.open

    def replace(self, block: int, value: int) -> None:
        """Overwrite the checksum of a block."""
        place = block - self.first_block
        if place < len(self.complete):
            self.complete[place] = value
        else:
            self.open = value


class ConsumeQueue:
    """One queue: its range of offsets and its newest units."""

    __slots__ = ("_tail", "_tail_start", "begin", "end", "folder", "key", "sums", "written")

    def __init__(
        self, key: QueueKey, folder: str, begin: int = 0, end: int = 0, sums: QueueSums | None = None
    ) -> None:
        """`folder`: its topic's folder in `consumequeue/`. `sums`: checksums of the units below `end`."""
        self.key = key
        self.folder = folder
        self.begin = begin  # first stored offset; never moves back
        self.end = end  # one past the last offset
        self.written = end  # units below it are in files
        self.sums = sums or QueueSums.behind_hole(end)
        self._tail_start = end  # offset of _tail[0]
        self._tail = np.empty(0, UNIT_DTYPE)  # capacity may exceed end - _tail_start

    @property
    def tail_start(self) -> int:
        """First offset of the units in memory, which reach up to `end`."""
        return self._tail_start

    def append(self, units: np.ndarray) -> None:
        """Add units at the end."""
        used = self.end - self._tail_start
        need = used + len(units)
        if need > len(self._tail):
            grown = np.empty(max(64, need + need // 2), UNIT_DTYPE)
            grown[:used] = self._tail[:used]
            self._tail = grown
        self._tail[used:need] = units
        self.sums.append(units.tobytes(), self.end)
        self.end += len(units)

    def tail(self, start: int, stop: int) -> np.ndarray:
        """Return a read-only view of the units [start, stop), which must be in memory."""
        assert self._tail_start <= start <= stop <= self.end
        return self._tail[start - self._tail_start : stop - self._tail_start]

    def is_right(self, block: int, raw: Buffer) -> bool:
        """Tell whether `raw`, the units of a block up to `tail_start` or beyond, match the checksum."""
        return self.error_of(block, raw) == 0

    def error_of(self, block: int, raw: Buffer) -> int:
        """Return the xor of the checksum of such units and that of the block; 0: they are equal."""
        start = block * BLOCK_UNITS
        stop = start + len(raw) // UNIT_SIZE
        found = crc32c(raw)
        block_end = min(start + BLOCK_UNITS, self.end)
        if stop < block_end:
            found = crc32c(self.tail(stop, block_end).tobytes(), found)
        return found ^ self.sums.of_block(block)

    def mark_written(self, stop: int) -> None:
        """Record that units below `stop` are in files, and drop the older ones from memory."""
        self.written = max(self.written, stop)
        keep_from = min(self.written, self.end - TAIL_UNITS)
        if keep_from - self._tail_start >= TAIL_UNITS or len(self._tail) > 4 * TAIL_UNITS:
            keep_from = max(keep_from, self._tail_start)
            self._tail = self.tail(keep_from, self.end).copy()
            self._tail_start = keep_from


@dataclass(frozen=True, slots=True)
class ColdRead:
    """A block of units that needs a disk read: load it in a thread, then call `admit`."""

    key: QueueKey
    folder: str
    block: int  # number of the block in its queue
    count: int = 0  # number of its units in the file

    @property
    def start(self) -> int:
        """Queue offset of its first unit."""
        return self.block * BLOCK_UNITS


@dataclass(frozen=True, slots=True, eq=False)
class UnwrittenRun:
    """Units of one queue to write to its files."""

    key: QueueKey
    folder: str
    start: int  # queue offset of the first unit
    units: np.ndarray  # UNIT_DTYPE; a view whose items do not change


class UnitReader(Protocol):
    """Access of lookups to the queue files."""

    def read_nowait(self, folder: str, queue_id: int, start: int, count: int) -> bytes | None:
        """Return the bytes of units [start, start + count) of one file; None: the read would block."""

    def damaged(self, folder: str, queue_id: int, start: int, reason: str) -> ConsumeQueueError:
        """Return the error for units [start, ...) that differ from the written ones."""


class NoFiles:
    """Reader for queues that are in memory only (tests, new nodes)."""

    def read_nowait(self, folder: str, queue_id: int, start: int, count: int) -> bytes | None:
        raise AssertionError("units left memory without files")

    def damaged(self, folder: str, queue_id: int, start: int, reason: str) -> ConsumeQueueError:
        raise AssertionError("units left memory without files")


class ConsumeQueues:
    """All queues of the node."""

    def __init__(self, reader: UnitReader | None = None) -> None:
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._reader: UnitReader = reader or NoFiles()
        self._blocks: OrderedDict[tuple[QueueKey, int], np.ndarray] = OrderedDict()
        self._unwritten: set[QueueKey] = set()
        #: Called before a ConsumeQueueError is raised: units of these files cannot be served.
        self.on_damage: Callable[[ConsumeQueueError], None] = lambda error: None

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def attach(self, reader: UnitReader) -> None:
        """Set the reader of the queue files."""
        self._reader = reader

    def get(self, topic_id: int, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic_id, queue_id))

    def named(self, topic_id: int, queue_id: int) -> ConsumeQueue:
        """Return the queue. Raises: QueueNotFoundError."""
        queue = self._queues.get((topic_id, queue_id))
        if queue is None:
            raise QueueNotFoundError(topic_id, queue_id)
        return queue

    def add(self, queue: ConsumeQueue) -> None:
        self._queues[queue.key] = queue

    def remove_topic(self, topic_id: int, queue_count: int) -> None:
        """Drop the queues of a deleted topic."""
        for queue_id in range(queue_count):
            self._queues.pop((topic_id, queue_id), None)
            self._unwritten.discard((topic_id, queue_id))
        for cached in [name for name in self._blocks if name[0][0] == topic_id]:
            del self._blocks[cached]

    def append(self, queue: ConsumeQueue, units: np.ndarray) -> None:
        """Extend a queue with units of a committed section."""
        queue.append(units)
        self._unwritten.add(queue.key)

    def lookup(self, topic_id: int, queue_id: int, offset: int, count: int) -> np.ndarray | ColdRead:
        """Return the stored units within [offset, offset + count), or the read that must be done first.

        Raises: QueueNotFoundError, ConsumeQueueError.
        """
        queue = self.named(topic_id, queue_id)
        start, stop = max(offset, queue.begin), min(offset + count, queue.end)
        if start >= stop:
            return np.empty(0, UNIT_DTYPE)
        if start >= queue.tail_start:
            return queue.tail(start, stop)
        parts = []
        cold_stop = min(stop, queue.tail_start)
        for block in range(start // BLOCK_UNITS, (cold_stop - 1) // BLOCK_UNITS + 1):
            units = self._block(queue, block)
            if units is None:
                written = min(queue.written - block * BLOCK_UNITS, BLOCK_UNITS)
                return ColdRead(queue.key, queue.folder, block, written)
            base = block * BLOCK_UNITS
            parts.append(units[max(start - base, 0) : cold_stop - base])
        if stop > queue.tail_start:
            parts.append(queue.tail(queue.tail_start, stop))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def peek(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Return the physical offset of one unit; None: it is not stored, or needs a disk read.

        Raises: QueueNotFoundError, ConsumeQueueError.
        """
        found = self.lookup(*queue.key, offset, 1)
        return None if isinstance(found, ColdRead) or not len(found) else int(found["physical_offset"][0])

    def _block(self, queue: ConsumeQueue, block: int) -> np.ndarray | None:
        """Return the written units of a block from a cache; None: it needs a disk read."""
        name = (queue.key, block)
        stop = min((block + 1) * BLOCK_UNITS, queue.written)
        found = self._blocks.get(name)
        if found is not None and block * BLOCK_UNITS + len(found) >= stop:
            self._blocks.move_to_end(name)
            return found
        try:
            raw = self._reader.read_nowait(
                queue.folder, queue.key[1], block * BLOCK_UNITS, stop - block * BLOCK_UNITS
            )
        except ConsumeQueueError as error:
            raise self._damaged(queue, block, error.reason) from None
        return None if raw is None else self._keep(queue, block, raw)

    def admit(self, read: ColdRead, raw: bytes) -> None:
        """Cache the bytes that a thread loaded for a ColdRead (see ConsumeQueueFiles.load).

        Raises: ConsumeQueueError.
        """
        queue = self._queues.get(read.key)
        if queue is None:
            return
        if len(raw) < read.count * UNIT_SIZE:
            raise self._damaged(queue, read.block, "the file is shorter than what was written")
        known = min(len(raw) // UNIT_SIZE, queue.written - read.start)
        # If the tail moved past a partial block meanwhile, its checksum cannot be verified: it is read again.
        if known == BLOCK_UNITS or read.start + known >= queue.tail_start:
            self._keep(queue, read.block, raw[: known * UNIT_SIZE])

    def unreadable(self, read: ColdRead, error: ConsumeQueueError) -> None:
        """Handle a ColdRead that a thread could not load: damage, unless retention deleted the block
        meanwhile.

        Raises: ConsumeQueueError.
        """
        queue = self._queues.get(read.key)
        if queue is not None and read.start + BLOCK_UNITS > queue.begin:
            raise self._damaged(queue, read.block, error.reason) from None

    def _damaged(self, queue: ConsumeQueue, block: int, reason: str) -> ConsumeQueueError:
        error = self._reader.damaged(queue.folder, queue.key[1], block * BLOCK_UNITS, reason)
        error.block = (queue.key, block)
        self.on_damage(error)
        return error

    def _keep(self, queue: ConsumeQueue, block: int, raw: bytes) -> np.ndarray:
        """Verify and cache the written units of a block. Raises: ConsumeQueueError (wrong checksum)."""
        if not queue.is_right(block, raw):
            raise self._damaged(queue, block, "the checksum of these units is wrong")
        name = (queue.key, block)
        units = np.frombuffer(raw, UNIT_DTYPE)
        self._blocks[name] = units
        self._blocks.move_to_end(name)
        if len(self._blocks) > _CACHED_BLOCKS:
            self._blocks.popitem(last=False)
        return units

    def unwritten(self) -> list[UnwrittenRun]:
        """Return the units that are not in files yet, without a copy.

        Write them in a thread, then call `mark_written`.
        """
        runs = []
        for key in sorted(self._unwritten):
            queue = self._queues[key]
            runs.append(UnwrittenRun(key, queue.folder, queue.written, queue.tail(queue.written, queue.end)))
        return runs

    def mark_written(self, runs: list[UnwrittenRun]) -> None:
        """Record that the runs are in files."""
        for run in runs:
            queue = self._queues.get(run.key)
            if queue is None:
                continue
            queue.mark_written(run.start + len(run.units))
            if queue.written == queue.end:
                self._unwritten.discard(run.key)

    def first_at_or_behind(self, queue: ConsumeQueue, physical_offset: int) -> int | ColdRead:
        """Return the first queue offset whose record is at or after a physical offset (`end`: none is)."""
        low, high = queue.begin, queue.end
        while low < high:
            middle = (low + high) // 2
            unit = self.lookup(*queue.key, middle, 1)
            if isinstance(unit, ColdRead):
                return unit
            if int(unit["physical_offset"][0]) < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low
