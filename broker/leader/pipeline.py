"""Append pipeline: batches all requests that go through the log into shared entries (D3).

Requests that arrive while an append is in flight are collected into one turn of the leader's view, which
becomes one entry: sections of producers, records of SendMessage calls (one section per queue), grants and
other state commands. Small requests have one append in flight at a time, so that others batch up behind it;
large ones up to eight.

Producers' works are sections of LogService streams, and messages of SendMessage calls. The leader's view
recognises retries; a retry whose first copy is undecided waits for the turn of that copy.

Owns: the waiting works, the turns in flight, and their limits.   Must not: judge what it appends (the view
does), or encode answers.
Invariants: works are placed in submission order, except that filters over budget wait for the next turn. A
turn is opened, filled and bound (or abandoned) in one step of the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ledgermq.proto.entry import HEADER_SIZE, Buffer
from ledgermq.proto.record import MAX_RECORD_OVERHEAD, SECTION_HEADER_SIZE, SectionKind, encode_section
from ledgermq.raft.errors import (
    BusyError,
    DiskFullError,
    EntryTooLargeError,
    NodeStoppedError,
    NotLeaderError,
    ProposalLostError,
    TransferringError,
)
from ledgermq.raft.state_machine import Proposal

from ..state import commands
from ..state.codecs import encode
from ..state.commands import Command, LogStart
from ..state.effects import Effects
from ..state.topics import Topic
from ..wire.native import ProducedSection
from ..wire.official import OutgoingRecord, queue_of_group
from .leader_view import LeaderView, Turn, Verdict

#: Number of waiting bytes from which on more than one append may be in flight.
LARGE_TURN_BYTES: Final = 256 * 1024
MAX_TURNS_IN_FLIGHT: Final = 8
#: A turn is closed after the work with which it reaches this size.
MAX_TURN_BYTES: Final = 4 << 20
#: Maximum of bytes that wait for their turn or for commit. Above it, requests are refused.
MAX_WAITING_BYTES: Final = 64 << 20
#: Additional bytes for ESSENTIAL commands: their proposers have no caller to pass a refusal to.
ESSENTIAL_RESERVE: Final = 1 << 20
#: An entry counts its sections in 16 bits.
MAX_WORKS_PER_TURN: Final = 8192
#: Commands that are accepted even if the disk is full: they free space, prevent more data, or are small
#: internal housekeeping.
ESSENTIAL: Final = (
    commands.AssignQueues,
    commands.DeleteConsumerGroup,
    commands.DeleteTopic,
    commands.EvictDedup,
    commands.FeatureLevel,
    commands.ForgetBatches,
    commands.LeaveConsumerGroup,
    commands.LogStart,
    commands.ParkMessages,
    commands.ReleaseLeases,
    commands.SessionLost,
    commands.SetBrokerGroupMode,
    commands.SetTopicKeepUnread,
    commands.SetTopicRetention,
    commands.TrimQueues,
)

#: Bytes of an entry that are reserved for its header and for commands that share it.
_ENTRY_OVERHEAD: Final = HEADER_SIZE + 4096

#: Errors of `propose` that are definite: nothing was appended.
DEFINITE_ERRORS: Final = (
    NotLeaderError,
    BusyError,
    TransferringError,
    EntryTooLargeError,
    DiskFullError,
    NodeStoppedError,
)


def largest_message(max_entry_size: int) -> int:
    """Return the size (bytes) up to which any body fits into an entry of that size; negative: none fits."""
    return max_entry_size - _ENTRY_OVERHEAD - SECTION_HEADER_SIZE - MAX_RECORD_OVERHEAD


class TooManyRequestsError(Exception):
    """A limit of the pipeline was reached. Nothing was appended."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(
            f"{waiting} bytes wait for commit; the limit is {limit}."
            " Repeat after a moment, or send less at once"
        )


