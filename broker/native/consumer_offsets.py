"""Committed offsets of consumer groups, and the bounds of queues.

Commits go through the log and queries through read-index, so an offset never appears to go backwards.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ledgermq.proto import log_pb2, route_pb2

from ..errors import NotThereError
from ..leader.pipeline import AppendPipeline
from ..reading.log_reader import QueueReader
from ..refusals import RefusedError
from ..replica import Replica
from ..service.creation import Creation
from ..service.read_barrier import ReadBarrier
from ..state.commands import CommitOffsets, position_rows
from ..state.effects import CommitResult
from ..wire.validation import group_problem

#: Most offsets in one commit. Every node applies it in one step, during which it answers no call.
MAX_COMMIT_ROWS: Final = 4096


class ConsumerOffsets:
    """Commits and returns the offsets of consumer groups."""

    def __init__(
        self,
        replica: Replica,
        pipeline: AppendPipeline,
        creation: Creation,
        barrier: ReadBarrier,
        queues: QueueReader,
    ) -> None:
        self._replica = replica
        self._pipeline = pipeline
        self._creation = creation
        self._barrier = barrier
        self._queues = queues

    async def commit(self, request: log_pb2.CommitOffsetsRequest) -> log_pb2.CommitOffsetsResponse:
        """Store the offsets of a consumer group, on the leader.

        Raises: RefusedError, and what the pipeline raises.
        """
        if problem := group_problem(request.group):
            raise RefusedError(route_pb2.INVALID_ARGUMENT, problem)
        if len(request.offsets) > MAX_COMMIT_ROWS:
            problem = f"{len(request.offsets)} offsets in one commit; at most {MAX_COMMIT_ROWS}. Send several"
            raise RefusedError(route_pb2.INVALID_ARGUMENT, problem)
        try:
            rows = self._positions(request)
        except (RefusedError, NotThereError):
            # The caller may have read at a follower that has applied more, or this node was deposed and does
            # not know it yet.
            await self._barrier.catch_up()
            rows = self._positions(request)
        consumer_group = await self._creation.ensure_consumer_group(request.group)
        epochs = [each.epoch for each in request.offsets]
        command = CommitOffsets(
            consumer_group.group_id,
            position_rows(rows),
            request.reset,
            np.array(epochs, np.uint64) if any(epochs) else None,
        )
        applied = await self._pipeline.run(command)
        result: CommitResult = applied.result
        if result.fenced.any():
            raise RefusedError(route_pb2.FENCED, _fenced_text(request, int(result.fenced.argmax())))
        if not result.accepted.all():
            raise RefusedError(
                route_pb2.STALE_ROUTE,
                "a topic or the consumer group was deleted meanwhile; refresh the route",
            )
        return log_pb2.CommitOffsetsResponse()

    def _positions(self, request: log_pb2.CommitOffsetsRequest) -> list[tuple[int, int, int]]:
        """Return (topic id, queue id, offset) of each offset to store.

        Raises: RefusedError, NotThereError.
        """
        state, rows = self._replica.state, []
        for each in request.offsets:
            topic = state.topics.named(each.topic)
            queue = state.queues.named(topic.topic_id, each.queue_id)
            if not 0 <= each.offset <= queue.end:
                raise RefusedError(
                    route_pb2.OFFSET_OUT_OF_RANGE,
                    f"offset {each.offset} of {each.topic} queue {each.queue_id} is beyond its end "
                    f"{queue.end}",
                )
            rows.append((topic.topic_id, each.queue_id, each.offset))
        return rows

    async def wait_until_new(self, request: log_pb2.QueryOffsetsRequest, remaining: float | None) -> bool:
        """Wait until this node can answer; return whether its state may be stale.

        If there is no leader for longer than most elections take, a caller that allows stale answers gets
        this node's state. Raises: NotLeaderError, NodeStoppedError, RefusedError.
        """
        if request.allow_stale:
            return await self._barrier.wait_or_stale(remaining)
        await self._barrier.wait(remaining)
        return False

    async def query(self, request: log_pb2.QueryOffsetsRequest) -> log_pb2.QueryOffsetsResponse:
        """Return begin, end and committed offset of each queue; with a time, also the first offset from then.

        Raises: NotThereError.
        """
        state = self._replica.state
        topic = state.topics.named(request.topic)
        consumer_group = state.groups.find(request.group) if request.group else None
        answer = log_pb2.QueryOffsetsResponse()
        for queue in state.queues_of(topic):
            committed = (
                state.committed_offset(consumer_group.group_id, *queue.key)
                if consumer_group is not None
                else None
            )
            answer.offsets.add(
                topic=topic.name,
                queue_id=queue.key[1],
                offset=-1 if committed is None else committed,
                begin_offset=queue.begin,
                end_offset=queue.end,
                lost=state.lost_count(consumer_group.group_id, *queue.key)
                if consumer_group is not None
                else 0,
            )
        if request.timestamp:
            for each in answer.offsets:
                each.time_offset = await self._queues.offset_at_time(
                    topic.topic_id, each.queue_id, request.timestamp
                )
        return answer


def _fenced_text(request: log_pb2.CommitOffsetsRequest, place: int) -> str:
    """Return the text that names the fenced queue and the remedy."""
    refused = request.offsets[place]
    queue = f'queue {refused.queue_id} of topic "{refused.topic}"'
    if refused.epoch:
        return (
            f"{queue} is not this consumer's any more: epoch {refused.epoch} has ended. Drop what is "
            f"buffered of it; its owner goes on at the committed offset. Queues of this commit that are "
            f"still owned are stored"
        )
    return (
        f'{queue} belongs to the members of consumer group "{request.group}", which consume it queue by '
        "queue. Use another consumer group, or stop the members first"
    )
