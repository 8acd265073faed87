"""Owned queue of a push consumer: fetched records, running batches, finished messages. Pure.

Owns: the batches, the progress that may be committed, the limits at which fetching stops.
Must not: do I/O, read clocks, call listeners.
Invariants: every fetched record that passes the filter is in exactly one place: not handed out, in one batch,
or finished. `progress.position` never exceeds the first unfinished message. A queue that is gone keeps
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from ledgermq.proto import log_pb2

from ..arguments import whole
from ..consume.fetched_records import FetchedRecords, open_section
from ..consume.intake import FETCH_BYTES, AssignedQueue, Intake, Refused
from ..message import MessageView
from .finished_prefix import FinishedPrefix, Span, cut_out

_LEAST_FETCH: Final = 64 * 1024
_FIRST_GUESS: Final = 1024  # assumed bytes per record before the first one was seen


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """A queue that reaches one of these limits is not fetched until it is down to half of them."""

    messages: int = 1000  # fetched and not finished
    bytes: int = 100 * 1024 * 1024
    span: int = 2000  # offsets from the first unfinished message to the last fetched one

    def __post_init__(self) -> None:
        """Raises: UsageError."""
        for name, most in (("messages", 1 << 31), ("bytes", 1 << 40), ("span", 1 << 31)):
            whole(1, most)(f"limits.{name}", getattr(self, name))


@dataclass(slots=True)
class ByteBudget:
    """Budget of bytes shared by all queues of a consumer."""

    limit: int
    used: int = 0

    @property
    def has_room(self) -> bool:
        return self.used < self.limit


class Stage(Enum):
    """Life of a queue from its assignment to its end here."""

    ACTIVE = "active"
    RELEASING = "being handed over: what runs may finish, nothing new starts"
    GONE = "not of this consumer any more: what still runs counts for nothing"


@dataclass(slots=True, eq=False)
class Batch:
    """Messages that a listener gets together."""

    source: OwnedQueue
    messages: list[MessageView]
    spans: list[Span]  # offsets of the batch, including those that the filter rejected
    held: list[FetchedRecords]  # sections that the messages refer to
    attempt: int = 1


@dataclass(slots=True, eq=False, kw_only=True)
class OwnedQueue(AssignedQueue):
    """A queue with its unfinished messages."""

    epoch: int = 0  # of the ownership; 0: none
    limits: QueueLimits
    budget: ByteBudget
    tags: np.ndarray | None = None  # hashes of the tags that pass; None: all
    committed: int  # last offset that is known to be committed
    stage: Stage = Stage.ACTIVE
    unfinished: int = 0  # messages fetched and not finished
    bytes: int = 0  # of the sections with unfinished messages; counted in `budget`, too
    running: int = 0  # batches that a listener has
    busy: bool = False  # with `orderly`: the next batch waits for the previous one or its retry
    listed: bool = False  # is in the consumer's list of queues with work
    progress: FinishedPrefix = field(init=False)
    _full: bool = False  # a limit was reached; reset at half of the limits
    _pieces: deque[FetchedRecords] = field(default_factory=deque)  # not completely handed out, in order
    _again: deque[Batch] = field(default_factory=deque)  # batches to retry, before `_pieces`

    def __post_init__(self) -> None:
        self.progress = FinishedPrefix(self.position)
        self.end_offset = self.position

    @property
    def has_work(self) -> bool:
        """Whether a batch can be taken."""
        return bool(self._again or self._pieces)

    @property
    def accepting(self) -> bool:
        """Whether more may be fetched."""
        return not (self._full or self.parked) and self.stage is Stage.ACTIVE

    @property
    def lag(self) -> int:
        """Messages after the finished ones, up to the last known end."""
        return max(self.end_offset - self.progress.position, 0)

    @property
    def uncommitted(self) -> bool:
        return self.progress.position > self.committed

    # --- inputs ---------------------------------------------------------------------------------------------

    def add(self, section: log_pb2.FetchedSection) -> int:
        """Add the records of a section. Return the number of new offsets. Raises: CorruptMessageError."""
        records = open_section(self.queue, section, self.fetch_offset, self.tags)
        if records is None:
            return 0
        count = records.end - self.fetch_offset
        self.fetch_offset = records.end
        self._pieces.append(records)
        self.unfinished += len(records.positions)
        self._hold(len(records.raw))
        self._review()
        return count

    def skip_to(self, offset: int) -> None:
        """Fetch from `offset` on: what precedes it and was not fetched is deleted."""
        self.generation += 1
        self.fetch_offset = offset
        if not self._pieces:
            self.progress.finish([(self.position, offset)])
            self.position = offset
        self._review()

    # --- batches --------------------------------------------------------------------------------------------

    def take(self, most: int) -> Batch | None:
        """Return the next messages for a listener, retries first; None: there is nothing.

        A batch without messages means that the filter rejected all of them: finish it.
        """
        if self.stage is not Stage.ACTIVE:
            return None
        if self._again:
            self.running += 1
            return self._again.popleft()
        begin = self.position
        batch = Batch(self, [], [], [])
        while self._pieces and len(batch.messages) < most:
            records = self._pieces[0]
            before = len(batch.messages)
            batch.messages.extend(records.take(self.queue, most - before))
            if len(batch.messages) > before:
                records.users += 1
                batch.held.append(records)
            self.position = records.next_offset
            if records.at == len(records.positions):
                self._pieces.popleft()
                self._let_go_if_done(records)
        if not self._pieces:
            self.position = self.fetch_offset  # skips what retention deleted before it was fetched
        if self.position == begin:
            return None
        batch.spans.append((begin, self.position))
        self.running += 1
        return batch

    def finish(self, batch: Batch) -> bool:
        """All messages of a batch are done. Return whether there is more to commit."""
        self.running -= 1
        if self.stage is Stage.GONE:
            return False
        self.unfinished -= len(batch.messages)
        for records in batch.held:
            records.users -= 1
            self._let_go_if_done(records)
        moved = self.progress.finish(batch.spans)
        self._review()
        return moved

    def put_back(self, batch: Batch, again: Sequence[MessageView]) -> list[Batch]:
        """Finish a batch except for the messages `again` (in order). Return one batch for each of these.

        Pass the batches to `try_again` to hand them out.
        """
        self.running -= 1
        if self.stage is Stage.GONE:
            return []
        offsets = [message.queue_offset for message in again]
        self.unfinished -= len(batch.messages) - len(again)
        self.progress.finish(cut_out(batch.spans, offsets))
        for records in batch.held:
            records.users += len(again) - 1
            self._let_go_if_done(records)
        self._review()
        return [
            Batch(self, [message], [(offset, offset + 1)], batch.held, batch.attempt + 1)
            for message, offset in zip(again, offsets, strict=True)
        ]

    def try_again(self, batches: Iterable[Batch]) -> None:
        """Hand out these batches next, in this order."""
        if self.stage is Stage.ACTIVE:
            self._again.extendleft(reversed(list(batches)))

    # --- the end --------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Start nothing more. Running batches may finish and be committed."""
        self.stage = Stage.RELEASING
        self._pieces.clear()
        self._again.clear()

    def drop(self) -> None:
        """Keep nothing, and ignore the results of running batches."""
        self.stage = Stage.GONE
        self.generation += 1
        self._pieces.clear()
        self._again.clear()
        self.unfinished = 0
        self._hold(-self.bytes)

    # --- limits ---------------------------------------------------------------------------------------------

    def _hold(self, count: int) -> None:
        self.bytes += count
        self.budget.used += count

    def _let_go_if_done(self, records: FetchedRecords) -> None:
        if not records.users and records.at == len(records.positions):
            self._hold(-len(records.raw))

    def _review(self) -> None:
        """Decide whether to fetch more: stop at the limits, resume below half of them."""
        part = 2 if self._full else 1
        limits = self.limits
        span = self.fetch_offset - self.progress.position
        self._full = (
            self.unfinished >= max(limits.messages // part, 1)
            or self.bytes >= max(limits.bytes // part, 1)
            or span >= max(limits.span // part, 1)
        )


class PushIntake(Intake[OwnedQueue]):
    """The owned queues of one broker group."""

    def __init__(self, budget: ByteBudget) -> None:
        super().__init__()
        self._budget = budget
        self._arrived: dict[OwnedQueue, None] = {}  # queues with new messages, in order
        self._asked: dict[tuple[int, int], int] = {}  # queues of the open request, with their generations
        self._waiting = False  # a request is open, and none of its queues had messages when it was sent
        self._bytes_seen = _FIRST_GUESS
        self._records_seen = 1

    def remove(self, owned: OwnedQueue) -> None:
        """Stop fetching a queue."""
        if self._queues.get(owned.key) is owned:
            del self._queues[owned.key]
        self._arrived.pop(owned, None)

    @property
    def has_room(self) -> bool:
        return self._budget.has_room and any(owned.accepting for owned in self._queues.values())

    @property
    def has_messages(self) -> bool:
        return bool(self._arrived)

    def take_arrived(self) -> list[OwnedQueue]:
        """Return the queues that got messages since the last call."""
        arrived, self._arrived = list(self._arrived), {}
        return arrived

    def next_request(self, max_wait_ms: int) -> tuple[log_pb2.FetchRequest, dict[tuple[int, int], int]]:
        request, self._asked = super().next_request(max_wait_ms)
        self._waiting = not any(
            owned.fetch_offset < owned.end_offset
            for owned in self._queues.values()
            if owned.key in self._asked
        )
        return request, self._asked

    def on_response(
        self, response: log_pb2.FetchResponse, asked: dict[tuple[int, int], int]
    ) -> list[Refused[OwnedQueue]]:
        self._waiting = False
        return super().on_response(response, asked)

    def is_left_out(self, owned: OwnedQueue) -> bool:
        """Tell whether a queue with room must wait for a request that has nothing to return."""
        return self._waiting and owned.accepting and owned.key not in self._asked

    def _wanted(self) -> Sequence[OwnedQueue]:
        return [owned for owned in self._queues.values() if owned.accepting]

    def _most_bytes(self, wanted: Sequence[OwnedQueue]) -> int:
        """Request about as many messages as the queues can take, not tens of thousands of small ones."""
        messages = sum(max(owned.limits.messages - owned.unfinished, 1) for owned in wanted)
        likely = messages * self._bytes_seen // self._records_seen
        room = self._budget.limit - self._budget.used
        return max(min(likely, room, FETCH_BYTES), min(_LEAST_FETCH, self._budget.limit))

    def _take(self, assigned: OwnedQueue, found: log_pb2.FetchedQueue) -> None:
        assigned.end_offset = max(assigned.end_offset, found.end_offset)
        for section in found.sections:
            if count := assigned.add(section):
                self._records_seen += count
                self._bytes_seen += len(section.section)
                self._arrived[assigned] = None
        if self._records_seen > 100_000:  # weight recent records more
            self._records_seen //= 2
            self._bytes_seen //= 2