class TurnFailedError(BusyError):
    """A bug broke the turn of this work. Nothing was appended; the other works of the turn can be retried."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(
            f"internal error of the leader, nothing was stored: {type(reason).__name__}: {reason}."
            " Its log has the details"
        )


class Proposer(Protocol):
    """The part of RaftNode that the pipeline uses."""

    def propose(self, parts: list[Buffer], section_count: int, *, urgent: bool = False) -> Proposal: ...

    def next_timestamp(self) -> int: ...


@dataclass(slots=True)
class SentMessage:
    """Place of a message of a SendMessage call."""

    queue_id: int
    offset: int = -1  # queue offset; set when the turn is closed
    verdict: Verdict = Verdict.ACCEPTED  # other than ACCEPTED or DUPLICATE: the message is not stored


@dataclass(slots=True)
class _Section:
    records: list[bytes] = field(default_factory=list)
    placed: list[SentMessage] = field(default_factory=list)
    size: int = SECTION_HEADER_SIZE


class QueueRotation:
    """Round-robin choice of a topic's queue for messages without a message group. It outlives turns."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def take(self, topic: Topic) -> int:
        """Return the queue id for this turn."""
        queue_id = self._next.get(topic.topic_id, 0) % topic.queue_count
        self._next[topic.topic_id] = queue_id + 1
        return queue_id


class RecordCollector:
    """Records of the SendMessage calls that share a turn: one section per queue, for all senders.

    Messages without a message group stay together: each turn uses the next queue of the topic.
    """

    def __init__(self, view: LeaderView, rotation: QueueRotation) -> None:
        self.view = view
        self._rotation = rotation
        self._sections: dict[tuple[int, int], _Section] = {}
        self._chosen: dict[int, int] = {}
        self._by_id: dict[tuple[int, bytes], SentMessage] = {}

    def find(self, topic_id: int, message_id: bytes) -> SentMessage | None:
        """Return the record with that id, if this turn already has one."""
        return self._by_id.get((topic_id, message_id))

    def add(self, topic: Topic, record: OutgoingRecord, message_group: str) -> SentMessage:
        """Add a record. `close` sets its offset."""
        queue_id = self._queue(topic, message_group)
        section = self._sections.setdefault((topic.topic_id, queue_id), _Section())
        data = record.encode(section.size)
        section.size += len(data)
        section.records.append(data)
        placed = SentMessage(queue_id)
        section.placed.append(placed)
        self._by_id[topic.topic_id, record.message_id] = placed
        return placed

    def _queue(self, topic: Topic, message_group: str) -> int:
        if message_group:
            return queue_of_group(message_group, topic.queue_count)
        if topic.topic_id not in self._chosen:
            self._chosen[topic.topic_id] = self._rotation.take(topic)
        return self._chosen[topic.topic_id]

    def close(self, turn: Turn) -> None:
        """Add the sections to the turn and set the offset of every record."""
        for (topic_id, queue_id), section in self._sections.items():
            records = section.records
            encoded = encode_section(
                SectionKind.RECORDS, records, len(records), topic_id=topic_id, queue_id=queue_id
            )
            admission = turn.add_records(encoded)
            for i, placed in enumerate(section.placed):
                placed.verdict = admission.verdict
                placed.offset = admission.base_offset + i


@dataclass(slots=True, eq=False)
class Flight:
    """One turn in flight. It is the token of its leader-view turn: duplicates wait for the first copy."""

    turn: Turn = field(init=False)
    records: RecordCollector = field(init=False)
    works: list[Work] = field(default_factory=list)
    timestamp: int = 0  # log time of the entry, ms
    urgent: bool = False  # it frees disk space, and holds one work only
    started: float = 0.0  # monotonic seconds at which it was proposed
    _dependents: list[Callable[[Exception | None], None]] = field(default_factory=list)  # of later turns
    _decided: bool = False
    _error: Exception | None = None  # None with `_decided`: committed

    def when_decided(self, dependent: Callable[[Exception | None], None]) -> None:
        """Call `dependent`, of a retry in a later turn, with the outcome; at once if it is known already."""
        if self._decided:
            dependent(self._error)
        else:
            self._dependents.append(dependent)

    def decided(self, error: Exception | None) -> None:
        """Record the outcome and notify dependents. None: committed; else the entry was refused or lost."""
        self._decided, self._error = True, error
        dependents, self._dependents = self._dependents, []
        for dependent in dependents:
            dependent(error)


