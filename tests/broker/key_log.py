"""A log of messages with ids and keys, in segments, and an index over it, for tests of look-ups."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ledgermq.broker.reading.key_hashes import ItemForm
from ledgermq.broker.reading.key_index import KeyIndex
from ledgermq.broker.reading.key_runs import Builds
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.entry import HEADER_SIZE, Buffer, EntryHeader, EntryKind, entry_size
from ledgermq.proto.record import (
    SECTION_HEADER_SIZE,
    encode_record,
    hash_text,
    pack_message_id,
    record_positions,
    seal_section,
)
from ledgermq.raft.disk.files import FileSystem, RealFileSystem
from ledgermq.raft.errors import DamagedLogError, LogCompactedError, NotLeaderError
from ledgermq.raft.log.segment import SegmentInfo, place_entry, segment_start
from ledgermq.raft.types import LogIndex

from .entry_log import START_MS, EntryLog, Node, section

SEGMENT = 1 << 13


@dataclass(frozen=True)
class Stored:
    """A message as the model knows it."""

    offset: int  # physical
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    keys: tuple[str, ...]
    stored: int  # log time, ms


def message_section(
    topic_id: int, queue_id: int, base: int, messages: Sequence[tuple[str, Sequence[str]]], pad: int = 0
) -> bytearray:
    """Return a sealed section of messages: (id, keys) each, with `pad` bytes of body."""
    made: list[bytes] = []
    distance = SECTION_HEADER_SIZE
    for message_id, keys in messages:
        packed, flags = pack_message_id(message_id)
        system = v2.SystemProperties(message_id=message_id, keys=keys).SerializeToString()
        body = bytes(pad)
        made.append(
            encode_record(
                system, body, section_distance=distance, body_offset_in_rest=0, body_size=len(body),
                message_id=packed, born_timestamp=START_MS, key_hashes=[hash_text(key) for key in keys],
                flags=int(flags),
            )
        )  # fmt: skip
        distance += len(made[-1])
    out = section(topic_id, queue_id, made, base=base)
    seal_section(out, base_queue_offset=base, entry_distance=HEADER_SIZE)
    return out


class SegmentedLog(EntryLog):
    """The part of CommitLog that the index and its readers use. `entries` also reads on behind a hole."""

    def __init__(self, segment_size: int = SEGMENT) -> None:
        super().__init__()
        self.segment_size = segment_size
        self.first_index = LogIndex(1)
        self.reads = 0
        self._known: list[tuple[EntryHeader, memoryview]] = []
        self._segments: tuple[int, int, list[SegmentInfo]] = (0, 0, [])
        self.damaged: set[int] = set()  # indexes of entries that cannot be read until they are repaired

    def add(
        self, parts: Sequence[Buffer], kind: EntryKind = EntryKind.RECORDS
    ) -> tuple[EntryHeader, memoryview]:
        self.end = place_entry(self.end, entry_size(sum(map(len, parts))), self.segment_size)
        found = super().add(parts, kind)
        self._known.append(found)
        return found

    def entry(self, index: int) -> tuple[EntryHeader, memoryview]:
        return self._known[index - 1] if index <= len(self._known) else super().entry(index)

    @property
    def first_offset(self) -> int:
        return self.entry(self.first_index)[0].physical_offset if self.raw else 0

    @property
    def last_index(self) -> int:
        return len(self.raw)

    def segments(self) -> Sequence[SegmentInfo]:
        if self._segments[:2] != (self.first_index, len(self.raw)):
            found: dict[int, SegmentInfo] = {}
            for header, _ in self._known[self.first_index - 1 :]:
                start, index = (
                    segment_start(header.physical_offset, self.segment_size),
                    LogIndex(header.index),
                )
                first = found[start].first_index if start in found else index
                found[start] = SegmentInfo(start, first, index, header.timestamp, header.end)
            self._segments = (self.first_index, len(self.raw), list(found.values()))
        return self._segments[2]

    def drop_before(self, segment: int) -> None:
        """As retention: segments before the `segment`-th one (of all that ever were) go."""
        self.first_index = next(
            info.first_index for info in self.segments() if info.start_offset >= segment * self.segment_size
        )

    async def header_at(self, index: LogIndex) -> EntryHeader:
        self._check(index)
        return self.entry(index)[0]

    async def entries(
        self, lo: LogIndex, hi: LogIndex, max_bytes: int
    ) -> Sequence[tuple[EntryHeader, memoryview]]:
        self._check(lo)
        assert hi <= len(self.raw)
        if lo in self.damaged:
            raise DamagedLogError("n1", Path("/log"), 0, 0, "damaged")
        self.reads += 1
        return [self.entry(index) for index in range(lo, min(hi, lo + 2) + 1) if index not in self.damaged]

    def read_at_nowait(self, offset: int, size: int) -> memoryview | None:
        return None

    async def read_at(self, offset: int, size: int) -> memoryview:
        if offset < self.first_offset:
            raise LogCompactedError(offset, self.first_offset)
        number = bisect_right(self._known, offset, key=lambda known: known[0].physical_offset) - 1
        at = offset - self._known[number][0].physical_offset
        assert at + size <= len(self.raw[number]), "a read outside of the log"
        return memoryview(self.raw[number])[at : at + size]

    def damage_at(self, offset: int, reason: str) -> DamagedLogError:
        return DamagedLogError("n1", Path("/log"), offset, offset, reason)

    def _check(self, index: LogIndex) -> None:
        if index < self.first_index:
            raise LogCompactedError(index, self.first_index)


class MessageLog(Node):
    """A node's state over a segmented log, and the model of what was stored."""

    def __init__(self, segment_size: int = SEGMENT) -> None:
        super().__init__()
        self.log: SegmentedLog = SegmentedLog(segment_size)
        self.stored: list[Stored] = []

    def send(
        self, topic_id: int, queue_id: int, *messages: tuple[str, Sequence[str]], pad: int = 0
    ) -> list[Stored]:
        """Store messages of one queue in an entry of their own."""
        return self.send_entry((topic_id, queue_id, messages), pad=pad)

    def send_entry(
        self, *sections: tuple[int, int, Sequence[tuple[str, Sequence[str]]]], pad: int = 0
    ) -> list[Stored]:
        """Store several sections in one entry."""
        parts, bases, distance = [], [], HEADER_SIZE
        for topic_id, queue_id, messages in sections:
            base = self.state.queue_end(topic_id, queue_id)
            made = message_section(topic_id, queue_id, base, messages, pad)
            seal_section(made, base_queue_offset=base, entry_distance=distance)
            parts.append(made)
            bases.append((base, distance))
            distance += len(made)
        self.apply(*parts)
        header, _ = self.log.entry(len(self.log.raw))
        found: list[Stored] = []
        for (topic_id, queue_id, messages), (base, at), part in zip(sections, bases, parts, strict=True):
            topic = self.state.topics.get(topic_id)
            assert topic is not None
            positions = record_positions(bytes(part[SECTION_HEADER_SIZE:]), len(messages)).tolist()
            for i, ((message_id, keys), position) in enumerate(zip(messages, positions, strict=True)):
                offset = header.physical_offset + at + SECTION_HEADER_SIZE + position
                found.append(
                    Stored(offset, topic.name, queue_id, base + i, message_id, tuple(keys), header.timestamp)
                )
        self.stored += found
        return found

    @property
    def end(self) -> int:
        """Physical offset behind the last entry."""
        return self.log.end


