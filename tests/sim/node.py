"""The shell of one simulated node: it does for a RaftCore what the real driver does, without bytes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ledgermq.raft.core import RaftCore
from ledgermq.raft.core_config import CoreConfig
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import AppendEntries, Message
from ledgermq.raft.outputs import Accepted, BecameLeader, CaughtUp, Output, Persist
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from .disk import Entry, SimDisk, Step, next_entry

if TYPE_CHECKING:
    from .world import World

Packet = tuple[Message, list[Entry], int]
"""A message, the entries beside it, and the sender's incarnation."""


class SimNode:
    """One member: a disk that stays, a core that comes and goes."""

    def __init__(self, world: World, name: str, core_class: type[RaftCore]) -> None:
        self.world = world
        self.name = name
        self.core_class = core_class
        self.disk = SimDisk(world.rng)
        self.ghost: dict[int, int] | None = None  # what a wiped disk held: it was acknowledged honestly
        self.incarnation = 1
        self.known_incarnations: dict[str, int] = {}
        self.life = 0  # +1 on every start and stop: events of an earlier life are void
        self.up = False
        self.paused_until = 0
        self.inbox: list[Packet] = []  # what came during a pause
        self.tick_us = 10_000
        self.start()

    # --- life --------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Read the disk and come up as a follower."""
        self.life += 1
        self.up = True
        self.log = self.disk.log.copy()
        stored = self.disk.hard_state
        last = LogIndex(self.log.last)
        view = LogView(
            LogIndex(self.log.base + 1),
            Term(self.log.base_term),
            self.log.runs(),
            last,
            last,
            LogIndex(max(self.disk.checkpoint, self.log.base)),
        )
        rng = random.Random(self.world.rng.getrandbits(32))
        self.core = self.core_class(self.config(), stored, view, rng)
        self.seen_commit = int(self.core.commit_index)
        self.reads: dict[int, int] = {}
        self._batch: list[Entry] = []
        self._batch_lo = 0

    def config(self) -> CoreConfig:
        world = self.world
        return CoreConfig(
            node_id=NodeId(self.name), voters=tuple(NodeId(n) for n in world.names), **world.limits
        )

    def crash(self) -> None:
        """Power goes."""
        self.life += 1
        self.up = False
        self.inbox.clear()
        self.paused_until = 0
        self.disk.checkpoint = self.world.rng.randint(
            max(self.disk.checkpoint, self.log.base), max(self.core.applied_index, self.disk.checkpoint)
        )
        self.disk.crash()

    def wipe(self) -> None:
        """Lose the disk too; come back later as another incarnation."""
        self.ghost = {i + 1 + self.disk.log.base: e.chain for i, e in enumerate(self.disk.log.entries)}
        self.disk.wipe()
        self.incarnation += 1

    def has_durable(self, index: int, chain: int) -> bool:
        """Tell whether this node's disk holds (or, wiped since, held) that entry."""
        if index <= self.disk.log.base or self.disk.log.chain(index) == chain:
            return True
        return self.ghost is not None and self.ghost.get(index) == chain

    # --- inputs --------------------------------------------------------------------------------------------------
    def tick(self) -> None:
        self.core.tick()
        self.pump()

    def receive(self, packet: Packet) -> None:
        """Take a message as the transport would: no older incarnation of its sender gets through."""
        message, entries, incarnation = packet
        known = self.known_incarnations.get(message.from_, 1)
        if incarnation < known:
            return
        if incarnation > known:
            self.known_incarnations[message.from_] = incarnation
            self.core.peer_replaced(message.from_)
        if isinstance(message, AppendEntries):
            self._batch, self._batch_lo = entries, message.lo
        self.core.step(message)
        self.pump()

    def storage_done(self) -> None:
        seq = self.disk.finish(self._flush_begins)
        self.core.storage_done(seq)
        self.pump()

    def propose(self, count: int) -> bool:
        """Propose as many entries; return whether they were taken."""
        values = [self.world.next_value() for _ in range(count)]
        answer = self.core.propose([100 + value % 400 for value in values])
        if not isinstance(answer, Accepted):
            return False
        assert answer.first_index == self.log.last + 1
        for value in values:
            self._append_own(answer.term, value)
        self.pump()
        return True

    def read(self) -> None:
        self.world.reads_asked += 1
        context = self.world.reads_asked
        if self.core.read_index(context) is None:
            self.reads[context] = self.world.invariants.max_committed
        self.pump()

    # --- outputs -------------------------------------------------------------------------------------------------
    def pump(self) -> None:
        """Carry out what the core has decided."""
        while (output := self.core.poll()) is not None:
            self._carry_out(output)

    def _carry_out(self, output: Output) -> None:
        invariants = self.world.invariants
        for event in output.events:
            if isinstance(event, BecameLeader):
                invariants.on_leader(self, event)
                assert event.noop_index == self.log.last + 1
                self._append_own(event.term, 0)
                self.world.faults.on_leader(self)
            elif isinstance(event, CaughtUp):
                self.world.later(1000, self.name, "promote")
        if output.persist is not None:
            self._persist(output.persist)
        for message in output.send:
            self._send(message)
        for read in output.reads:
            assert isinstance(read.context, int)
            invariants.on_read(self.reads.pop(read.context), read.index)
            self.world.reads_served += 1
        for context in output.reads_aborted:
            assert isinstance(context, int)
            del self.reads[context]

    def _append_own(self, term: int, value: int) -> None:
        before = self.log.chain(self.log.last)
        assert before is not None
        entry = next_entry(before, term, value)
        self.log.entries.append(entry)
        self.world.invariants.on_entry(self.log.last, entry)

    def _persist(self, persist: Persist) -> None:
        steps: list[Step] = []
        if persist.hard_state is not None:
            assert isinstance(persist.hard_state, HardState)
            steps.append(persist.hard_state)
            self.world.faults.on_vote_write(self)
        if persist.truncate_from is not None:
            self.world.invariants.on_truncate(self, persist.truncate_from)
            self.log.truncate_from(persist.truncate_from)
            steps.append(persist.truncate_from)
        if persist.append is not None:
            lo, hi = persist.append
            if self.log.last < hi:
                assert lo == self.log.last + 1
                for entry in self._batch[lo - self._batch_lo : hi - self._batch_lo + 1]:
                    self.log.entries.append(entry)
                    self.world.invariants.on_entry(self.log.last, entry)
            steps.extend(self.log.slice(lo, hi))
        self.disk.submit(persist.seq, steps, self._flush_begins)

    def _flush_begins(self, delay_us: int) -> None:
        self.world.later(delay_us, self.name, "flushed")

    def _send(self, message: Message) -> None:
        world = self.world
        world.invariants.on_send(self, message)
        if not isinstance(message, AppendEntries) or message.is_empty:
            world.transmit(self, (message, [], self.incarnation))
        elif world.cold_reads and world.rng.random() < world.cold_reads:
            world.read_cold(self, message)
        else:
            self.ship(message)

    def ship(self, message: AppendEntries) -> None:
        """Read the entries of an append from the log, as many as fit, and send them."""
        entries: list[Entry] = []
        size = 0
        for entry in self.log.slice(message.lo, message.hi):
            if entries and size + entry.size > message.max_bytes:
                break
            entries.append(entry)
            size += entry.size
        lost = self.log.chain(message.prev_index) is None or len(entries) == 0
        if lost or self.core.leading is None or message.term != self.core.term:
            self.core.append_dropped(message)
            return
        hi = LogIndex(message.lo + len(entries) - 1)
        self.world.transmit(self, (message.shortened(hi, size), entries, self.incarnation))
        self.core.append_sent(message, hi, size)