class Work(Protocol):
    """One request in the pipeline."""

    size: int  # estimated bytes that it adds to the log
    section_bound: int  # maximum number of sections that it adds
    filters: bool  # it scans queues with a filter
    essential: bool  # accepted even while `AppendPipeline.refusal` is set

    def place(self, flight: Flight, now: int) -> None:
        """Add sections and commands to `flight.turn`, records to `flight.records`. `now`: log time, ms."""

    def on_committed(self, flight: Flight) -> None:
        """Handle the commit of the entry, or an empty turn. Works that need no more answer their caller."""

    def on_applied(self, flight: Flight, effects: Effects) -> None:
        """Handle the applied entry."""

    def fail(self, error: Exception) -> None:
        """Handle a definite refusal, or an unknown outcome (ProposalLostError)."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of an applied command."""

    result: Any  # from Effects.results
    index: int  # of its entry; the new id of leases that it granted or changed


class CommandWork:
    """One state command. Its future's result is `Applied`, once it is applied.

    The constructor encodes it: an encoding error fails only its own caller, and the size is exact.
    """

    __slots__ = ("_command", "_raw", "_slot", "essential", "future", "section_bound", "size", "urgent")
    filters = False

    def __init__(self, command: Command, future: asyncio.Future[Applied]) -> None:
        self._command = command
        self._raw = encode(command)
        self._slot = 0
        self.urgent = isinstance(command, LogStart)
        self.essential = isinstance(command, ESSENTIAL)
        self.size = len(self._raw) + SECTION_HEADER_SIZE
        self.section_bound = 0
        self.future = future

    def place(self, flight: Flight, now: int) -> None:
        self._slot = flight.turn.add_command(self._command, self._raw)

    def on_committed(self, flight: Flight) -> None:
        """Do nothing: a command has no result before it is applied."""

    def on_applied(self, flight: Flight, effects: Effects) -> None:
        settle(self.future, Applied(effects.results[self._slot], effects.index))

    def fail(self, error: Exception) -> None:
        settle_error(self.future, error)


def settle(future: asyncio.Future[Any], value: object) -> None:
    """Set the result of a future unless its caller cancelled it."""
    if not future.done():
        future.set_result(value)


def settle_error(future: asyncio.Future[Any], error: Exception) -> None:
    """Set the exception of a future unless its caller cancelled it."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks it as retrieved: a cancelled caller will not read it


@dataclass(slots=True)
class SectionOutcome:
    """Outcome of one section; see Admission."""

    verdict: Verdict
    base_offset: int
    count: int  # records
    expected_sequence: int = 0  # set with SEQUENCE_GAP


class _ProducerWork:
    """Work that waits for its own turn and those of first copies, until all are decided or one is lost."""

    filters = essential = False

    def __init__(self, size: int, section_bound: int) -> None:
        self.size = size
        self.section_bound = section_bound
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timestamp = 0  # log time of the entry, ms
        self.index = 0  # of the entry; 0: all of it was stored before
        self.committed_at = 0.0  # monotonic seconds
        self._undecided = 1  # turns to wait for

    def wait_for(self, turn: Turn, own: Flight) -> None:
        """Wait for the turn that holds a first copy."""
        flight = turn.token
        assert isinstance(flight, Flight)
        if flight is not own:
            self._undecided += 1
            flight.when_decided(self._on_decided)

    def on_committed(self, flight: Flight) -> None:
        self.timestamp = flight.timestamp
        self.index = flight.turn.index
        self.committed_at = time.monotonic()
        self._on_decided(None)

    def on_applied(self, flight: Flight, effects: Effects) -> None:
        """Do nothing: producers are answered at commit."""

    def fail(self, error: Exception) -> None:
        settle_error(self.future, error)

    def _on_decided(self, error: Exception | None) -> None:
        if error is not None:
            self.fail(error)
            return
        self._undecided -= 1
        if not self._undecided:
            settle(self.future, self.result())

    def result(self) -> object:
        raise NotImplementedError


class ProduceWork(_ProducerWork):
    """Sections of one ProduceRequest. The future's result is one SectionOutcome per section."""

    def __init__(self, sections: list[ProducedSection]) -> None:
        super().__init__(sum(each.header.total_size for each in sections), len(sections))
        self._sections = sections
        self._outcomes: list[SectionOutcome] = []

    def place(self, flight: Flight, now: int) -> None:
        for section in self._sections:
            admission = flight.turn.add_records(section.header_bytes, section.body, section.header)
            self._outcomes.append(
                SectionOutcome(
                    admission.verdict,
                    admission.base_offset,
                    section.header.count,
                    admission.expected_sequence,
                )
            )
            if admission.verdict is Verdict.PENDING and admission.turn is not None:
                self.wait_for(admission.turn, flight)
        self._sections = []

    def result(self) -> list[SectionOutcome]:
        return self._outcomes