async def no_repair(error: DamagedLogError) -> bool:
    return False


@asynccontextmanager
async def indexed(
    log: SegmentedLog,
    folder: Path,
    *,
    part_items: int = 1 << 20,
    form: ItemForm | None = None,
    files: FileSystem | None = None,
    repair: Any = no_repair,
) -> AsyncIterator[KeyIndex]:
    """Run an index over all entries of the log."""
    builds = Builds(log, files or RealFileSystem(), folder, repair, form, part_items)
    index = KeyIndex(builds, lambda: log.last_index)
    index.start()
    try:
        yield index
    finally:
        await index.stop()


async def settled(index: KeyIndex) -> None:
    """Wait until all is taken, and every closed segment has its run."""
    async with asyncio.timeout(30):
        await index.catch_up(30)
        while index.segments_missing or index._finished.closed:
            await asyncio.sleep(0)
            await index._in(index._finished._worker, lambda: None)


async def searched(index: KeyIndex, hashed: int, begin: int, end: int, at_most: int = 1 << 20) -> list[int]:
    """Search a whole index."""
    found = await index.search(hashed, begin, end, at_most)
    assert not found.unsearched
    return found.offsets


class FakeRaft:
    """A node of the group that has applied its whole log. `leads` False: no leader is known."""

    def __init__(self, log: SegmentedLog) -> None:
        self.log = log
        self.leads = True
        self.config = SimpleNamespace(node_id="n1")

    @property
    def applied_index(self) -> LogIndex:
        return LogIndex(self.log.last_index)

    async def read_index(self) -> LogIndex:
        if not self.leads:
            raise NotLeaderError(None)
        return self.applied_index

    async def wait_applied(self, index: LogIndex) -> None:
        assert index <= self.applied_index


class FakeReplica:
    """The state of a node whose queues are in memory."""

    def __init__(self, node: MessageLog) -> None:
        self.state = node.state

    def require_whole_state(self) -> None:
        """It is whole."""

    async def units(self, topic_id: int, queue_id: int, offset: int, count: int) -> np.ndarray:
        found = self.state.queues.lookup(topic_id, queue_id, offset, count)
        assert isinstance(found, np.ndarray)
        return found


class FakeLeadership:
    """Nothing changes."""

    async def wait_change(self, timeout: float) -> None:
        await asyncio.sleep(timeout)
