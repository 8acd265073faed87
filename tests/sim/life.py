"""One life of a simulated node, from a start to a crash: the real core on the real storage, driven by events.

Does what `Driver`, `RaftNode` and the flusher's threads do with an event loop: verify entries before the core
sees them, stage, persist in order, read outgoing entries from the log, apply what is committed and durable.
Flusher turns run on the simulated disk when they begin. Their report is an event at the time when the disk is
done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ledgermq.proto.entry import EntryHeader, EntryKind, entry_size
from ledgermq.proto.errors import CorruptError
from ledgermq.raft.core.log_time import LogTime
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import AppendEntries, Heartbeat, Message
from ledgermq.raft.core.outputs import (
    Accepted,
    BecameLeader,
    CaughtUp,
    Faulted,
    LeaderChanged,
    Output,
    Persist,
    ResetOffered,
    Role,
)
from ledgermq.raft.errors import (
    DamagedFrameError,
    DamagedLogError,
    DiskFullError,
    InvalidWireError,
    LogCompactedError,
    LogTruncatedError,
    RaftError,
)
from ledgermq.raft.folder.opening import view_of
from ledgermq.raft.folder.storage import RaftStorage
from ledgermq.raft.log.wire_batch import WireBatch, last_index_of
from ledgermq.raft.transport.hello import Hello
from ledgermq.raft.transport.seal import seal_of, unsealed
from ledgermq.raft.transport.wire import decode, encode_append, encode_control
from ledgermq.raft.types import LogIndex, NodeId, Term

from .disk_work import DiskWork
from .file_system import ROOMY
from .loop import finished
from .membership import AIM, Membership
from .repairs import serve_refetch
from .resets import SimResets, SimTransfer
from .retention import Checkpoints, Retention
from .state import SimState

if TYPE_CHECKING:
    from .broker_life import BrokerLife
    from .node import SimNode

MS = 1000
APPLY_SLICE = 2000


class Packet(NamedTuple):
    """A frame on the wire, from one run of one node."""

    from_: NodeId
    run: int
    frame: bytes


class Life:
    """Events call the `on_…` methods. After each the core is polled until it has no more output."""

    def __init__(self, node: SimNode, storage: RaftStorage, broker: BrokerLife | None = None) -> None:
        world = node.world
        self.node = node
        self.world = world
        self.storage = storage
        self.log = log = storage.log
        self.peers = [peer.node_id for peer in node.config.peers]
        assert node.loop is not None
        self.loop = node.loop
        self.state: SimState = node.parts.state_class()
        if node.saved.state:
            self.state.install(node.saved.state)
        # until this entry is applied the state is being rebuilt
        self.whole_from = int(SimTransfer(node).needs_entries_to)
        view = view_of(log, LogIndex(node.saved.applied), LogIndex(self.whole_from))
        rng = random.Random(node.rng.getrandbits(32))
        self.core: RaftCore = node.parts.core_class(node.config.core_config(), storage.hard_state, view, rng)
        self.log_time = LogTime()
        self.log_time.restore(log.last_timestamp)
        self.flusher = storage.start_stepped(on_durable=self._on_durable)
        self.membership: Membership = Membership(self)
        self.seen_commit = int(self.core.commit_index)
        self.seen_stable = -1
        self.applied = node.saved.applied
        self._noop_index = 0  # of this node's term as leader
        self.last_persist_seq = 0
        self.reads: dict[object, int] = {}
        self._shipped: dict[NodeId, LogIndex] = {}  # first of the entries last sent to each peer
        self._batch: WireBatch | None = None
        self._after: list[Callable[[], None]] = []  # calls for the end of the core's turn
        self._apply_to = self.applied
        self._applying_cold = False
        self.faulted = False
        self.disk = DiskWork(self)
        self.resets = SimResets(self)
        serve_refetch(self)
        self.checkpoints = Checkpoints(self)
        self.retention = Retention(self)
        self.handlers: dict[str, Callable[[Any], None]] = {
            "tick": self.on_tick, "frame": self.on_frame, "greet": self.on_greet, "report": self.on_report,
            "greeting": self.membership.on_greeting, "stored": self.membership.on_stored,
            "identified": self.membership.on_identified, "cold_read": self.on_cold_read,
            "cold_apply": self.on_cold_apply, "disk_failed": self.on_disk_failed, "turn": self.disk.on_turn,
            "flushed": self.disk.on_flushed, "sync": self.disk.on_sync, "synced": self.disk.on_synced,
            "background": self.disk.on_background, "unlink": self.retention.on_unlink,
            "link_lost": self.on_link_lost, "reset_stop": self.resets.on_stop,
            "reset_start": self.resets.on_start,
        }  # fmt: skip
        self.broker = broker
        if broker is not None:
            broker.attach(self)

    def begin(self) -> None:
        """Start the periodic events: ticks, greetings, background work."""
        self._later_tick()
        self.membership.greet_all()
        self.later(2000 * MS, "report")
        self.disk.begin()
        if self.broker is None:
            self.checkpoints.begin()
            self.retention.begin()
        else:  # it has its own checkpoints, and its log keeps everything
            self.broker.begin()
        self.membership.advance()

    def later(self, delay_us: int, kind: str, payload: Any = None) -> None:
        """Schedule an event of this life."""
        self.world.later(delay_us, self.node.name, kind, payload)

    def when_disk_is_done(self, kind: str, payload: Any = None) -> None:
        """Schedule an event for when the disk has finished everything asked of it."""
        self.later(max(0, self.node.files.busy_until - self.world.now), kind, payload)

    # --- inputs ---------------------------------------------------------------------------------------------
    def on_tick(self, _payload: None) -> None:
        late = (self.world.now - self._tick_due) // self.node.tick_us
        self._later_tick()
        if late and self.world.faults.starved:  # other seeds keep their histories
            self.core.late(late)
        self.tick()

    def _later_tick(self) -> None:
        self._tick_due = self.world.now + self.node.tick_us
        self.later(self.node.tick_us, "tick")

    def tick(self) -> None:
        quiet = self.core.quiet_ticks()
        self.core.tick()
        if quiet > 0 and not self.core.is_silent:  # a node's clock sleeps through such ticks
            output = self.core.poll()
            assert output is None, "a tick that decides nothing gave an output"
        self.pump()
        self.world.promises.on_tick(self.node)

    def on_frame(self, packet: Packet) -> None:
        """Handle a frame as the transport and the driver would."""
        if self.membership.accepted_run.get(packet.from_) != packet.run:
            return
        try:
            body = unsealed(packet.frame)
        except DamagedFrameError:  # its connection ends and is reopened
            self.world.later(0, packet.from_, "link_lost", self.node.config.node_id)
            return
        try:
            messages, hello, entries = decode(body, packet.from_, self.node.config.node_id)
        except CorruptError:
            return
        for message in messages:
            self._step(message, entries)
        if hello is not None and self.core.fault is None:
            self.membership.learn(hello)

    def on_link_lost(self, peer: NodeId) -> None:
        """Handle that a peer ended the connection because of what arrived there."""
        self.core.link_down(peer, refused=False)
        self.pump()

    def on_greet(self, _payload: None) -> None:
        self.membership.greet_all()

    def on_report(self, _payload: None) -> None:
        self.later(2000 * MS, "report")
        self.membership.announce()

    def _step(self, message: Message, entries: memoryview) -> None:
        clock = self.node.clock
        if type(message) is AppendEntries and not message.is_empty and not self._verify(message, entries):
            return
        self.world.promises.step(self.node, message)
        core = self.core
        if type(message) is Heartbeat and (message.from_, message.term) == (core.leader_id, core.term):
            self.log_time.observe(message.log_time_ms, clock.wall_ms(), clock.monotonic_ms())
        self.pump()

    def _verify(self, message: AppendEntries, entries: memoryview) -> bool:
        clock = self.node.clock
        try:
            batch = self.log.check_wire(entries, message.prev_term)
            named = batch.first_index == message.lo and batch.last_index == message.hi
            if not named or tuple(batch.term_runs()) != message.term_runs:
                raise InvalidWireError("the entries are not those that the message names")
            self.log.check_room(len(entries))
        except (InvalidWireError, CorruptError, DiskFullError):
            return (
                False  # damaged ones of a leader whose disk is hurt, stale ones that do not chain, or no room
            )
        self.log_time.observe_entry(batch.headers[-1].timestamp, clock.wall_ms(), clock.monotonic_ms())
        self._batch = batch
        return True

    def propose(self, sizes: list[int]) -> bool:
        """Propose entries with payloads of these sizes. Returns whether they were accepted."""
        broker, payloads = self.world.broker, []
        for size in sizes:
            if broker is not None:
                size = broker.filler_size(size)
            value, size = self.world.next_value(), min(size, self.log.max_entry_size - 64)
            payload = value.to_bytes(8, "little")[: min(8, size)].ljust(size, b"%d" % (value % 10))
            payloads.append(payload if broker is None else broker.filler(size))
        return self.propose_payloads(payloads)

    def propose_payloads(self, payloads: list[bytes], *, urgent: bool = False) -> bool:
        """Propose an entry with each of these payloads. Returns whether they were accepted."""
        log_sizes = [entry_size(len(payload)) for payload in payloads]
        try:
            self.log.check_proposal(sum(log_sizes), urgent=urgent)
        except DiskFullError:
            return False
        answer = self.core.propose(log_sizes)
        if not isinstance(answer, Accepted):
            return False
        for place, payload in enumerate(payloads):
            index = LogIndex(answer.first_index + place)
            try:
                self._stage(EntryKind.RECORDS, [payload], index, answer.term)
            except DiskFullError as error:
                self.fail(f"a proposal that was taken cannot be stored: {error}", full=True)
                return False
        self.pump()
        return True

    def read(self, context: object) -> None:
        """Ask for a read index as a client does."""
        if self.core.read_index(context) is None:
            self.reads[context] = self.world.invariants.max_committed
        self.pump()

    def ask_read(self, context: object) -> bool:
        """Ask for a read index as the node itself. Returns whether a leader could be asked."""
        asked = self.core.read_index(context) is None
        self.pump()
        return asked

    def promote(self) -> int:
        """Become a voter. Returns the number of the persist operation that makes it durable."""
        self.world.promises.promote(self.node)
        self.pump()
        return self.last_persist_seq

    def peer_replaced(self, peer: NodeId) -> None:
        """Discard what the peer acknowledged before."""
        self.core.peer_replaced(peer)
        self.pump()

    def _on_durable(self, seq: int) -> None:
        self.core.storage_done(seq)
        self.pump()

    def on_disk_failed(self, reason: str) -> None:
        """Handle a failure in a storage thread. Where a real one waits for space, this one gives up."""
        self.fail(reason, full=self.node.files.capacity != ROOMY)

    # --- outputs --------------------------------------------------------------------------------------------
    def pump(self) -> None:
        """Carry out the core's decisions."""
        while (output := self.core.poll()) is not None:
            self._carry_out(output)
        self._batch = None
        while self._after:
            self._after.pop(0)()

    def _carry_out(self, output: Output) -> None:
        world, core = self.world, self.core
        changed = False
        for event in output.events:
            if self.broker is not None:
                self.broker.on_event(event)
            if isinstance(event, BecameLeader):
                self._noop_index = event.noop_index
                world.invariants.on_leader(self.node, event)
                world.promises.on_leader(self.node)
                if event.noop_index and not self._stage_noop(event):  # a mutant has none
                    return
                world.faults.on_leader(self.node)
            elif isinstance(event, Faulted) and not self.faulted:
                world.promises.on_fault(self.node, event.reason)
            elif isinstance(event, ResetOffered):
                self._after.append(partial(self.resets.offered, event))
            elif isinstance(event, LeaderChanged):
                self._after.append(partial(self.resets.leader_changed, event.leader_id, event.term))
            changed = changed or isinstance(event, LeaderChanged | CaughtUp)
        if output.persist is not None and core.fault is None:
            self._persist(output.persist)
        for message in output.send:
            self._send(message)
        if self.broker is not None and output.commit_index is not None:
            self.broker.on_commit(output.commit_index)
        if output.committed is not None:
            world.invariants.note_commits(self.node)
            self._apply_to = output.committed[1]
            self._apply()
        for read in output.reads:
            if read.context == AIM:
                self._after.append(partial(self.membership.on_aim, read.index))
                continue
            world.invariants.on_read(self.reads.pop(read.context), read.index)
            world.reads_served += 1
        for context in output.reads_aborted:
            if context == AIM:
                self._after.append(partial(self.membership.on_aim, None))
            else:
                del self.reads[context]
        if changed:
            self._after.append(self.membership.advance)

    def _stage_noop(self, event: BecameLeader) -> bool:
        try:
            self._stage(EntryKind.NOOP, [], event.noop_index, event.term)
        except DiskFullError as error:
            self.fail(f"the first entry of term {event.term} cannot be stored: {error}", full=True)
            return False
        return True

    def _stage(
        self, kind: EntryKind, parts: list[Any], index: LogIndex, term: Term, *, sections: int = 1
    ) -> EntryHeader:
        clock = self.node.clock
        header = self.log.stage_entry(
            kind,
            parts,
            section_count=0 if kind is EntryKind.NOOP else sections,
            index=index,
            term=term,
            timestamp=self.log_time.lead(clock.wall_ms(), clock.monotonic_ms()),
        )
        self.world.invariants.on_entry(self.node, header)
        return header

    def _persist(self, persist: Persist) -> None:
        log, invariants = self.log, self.world.invariants
        try:
            if persist.truncate_from is not None:
                invariants.on_truncate(self.node, persist.truncate_from)
                log.truncate_from(persist.truncate_from)
            if persist.append is not None and self._batch is not None:
                batch, lo = self._batch, persist.append[0]
                log.stage_wire(batch, lo)
                for header in batch.headers[lo - batch.first_index :]:
                    invariants.on_entry(self.node, header)
            log.persist(persist.seq, persist.hard_state)
        except RaftError as error:
            self.fail(
                f"entries from the leader cannot be stored: {error}", full=isinstance(error, DiskFullError)
            )
            return
        self.last_persist_seq = persist.seq
        if persist.hard_state is not None:
            self.world.faults.on_vote_write(self.node)
        self.disk.begin_turn()

    def _send(self, message: Message) -> None:
        self.world.invariants.on_send(self.node, message)
        self.world.promises.on_send(self.node, message)
        if type(message) is AppendEntries and not message.is_empty:
            self._send_entries(message)
            return
        if type(message) is Heartbeat:
            clock = self.node.clock
            log_time = self.log_time.lead(clock.wall_ms(), clock.monotonic_ms())
            message = replace(message, log_time_ms=log_time)
        if message.to in self.membership.accepted_by:
            self._put(message.to, encode_control((message,)))

    def send_news(self, peer: NodeId, hello: Hello) -> None:
        """Send news to a peer that accepted the greeting."""
        if peer in self.membership.accepted_by and self.core.fault is None:
            self._put(peer, encode_control((), hello))

    def _put(self, to: NodeId, frame: bytes) -> None:
        arrives = self.world.network.spoil(frame + seal_of(frame))
        packet = Packet(self.node.config.node_id, self.node.life_number, arrives)
        self.world.transmit(self.node.name, to, "frame", packet)

    def _send_entries(self, message: AppendEntries) -> None:
        """Read the entries and send them. Cold ones are read later."""
        if message.to not in self.membership.accepted_by:
            self.core.append_dropped(message)
            return
        try:
            data = self.log.read_wire_nowait(message.lo, message.hi, message.max_bytes)
        except (LogTruncatedError, LogCompactedError):
            self.core.append_dropped(message)
            return
        except RaftError as error:
            self.fail(f"entry {message.lo} cannot be read for {message.to}: {error}")
            return
        if data is None:
            self.later(self.node.rng.randint(100, 30_000), "cold_read", (message, self.log.generation))
        else:
            self._ship(message, data)

    def on_cold_read(self, payload: tuple[AppendEntries, int]) -> None:
        """Handle the end of a read in the read pool."""
        message, generation = payload
        data = b""
        try:
            if generation == self.log.generation:
                data = finished(self.log.read_wire(message.lo, message.hi, message.max_bytes))
        except (LogTruncatedError, LogCompactedError):
            pass
        except RaftError as error:
            self.fail(f"entry {message.lo} cannot be read for {message.to}: {error}")
            return
        if data and message.to in self.membership.accepted_by:
            self._ship(message, data)
        else:
            self.core.append_dropped(message)
        self.pump()

    def _ship(self, message: AppendEntries, data: bytes) -> None:
        if self.core.leading is None or message.term != self.core.term:
            self.core.append_dropped(message)
            return
        hi = last_index_of(data)
        suspect = hi not in range(message.lo, message.hi + 1) or self._shipped.get(message.to) == message.lo
        if suspect and not self._is_whole(message, data):
            self.fail(f"entry {message.lo} cannot be read for {message.to}: it is damaged")
            return
        self._shipped[message.to] = message.lo
        shortened = message if hi == message.hi else message.shortened(hi, len(data))
        self._put(message.to, b"".join(encode_append(shortened, data)))
        self.core.append_sent(message, hi, len(data))

    def _is_whole(self, message: AppendEntries, data: bytes) -> bool:
        """Verify outgoing entries once more, as the driver does."""
        try:
            self.log.verify(data, message.lo)
        except DamagedLogError:
            return False
        return True

    # --- applying -------------------------------------------------------------------------------------------
    def _apply(self) -> None:
        """Apply what is committed and durable, from memory or the page cache."""
        while self.applied < self._apply_to and not self._applying_cold and self.core.fault is None:
            lo = LogIndex(self.applied + 1)
            try:
                entries = self.log.entries_nowait(lo, LogIndex(self._apply_to), APPLY_SLICE)
            except RaftError as error:
                self.fail(f"committed entry {lo} cannot be read: {error}")
                return
            if entries is None:
                self._applying_cold = True
                self.later(self.node.rng.randint(100, 30_000), "cold_apply")
                return
            self._applied(entries)

    def on_cold_apply(self, _payload: None) -> None:
        self._applying_cold = False
        lo = LogIndex(self.applied + 1)
        try:
            entries = finished(self.log.entries(lo, LogIndex(self._apply_to), APPLY_SLICE))
        except RaftError as error:
            self.fail(f"committed entry {lo} cannot be read: {error}")
            return
        self._applied(entries)
        self._apply()

    def _applied(self, entries: Any) -> None:
        header: EntryHeader
        for header, payload in entries:
            self.world.invariants.on_apply(self.node, header, payload)
            # Entries up to there are part of the state from a reset.
            if self.broker is None and header.index > self.state.last_applied:
                self.state.apply((header, payload))
                self.world.horizon.on_applied(self.node, self.state)
        if self.broker is not None:
            self.broker.apply(entries)
        self.applied = entries[-1][0].index
        if self.is_ready and self.broker is None:
            self.world.horizon.on_ready(self.node, self.state.log_start)

    # --- the end --------------------------------------------------------------------------------------------
    def fail(self, reason: str, *, full: bool = False) -> None:
        """Latch a fault: the node sends nothing more, and the process ends."""
        if self.core.fault is not None:
            return
        self.faulted = True
        self.world.on_fault(self.node, reason, full=full)
        self.core.storage_failed(reason)
        self.disk.broken = True
        self.pump()

    @property
    def is_ready(self) -> bool:
        """True if this node leads and has applied the first entry of its term."""
        return self.leads and self.applied >= self._noop_index > 0

    @property
    def leads(self) -> bool:
        """True if this node leads, as far as it knows."""
        return self.core.role is Role.LEADER
