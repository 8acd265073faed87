"""The append pipeline: everything that must go through the log shares entries (D3).

What arrives while an append is out is collected into one turn of the leader's view and becomes one entry: sections of
producers, records of SendMessage calls (one section per queue), grants and other state commands. One append is out at a
time while requests are small, so that others gather behind it; up to eight when they are large.

Owns: what waits for its turn, the turns in flight, and their bounds. Must not: judge what it appends; works and view do.
Invariants: works are placed in the order in which they were given; a turn is opened, filled and bound (or abandoned) in
one step of the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ledgermq.proto.entry import HEADER_SIZE, Buffer
from ledgermq.proto.record import MAX_RECORD_OVERHEAD, SECTION_HEADER_SIZE
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

from ..state.codecs import encode
from ..state.commands import (
    AssignQueues,
    Command,
    DeleteGroup,
    DeleteTopic,
    EvictDedup,
    FeatureLevel,
    LeaveGroup,
    LogStart,
    ParkMessages,
    ReleaseLeases,
    SessionLost,
    SetBrokerGroupMode,
    SetTopicKeepUnread,
    SetTopicRetention,
    TrimQueues,
)
from ..state.effects import Effects
from .leader_view import LeaderView, Turn
from .records import QueueRotation, RecordCollector

#: Works of this many waiting bytes are "large": more than one append may then be out.
LARGE_TURN_BYTES: Final = 256 * 1024
MAX_TURNS_IN_FLIGHT: Final = 8
#: A turn is closed behind the work that reaches this size.
MAX_TURN_BYTES: Final = 4 << 20
#: Bytes that may wait for their turn or for commit; then requests are refused.
MAX_WAITING_BYTES: Final = 64 << 20
#: So many bytes more for ESSENTIAL commands: who proposes them has nobody to whom a refusal could be passed on.
ESSENTIAL_RESERVE: Final = 1 << 20
#: An entry counts its sections in 16 bits.
MAX_WORKS_PER_TURN: Final = 8192
#: Commands that are taken however full the disk is: they free space, keep more from coming, or are the broker's own small
#: housekeeping.
ESSENTIAL: Final = (
    AssignQueues,
    DeleteGroup,
    DeleteTopic,
    EvictDedup,
    FeatureLevel,
    LeaveGroup,
    LogStart,
    ParkMessages,
    ReleaseLeases,
    SessionLost,
    SetBrokerGroupMode,
    SetTopicKeepUnread,
    SetTopicRetention,
    TrimQueues,
)

#: Bytes that an entry has besides what producers sent: its header, and room for commands that share it.
_ENTRY_OVERHEAD: Final = HEADER_SIZE + 4096

#: What proposing can be refused with: definite, nothing was appended.
DEFINITE_ERRORS: Final = (
    NotLeaderError,
    BusyError,
    TransferringError,
    EntryTooLargeError,
    DiskFullError,
    NodeStoppedError,
)


def largest_message(max_entry_size: int) -> int:
    """Return the largest body (bytes) whose record surely fits into an entry of that size; below 0: none does."""
    return max_entry_size - _ENTRY_OVERHEAD - SECTION_HEADER_SIZE - MAX_RECORD_OVERHEAD


class TooManyRequestsError(Exception):
    """A bound of the pipeline was reached. Nothing was appended."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(
            f"{waiting} bytes wait for commit; the limit is {limit}. Repeat after a moment, or send less at once"
        )


