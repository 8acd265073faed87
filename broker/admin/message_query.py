"""Looks up stored messages: by id, by key, by time; the newest first, a page at a time.

Any node answers, from its own log and only what it has applied. The key index says where to look; what is there is
believed only when the record has the very id or key, and when its ConsumeQueue has it: what retention hides, and what
belongs to a deleted topic, is not shown.
Owns: one query.   Must not: wait for an index that is being made (the answer tells how much was not searched).
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
from ledgermq.raft.errors import LogCompactedError, NotLeaderError
from ledgermq.raft.types import LogIndex

from ..errors import ConsumeQueueError, QueueNotFoundError
from ..native.log_service import STALE_AFTER_S, up_to_date
from ..reading.key_hashes import id_hash, key_hash
from ..refusals import RefusedError
from ..service.context import NodeContext
from ..state.consume_queue import ColdRead, ConsumeQueue
from ..state.topics import Topic
from .changes import known_topic

DEFAULT_LIMIT: Final = 32
MAX_LIMIT: Final = 1000
#: Bytes of records in an answer, unless the first one is larger.
MAX_BYTES: Final = 4 << 20
#: Queries that run at a time; each may read many cold records.
MAX_RUNNING: Final = 16
#: Candidates that a query looks at: those of other messages with the same hash, and hidden ones, count.
_MAX_LOOKED_AT: Final = 4096
_CANDIDATES: Final = 256  # asked of the index at a time
_CATCH_UP_S: Final = 2.0
_QUEUE_OF_SECTION: Final = struct.Struct("<2xHI")

Wanted = Callable[[RecordView], bool]


@dataclass(frozen=True, slots=True)
class _Place:
    """A visible message."""

    physical_offset: int
    topic: Topic
    queue_id: int
    queue_offset: int
    size: int
    store_timestamp: int


@dataclass(slots=True)
class _Page:
    """What an answer holds so far."""

    limit: int
    messages: list[admin_pb2.StoredMessage] = field(default_factory=list)
    size: int = 0
    looked_at: int = 0
    next_before: int = 0

    def is_full(self, offset: int) -> bool:
        """Tell whether nothing more fits; then the next page begins behind what was looked at: below `offset`."""
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


class MessageQueries:
    """The queries of one node."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._running = 0

    async def answer(
        self, request: admin_pb2.QueryMessagesRequest, remaining: float | None
    ) -> admin_pb2.QueryMessagesResponse:
        """Return a page. `remaining`: seconds that the caller waits. Raises: those of REFUSABLE."""
        _check(request)
        context = self._context
        context.require_whole_state()
        with self._counted():
            stale = False
            try:
                await up_to_date(context, min(remaining or STALE_AFTER_S, STALE_AFTER_S))
            except NotLeaderError:
                stale = True
            page = _Page(min(request.limit or DEFAULT_LIMIT, MAX_LIMIT))
            begin, end = await _bounds(context, request)
            unsearched = 0
            if begin < end:
                if request.message_id or request.key:
                    unsearched = await _by_hash(context, request, begin, end, page)
                else:
                    await _by_time(context, known_topic(context, request.topic), begin, end, page)
        return admin_pb2.QueryMessagesResponse(
            messages=page.messages,
            next_before=page.next_before,
            unsearched_bytes=unsearched,
            stale=stale,
            node_id=context.config.node_id,
        )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._running >= MAX_RUNNING:
            raise RefusedError(
                route_pb2.TOO_MANY_REQUESTS,
                f"{MAX_RUNNING} message queries run at {self._context.config.node_id} already. Ask again, or another node",
                retryable=True,
                retry_after_ms=100,
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


def _check(request: admin_pb2.QueryMessagesRequest) -> None:
    """Raises: RefusedError (the request does not say what is looked for)."""
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


# --- where to look ----------------------------------------------------------------------------------------------
async def _bounds(context: NodeContext, request: admin_pb2.QueryMessagesRequest) -> tuple[int, int]:
    """Return the physical offsets between which the messages stand: applied, of that time, in front of the last page."""
    if request.topic:
        known_topic(context, request.topic)
    log, last = context.raft.log, context.raft.applied_index
    if last < log.first_index:
        return 0, 0
    begin, end = log.first_offset, (await log.header_at(last)).end
    if request.begin_ms:
        begin = max(begin, await _offset_at(context, request.begin_ms, last))
    if request.end_ms:
        end = min(end, await _offset_at(context, request.end_ms, last))
    if request.before_offset:
        end = min(end, request.before_offset)
    return begin, end


async def _offset_at(context: NodeContext, timestamp: int, last: LogIndex) -> int:
    """Return the physical offset of the first applied entry at or after a log time; behind the last when there is none.

    Raises: StorageError.
    """
    log = context.raft.log
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


# --- by id or key -----------------------------------------------------------------------------------------------
async def _by_hash(
    context: NodeContext, request: admin_pb2.QueryMessagesRequest, begin: int, end: int, page: _Page
) -> int:
    """Fill the page with messages that have the id or key; return how many log bytes were not searched."""
    if request.message_id:
        hashed, wanted = id_hash(pack_message_id(request.message_id)[0]), _has_id(request.message_id)
    else:
        topic = known_topic(context, request.topic)
        hashed, wanted = key_hash(topic.topic_id, request.key), _has_key(request.key)
        begin = max(begin, await _first_visible(context, topic))
    await context.keys.catch_up(_CATCH_UP_S)
    unsearched: int | None = None
    while True:
        found = await context.keys.search(hashed, begin, end, _CANDIDATES)
        unsearched = found.unsearched if unsearched is None else unsearched
        for offset in found.offsets:
            if offset >= end:
                continue  # the same key twice in one message
            if page.is_full(end):
                return unsearched
            page.looked_at += 1
            place = await _place_of(context, offset)
            end = offset
            if place is None or request.topic not in ("", place.topic.name):
                continue
            record = await context.reader.record(offset, place.size)
            if wanted(record):
                page.add(place, record)
        if len(found.offsets) < _CANDIDATES:
            return unsearched


async def _first_visible(context: NodeContext, topic: Topic) -> int:
    """Return where the messages begin that the topic's own retention does not hide (physical offset). It may hide many."""
    if not topic.retention_ms:
        return 0
    firsts = []
    for queue in _queues(context, topic):
        try:
            unit = await context.replica.units(*queue.key, queue.begin, 1)
        except QueueNotFoundError:
            continue
        firsts += unit["physical_offset"].tolist()
    return min(firsts, default=0)


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
    """What the producer's client set beside the message; nothing when that cannot be read."""
    try:
        return v2.SystemProperties.FromString(bytes(record.system_run))
    except DecodeError:
        return v2.SystemProperties()


async def _place_of(context: NodeContext, offset: int) -> _Place | None:
    """Return where the record at a physical offset is visible; None: it is not. Raises: StorageError, ConsumeQueueError."""
    try:
        section = await context.reader.section_of(offset)
        head = await context.reader.read(section.physical_offset, SECTION_HEADER_SIZE)
    except LogCompactedError:
        return None
    queue_id, topic_id = _QUEUE_OF_SECTION.unpack_from(head)
    topic = context.replica.state.topics.get(topic_id)
    if topic is None:
        return None
    try:
        units = await context.replica.units(topic_id, queue_id, section.first_queue_offset, section.count)
    except QueueNotFoundError:
        return None
    at = int(np.searchsorted(units["physical_offset"], offset))
    if at == len(units) or units["physical_offset"][at] != offset:
        return None
    queue_offset = section.end_queue_offset - len(units) + at
    return _Place(offset, topic, queue_id, queue_offset, int(units["size"][at]), section.store_timestamp)


# --- by time ----------------------------------------------------------------------------------------------------
async def _by_time(context: NodeContext, topic: Topic, begin: int, end: int, page: _Page) -> None:
    """Fill the page with the newest messages of a topic that stand in [begin, end)."""
    wanted = page.limit + 1  # one more tells whether there is another page
    while True:
        newest_first = await _newest_of_all(context, _queues(context, topic), begin, end, wanted)
        for offset in newest_first:
            if page.is_full(end):
                return
            page.looked_at += 1
            place = await _place_of(context, offset)
            end = offset
            if place is not None:
                page.add(place, await context.reader.record(offset, place.size))
        if len(newest_first) < wanted:
            return


async def _newest_of_all(
    context: NodeContext, queues: Sequence[ConsumeQueue], begin: int, end: int, at_most: int
) -> list[int]:
    """Return the physical offsets of the last messages of all queues in [begin, end), the newest first.

    No more is kept at a time than that, and what one queue has. Raises: ConsumeQueueError.
    """
    newest = np.empty(0, np.int64)
    for queue in queues:
        found = np.concatenate([newest, await _newest(context, queue, begin, end, at_most)])
        found.sort()
        newest = found[-at_most:].copy()
    return list(newest[::-1].tolist())


def _queues(context: NodeContext, topic: Topic) -> list[ConsumeQueue]:
    try:
        return context.replica.state.queues_of(topic)
    except QueueNotFoundError:  # deleted in between
        return []


async def _newest(
    context: NodeContext, queue: ConsumeQueue, begin: int, end: int, at_most: int
) -> np.ndarray:
    """Return the physical offsets of the last messages of a queue in [begin, end). Raises: ConsumeQueueError."""
    low, high = await _first_behind(context, queue, begin), await _first_behind(context, queue, end)
    low = max(low, high - at_most)
    try:
        units = await context.replica.units(*queue.key, low, high - low)
    except QueueNotFoundError:
        return np.empty(0, np.int64)
    offsets: np.ndarray = units["physical_offset"]
    return offsets


async def _first_behind(context: NodeContext, queue: ConsumeQueue, physical_offset: int) -> int:
    """Return the first queue offset at or behind a physical offset, loading what is cold. Raises: ConsumeQueueError."""
    while True:
        try:
            found = context.replica.state.queues.first_at_or_behind(queue, physical_offset)
        except ConsumeQueueError as error:
            await context.replica.mended(error)
            continue
        except QueueNotFoundError:
            return queue.end
        if not isinstance(found, ColdRead):
            return found
        await context.replica.warm([found])
