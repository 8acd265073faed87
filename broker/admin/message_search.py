"""Search for stored messages by id, key or time; newest first, a page at a time.

Any node answers, from its own log and only what it has applied. The key index yields candidate positions. A
candidate counts only if the record has the very id or key, and if its ConsumeQueue contains it: messages that
retention hides, and those of deleted topics, are not shown.
Owns: one query.   Must not: wait for an index that is being built (the answer tells how much was unsearched).

"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from ledgermq.proto import admin_pb2, route_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import SECTION_HEADER_SIZE, RecordView, pack_message_id
from ledgermq.raft.errors import LogCompactedError
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.types import LogIndex

from ..errors import ConsumeQueueError, QueueNotFoundError
from ..reading.key_hashes import id_hash, key_hash
from ..reading.key_index import KeyIndex
from ..reading.log_reader import LogReader
from ..refusals import RefusedError
from ..replica import Replica
from ..service.read_barrier import ReadBarrier
from ..state.consume_queue import ColdRead, ConsumeQueue
from ..state.topics import Topic
from .changes import known_topic

DEFAULT_LIMIT: Final = 32
MAX_LIMIT: Final = 1000
#: Bytes of records in an answer, unless the first one is larger.
MAX_BYTES: Final = 4 << 20
#: Queries that run at once; each may read many cold records.
MAX_RUNNING: Final = 16
#: Candidates that one query examines. Hash collisions and hidden messages count.
_MAX_LOOKED_AT: Final = 4096
_CANDIDATES: Final = 256  # offsets per index lookup
_CATCH_UP_S: Final = 2.0  # most seconds to wait for the index to catch up
_QUEUE_OF_SECTION: Final = struct.Struct("<2xHI")

Wanted = Callable[[RecordView], bool]


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a visible message."""

    physical_offset: int
    topic: Topic
    queue_id: int
    queue_offset: int
    size: int  # bytes of the record
    store_timestamp: int  # ms of log time


@dataclass(slots=True)
class _Page:
    """An answer that is being built."""

    limit: int  # most messages
    messages: list[admin_pb2.StoredMessage] = field(default_factory=list)
    size: int = 0  # bytes of the records in `messages`
    looked_at: int = 0  # candidates examined; at most _MAX_LOOKED_AT
    next_before: int = 0  # physical offset below which the next page begins; 0: this is the last page

    def ends(self, offset: int) -> bool:
        """End the page if it is full; the next one begins below `offset`. Return whether it ended."""
        full = len(self.messages) >= self.limit or self.size >= MAX_BYTES or self.looked_at >= _MAX_LOOKED_AT
        if full:
            self.next_before = offset
        return full

    def add(self, place: _Place, record: RecordView) -> None:
        raw = bytes(memoryview(record.buffer)[record.position : record.position + record.size])
        self.size += len(raw)
        self.messages.append(
            admin_pb2.StoredMessage(
                topic=place.topic.name,
                queue_id=place.queue_id,
                queue_offset=place.queue_offset,
                store_timestamp=place.store_timestamp,
                physical_offset=place.physical_offset,
                record=raw,
            )
        )


