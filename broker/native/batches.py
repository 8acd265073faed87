"""Batches that are written exactly once: beginning and finishing attempts at their parts (D39).

The sections of an attempt come through `produce.py`; the leader's view refuses those of older attempts.
Must not: change the state other than by commands.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from ledgermq.proto import log_pb2, route_pb2

from ..errors import NotThereError
from ..leader.pipeline import AppendPipeline
from ..refusals import RETRY_AFTER_MS, RefusedError
from ..replica import Replica
from ..service.features import Features
from ..service.read_barrier import ReadBarrier
from ..state.batch_writes import MAX_JOBS, MAX_PARTS, MAX_SPANS, ROOM_TEXT
from ..state.commands import BATCH_WRITES, BeginBatch, EndJob, FinishBatch
from ..state.effects import BatchResult, BatchState
from ..state.topics import Topic

_MAX_JOB_BYTES: Final = 255
_FEATURE: Final = "write batches exactly once"
_MAX_BATCH: Final = (1 << 63) - 1


@dataclass(eq=False, repr=False)
class Batches:
    """Serves BeginBatch and FinishBatch, on the leader."""

    _replica: Replica
    _pipeline: AppendPipeline
    _barrier: ReadBarrier
    _features: Features

    async def begin(self, request: log_pb2.BeginBatchRequest) -> log_pb2.BeginBatchResponse:
        """Begin an attempt at a part, or look at it. Raises: RefusedError, and what the pipeline raises."""
        problem = _problem(request)
        if problem:
            raise RefusedError(route_pb2.INVALID_ARGUMENT, problem)
        topic = await self._topic(request.topic)
        job, writer = _digest(request.job), writer_id(request.job, request.partition)
        if request.look:
            await self._barrier.catch_up()
            key = (writer, topic.topic_id)
            result = self._replica.state.batch_writes.look(job, request.batch, key)
        else:
            await self._features.require(BATCH_WRITES, _FEATURE)
            command = BeginBatch(job, writer, topic.topic_id, request.batch, request.unknown_too)
            self._check_room(command)
            applied = await self._pipeline.run(command)
            if not isinstance(applied.result, BatchResult):
                raise RefusedError(
                    route_pb2.STALE_ROUTE,
                    f'topic "{request.topic}" was deleted meanwhile; refresh the route',
                )
            result = applied.result
        _raise_if_refused(request, result)
        answer = log_pb2.BeginBatchResponse(
            unknown=result.state is BatchState.UNKNOWN,
            silent=result.state is BatchState.SILENT,
            finished=result.state is BatchState.FINISHED,
            producer_id=writer,
            producer_epoch=result.epoch,
            topic_id=topic.topic_id,
            count=result.count,
        )
        for queue_id, first, end in result.spans:
            answer.spans.add(queue_id=queue_id, offset=first, end_offset=end)
        return answer

    async def finish(self, request: log_pb2.FinishBatchRequest) -> log_pb2.FinishBatchResponse:
        """Declare a part or a job complete. Raises: RefusedError, and what the pipeline raises."""
        await self._features.require(BATCH_WRITES, _FEATURE)
        if request.job:
            await self._pipeline.run(EndJob(_digest(request.job)))
            return log_pb2.FinishBatchResponse()
        command = FinishBatch(request.producer_id, request.topic_id, request.producer_epoch, request.count)
        applied = await self._pipeline.run(command)
        if applied.result.state is not BatchState.FINISHED:
            raise RefusedError(
                route_pb2.STALE_PRODUCER_EPOCH,
                "another attempt at this part of the batch has begun, or it was forgotten. The part is not "
                "finished; the other attempt does it. Begin again to find out how far it is",
            )
        return log_pb2.FinishBatchResponse()

    async def _topic(self, name: str) -> Topic:
        """Return the topic. Raises: NotThereError."""
        try:
            return self._replica.state.topics.named(name)
        except NotThereError:
            await self._barrier.catch_up()  # the caller may know more than a leader that was deposed
            return self._replica.state.topics.named(name)

    def _check_room(self, command: BeginBatch) -> None:
        """Check the limits of what the state keeps, after the command. Raises: RefusedError."""
        known = self._replica.state.batch_writes
        if known.part((command.writer, command.topic_id)) is not None:
            return  # it takes the place of its predecessor, or drops it
        jobs, parts, spans = known.sizes_without(command.job, before_batch=command.batch)
        for count, limit, what in (
            (jobs, MAX_JOBS, "jobs"),
            (parts, MAX_PARTS, "parts of batches"),
            (spans, MAX_SPANS, "queues of parts of batches"),
        ):
            if count >= limit:
                raise RefusedError(
                    route_pb2.NOT_SUPPORTED,
                    f"as many {what} are written as this broker group remembers ({limit}). Nothing was "
                    f"begun. Use fewer partitions or message groups; {ROOM_TEXT}",
                )


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def writer_id(job: str, partition: int) -> int:
    """Return the producer id of the sections of one partition of a job (u64, not 0)."""
    return int.from_bytes(_digest(f"{partition}/{job}")[:8], "little") or 1


def _problem(request: log_pb2.BeginBatchRequest) -> str:
    if not 0 < len(request.job.encode()) <= _MAX_JOB_BYTES:
        return f"the job's name has {len(request.job.encode())} bytes; 1 to {_MAX_JOB_BYTES} are allowed"
    return "" if request.batch >= 0 else f"batch {request.batch} is negative"


def _raise_if_refused(request: log_pb2.BeginBatchRequest, result: BatchResult) -> None:
    """Raise what refuses an attempt, unless the job is unknown or silent. Raises: RefusedError."""
    if result.state is BatchState.OLDER:
        raise RefusedError(
            route_pb2.FENCED,
            f'batch {result.batch} of job "{request.job}" has begun here, so batch {request.batch} is '
            "complete and cannot be written again. Nothing was begun. This is a late attempt, which can end, "
            "or the job was started from an older checkpoint: go on with the newest one",
        )
    if result.state is BatchState.BUSY:
        raise RefusedError(
            route_pb2.TOO_MANY_REQUESTS,
            "another attempt at this part began at the same time. Repeat it",
            retryable=True,
            retry_after_ms=RETRY_AFTER_MS,
        )
    if result.state is BatchState.TAKEN:
        raise RefusedError(
            route_pb2.ALREADY_EXISTS,
            f'partition {request.partition} of job "{request.job}" has the same writer id as one of another '
            "job. Nothing was begun. Use another name of the job, or another checkpoint",
        )
