"""Fetch: whole sections of one or many queues, as stored in the log, from a leader or a follower.

ConsumeQueue → record → section → bytes. Only what this node has applied is visible. A fetch that finds
nothing waits, and the entry that adds data wakes it. The answer names the node to ask next if that is another
one (`ReadAdvice`).
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
from ledgermq.raft.node.raft_node import RaftNode

from ..cluster.known_leader import Leadership
from ..errors import ConsumeQueueError, QueueNotFoundError
from ..metrics import Metrics
from ..reading.log_reader import QueueReader, StoredSection
from ..reading.polls import CommitWatch, Polls, TooManyPollsError
from ..reading.read_advice import ReadAdvice
from ..reading.read_memory import ReadMemory
from ..refusals import RefusedError
from ..replica import Replica
from ..service.shutdown import Shutdown
from ..wire.native import QueueFrame, fetch_response

DEFAULT_MAX_BYTES: Final = 1 << 20  # of section bytes in an answer
MAX_BYTES: Final = 64 << 20
#: Bytes of all answers that are being read: those from the disk wait for it meanwhile.
_READ_MEMORY: Final = 256 << 20
MAX_WAIT_MS: Final = 30_000
MAX_POSITIONS: Final = 4096  # queues in one fetch
#: Most sections in one answer, and most between two yields to the event loop: a section from memory takes it
#: some 20 µs.
MAX_SECTIONS: Final = 4096
_SECTIONS_AT_ONCE: Final = 128
#: Most queues that are looked up just to advise a reader: more would block the event loop.
_MOST_PEEKS: Final = 256


@dataclass(slots=True)
class Gathered:
    """Result of a read for one request."""

    #: Closed frames of the queues with sections or a refusal.
    frames: list[list[Buffer]] = field(default_factory=list)
    backlog: int = 0  # bytes of log from the next read position of the slowest of these queues to the end
    sections: int = 0  # in all frames; at most MAX_SECTIONS
    looked_at: int = 0  # number of positions tried; there was no room for those after them,
    left_out: list[log_pb2.FetchPosition] = field(default_factory=list)  # nor for these of those tried


class Fetches:
    """Serves fetches: waits while there is no data, and names the node to ask next."""

    def __init__(
        self,
        sections: SectionReads,
        suggestions: Suggestions,
        raft: RaftNode,
        leadership: Leadership,
        polls: Polls,
        commits: CommitWatch,
        shutdown: Shutdown,
    ) -> None:
        self._sections = sections
        self._suggestions = suggestions
        self._raft = raft
        self._leadership = leadership
        self._polls = polls
        self._commits = commits
        self._shutdown = shutdown

    @property
    def node_id(self) -> str:
        """The id of this node, which answers."""
        return self._leadership.node_id

    async def fetch(self, request: log_pb2.FetchRequest) -> bytes:
        """Return an encoded FetchResponse. Raises: RefusedError."""
        self._sections.check(request)
        until = time.monotonic() + min(request.max_wait_ms, MAX_WAIT_MS) / 1000
        keys = [("queue", each.topic_id, each.queue_id) for each in request.positions]
        while True:
            try:
                waiter = self._polls.open([*keys, "stop"])
            except TooManyPollsError as error:
                raise RefusedError(
                    route_pb2.TOO_MANY_REQUESTS, str(error), retryable=True, retry_after_ms=100
                ) from None
            try:
                found = await self._sections.gather(request)
                remaining = until - time.monotonic()
                if found.frames or remaining <= 0:
                    break
                with self._commits.waiting():
                    woken = await waiter.wait(remaining)
            finally:
                waiter.close()
            if not woken or self._shutdown.begun:
                break
        stale = self._leadership.leader_id is None
        suggested = self._suggestions.next_node(request, found)
        return fetch_response(found.frames, self._raft.applied_index, self.node_id, stale, suggested)


class Suggestions:
    """Chooses the node that a reader should ask next (`ReadAdvice`), and counts redirected readers."""

    def __init__(
        self, advice: ReadAdvice, raft: RaftNode, replica: Replica, leadership: Leadership, metrics: Metrics
    ) -> None:
        self._advice = advice
        self._raft = raft
        self._replica = replica
        self._leadership = leadership
        self._metrics = metrics

    def next_node(self, request: log_pb2.FetchRequest, found: Gathered) -> str:
        """Return the node to ask next; "": this one."""
        advice, leadership = self._advice, self._leadership
        if leadership.ready:
            node = advice.follower(found.backlog, lambda: self._raft.status().peers)
        else:
            node = leadership.known_other or ""
            if node and not (advice.has_caught_up(found.backlog) and self._rest_is_near(request, found)):
                node = ""
        if node:
            self._metrics.reads_moved.labels("follower" if leadership.ready else "leader").inc()
        return node

    def _rest_is_near(self, request: log_pb2.FetchRequest, found: Gathered) -> bool:
        """Return whether the queues that did not fit are close to the end of the log, too."""
        queues, end = self._replica.state.queues, self._raft.log.end_offset
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
                return False  # the read itself triggers the repair
            if physical is None or not self._advice.has_caught_up(end - physical):
                return False
        return True


class SectionReads:
    """Reads sections of many queues into one answer."""

    def __init__(
        self, replica: Replica, queues: QueueReader, raft: RaftNode, leadership: Leadership, metrics: Metrics
    ) -> None:
        self._replica = replica
        self._queues = queues
        self._raft = raft
        self._leadership = leadership
        self._metrics = metrics
        self._memory = ReadMemory(_READ_MEMORY)

    def check(self, request: log_pb2.FetchRequest) -> None:
        """Check that this node can serve the request now. Raises: RefusedError."""
        self._replica.require_whole_state()
        if len(request.positions) > MAX_POSITIONS:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f"{len(request.positions)} queues in one fetch; at most {MAX_POSITIONS}",
            )

    async def gather(self, request: log_pb2.FetchRequest) -> Gathered:
        """Read what the queues have, as far as it fits."""
        room = min(request.max_bytes or DEFAULT_MAX_BYTES, MAX_BYTES)
        async with self._memory.lent(room):
            return await self._gather(request, room)

    async def _gather(self, request: log_pb2.FetchRequest, room: int) -> Gathered:
        found = Gathered()
        frames = found.frames
        for position in request.positions:
            found.looked_at += 1
            frame: QueueFrame | None = None
            try:
                if self._is_ahead(position):
                    continue
                end = self._end(position)
                if position.offset >= end:
                    continue
                frame = QueueFrame(position.topic_id, position.queue_id)
                most = MAX_SECTIONS - found.sections
                taken, last = await self._take(frame, position, end, room, first=not frames, most=most)
                room -= taken
                found.sections += frame.sections
                if last is not None and last.end_queue_offset < end:
                    found.backlog = max(found.backlog, self._raft.log.end_offset - last.physical_offset)
            except RefusedError as error:
                frame = frame or QueueFrame(position.topic_id, position.queue_id)
                frame.refuse(error.refusal.SerializeToString())
                frames.append(frame.close(*self._bounds(position)))
            else:
                if frame.sections:
                    frames.append(frame.close(*self._bounds(position)))
                else:
                    found.left_out.append(position)
            if room <= 0 or found.sections >= MAX_SECTIONS:
                break
        return found

    def _is_ahead(self, position: log_pb2.FetchPosition) -> bool:
        """Return whether a follower has not applied the position yet; then the reader waits."""
        if self._leadership.ready:
            return False
        state = self._replica.state
        queue = state.queues.get(position.topic_id, position.queue_id)
        if queue is None:
            return position.topic_id >= state.topics.next_id
        return position.offset > queue.end

    def _bounds(self, position: log_pb2.FetchPosition) -> tuple[int, int]:
        """Return the current (begin, end) of a queue; zeros when there is none."""
        queue = self._replica.state.queues.get(position.topic_id, position.queue_id)
        return (queue.begin, queue.end) if queue is not None else (0, 0)

    def _end(self, position: log_pb2.FetchPosition) -> int:
        """Return the end of a queue. Raises: RefusedError when the position is out of range."""
        try:
            queue = self._replica.state.queues.named(position.topic_id, position.queue_id)
        except QueueNotFoundError as error:
            raise self._not_there(position, error) from None
        if position.offset < queue.begin:
            raise self._below_begin(position.offset, queue.begin)
        if position.offset > queue.end:
            raise RefusedError(
                route_pb2.OFFSET_OUT_OF_RANGE,
                f"offset {position.offset} is not stored yet: the queue holds {queue.begin} to {queue.end}",
            )
        return queue.end

    def _not_there(self, position: log_pb2.FetchPosition, error: QueueNotFoundError) -> RefusedError:
        """Return the refusal for a queue that does not exist or was deleted."""
        gone = self._replica.state.topics.was_deleted(position.topic_id)
        code = route_pb2.STALE_ROUTE if gone else route_pb2.QUEUE_NOT_FOUND
        return RefusedError(code, f"{error}; refresh the route")

    def _below_begin(self, offset: int, begin: int) -> RefusedError:
        """Return the refusal of a read below the queue's begin, and count it."""
        self._metrics.reads_below_begin.inc()
        return RefusedError(
            route_pb2.OFFSET_OUT_OF_RANGE,
            f"offset {offset} was deleted by retention: the queue begins at {begin} now, {begin - offset:,} "
            f"messages are gone. Go on at {begin}",
        )

    async def _take(
        self,
        frame: QueueFrame,
        position: log_pb2.FetchPosition,
        end: int,
        room: int,
        *,
        first: bool,
        most: int,
    ) -> tuple[int, StoredSection | None]:
        """Add at most `most` sections to the frame; the `first` of the answer is added whatever its size.

        Returns the bytes added, and the last section.
        """
        offset, taken, last = position.offset, 0, None
        try:
            while offset < end and frame.sections < most:
                if frame.sections % _SECTIONS_AT_ONCE == _SECTIONS_AT_ONCE - 1:
                    await asyncio.sleep(0)
                section = await self._queues.section_at(position.topic_id, position.queue_id, offset)
                if section is None or (taken + section.total_size > room and (taken or not first)):
                    break
                frame.add(
                    await self._queues.section_bytes(section),
                    section.store_timestamp,
                    section.physical_offset,
                )
                taken += section.total_size
                offset, last = section.end_queue_offset, section
        except LogCompactedError:
            if not frame.sections:
                raise self._gone(position) from None
        except QueueNotFoundError as error:  # deleted between two reads
            if not frame.sections:
                raise self._not_there(position, error) from None
        return taken, last

    def _gone(self, position: log_pb2.FetchPosition) -> RefusedError:
        """Return the refusal for a message whose segment was deleted; apply moves the queue's begin later."""
        try:
            begin = self._replica.state.queue_begin(position.topic_id, position.queue_id)
        except QueueNotFoundError as error:
            return self._not_there(position, error)
        if begin > position.offset:
            return self._below_begin(position.offset, begin)
        return RefusedError(
            route_pb2.OFFSET_OUT_OF_RANGE,
            f"offset {position.offset} was deleted by retention; this node does not know yet where the queue "
            "begins now. Ask again",
            retryable=True,
            retry_after_ms=100,
        )
