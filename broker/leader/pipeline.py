"""Append pipeline: batches all requests that go through the log into shared entries (D3).

Requests that arrive while an append is in flight are collected into one turn of the leader's view, which
becomes one entry: sections of producers, records of SendMessage calls (one section per queue), grants and
other state commands. Small requests have one append in flight at a time, so that others batch up behind it;
large ones up to eight.

Owns: the waiting works, the turns in flight, and their limits.   Must not: judge what it appends; works and
view do.
Invariants: works are placed in submission order, except that filters over budget wait for the next turn. A
turn is opened, filled and bound (or abandoned) in one step of the event loop.
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


class Flight:
    """One turn in flight. It is the token of its leader-view turn: duplicates wait for the first copy."""

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
        self.urgent = False  # it frees disk space, and holds one work only
        self.records: RecordCollector
        self.started = 0.0  # monotonic seconds at which it was proposed
        self._dependents: list[Callable[[Exception | None], None]] = []  # works of later turns
        self._decided = False
        self._error: Exception | None = None  # None with `_decided`: committed

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

    @property
    def is_idle(self) -> bool:
        """Whether no work waits and no turn is in flight."""
        return not self._waiting and not self._put_off and not self._in_flight

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
