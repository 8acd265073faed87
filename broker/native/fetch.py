"""Fetch: whole sections of one or many queues, as they stand in the log, from a leader or a follower.

ConsumeQueue → record → section → bytes. Nothing beyond what this node has applied is ever seen. A fetch that finds
nothing waits, and is woken by the very entry that brings something. The answer names the node that should be asked next when
that is another one (`ReadAdvice`).
Owns: one fetch. Must not: decode a record.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from ledgermq.proto import log_pb2, route_pb2
from ledgermq.proto.entry import Buffer
from ledgermq.raft.errors import LogCompactedError

from ..errors import ConsumeQueueError, QueueNotFoundError
from ..reading.log_reader import StoredSection
from ..reading.polls import TooManyPollsError
from ..refusals import RefusedError
from ..service.context import NodeContext
from ..wire.native import QueueFrame, fetch_response

DEFAULT_MAX_BYTES: Final = 1 << 20
MAX_BYTES: Final = 64 << 20
MAX_WAIT_MS: Final = 30_000
MAX_POSITIONS: Final = 4096
#: Of one answer, and between two turns of the others: a section that memory has costs some 20 µs of the event loop.
MAX_SECTIONS: Final = 4096
_SECTIONS_AT_ONCE: Final = 128
#: Queues that are looked up only to advise a reader: more would hold the event loop.
_MOST_PEEKS: Final = 256


@dataclass(slots=True)
class _Gathered:
    """What was found for a request."""

    #: Closed, of the queues that have something to say.
    frames: list[list[Buffer]] = field(default_factory=list)
    backlog: int = 0  # bytes of log from where the slowest of these is read next, to the end
    sections: int = 0
    looked_at: int = 0  # positions; there was no room for the rest,
    left_out: list[log_pb2.FetchPosition] = field(default_factory=list)  # nor for these of them


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
            found = await _gather(context, request)
            remaining = until - time.monotonic()
            if found.frames or remaining <= 0:
                break
            with context.waiting_reader():
                woken = await waiter.wait(remaining)
        finally:
            waiter.close()
        if not woken or context.stopping:
            break
    stale = context.leadership.leader_id is None
    suggested = _suggested(context, request, found)
    return fetch_response(found.frames, context.raft.applied_index, context.config.node_id, stale, suggested)


def _suggested(context: NodeContext, request: log_pb2.FetchRequest, found: _Gathered) -> str:
    """Return the node that should be asked next, "" = this one."""
    advice, leadership = context.advice, context.leadership
    if leadership.ready:
        node = advice.follower(found.backlog, lambda: context.raft.status().peers)
    else:
        node = leadership.known_other or ""
        if node and not (advice.has_caught_up(found.backlog) and _rest_is_near(context, request, found)):
            node = ""
    if node:
        context.metrics.reads_moved.labels("follower" if leadership.ready else "leader").inc()
    return node


def _rest_is_near(context: NodeContext, request: log_pb2.FetchRequest, found: _Gathered) -> bool:
    """Tell whether the queues for which there was no room are close to the end, too."""
    queues, end = context.replica.state.queues, context.raft.log.end_offset
    rest = [*found.left_out, *request.positions[found.looked_at :]]
    if len(rest) > _MOST_PEEKS:
        return False
    for position in rest:
        queue = queues.get(position.topic_id, position.queue_id)
        if queue is None or position.offset >= queue.end:
            continue
        try:
            physical = queues.peek(queue, position.offset)
        except ConsumeQueueError:
            return False  # who reads it has it repaired
        if physical is None or not context.advice.has_caught_up(end - physical):
            return False
    return True


async def _gather(context: NodeContext, request: log_pb2.FetchRequest) -> _Gathered:
    """Read what there is of the queues, as far as there is room."""
    room = min(request.max_bytes or DEFAULT_MAX_BYTES, MAX_BYTES)
    found = _Gathered()
    frames = found.frames
    for position in request.positions:
        found.looked_at += 1
        frame: QueueFrame | None = None
        try:
            if _is_ahead(context, position):
                continue
            end = _end(context, position)
            if position.offset >= end:
                continue
            frame = QueueFrame(position.topic_id, position.queue_id)
            most = MAX_SECTIONS - found.sections
            taken, last = await _take(context, frame, position, end, room, first=not frames, most=most)
            room -= taken
            found.sections += frame.sections
            if last is not None and last.end_queue_offset < end:
                found.backlog = max(found.backlog, context.raft.log.end_offset - last.physical_offset)
        except RefusedError as error:
            frame = frame or QueueFrame(position.topic_id, position.queue_id)
            frame.refuse(error.refusal.SerializeToString())
            frames.append(frame.close(*_bounds(context, position)))
        else:
            if frame.sections:
                frames.append(frame.close(*_bounds(context, position)))
            else:
                found.left_out.append(position)
        if room <= 0 or found.sections >= MAX_SECTIONS:
            break
    return found


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
    most: int,
) -> tuple[int, StoredSection | None]:
    """Add sections to the frame, at most `most`; return their bytes and the last. At least one when it is the `first` of the answer."""
    offset, taken, last = position.offset, 0, None
    try:
        while offset < end and frame.sections < most:
            if frame.sections % _SECTIONS_AT_ONCE == _SECTIONS_AT_ONCE - 1:
                await asyncio.sleep(0)
            section = await _section_at(context, position.topic_id, position.queue_id, offset)
            if section is None or (taken + section.total_size > room and (taken or not first)):
                break
            frame.add(
                await context.reader.section_bytes(section), section.store_timestamp, section.physical_offset
            )
            taken += section.total_size
            offset, last = section.end_queue_offset, section
    except LogCompactedError:
        if not frame.sections:
            raise _gone(context, position) from None
    except QueueNotFoundError as error:  # deleted between two reads
        if not frame.sections:
            raise _not_there(context, position, error) from None
    return taken, last


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
