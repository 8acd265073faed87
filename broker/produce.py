"""The append pipeline: everything that must go through the log shares entries (D3).

What arrives while an append is out is collected and becomes one entry: sections of producers, records of SendMessage
calls (one section per queue), and state commands. One append is out at a time while requests are small, so that others
gather behind it; up to eight when they are large.

Owns: what waits for its turn, the turns in flight, and their bounds. Must not: judge what it appends; the works do.
Invariant: works are placed (offsets assigned, commands proposed) in the order in which they were given.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ledgermq.proto.entry import HEADER_SIZE, Buffer
from ledgermq.proto.record import SECTION_HEADER_SIZE, SectionKind, encode_section, seal_section
from ledgermq.raft.errors import (
    BusyError,
    DiskFullError,
    EntryTooLargeError,
    NotLeaderError,
    ProposalLostError,
    TransferringError,
)
from ledgermq.raft.state_machine import Proposal

from .commands import Command, encode

logger = logging.getLogger(__name__)

#: Works of this many waiting bytes are "large": more than one append may then be out.
LARGE_TURN_BYTES: Final = 256 * 1024
MAX_TURNS_IN_FLIGHT: Final = 8
#: A turn is closed behind the work that reaches this size.
MAX_TURN_BYTES: Final = 4 << 20
#: Bytes that may wait for their turn or for commit; then requests are refused.
MAX_WAITING_BYTES: Final = 64 << 20
MAX_SECTIONS_PER_TURN: Final = 4096

#: What proposing can be refused with: definite, nothing was appended.
DEFINITE_ERRORS: Final = (NotLeaderError, BusyError, TransferringError, EntryTooLargeError, DiskFullError)


class TooManyRequestsError(Exception):
    """A bound of the pipeline was reached. Nothing was appended."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(
            f"{waiting} bytes wait for commit; the limit is {limit}. Repeat after a moment, or send less at once"
        )


class Proposer(Protocol):
    """The part of RaftNode that the pipeline uses."""

    def propose(self, parts: list[Buffer], section_count: int) -> Proposal: ...


@dataclass(slots=True)
class Turn:
    """What one entry will hold; filled by works while it is built."""

    timestamp: int = 0
    parts: list[Buffer] = field(default_factory=list)
    size: int = 0
    section_count: int = 0
    commands: list[bytes] = field(default_factory=list)
    index: int = 0

    def add_section(self, header: bytearray, body: Buffer, base_queue_offset: int) -> None:
        """Seal a section whose 64-byte header is writable, and take it in."""
        seal_section(header, base_queue_offset=base_queue_offset, entry_distance=HEADER_SIZE + self.size)
        self.parts += (header, body) if len(body) else (header,)
        self.size += SECTION_HEADER_SIZE + len(body)
        self.section_count += 1

    def close(self) -> None:
        """Add the commands as the last section."""
        if self.commands:
            section = encode_section(SectionKind.COMMANDS, self.commands, len(self.commands))
            self.add_section(section[:SECTION_HEADER_SIZE], memoryview(section)[SECTION_HEADER_SIZE:], -1)


class Work(Protocol):
    """One request on its way through the pipeline."""

    size: int  # bytes that it will about add to the log

    def place(self, turn: Turn) -> None:
        """Add its sections and commands to the turn; whatever needs none is answered here. Must not raise."""

    def on_committed(self, turn: Turn) -> None:
        """The entry is committed: answer whoever waits for that."""

    def on_applied(self, turn: Turn, results: Sequence[object]) -> None:
        """The entry is applied; `results` are those of all commands of the turn."""

    def fail(self, error: Exception) -> None:
        """It was refused (definite), or its outcome is unknown (ProposalLostError)."""


class CommandWork:
    """One state command; its future ends with the command's result when it is applied."""

    __slots__ = ("_encoded", "_position", "future", "size")

    def __init__(self, command: Command, future: asyncio.Future[Any]) -> None:
        self._encoded = encode(command)
        self._position = 0
        self.size = len(self._encoded)
        self.future = future

    def place(self, turn: Turn) -> None:
        self._position = len(turn.commands)
        turn.commands.append(self._encoded)

    def on_committed(self, turn: Turn) -> None:
        """Nobody may act on a command before it is applied."""

    def on_applied(self, turn: Turn, results: Sequence[object]) -> None:
        if not self.future.done():
            self.future.set_result(results[self._position])

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # read once: a caller that was cancelled leaves nobody to read it