class SendWork(_ProducerWork):
    """Messages of one SendMessage call. The future's result is one SentMessage per message."""

    def __init__(self, topic: Topic, messages: list[tuple[OutgoingRecord, str]]) -> None:
        size = sum(len(record.rest_run) + len(record.system_run) + 160 for record, _ in messages)
        super().__init__(size, len(messages))
        self._topic = topic
        self._messages = messages
        self._placed: list[SentMessage] = []

    def place(self, flight: Flight, now: int) -> None:
        topic_id = self._topic.topic_id
        for record, message_group in self._messages:
            known = flight.records.view.find_message(topic_id, record.message_id)
            if known is not None:
                self._placed.append(SentMessage(known.queue_id, known.offset, Verdict.DUPLICATE))
                if known.turn is not None:
                    self.wait_for(known.turn, flight)
                continue
            same = flight.records.find(topic_id, record.message_id)
            self._placed.append(same or flight.records.add(self._topic, record, message_group))
        self._messages = []

    def result(self) -> list[SentMessage]:
        return self._placed


class AppendPipeline:
    """Append pipeline of the leader.

    Call `submit` on the event loop, `on_leader` with the view of each term, and `on_applied` after each
    entry.
    """

    def __init__(
        self,
        proposer: Proposer,
        max_entry_size: int,
        observe_commit: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._proposer = proposer
        self._max_payload = max_entry_size - _ENTRY_OVERHEAD
        self._max_turn = min(MAX_TURN_BYTES, self._max_payload)
        self._observe_commit = observe_commit
        self._view: LeaderView | None = None
        self._rotation = QueueRotation()
        self._waiting: deque[Work] = deque()
        # Filters that did not fit into the scan budget of a turn; they come first in the next one.
        self._put_off: deque[Work] = deque()
        self._waiting_bytes = 0  # of `_waiting` and `_put_off`
        self._flying_bytes = 0  # of turns that are proposed and not committed
        self._in_flight = 0  # number of such turns
        self._flights: dict[int, Flight] = {}  # by entry index, until applied
        self._scheduled = False  # `_take_turns` is scheduled
        self.turns = 0  # proposed so far
        #: Reason why services refuse messages, because the disk is too full; "": they accept them.
        self.produce_refusal = ""
        #: Reason why only essential works are accepted, because the disk is nearly full; "": all are.
        self.refusal = ""

    @property
    def max_request_bytes(self) -> int:
        """Maximum size of a work: the sections of one request must fit into one entry."""
        return self._max_payload

    @property
    def bytes_waiting(self) -> int:
        """Number of bytes that wait for their turn or for commit."""
        return self._waiting_bytes + self._flying_bytes

    def on_leader(self, view: LeaderView | None) -> None:
        """Set the view of this leader; None: it stopped leading, and unproposed works fail (definite)."""
        self._view = view
        if view is None:
            works = [*self._put_off, *self._waiting]
            self._put_off.clear()
            self._waiting.clear()
            self._waiting_bytes = 0
            _fail(works, NotLeaderError(None))

    def submit(self, work: Work) -> None:
        """Queue a work for the next turn.

        Raises: NotLeaderError, TooManyRequestsError, EntryTooLargeError, DiskFullError.
        """
        if self._view is None:
            raise NotLeaderError(None)
        if self.refusal and not work.essential:
            raise DiskFullError(self.refusal)
        if work.size > self._max_payload:
            raise EntryTooLargeError(work.size, self._max_payload)
        limit = MAX_WAITING_BYTES + (ESSENTIAL_RESERVE if work.essential else 0)
        if self.bytes_waiting + work.size > limit:
            raise TooManyRequestsError(self.bytes_waiting, limit)
        self._waiting.append(work)
        self._waiting_bytes += work.size
        self._schedule()

    def run(self, command: Command) -> asyncio.Future[Applied]:
        """Queue a command; the future is done when it is applied. Raises: as `submit`."""
        future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        self.submit(CommandWork(command, future))
        return future

    def _may_propose(self) -> bool:
        if self._in_flight == 0:
            return True
        return self._waiting_bytes >= LARGE_TURN_BYTES and self._in_flight < MAX_TURNS_IN_FLIGHT

    def _schedule(self) -> None:
        """Schedule a turn after the callbacks that are due now, so that their works share it."""
        if (self._waiting or self._put_off) and not self._scheduled and self._may_propose():
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._take_turns)

    def _take_turns(self) -> None:
        self._scheduled = False
        self._waiting.extendleft(reversed(self._put_off))
        self._put_off.clear()
        while self._waiting and self._view is not None and self._may_propose():
            self._take_turn(self._view)
            if self._put_off:  # yield to the event loop first
                break
        self._schedule()

    def _fill(self, flight: Flight) -> None:
        """Place waiting works until the turn is full."""
        now, size, sections = self._proposer.next_timestamp(), 0, 0
        while self._waiting and len(flight.works) < MAX_WORKS_PER_TURN:
            work = self._waiting[0]
            if work.filters and flight.turn.scan.is_spent:
                self._put_off.append(self._waiting.popleft())
                continue
            full = size + work.size > self._max_payload or sections + work.section_bound > 0xFFF0
            urgent = isinstance(work, CommandWork) and work.urgent
            if flight.works and (full or urgent or flight.urgent or size >= self._max_turn):
                break
            flight.urgent = urgent
            self._waiting.popleft()
            self._waiting_bytes -= work.size
            size += work.size
            sections += work.section_bound
            flight.works.append(work)
            work.place(flight, now)
        flight.records.close(flight.turn)

    def _take_turn(self, view: LeaderView) -> None:
        flight = Flight()
        flight.turn = view.open_turn(flight)
        flight.records = RecordCollector(view, self._rotation)
        try:
            self._fill(flight)
        except Exception as error:  # a bug: release reserved offsets and fail all waiting callers
            flight.turn.abandon()
            self._finish(flight, TurnFailedError(error))
            self._schedule()
            raise
        parts, section_count = flight.turn.close()
        if not section_count:
            flight.turn.abandon()
            self._finish(flight, None)
            return
        try:
            proposal = self._proposer.propose(parts, section_count, urgent=flight.urgent)
        except DEFINITE_ERRORS as error:
            flight.turn.abandon()
            self._finish(flight, error)
            return
        flight.turn.bind(proposal.index)
        flight.timestamp = proposal.timestamp
        flight.started = time.monotonic()
        self._flights[proposal.index] = flight
        self._in_flight += 1
        self._flying_bytes += flight.turn.size
        self.turns += 1
        proposal.committed.add_done_callback(lambda future: self._on_decided(flight, future))

    def _on_decided(self, flight: Flight, future: asyncio.Future[None]) -> None:
        """Handle a committed or lost proposal: notify all its works, then schedule the next turn."""
        self._in_flight -= 1
        self._flying_bytes -= flight.turn.size
        error = ProposalLostError("the node stops") if future.cancelled() else future.exception()
        if error is None:
            self._observe_commit(time.monotonic() - flight.started)
        elif self._flights.get(flight.turn.index) is flight:
            del self._flights[flight.turn.index]
        self._finish(
            flight, error if error is None or isinstance(error, Exception) else ProposalLostError(str(error))
        )
        self._schedule()

    def _finish(self, flight: Flight, error: Exception | None) -> None:
        if error is None:
            for work in flight.works:
                work.on_committed(flight)
        else:
            _fail(flight.works, error)
        flight.decided(error)

    def on_applied(self, effects: Effects) -> None:
        """Notify the works of an applied entry. Entries of other proposers are ignored."""
        flight = self._flights.pop(effects.index, None)
        if flight is not None:
            for work in flight.works:
                work.on_applied(flight, effects)


def _fail(works: list[Work], error: Exception) -> None:
    for work in works:
        work.fail(error)