@dataclass(eq=False, repr=False)
class MessageQueries:
    """Serves the queries of one node."""

    _raft: RaftNode
    _replica: Replica
    _reader: LogReader
    _keys: KeyIndex
    _barrier: ReadBarrier
    _running: int = field(default=0, init=False)

    async def answer(
        self, request: admin_pb2.QueryMessagesRequest, remaining: float | None
    ) -> admin_pb2.QueryMessagesResponse:
        """Return a page. `remaining`: seconds that the caller waits. Raises: those of REFUSABLE."""
        _check(request)
        self._replica.require_whole_state()
        with self._counted():
            stale = await self._barrier.wait_or_stale(remaining)
            page = _Page(min(request.limit or DEFAULT_LIMIT, MAX_LIMIT))
            begin, end = await self._bounds(request)
            unsearched = 0
            if begin < end:
                if request.message_id or request.key:
                    unsearched = await self._by_hash(request, begin, end, page)
                else:
                    await self._by_time(known_topic(self._replica.state, request.topic), begin, end, page)
        return admin_pb2.QueryMessagesResponse(
            messages=page.messages,
            next_before=page.next_before,
            unsearched_bytes=unsearched,
            stale=stale,
            node_id=self._raft.config.node_id,
        )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._running >= MAX_RUNNING:
            raise RefusedError(
                route_pb2.TOO_MANY_REQUESTS,
                f"{MAX_RUNNING} message queries run at {self._raft.config.node_id} already. Ask again, or "
                f"another node",
                retryable=True,
                retry_after_ms=100,
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    # --- where to look ------------------------------------------------------------------------------------
    async def _bounds(self, request: admin_pb2.QueryMessagesRequest) -> tuple[int, int]:
        """Return the range of physical offsets to search.

        It is limited to applied entries, the requested time, and offsets below the previous page.
        """
        if request.topic:
            known_topic(self._replica.state, request.topic)
        log, last = self._raft.log, self._raft.applied_index
        if last < log.first_index:
            return 0, 0
        begin, end = log.first_offset, (await log.header_at(last)).end
        if request.begin_ms:
            begin = max(begin, await self._offset_at(request.begin_ms, last))
        if request.end_ms:
            end = min(end, await self._offset_at(request.end_ms, last))
        if request.before_offset:
            end = min(end, request.before_offset)
        return begin, end

    async def _offset_at(self, timestamp: int, last: LogIndex) -> int:
        """Return the physical offset of the first applied entry at or after a log time, or the end.

        Raises: StorageError.
        """
        log = self._raft.log
        low, high = log.first_index, LogIndex(last + 1)
        while low < high:
            middle = LogIndex((low + high) // 2)
            try:
                found = await log.header_at(middle)
            except LogCompactedError:
                low = max(low, log.first_index)
                continue
            if found.timestamp < timestamp:
                low = LogIndex(middle + 1)
            else:
                high = middle
        header = await log.header_at(min(low, last))
        return header.physical_offset if low <= last else header.end

    # --- by id or key -------------------------------------------------------------------------------------
    async def _by_hash(
        self, request: admin_pb2.QueryMessagesRequest, begin: int, end: int, page: _Page
    ) -> int:
        """Fill the page with messages of the id or key; return the number of log bytes not searched."""
        if request.message_id:
            hashed, wanted = id_hash(pack_message_id(request.message_id)[0]), _has_id(request.message_id)
        else:
            topic = known_topic(self._replica.state, request.topic)
            hashed, wanted = key_hash(topic.topic_id, request.key), _has_key(request.key)
            begin = max(begin, await self._first_visible(topic))
        await self._keys.catch_up(_CATCH_UP_S)
        unsearched: int | None = None
        while True:
            found = await self._keys.search(hashed, begin, end, _CANDIDATES)
            unsearched = found.unsearched if unsearched is None else unsearched
            for offset in found.offsets:
                if offset >= end:
                    continue  # the message contains the same key twice
                if page.ends(end):
                    return unsearched
                page.looked_at += 1
                place = await self._place_of(offset)
                end = offset
                if place is None or request.topic not in ("", place.topic.name):
                    continue
                record = await self._reader.record(offset, place.size)
                if wanted(record):
                    page.add(place, record)
            if len(found.offsets) < _CANDIDATES:
                return unsearched

    async def _first_visible(self, topic: Topic) -> int:
        """Return the physical offset of the first message that the topic's own retention does not hide.

        It may hide many.
        """
        if not topic.retention_ms:
            return 0
        firsts = []
        for queue in self._queues(topic):
            try:
                unit = await self._replica.units(*queue.key, queue.begin, 1)
            except QueueNotFoundError:
                continue
            firsts += unit["physical_offset"].tolist()
        return min(firsts, default=0)

    async def _place_of(self, offset: int) -> _Place | None:
        """Return the position of the record at a physical offset; None: it is not visible.

        Raises: StorageError, ConsumeQueueError.
        """
        try:
            section = await self._reader.section_of(offset)
            head = await self._reader.read(section.physical_offset, SECTION_HEADER_SIZE)
        except LogCompactedError:
            return None
        queue_id, topic_id = _QUEUE_OF_SECTION.unpack_from(head)
        topic = self._replica.state.topics.get(topic_id)
        if topic is None:
            return None
        try:
            units = await self._replica.units(topic_id, queue_id, section.first_queue_offset, section.count)
        except QueueNotFoundError:
            return None
        at = int(np.searchsorted(units["physical_offset"], offset))
        if at == len(units) or units["physical_offset"][at] != offset:
            return None
        queue_offset = section.end_queue_offset - len(units) + at
        return _Place(offset, topic, queue_id, queue_offset, int(units["size"][at]), section.store_timestamp)

    # --- by time ------------------------------------------------------------------------------------------
    async def _by_time(self, topic: Topic, begin: int, end: int, page: _Page) -> None:
        """Fill the page with the newest messages of a topic in the physical range [begin, end)."""
        wanted = page.limit + 1  # one more than fits, to know whether there is a next page
        while True:
            newest_first = await self._newest_of_all(self._queues(topic), begin, end, wanted)
            for offset in newest_first:
                if page.ends(end):
                    return
                page.looked_at += 1
                place = await self._place_of(offset)
                end = offset
                if place is not None:
                    page.add(place, await self._reader.record(offset, place.size))
            if len(newest_first) < wanted:
                return

    async def _newest_of_all(
        self, queues: Sequence[ConsumeQueue], begin: int, end: int, at_most: int
    ) -> list[int]:
        """Return the physical offsets of the newest messages of all queues in [begin, end), newest first.

        It keeps `at_most` offsets in memory, and those of one queue. Raises: ConsumeQueueError.
        """
        newest = np.empty(0, np.int64)
        for queue in queues:
            found = np.concatenate([newest, await self._newest(queue, begin, end, at_most)])
            found.sort()
            newest = found[-at_most:].copy()
        return list(newest[::-1].tolist())

    def _queues(self, topic: Topic) -> list[ConsumeQueue]:
        try:
            return self._replica.state.queues_of(topic)
        except QueueNotFoundError:  # the topic was deleted meanwhile
            return []

    async def _newest(self, queue: ConsumeQueue, begin: int, end: int, at_most: int) -> np.ndarray:
        """Return the physical offsets of the newest `at_most` messages of a queue in [begin, end).

        Raises: ConsumeQueueError.
        """
        low, high = await self._first_behind(queue, begin), await self._first_behind(queue, end)
        low = max(low, high - at_most)
        try:
            units = await self._replica.units(*queue.key, low, high - low)
        except QueueNotFoundError:
            return np.empty(0, np.int64)
        offsets: np.ndarray = units["physical_offset"]
        return offsets

    async def _first_behind(self, queue: ConsumeQueue, physical_offset: int) -> int:
        """Return the first queue offset at or behind a physical offset; load cold blocks.

        Raises: ConsumeQueueError.
        """
        while True:
            try:
                found = self._replica.state.queues.first_at_or_behind(queue, physical_offset)
            except ConsumeQueueError as error:
                await self._replica.mended(error)
                continue
            except QueueNotFoundError:
                return queue.end
            if not isinstance(found, ColdRead):
                return found
            await self._replica.warm([found])


def _check(request: admin_pb2.QueryMessagesRequest) -> None:
    """Check that the request names a search. Raises: RefusedError."""
    problem = ""
    if request.message_id and request.key:
        problem = "ask for a message id or for a key, not for both"
    elif not request.message_id and not request.topic:
        problem = "a query by key or by time needs a topic"
    elif (
        request.begin_ms < 0 or request.end_ms < 0 or (request.end_ms and request.begin_ms >= request.end_ms)
    ):
        problem = f"no time is between {request.begin_ms} and {request.end_ms}"
    if problem:
        raise RefusedError(route_pb2.INVALID_ARGUMENT, problem)


def _has_id(message_id: str) -> Wanted:
    packed, flags = pack_message_id(message_id)

    def wanted(record: RecordView) -> bool:
        if record.message_id != packed or (record.flags ^ flags) & flags:
            return False
        return bool(flags) or _system(record).message_id == message_id

    return wanted


def _has_key(key: str) -> Wanted:
    return lambda record: key in _system(record).keys


def _system(record: RecordView) -> v2.SystemProperties:
    """Return the system properties that the producer's client stored; empty if they cannot be decoded."""
    try:
        return v2.SystemProperties.FromString(bytes(record.system_run))
    except DecodeError:
        return v2.SystemProperties()
