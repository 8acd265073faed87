"""Driver: carries out the core's decisions on log, streams, proposals and apply, in the required order.

Owns: the only place that feeds and polls the core. Must not: decide anything about Raft. Invariants: after
every input the core is polled until it has no more output, before the next input. A message's entries are
verified before the core sees it. Callbacks of the state machine run after the core's turn, never inside it.
An unexpected exception faults the node, because the core may have counted entries that the log does not hold.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from ledgermq.proto.entry import MAX_SECTION_COUNT, Buffer, EntryHeader, EntryKind, entry_size
from ledgermq.proto.errors import CorruptError

from ..core.log_time import MAX_AHEAD_MS, LogTime
from ..core.machine import RaftCore
from ..core.messages import AppendEntries, Heartbeat, Message
from ..core.outputs import (
    Accepted,
    BecameLeader,
    Busy,
    Event,
    NotLeader,
    Output,
    Persist,
    ReadReady,
    Role,
    SteppedDown,
)
from ..core.state import LeaderState
from ..core.tick_schedule import Clock, NoClock
from ..errors import (
    BusyError,
    DamagedLogError,
    DiskFullError,
    EntryTooLargeError,
    InvalidWireError,
    LogCompactedError,
    LogTruncatedError,
    NodeStoppedError,
    NotLeaderError,
    ProposalLostError,
    RaftError,
    TransferringError,
    defect_text,
)
from ..log.commit_log import CommitLog
from ..log.flusher import DurableReports
from ..log.wire_batch import WireBatch, last_index_of
from ..metrics import RaftMetrics
from ..state_machine import Proposal
from ..transport.hello import Hello
from ..transport.links import Transport
from ..transport.wire import AppendFrames, SealedAppend, decode
from ..types import LogIndex, NodeId
from .applier import Applier
from .copies import Copies

logger = logging.getLogger(__name__)

T = TypeVar("T")
RaftTransport = Transport[Message | Hello, SealedAppend]


class DriverOwner(Protocol):
    """Interface of the node above. Called after the core's turn."""

    def on_event(self, event: Event) -> None: ...

    def on_read(self, read: ReadReady) -> None: ...

    def on_read_aborted(self, context: object) -> None: ...

    def on_fault(self, reason: str) -> None: ...

    def on_damage(self, error: DamagedLogError) -> None: ...


class PendingProposals:
    """Futures of the undecided proposals of this leader, oldest first.

    Indexes increase, and all are of the term that this node leads or has just lost.
    """

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[Proposal] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def append(self, proposal: Proposal) -> None:
        """Add the newest proposal."""
        self._queue.append(proposal)

    def committed(self, index: LogIndex) -> None:
        """Resolve all proposals up to `index` as committed."""
        queue = self._queue
        while queue and queue[0].header.index <= index:
            future = queue.popleft().committed
            if not future.done():  # the caller may have given up
                future.set_result(None)

    def lost(self, reason: str) -> int:
        """Fail all remaining proposals: their outcome is unknown. Returns how many there were."""
        count = len(self._queue)
        while self._queue:
            proposal = self._queue.popleft()
            if not proposal.committed.done():
                proposal.committed.set_exception(
                    ProposalLostError(f"the outcome of entry {proposal.index} is unknown: {reason}")
                )
                proposal.committed.exception()  # marks it retrieved: the caller may ignore it
        return count


