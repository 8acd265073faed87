"""Fetch: whole sections of one or many queues, as they stand in the log, from a leader or a follower.

ConsumeQueue → record → section → bytes. Nothing beyond what this node has applied is ever seen. A fetch that finds
nothing waits, and is woken by the very entry that brings something.
Owns: one fetch. Must not: decode a record.
"""

from __future__ import annotations

import time
from typing import Final

from ledgermq.proto import log_pb2, route_pb2
from ledgermq.proto.entry import Buffer
from ledgermq.raft.errors import LogCompactedError

from .context import NodeContext
from .errors import QueueNotFoundError
from .log_reader import StoredSection
from .log_wire import QueueFrame, fetch_response
from .polls import TooManyPollsError
from .refusals import RefusedError

DEFAULT_MAX_BYTES: Final = 1 << 20
MAX_BYTES: Final = 64 << 20
MAX_WAIT_MS: Final = 30_000
MAX_POSITIONS: Final = 4096


async def fetch(context: NodeContext, request: log_pb2.FetchRequest) -> bytes:
    """Return an encoded FetchResponse. Raises: RefusedError."""
    context.require_whole_state()
    if len(request.positions) > MAX_POSITIONS:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT,
            f"{len(request.positions)} queues in one fetch; at most {MAX_POSITIONS}",
        )
    until = time.monotonic() + min(request.max_wait_ms, MAX_WAIT_MS) / 1000
    keys = [("queue", each.topic_id, each.queue_id) for each in request.positions]
    while True:
        try:
            waiter = context.polls.open([*keys, "stop"])
        except TooManyPollsError as error:
            raise RefusedError(
                route_pb2.TOO_MANY_REQUESTS, str(error), retryable=True, retry_after_ms=100
            ) from None
        try:
            queues = await _gather(context, request)
            remaining = until - time.monotonic()
            if queues or remaining <= 0:
                break
            with context.waiting_reader():
                woken = await waiter.wait(remaining)
        finally:
            waiter.close()
        if not woken or context.stopping:
            break
    stale = context.leadership.leader_id is None
    return fetch_response(queues, context.raft.applied_index, context.config.node_id, stale)


async def _gather(context: NodeContext, request: log_pb2.FetchRequest) -> list[list[Buffer]]:
    """Return the closed frames of the queues that have something to say."""
    room = min(request.max_bytes or DEFAULT_MAX_BYTES, MAX_BYTES)
    frames: list[list[Buffer]] = []
    for position in request.positions:
        frame: QueueFrame | None = None
        try:
            if _is_ahead(context, position):
                continue
            end = _end(context, position)
            if position.offset >= end:
                continue
            frame = QueueFrame(position.topic_id, position.queue_id)
            room -= await _take(context, frame, position, end, room, first=not frames)
        except RefusedError as error:
            frame = frame or QueueFrame(position.topic_id, position.queue_id)
            frame.refuse(error.refusal.SerializeToString())
            frames.append(frame.close(*_bounds(context, position)))
        else:
            if frame.sections:
                frames.append(frame.close(*_bounds(context, position)))
        if room <= 0:
            break
    return frames


def _is_ahead(context: NodeContext, position: log_pb2.FetchPosition) -> bool:
    """Tell whether a follower has not applied so far yet: the reader waits, it is not refused."""
    if context.leadership.ready:
        return False
    queue = context.replica.state.queues.get(position.topic_id, position.queue_id)
    if queue is None:
        return position.topic_id >= context.replica.state.topics.next_id
    return position.offset > queue.end


def _bounds(context: NodeContext, position: log_pb2.FetchPosition) -> tuple[int, int]:
    """Return (begin, end) of a queue as they are now; zeros when there is none."""
    queue = context.replica.state.queues.get(position.topic_id, position.queue_id)
    return (queue.begin, queue.end) if queue is not None else (0, 0)


