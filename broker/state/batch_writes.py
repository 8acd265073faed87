"""Batches of jobs that write exactly once: how far each part of a job's current batch is stored (D39).

A *job* (a streaming query, or one batch write) writes batches with rising numbers. A batch has parts: one for
each partition and topic. Attempts at a part follow one another; beginning one ends the one before. A part
remembers how many messages it stored and where, so that an attempt can find out what is missing.

    job -> number of its newest batch, time of its last change, whether it has ended, and the batch's parts:
    (writer, topic id) -> epoch of the current attempt, messages stored, spans of queues that hold them

`writer` stands for job and partition. Sections carry it as producer id and the attempt as epoch. The marker
bit of the epoch tells them from sections of ordinary producers, which have a `Stream` (dedup.py).

Owns: that table.   Must not: read clocks; time is the log time of entries.
Invariants: an epoch is never given twice for a part. Parts are immutable, so a snapshot copies dicts only.
Parts of older batches are dropped: a job begins a batch when the one before is complete. So are those of a
job that has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ledgermq.proto.record import BATCH_WRITE_EPOCH
from ledgermq.proto.values import value

from .commands import BeginBatch, FinishBatch
from .effects import BatchResult, BatchState, PartKey, Span

#: Time (ms of log time) without a change after which a job is not continued. It is forgotten a day later: the
#: last changes in several broker groups are apart by as much as a batch takes, and until one of them forgets
#: the job, none may take the silence of another for ignorance.
JOB_WINDOW_MS: Final = 7 * 24 * 3_600_000
FORGOTTEN_AFTER_MS: Final = JOB_WINDOW_MS + 24 * 3_600_000
#: The same of a job that has ended: only late attempts of its tasks can come back.
ENDED_FORGOTTEN_AFTER_MS: Final = 3_600_000
#: Bounds, in jobs, in parts of their newest batches, and in spans of queues of these parts.
MAX_JOBS: Final = 20_000
MAX_PARTS: Final = 50_000
MAX_SPANS: Final = 200_000
#: For refusals.
ROOM_TEXT: Final = (
    "room is made by jobs that begin their next batch, by batch writes without a writeId an hour after they "
    "ended, and by other jobs 8 days after their last change"
)
_INDEX_MASK: Final = BATCH_WRITE_EPOCH - 1


@value
class Part:
    """What one partition of a batch has stored in one topic."""

    epoch: int  # of the current attempt; has the bit BATCH_WRITE_EPOCH
    count: int = 0  # messages stored by all attempts; the next section has this base sequence
    finished: bool = False  # it is complete: no attempt stores any more
    spans: tuple[Span, ...] = ()  # by queue id; other messages may lie between those of the part

    def with_section(self, queue_id: int, base: int, count: int) -> Part:
        """Return the part after one more section."""
        spans = {span[0]: span for span in self.spans}
        first = spans[queue_id][1] if queue_id in spans else base
        spans[queue_id] = (queue_id, first, base + count)
        return Part(self.epoch, self.count + count, False, tuple(spans[each] for each in sorted(spans)))


@dataclass(slots=True)
class Job:
    """The newest batch of a job."""

    batch: int
    timestamp: int  # log time (ms) of its last change
    parts: dict[PartKey, Part] = field(default_factory=dict)
    ended: bool = False  # it is complete and not continued; it has no parts


class BatchWrites:
    """All jobs, by their 16-byte ids."""

    def __init__(self) -> None:
        self.jobs: dict[bytes, Job] = {}
        self._owners: dict[PartKey, bytes] = {}  # the job of each part
        self.span_count = 0  # spans of all parts

    @property
    def part_count(self) -> int:
        return len(self._owners)

    def part(self, key: PartKey) -> Part | None:
        """Return a part of the current batch of its job."""
        owner = self._owners.get(key)
        return None if owner is None else self.jobs[owner].parts[key]

    def sizes_without(self, name: bytes, *, before_batch: int) -> tuple[int, int, int]:
        """Return the numbers of jobs, parts and spans, without what a batch of a job takes the place of.

        `name`: id of the job, which does not count itself.
        """
        job = self.jobs.get(name)
        dropped = list(job.parts.values()) if job is not None and job.batch < before_batch else []
        return (
            len(self.jobs) - (job is not None),
            self.part_count - len(dropped),
            self.span_count - sum(len(part.spans) for part in dropped),
        )

    def begin(self, command: BeginBatch, index: int, now: int) -> BatchResult:
        """Begin an attempt at a part. `index`: of the entry; it becomes the epoch. `now`: log time, ms."""
        key = (command.writer, command.topic_id)
        job = self.jobs.get(command.job)
        if job is None and command.batch and not command.unknown_too:
            return BatchResult(BatchState.UNKNOWN)
        if job is not None and job.ended:
            return BatchResult(BatchState.FINISHED, job.batch)
        if job is not None and now - job.timestamp > JOB_WINDOW_MS and not command.unknown_too:
            return BatchResult(BatchState.SILENT)
        if job is not None and command.batch < job.batch:
            return BatchResult(BatchState.OLDER, batch=job.batch)
        if self._owners.get(key, command.job) != command.job:
            return BatchResult(BatchState.TAKEN)
        former, epoch = self.part(key), BATCH_WRITE_EPOCH | (index & _INDEX_MASK)
        if former is not None and former.epoch == epoch:  # two attempts in one entry, perhaps at two batches
            return BatchResult(BatchState.BUSY)
        if job is None:
            job = self.jobs[command.job] = Job(command.batch, now)
        elif command.batch > job.batch:
            self._drop_parts(job)
            job.batch = command.batch
        job.timestamp = now
        part = job.parts.get(key)
        if part is not None and part.finished:
            return self.look(command.job, command.batch, key)
        job.parts[key] = Part(epoch) if part is None else Part(epoch, part.count, False, part.spans)
        self._owners[key] = command.job
        return self.look(command.job, command.batch, key)

    def look(self, name: bytes, batch: int, key: PartKey) -> BatchResult:
        """Return what is known about a part, without a change. `name`: id of the job."""
        job = self.jobs.get(name)
        if job is None:
            return BatchResult(BatchState.UNKNOWN)
        if job.ended:
            return BatchResult(BatchState.FINISHED, job.batch)
        if batch < job.batch:
            return BatchResult(BatchState.OLDER, batch=job.batch)
        part = job.parts.get(key) if batch == job.batch else None
        if part is None:
            return BatchResult(BatchState.BEGUN, batch=job.batch)
        state = BatchState.FINISHED if part.finished else BatchState.BEGUN
        return BatchResult(state, job.batch, part.epoch, part.count, part.spans)

    def finish(self, command: FinishBatch, now: int) -> BatchResult:
        """Declare a part complete. Does nothing unless the attempt is current and stored so many messages."""
        key = (command.writer, command.topic_id)
        part, owner = self.part(key), self._owners.get(key)
        if part is None or owner is None or part.epoch != command.epoch or part.count != command.count:
            return BatchResult(BatchState.OLDER)
        job = self.jobs[owner]
        job.parts[key] = Part(part.epoch, part.count, True, part.spans)
        job.timestamp = now
        return self.look(owner, job.batch, key)

    def end(self, name: bytes, now: int) -> None:
        """Declare a job complete. Does nothing if it is unknown. `name`: id of the job."""
        job = self.jobs.get(name)
        if job is not None:
            self._drop_parts(job)
            job.timestamp, job.ended = now, True

    def record(self, key: PartKey, queue_id: int, base: int, count: int, now: int) -> bool:
        """Record a section that was applied at queue offset `base`; tell whether there is such a part."""
        owner = self._owners.get(key)
        if owner is None:
            return False
        job = self.jobs[owner]
        before = job.parts[key]
        job.parts[key] = part = before.with_section(queue_id, base, count)
        self.span_count += len(part.spans) - len(before.spans)
        job.timestamp = now
        return True

    def forget(self, before: int, ended_before: int) -> None:
        """Drop jobs whose last change is older (log time, ms). `ended_before`: for those that have ended."""
        old = [
            name for name, job in self.jobs.items() if job.timestamp < (ended_before if job.ended else before)
        ]
        for name in old:
            self._drop_parts(self.jobs.pop(name))

    def remove_topic(self, topic_id: int) -> None:
        for key in [key for key in self._owners if key[1] == topic_id]:
            self.span_count -= len(self.jobs[self._owners.pop(key)].parts.pop(key).spans)

    def oldest(self, *, ended: bool = False) -> int | None:
        """Log time (ms) of the job that has not changed for longest; None without jobs.

        `ended`: of those that have ended, else of the others.
        """
        return min((job.timestamp for job in self.jobs.values() if job.ended is ended), default=None)

    def copy(self) -> dict[bytes, Job]:
        return {
            name: Job(job.batch, job.timestamp, dict(job.parts), job.ended) for name, job in self.jobs.items()
        }

    def restore(self, jobs: dict[bytes, Job]) -> None:
        self.jobs = jobs
        self._owners = {key: name for name, job in jobs.items() for key in job.parts}
        self.span_count = sum(len(part.spans) for job in jobs.values() for part in job.parts.values())

    def _drop_parts(self, job: Job) -> None:
        for key, part in job.parts.items():
            del self._owners[key]
            self.span_count -= len(part.spans)
        job.parts.clear()