class Driver:
    """Call all methods on the loop thread."""

    def __init__(
        self,
        node_id: NodeId,
        core: RaftCore,
        log: CommitLog,
        log_time: LogTime,
        transport: RaftTransport,
        applier: Applier,
        metrics: RaftMetrics,
    ) -> None:
        self.node_id = node_id
        self.core = core
        self.log = log
        self.log_time = log_time
        self.proposals = PendingProposals()
        self._clock: Clock = NoClock()  # placeholder until `start`
        self.closed = False
        self.copies = Copies(core)
        self.last_persist_seq = 0  # number of the latest persist operation submitted
        self._reports: DurableReports | None = None
        # this node alone is a quorum: commit waits for its own flush only
        self._commits_alone = core.quorum.is_reached([node_id])
        self._done_seq = 0  # all persist operations up to here are durable; never above last_persist_seq
        self._to_apply = LogIndex(0)  # commit index to apply up to
        self._links, self._transport = transport.links, transport
        self._time_refused = False  # so that the log line is written once
        self._ahead: set[NodeId] = set()  # peers that sent an impossible term; logged once each
        self._applier = applier
        self._owner: DriverOwner
        self._loop = asyncio.get_running_loop()
        self._batch: WireBatch | None = None  # entries of the AppendEntries being stepped
        self._pump_scheduled = False
        self._promised_timestamp = 0  # answer of `next_timestamp` since the last pump; 0: none
        self._led: LeaderState | None = None  # leader state when the clock was last consulted
        self._after: deque[Callable[[], None]] = deque()
        self._reading: dict[NodeId, asyncio.Task[None]] = {}  # cold reads for followers that are far behind
        # lo, hi, max, generation, bytes
        self._last_read: tuple[LogIndex, LogIndex, int, int, bytes] | None = None
        self._shipped: dict[NodeId, LogIndex] = {}  # first entry of the last message sent to each peer
        self._frames = AppendFrames()
        self._dropped = {
            reason: metrics.counter("ledgermq_raft_messages_dropped_total", reason)
            for reason in ("unreadable", "entries", "disk_full", "term", "log_time")
        }
        self._proposed = metrics.counter("ledgermq_raft_proposals_total")
        self._lost = metrics.counter("ledgermq_raft_proposals_lost_total")

    def start(self, owner: DriverOwner, clock: Clock, reports: DurableReports | None) -> None:
        """Begin to take inputs, and to tell `owner` what the core says.

        Not given to the constructor because they need the driver: the owner's parts use it, the clock ticks
        it, and the storage, which makes `reports`, tells it what is durable.
        """
        self._owner, self._clock, self._reports = owner, clock, reports

    # --- inputs --------------------------------------------------------------------------------------------
    def propose(self, parts: list[Buffer], section_count: int, *, urgent: bool = False) -> Proposal:
        """Append one RECORDS entry. See RaftNode.propose."""
        size = entry_size(sum(map(len, parts)))
        if size > self.log.max_entry_size:
            raise EntryTooLargeError(size, self.log.max_entry_size)
        # Check before the core counts an entry that cannot be encoded.
        if section_count > MAX_SECTION_COUNT:
            raise EntryTooLargeError(section_count, MAX_SECTION_COUNT, "sections")
        self.log.check_proposal(size, urgent=urgent)
        try:
            answer = self.core.propose([size])
            if type(answer) is Accepted:
                header = self._stage(answer, parts, section_count)
        except Exception as error:  # any bug of ours
            # The core may have counted an entry that the log does not hold. Nothing about it may leave the
            # node.
            self.defect("appending an entry", error)
            raise NodeStoppedError("this node stops; nothing was appended") from error
        if type(answer) is not Accepted:
            raise _refusal(answer)
        proposal = Proposal(header, self._loop.create_future())
        self.proposals.append(proposal)
        self._proposed.inc()
        if not self._pump_scheduled:  # proposals of one turn share a flush and one message per follower
            self._pump_scheduled = True
            self._loop.call_soon(self.settle)
        return proposal

    def _stage(self, answer: Accepted, parts: list[Buffer], section_count: int) -> EntryHeader:
        return self.log.stage_entry(
            EntryKind.RECORDS,
            parts,
            section_count=section_count,
            index=answer.first_index,
            term=answer.term,
            timestamp=self.next_timestamp(),
        )

    def next_timestamp(self) -> int:
        """Return log time (ms); on the leader, exactly that of a proposal of the same turn of the loop."""
        if self.core.role is not Role.LEADER:
            return self.log_time.estimate(time.time() * 1000, time.monotonic() * 1000)
        if not self._promised_timestamp:
            self._promised_timestamp = self._lead_timestamp()
        return self._promised_timestamp

    def _lead_timestamp(self) -> int:
        return self.log_time.lead(time.time() * 1000, time.monotonic() * 1000)

    def on_frame(self, peer: NodeId, frame: Buffer) -> Hello | None:
        """Step the messages of one frame. Returns the sender's greeting if the frame carries one."""
        if self.closed:
            return None
        try:
            messages, hello, entries = decode(frame, peer, self.node_id)
        except CorruptError as error:
            self._dropped["unreadable"].inc()
            logger.warning("frame dropped peer=%s reason=%r", peer, str(error))
            return None
        for message in messages:
            self.step(message, entries)
        return hello

    def step(self, message: Message, entries: memoryview) -> None:
        """Pass one message to the core and carry out the result."""
        if self._reports is not None:
            self._reports.look()  # durable reports first: they may decide what this acknowledgement commits
        self.settle()
        if message.term > self.core.term and not self.core.may_be_reached(message.term):
            self._refuse_term(message)
            return
        if type(message) is AppendEntries and not message.is_empty and not self._verify(message, entries):
            return
        self.core.step(message)
        if type(message) is Heartbeat:
            self._observe_time(message)
        self.pump()
        self.copies.look()

    def _observe_time(self, heartbeat: Heartbeat) -> None:
        """Follow the log time of the current leader only."""
        core = self.core
        if (heartbeat.from_, heartbeat.term) != (core.leader_id, core.term) or core.role is Role.LEADER:
            return
        followed = self.log_time.observe(heartbeat.log_time_ms, time.time() * 1000, time.monotonic() * 1000)
        if not followed:
            self._dropped["log_time"].inc()
        if followed is self._time_refused:
            self._time_refused = not followed
            if not followed:
                logger.warning(
                    "log time not followed node=%s leader=%s: its heartbeats are more than %d s ahead of "
                    "the log and of the clocks of this node; check the time services of both",
                    self.node_id, heartbeat.from_, MAX_AHEAD_MS // 1000,
                )  # fmt: skip

    def _refuse_term(self, message: Message) -> None:
        """End the connection that brought an impossible term. Its sender is refused at the next greeting."""
        self._dropped["term"].inc()
        if message.from_ not in self._ahead:
            self._ahead.add(message.from_)
            logger.error(
                "term refused node=%s peer=%s: its message says term %d, and no number of elections leads "
                "there from term"
                " %d; the connection ends", self.node_id, message.from_, message.term, self.core.term,
            )  # fmt: skip
        self._transport.end_incoming(message.from_)

    def ticks(self, count: int) -> None:
        """Pass `count` ticks to the core."""
        with self.defects_fault("a tick of the clock"):
            if self._reports is not None:
                self._reports.look()
            self.settle()
            quiet = self.core.quiet_ticks()
            for number in range(count):
                if self.closed:
                    return
                self.core.tick()
                if number >= quiet:
                    self.pump()

    def storage_done(self, seq: int) -> None:
        """Record that everything up to persist operation `seq` is durable."""
        if not self.closed:
            self.settle()
            self._done_seq = seq
            self.core.storage_done(seq)
            self.pump()
            if self._to_apply > self._applier.applied_index:
                self._apply_soon()

    def peer_replaced(self, peer: NodeId) -> None:
        """Handle that a peer lost all or part of its log: its earlier acknowledgements no longer count."""
        if not self.closed:
            self.feed(self.core.peer_replaced, peer)

    def feed(self, step: Callable[..., T], *arguments: Any) -> T:
        """Give the core an input: after what is pending, and with all that it decides carried out."""
        self.settle()
        result = step(*arguments)
        self.pump()
        return result

    def settle(self) -> None:
        """Carry out pending work of proposals and the clock: required before any other input."""
        if self._pump_scheduled:
            self.pump()
        if ticks := self._clock.before_input():
            with self.defects_fault("ticks that decide nothing"):
                for _ in range(ticks):
                    self.core.tick()

    def pump(self) -> None:
        """Carry out everything that the core has decided."""
        self._pump_scheduled = False
        self._promised_timestamp = 0
        poll, after = self.core.poll, self._after
        try:
            while not self.closed and (output := poll()) is not None:
                self._carry_out(output)
            self._batch = None  # callbacks may propose, and those entries are not part of this message
            while after:
                after.popleft()()
            leading = self.core.leading
            # otherwise nothing is due before the next heartbeat
            if leading is None or leading is not self._led:
                self._led = leading
                self._clock.after_input()
        except Exception as error:  # noqa: BLE001 (as `defects_fault`, without its cost)
            self.defect("carrying out what the core decided", error)

    def has_stuck_streams(self) -> bool:
        """Return whether a stream of appends was reopened for lack of progress, and still makes none."""
        return any(link.append.was_stuck for link in self._links.values())

    def is_cut_off(self, peer: NodeId) -> bool:
        """Return whether appends to a follower do not arrive, even on a new connection (not for its disk)."""
        return self._links[peer].append.is_stalled()

    def close(self) -> None:
        """Stop carrying out anything."""
        self.closed = True
        self.copies.end()
        for task in self._reading.values():
            task.cancel()
        self._lost.inc(self.proposals.lost("this node stops"))

    @contextmanager
    def defects_fault(self, doing: str) -> Iterator[None]:
        """Fault the node on any exception: expected refusals never get this far."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (a bug of ours, of any kind)
            self.defect(doing, error)

    def defect(self, doing: str, error: Exception) -> None:
        """Fault the node on an unexpected exception."""
        logger.error("defect node=%s", self.node_id, exc_info=error)
        self._owner.on_fault(defect_text(doing, error))

    # --- outputs -------------------------------------------------------------------------------------------
    def _carry_out(self, output: Output) -> None:
        for event in output.events:
            if type(event) is BecameLeader:
                if not self._stage_noop(event):
                    return
            elif type(event) is SteppedDown:
                self.copies.end()
                self._lost.inc(self.proposals.lost("this node no longer leads"))
        persist = output.persist
        # A leader sends new entries to the followers first. Their flushes commit the entries without its own,
        # whose thread would take the interpreter as soon as it has work. A master is different: only its own
        # flush commits.
        is_urgent = persist is not None and (
            self._commits_alone or persist.hard_state is not None or self.core.role is not Role.LEADER
        )
        if persist is not None and is_urgent and not self._persist(persist, is_patient=False):
            return
        for message in output.send:
            self._send(message)
        if persist is not None and not is_urgent and not self._persist(persist, is_patient=True):
            return
        if output.commit_index is not None:
            self.proposals.committed(output.commit_index)
        after, owner = self._after, self._owner
        if output.committed is not None:
            self._to_apply = output.committed[1]
            # A follower's flusher thread needs the interpreter now. Apply once the acknowledgement is on its
            # way, while the disk is idle.
            if self.core.role is Role.LEADER or self._done_seq >= self.last_persist_seq:
                self._apply_soon()
        for event in output.events:
            after.append(partial(owner.on_event, event))
        for read in output.reads:
            after.append(partial(owner.on_read, read))
        for context in output.reads_aborted:
            after.append(partial(owner.on_read_aborted, context))

    def _apply_soon(self) -> None:
        """Apply two turns of the loop later, after the replies and acknowledgements caused by this turn."""
        self._loop.call_soon(self._loop.call_soon, self._apply)

    def _apply(self) -> None:
        self._applier.advance(self._to_apply)

    def _stage_noop(self, event: BecameLeader) -> bool:
        """Encode the entry that opens the term, for `persist.append` of the same output. False: it failed."""
        try:
            self.log.stage_entry(
                EntryKind.NOOP,
                [],
                section_count=0,
                index=event.noop_index,
                term=event.term,
                timestamp=self._lead_timestamp(),
            )
        except RaftError as error:
            self._owner.on_fault(f"the first entry of term {event.term} cannot be stored: {error}")
            return False
        return True

    def _persist(self, persist: Persist, *, is_patient: bool) -> bool:
        """Queue one storage operation. Returns whether that worked.

        `is_patient`: nothing depends on the operation before a peer replies, and a reply wakes the loop
        anyway.
        """
        if self._reports is not None:
            if is_patient and persist.seq == self._done_seq + 1:
                self._reports.be_patient()
            else:
                self._reports.hurry()
        try:
            if persist.truncate_from is not None:
                self.log.truncate_from(persist.truncate_from)
            if persist.append is not None and self._batch is not None:
                self.log.stage_wire(self._batch, persist.append[0])
            self.log.persist(persist.seq, persist.hard_state)
            self.last_persist_seq = persist.seq
        except RaftError as error:
            # The core accepted the entries but they cannot be stored. The core's state no longer matches the
            # log.
            self._owner.on_fault(f"entries from the leader cannot be stored: {error}")
            return False
        return True

    def _verify(self, message: AppendEntries, entries: memoryview) -> bool:
        """Check the entry bytes of an AppendEntries before the core sees it. Keeps them for `_persist`."""
        try:
            batch = self.log.check_wire(entries, message.prev_term)
            if (
                batch.first_index != message.lo
                or batch.last_index != message.hi
                or tuple(batch.term_runs()) != message.term_runs
            ):
                raise InvalidWireError("the entries are not those that the message names")
            self.log.check_room(len(entries))
        except (InvalidWireError, CorruptError) as error:
            self._dropped["entries"].inc()
            logger.warning("entries dropped peer=%s lo=%d reason=%r", message.from_, message.lo, str(error))
            return False
        except DiskFullError:
            self._dropped["disk_full"].inc()
            return False
        self.log_time.observe_entry(batch.headers[-1].timestamp, time.time() * 1000, time.monotonic() * 1000)
        self._batch = batch
        return True

    # --- sending -------------------------------------------------------------------------------------------
    def _send(self, message: Message) -> None:
        if type(message) is AppendEntries and not message.is_empty:
            self._send_entries(message)
            return
        if type(message) is Heartbeat:
            message = replace(message, log_time_ms=self._lead_timestamp())
        self._links[message.to].control.put(message)

    def _send_entries(self, message: AppendEntries) -> None:
        """Read the entries and send them. For a follower far behind, a task reads them."""
        if not self._links[message.to].append.connected:
            self.core.append_dropped(message)
            return
        try:
            data = self._read_nowait(message)
        except RaftError as error:
            if self._may_go_on(message, error):
                self.core.append_dropped(message)
        else:
            if data is not None:
                self._ship(message, data)
            else:
                self._reading[message.to] = self._loop.create_task(self._send_cold(message))

    def _may_go_on(self, message: AppendEntries, error: RaftError) -> bool:
        """Handle that entries cannot be read. Returns False if that ends the node."""
        if isinstance(error, DamagedLogError):
            self._owner.on_damage(error)
        elif not isinstance(error, LogTruncatedError | LogCompactedError):
            self._owner.on_fault(f"entry {message.lo} cannot be read for {message.to}: {error}")
            return False
        return True

    def _read_nowait(self, message: AppendEntries) -> bytes | None:
        """Read the wire bytes. Both followers usually need the same ones."""
        lo, hi, size, generation = message.lo, message.hi, message.max_bytes, self.log.generation
        last = self._last_read
        if last is not None and last[:4] == (lo, hi, size, generation):
            return last[4]
        data = self.log.read_wire_nowait(lo, hi, size)
        if data is not None:
            self._last_read = (lo, hi, size, generation, data)
        return data

    async def _send_cold(self, message: AppendEntries) -> None:
        with self.defects_fault(f"reading entries for {message.to}"):
            await self._read_and_ship(message)

    async def _read_and_ship(self, message: AppendEntries) -> None:
        generation = self.log.generation
        try:
            data = await self.log.read_wire(message.lo, message.hi, message.max_bytes)
        except RaftError as error:
            data = b""
            if not self._may_go_on(message, error):
                return
        finally:
            self._reading.pop(message.to, None)
        if self.closed:
            return
        self.settle()
        if data and generation == self.log.generation and self._links[message.to].append.connected:
            self._ship(message, data)
        else:
            self.core.append_dropped(message)
        self.pump()

    def forget_reads(self) -> None:
        """Drop bytes that were read before a repair."""
        self._last_read = None
        self._frames.forget()

    def _ship(self, message: AppendEntries, data: bytes) -> None:
        hi = last_index_of(data)
        suspect = hi not in range(message.lo, message.hi + 1) or self._shipped.get(message.to) == message.lo
        if suspect and not self._is_whole(message, data):
            self.core.append_dropped(message)
            return
        self._shipped[message.to] = message.lo
        shortened = message if hi == message.hi else message.shortened(hi, len(data))
        self._links[message.to].append.put(self._frames.encode(shortened, data))
        self.core.append_sent(message, hi, len(data))

    def _is_whole(self, message: AppendEntries, data: bytes) -> bool:
        """Verify outgoing entries once more: the follower may have rejected them as damaged."""
        try:
            self.log.verify(data, message.lo)
        except DamagedLogError as error:
            self._owner.on_damage(error)
            return False
        return True


def _refusal(answer: NotLeader | Busy | object) -> RaftError:
    if isinstance(answer, NotLeader):
        return NotLeaderError(answer.leader_hint)
    if isinstance(answer, Busy):
        return BusyError(f"{answer.uncommitted_bytes} bytes wait for commit; try again in a moment")
    to = getattr(answer, "to", "")
    return TransferringError(str(to))