def _end(context: NodeContext, position: log_pb2.FetchPosition) -> int:
    """Return the end of a queue. Raises: RefusedError when the position is outside."""
    state = context.replica.state
    try:
        queue = state.queues.named(position.topic_id, position.queue_id)
    except QueueNotFoundError as error:
        raise _not_there(context, position, error) from None
    if position.offset < queue.begin:
        raise _below_begin(context, position.offset, queue.begin)
    if position.offset > queue.end:
        raise RefusedError(
            route_pb2.OFFSET_OUT_OF_RANGE,
            f"offset {position.offset} is not stored yet: the queue holds {queue.begin} to {queue.end}",
        )
    return queue.end


def _not_there(
    context: NodeContext, position: log_pb2.FetchPosition, error: QueueNotFoundError
) -> RefusedError:
    """Return the refusal for a queue that does not exist, or no longer."""
    gone = context.replica.state.topics.was_deleted(position.topic_id)
    code = route_pb2.STALE_ROUTE if gone else route_pb2.QUEUE_NOT_FOUND
    return RefusedError(code, f"{error}; refresh the route")


def _below_begin(context: NodeContext, offset: int, begin: int) -> RefusedError:
    """Return the refusal of a read below what is stored, and count it."""
    context.metrics.reads_below_begin.inc()
    return RefusedError(
        route_pb2.OFFSET_OUT_OF_RANGE,
        f"offset {offset} was deleted by retention: the queue begins at {begin} now, {begin - offset:,} messages are gone. "
        f"Go on at {begin}",
    )


async def _take(
    context: NodeContext,
    frame: QueueFrame,
    position: log_pb2.FetchPosition,
    end: int,
    room: int,
    *,
    first: bool,
) -> int:
    """Add sections to the frame; return their bytes. At least one when it is the `first` of the answer."""
    offset, taken = position.offset, 0
    try:
        while offset < end:
            section = await _section_at(context, position.topic_id, position.queue_id, offset)
            if section is None or (taken + section.total_size > room and (taken or not first)):
                break
            frame.add(
                await context.reader.section_bytes(section), section.store_timestamp, section.physical_offset
            )
            taken += section.total_size
            offset = section.end_queue_offset
    except LogCompactedError:
        if not frame.sections:
            raise _gone(context, position) from None
    except QueueNotFoundError as error:  # deleted between two reads
        if not frame.sections:
            raise _not_there(context, position, error) from None
    return taken


def _gone(context: NodeContext, position: log_pb2.FetchPosition) -> RefusedError:
    """Return the refusal for a message whose segment is deleted; the queue may learn its new begin only by apply."""
    try:
        begin = context.replica.state.queue_begin(position.topic_id, position.queue_id)
    except QueueNotFoundError as error:
        return _not_there(context, position, error)
    if begin > position.offset:
        return _below_begin(context, position.offset, begin)
    return RefusedError(
        route_pb2.OFFSET_OUT_OF_RANGE,
        f"offset {position.offset} was deleted by retention; this node does not know yet where the queue begins now. Ask again",
        retryable=True,
        retry_after_ms=100,
    )


async def _section_at(
    context: NodeContext, topic_id: int, queue_id: int, offset: int
) -> StoredSection | None:
    """Return the section that holds a queue offset; None when the offset is not stored any more."""
    units = await context.replica.units(topic_id, queue_id, offset, 1)
    return await context.reader.section_of(int(units["physical_offset"][0])) if len(units) else None


async def stored_at(context: NodeContext, topic_id: int, queue_id: int, offset: int) -> int | None:
    """Return when (ms of log time) a message was stored; None when it is not stored any more.

    Raises: QueueNotFoundError, LogCompactedError.
    """
    section = await _section_at(context, topic_id, queue_id, offset)
    return None if section is None else section.store_timestamp


async def offset_at_time(context: NodeContext, topic_id: int, queue_id: int, timestamp: int) -> int:
    """Return the first queue offset stored at or after `timestamp` (ms of log time); the end when there is none.

    Raises: QueueNotFoundError.
    """
    queue = context.replica.state.queues.named(topic_id, queue_id)
    low, high = queue.begin, queue.end
    while low < high:
        middle = (low + high) // 2
        try:
            section = await _section_at(context, topic_id, queue_id, middle)
        except LogCompactedError:
            section = None
        if section is None or section.store_timestamp < timestamp:
            low = middle + 1 if section is None else min(section.end_queue_offset, high)
        else:
            high = max(section.first_queue_offset, low)
    return low
