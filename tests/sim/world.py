"""One seeded run: nodes, wires, disks and faults on one heap of events. No clock, no thread, no set is iterated.

Two phases. Safety: anything may fail at any time, and the invariants are checked after every event. Liveness: a core
majority is healed, the rest stays as broken as it is; the core must elect, catch up, commit, and keep its term.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import Any

from ledgermq.raft.core import RaftCore
from ledgermq.raft.messages import AppendEntries
from ledgermq.raft.outputs import Role
from ledgermq.raft.types import NodeId

from .faults import Faults
from .invariants import InvariantError, Invariants
from .network import Network
from .node import Packet, SimNode

SECOND = 1_000_000
SAFETY_US = 15 * SECOND
SETTLE_US = 20 * SECOND  # a healed core must be in agreement within this
STEADY_US = 3 * SECOND


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did. Equal seeds give equal results, `trace` included."""

    seed: int
    nodes: int
    events: int
    committed: int
    terms: int
    crashes: int
    reads: int
    trace: int


class World:
    """Owns time. Every event is (time, number, node, life, kind, payload)."""

    def __init__(self, seed: int, core_class: type[RaftCore] = RaftCore) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        rng = self.rng
        self.now = 0
        self.events = 0
        self.trace = 0
        self.values = 0
        self.reads_asked = 0
        self.reads_served = 0
        self.names = [
            f"n{i + 1}" for i in range(rng.choice((3, 3, 3, 5, 5, 1) if seed % 10 == 0 else (3, 5)))
        ]
        self.limits: dict[str, Any] = {
            "heartbeat_ticks": 7,
            "election_ticks_min": 40,
            "election_ticks_max": 80,
            "max_inflight_messages": rng.choice((1, 2, 8, 256)),
            "max_inflight_bytes": rng.choice((600, 4_000, 1 << 20)),
            "max_append_bytes": rng.choice((1, 700, 4_000, 1 << 20)),
            "max_uncommitted_bytes": rng.choice((2_000, 20_000, 1 << 20)),
        }
        self.cold_reads = rng.choice((0.0, 0.0, 0.1, 0.5))
        self.network = Network(rng)
        self._heap: list[tuple[int, int, str, int, str, Any]] = []
        self._number = 0
        self.nodes: dict[str, SimNode] = {}
        self.invariants = Invariants(self.nodes)
        self.faults = Faults(self)
        for name in self.names:
            self.nodes[name] = SimNode(self, name, core_class)
            self.nodes[name].tick_us = self.faults.draw_tick_us()
        for name in self.names:
            self._schedule_tick(self.nodes[name])

    # --- running -----------------------------------------------------------------------------------------------
    def run(self) -> Result:
        """Run both phases. Raises: InvariantError."""
        self.faults.start()
        self._until(SAFETY_US)
        core = self.faults.heal_a_majority()
        self._heap = [
            event for event in self._heap if event[4] != "message"
        ]  # no straggler disturbs what follows
        heapq.heapify(self._heap)
        self._settle(core)
        self._stay_steady(core)
        return Result(
            self.seed,
            len(self.names),
            self.events,
            self.invariants.max_committed,
            max(int(n.core.term) for n in self.nodes.values()),
            self.faults.crashes,
            self.reads_served,
            self.trace & 0xFFFFFFFFFFFFFFFF,
        )

    def later(self, delay_us: int, node: str, kind: str, payload: Any = None) -> None:
        """Let something happen to a node, if it lives on until then (node "" : to the world)."""
        self._number += 1
        life = self.nodes[node].life if node in self.nodes else 0
        heapq.heappush(self._heap, (self.now + delay_us, self._number, node, life, kind, payload))

    def transmit(self, node: SimNode, packet: Packet) -> None:
        """Put a message on the wire."""
        target = packet[0].to
        for delay in self.network.deliveries(node.name, target):
            self._number += 1
            heapq.heappush(self._heap, (self.now + delay, self._number, target, -1, "message", packet))

    def read_cold(self, node: SimNode, message: AppendEntries) -> None:
        """The entries of an append come from the disk, later."""
        self.later(self.rng.randint(100, 30_000), node.name, "cold", message)

    def next_value(self) -> int:
        self.values += 1
        return self.values

    def leader(self) -> SimNode | None:
        """The node that leads the highest term, if it is up."""
        leaders = [n for n in self.nodes.values() if n.up and n.core.role is Role.LEADER]
        return max(leaders, key=lambda n: n.core.term) if leaders else None

    def start_node(self, node: SimNode) -> None:
        node.start()
        self.invariants.on_restart(node)
        self._schedule_tick(node)

    def run_until(self, time: int) -> None:
        self._until(time)

    # --- events ------------------------------------------------------------------------------------------------
    def _until(self, end: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, name, life, kind, payload = heapq.heappop(heap)
            if not name:
                self.faults.happen(kind)
                continue
            node = self.nodes[name]
            if not node.up or life not in (-1, node.life):
                continue
            self._happen(node, kind, payload)
        self.now = end

    def _happen(self, node: SimNode, kind: str, payload: Any) -> None:
        self.events += 1
        if kind == "tick":
            if self.now < node.paused_until:
                self.later(node.paused_until - self.now, node.name, "resume")
                return
            self._schedule_tick(node)
            node.tick()
        elif kind == "message":
            if self.now < node.paused_until:
                node.inbox.append(payload)
                return
            node.receive(payload)
        elif kind == "flushed":
            if self.now < node.paused_until:
                self.later(node.paused_until - self.now, node.name, "flushed")
                return
            node.storage_done()
        elif kind == "resume":
            inbox, node.inbox = node.inbox, []
            for packet in inbox:  # input first, then one tick (D10)
                node.receive(packet)
            self._schedule_tick(node)
            node.tick()
        elif kind == "cold":
            node.ship(payload)
            node.pump()
        elif kind == "crash":
            if self.faults.active:
                self.faults.kill(node)
            return
        elif kind == "isolate":
            if self.faults.active:
                self.faults.isolate(node)
            return
        elif kind == "promote":
            node.core.promote_to_voter()
            node.pump()
        self.invariants.after(node)
        core = node.core
        self.trace = hash((self.trace, self.now, self.names.index(node.name), core.term, core.commit_index,
                           core.last_index, core.stable_index))  # fmt: skip

    def _schedule_tick(self, node: SimNode) -> None:
        self.later(node.tick_us, node.name, "tick")

    # --- liveness ----------------------------------------------------------------------------------------------
    def _settle(self, core: list[SimNode]) -> None:
        """Demand that the healed nodes agree and commit within a bounded time."""
        end = self.now + SETTLE_US
        while self.now < end:
            self._until(self.now + SECOND // 4)
            leader = self.leader()
            if leader is None or leader not in core:
                continue
            if not self._agree(core, leader):
                continue
            before = leader.core.commit_index
            if leader.propose(1):
                self._until(self.now + SECOND // 2)
                if leader.core.commit_index > before and self._agree(core, leader):
                    return
        raise InvariantError(f"I10 liveness: no agreement in {SETTLE_US // SECOND} s: {self.describe()}")

    def _stay_steady(self, core: list[SimNode]) -> None:
        """Demand that nothing deposes the leader while its majority is well (I9), and that reads are answered."""
        leader = self.leader()
        assert leader is not None
        term, served = leader.core.term, self.reads_served
        for node in core:
            node.read()
        proposed = [leader.propose(1) for _ in range(3)]
        self._until(self.now + STEADY_US)
        if leader.core.term != term or leader.core.role is not Role.LEADER:
            raise InvariantError(f"I9 spurious election: term {term} ended: {self.describe()}")
        if self.reads_served < served + len(core):
            raise InvariantError(f"I10 liveness: a read was not answered: {self.describe()}")
        if not all(proposed[:1]) or not self._agree(core, leader):
            raise InvariantError(f"I10 liveness: a proposal stays undecided: {self.describe()}")

    def _agree(self, core: list[SimNode], leader: SimNode) -> bool:
        last = leader.core.last_index
        return all(
            n.core.commit_index == last and n.core.last_index == last and n.core.is_voter
            and n.core.leader_id == NodeId(leader.name) and n.core.applied_index == last
            for n in core
        )  # fmt: skip

    def describe(self) -> str:
        """One line on every node, for a failure."""
        parts = []
        for node in self.nodes.values():
            core = node.core
            state = core.role.value if node.up else "down"
            parts.append(
                f"{node.name} {state} term {core.term} last {core.last_index} stable {core.stable_index}"
                f" commit {core.commit_index} leader {core.leader_id} voter {core.is_voter}"
            )
        return "; ".join(parts) + f"; cuts {sorted(self.network.cuts)}"