class _Flight:
    """A turn that was proposed."""

    __slots__ = ("committed", "started", "turn", "works")

    def __init__(self, turn: Turn, works: list[Work]) -> None:
        self.turn = turn
        self.works = works
        self.started = time.monotonic()
        self.committed = False


class AppendPipeline:
    """Use: `submit(work)` on the loop; `on_applied` from the state machine; `on_leader_lost` at step-down."""

    def __init__(self, proposer: Proposer, observe_commit: Callable[[float], None] = lambda seconds: None) -> None:
        self._proposer = proposer
        self._observe_commit = observe_commit
        self._waiting: deque[Work] = deque()
        self._waiting_bytes = 0
        self._flying_bytes = 0
        self._in_flight = 0
        self._flights: dict[int, _Flight] = {}  # by index, until applied
        self._scheduled = False
        self.turns = 0

    @property
    def bytes_waiting(self) -> int:
        """Bytes that wait for their turn or for commit."""
        return self._waiting_bytes + self._flying_bytes

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing waits and nothing is in flight."""
        return not self._waiting and not self._in_flight

    def submit(self, work: Work) -> None:
        """Queue a work for the next turn. Raises: TooManyRequestsError."""
        if self.bytes_waiting + work.size > MAX_WAITING_BYTES:
            raise TooManyRequestsError(self.bytes_waiting, MAX_WAITING_BYTES)
        self._waiting.append(work)
        self._waiting_bytes += work.size
        self._schedule()

    def run(self, command: Command) -> asyncio.Future[Any]:
        """Queue a command; the future ends with its result when it is applied. Raises: TooManyRequestsError."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(CommandWork(command, future))
        return future

    def _may_propose(self) -> bool:
        if self._in_flight == 0:
            return True
        return self._waiting_bytes >= LARGE_TURN_BYTES and self._in_flight < MAX_TURNS_IN_FLIGHT

    def _schedule(self) -> None:
        """Take a turn behind the callbacks that are due now, so that what they submit shares it."""
        if not self._scheduled and self._may_propose():
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._take_turns)

    def _take_turns(self) -> None:
        self._scheduled = False
        while self._waiting and self._may_propose():
            self._take_turn()

    def _take_turn(self) -> None:
        turn, works = Turn(), []
        while self._waiting and turn.size < MAX_TURN_BYTES and turn.section_count < MAX_SECTIONS_PER_TURN:
            work = self._waiting.popleft()
            self._waiting_bytes -= work.size
            work.place(turn)
            works.append(work)
        turn.close()
        if not turn.section_count:
            return  # every work was answered without the log (duplicates, refusals)
        try:
            proposal = self._proposer.propose(turn.parts, turn.section_count)
        except DEFINITE_ERRORS as error:
            self._fail(works, error)
            return
        turn.index, turn.timestamp = proposal.index, proposal.timestamp
        flight = _Flight(turn, works)
        self._flights[turn.index] = flight
        self._in_flight += 1
        self._flying_bytes += turn.size
        self.turns += 1
        proposal.committed.add_done_callback(lambda future: self._on_decided(flight, future))

    def _fail(self, works: list[Work], error: Exception) -> None:
        for work in works:
            work.fail(error)

    def _on_decided(self, flight: _Flight, future: asyncio.Future[None]) -> None:
        """The proposal is committed or lost; wake everybody in one go and take the next turn."""
        self._in_flight -= 1
        self._flying_bytes -= flight.turn.size
        error = ProposalLostError("the node stops") if future.cancelled() else future.exception()
        if error is None:
            flight.committed = True
            self._observe_commit(time.monotonic() - flight.started)
            for work in flight.works:
                work.on_committed(flight.turn)
        else:
            self._flights.pop(flight.turn.index, None)
            self._fail(flight.works, error if isinstance(error, Exception) else ProposalLostError(str(error)))
        self._schedule()

    def on_applied(self, index: int, results: Sequence[object]) -> None:
        """The state machine applied this entry; nothing happens when it is not one of ours."""
        flight = self._flights.pop(index, None)
        if flight is not None:
            for work in flight.works:
                work.on_applied(flight.turn, results)

    def on_leader_lost(self) -> None:
        """Refuse what has not been proposed; Raft itself decides about what is in flight."""
        works, self._waiting, self._waiting_bytes = list(self._waiting), deque(), 0
        self._fail(works, NotLeaderError(None))