class TurnFailedError(BusyError):
    """A defect broke the turn that this work stood in. Nothing was appended: others may repeat theirs."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(
            f"internal error of the leader, nothing was stored: {type(reason).__name__}: {reason}. Its log has the details"
        )


class Proposer(Protocol):
    """The part of RaftNode that the pipeline uses."""

    def propose(self, parts: list[Buffer], section_count: int, *, urgent: bool = False) -> Proposal: ...

    def next_timestamp(self) -> int: ...


class Flight:
    """One turn on its way: the token of its leader-view turn, so that duplicates can wait for the first copy."""

    __slots__ = (
        "_decided",
        "_dependents",
        "_error",
        "records",
        "started",
        "timestamp",
        "turn",
        "urgent",
        "works",
    )

    def __init__(self) -> None:
        self.turn: Turn
        self.timestamp = 0  # log time of the entry, ms
        self.works: list[Work] = []
        self.urgent = False  # it makes room on a full disk, and goes alone
        self.records: RecordCollector
        self.started = 0.0
        self._dependents: list[Callable[[Exception | None], None]] = []
        self._decided = False
        self._error: Exception | None = None

    def when_decided(self, dependent: Callable[[Exception | None], None]) -> None:
        """Tell a work of a later turn, which waits for a first copy in this one; at once when it is decided already."""
        if self._decided:
            dependent(self._error)
        else:
            self._dependents.append(dependent)

    def decided(self, error: Exception | None) -> None:
        """The entry is committed (None), refused or lost: tell who waits for it."""
        self._decided, self._error = True, error
        dependents, self._dependents = self._dependents, []
        for dependent in dependents:
            dependent(error)


class Work(Protocol):
    """One request on its way through the pipeline."""

    size: int  # bytes that it will about add to the log
    section_bound: int  # sections that it will at most add
    filters: bool  # it looks through queues for what a filter wants
    essential: bool  # taken also while `AppendPipeline.refusal` is set

    def place(self, flight: Flight, now: int) -> None:
        """Add its sections and commands to `flight.turn`, its records to `flight.records`; `now` is log time."""

    def on_committed(self, flight: Flight) -> None:
        """The entry is committed (or the turn was empty): answer whoever waits for that."""

    def on_applied(self, flight: Flight, effects: Effects) -> None:
        """The entry is applied."""

    def fail(self, error: Exception) -> None:
        """It was refused (definite), or its outcome is unknown (ProposalLostError)."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of an applied command, and the index of its entry (the new lease id of what it leased)."""

    result: Any
    index: int


class CommandWork:
    """One state command; its future ends with `Applied` when it is applied.

    It is encoded here, where only its own caller fails when it cannot be, and its size is exact.
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
        """Nobody may act on a command before it is applied."""

    def on_applied(self, flight: Flight, effects: Effects) -> None:
        settle(self.future, Applied(effects.results[self._slot], effects.index))

    def fail(self, error: Exception) -> None:
        settle_error(self.future, error)


def settle(future: asyncio.Future[Any], value: object) -> None:
    """End a future unless its caller is gone."""
    if not future.done():
        future.set_result(value)


def settle_error(future: asyncio.Future[Any], error: Exception) -> None:
    """End a future with an error unless its caller is gone."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # read once: a caller that was cancelled leaves nobody to read it


class AppendPipeline:
    """Use: `submit(work)` on the loop; `on_leader` with the view of a term, `on_applied` after each entry."""

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
        # Filters, when the turn's were at their bound: first in the next one
        self._put_off: deque[Work] = deque()
        self._waiting_bytes = 0
        self._flying_bytes = 0
        self._in_flight = 0
        self._flights: dict[int, Flight] = {}  # by index, until applied
        self._scheduled = False
        self.turns = 0
        #: Why services refuse messages ("" = they take them): the disk is too full.
        self.produce_refusal = ""
        #: Why nothing but essential works is taken ("" = all are): the disk is nearly full.
        self.refusal = ""

    @property
    def max_request_bytes(self) -> int:
        """The largest work that is taken: one request's sections must fit into one entry."""
        return self._max_payload

    @property
    def bytes_waiting(self) -> int:
        """Bytes that wait for their turn or for commit."""
        return self._waiting_bytes + self._flying_bytes

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing waits and nothing is in flight."""
        return not self._waiting and not self._put_off and not self._in_flight

    def on_leader(self, view: LeaderView | None) -> None:
        """This node leads with this view, or (None) no longer: what was not proposed is refused, definitely."""
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
        """Queue a command; the future ends when it is applied. Raises: as `submit`."""
        future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        self.submit(CommandWork(command, future))
        return future

    def _may_propose(self) -> bool:
        if self._in_flight == 0:
            return True
        return self._waiting_bytes >= LARGE_TURN_BYTES and self._in_flight < MAX_TURNS_IN_FLIGHT

    def _schedule(self) -> None:
        """Take a turn behind the callbacks that are due now, so that what they submit shares it."""
        if (self._waiting or self._put_off) and not self._scheduled and self._may_propose():
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._take_turns)

    def _take_turns(self) -> None:
        self._scheduled = False
        self._waiting.extendleft(reversed(self._put_off))
        self._put_off.clear()
        while self._waiting and self._view is not None and self._may_propose():
            self._take_turn(self._view)
            if self._put_off:  # others come first
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
        except Exception as error:  # a defect: yet no offset may stay reserved, and nobody may wait for ever
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
        """The proposal is committed or lost; wake everybody in one go and take the next turn."""
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
        """The state machine applied this entry; nothing happens when it is not one of ours."""
        flight = self._flights.pop(effects.index, None)
        if flight is not None:
            for work in flight.works:
                work.on_applied(flight, effects)


def _fail(works: list[Work], error: Exception) -> None:
    for work in works:
        work.fail(error)
