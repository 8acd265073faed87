"""One seeded run: nodes, network, disks and faults on one event heap. No clock, no thread, no iterated set.

Two phases. Safety: anything may fail at any time, and the invariants are checked after every event. Liveness:
a majority is healed, the rest stays broken; the majority must elect, catch up, commit, and keep its term.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from pathlib import Path
from typing import Any

from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.errors import DiskFullError, NewerFolderError, OldHardStateError
from ledgermq.raft.types import NodeId

from .atlas import Atlas
from .broker_world import BrokerWorld
from .calls import Calls
from .faults import MS, Faults
from .horizon import Horizon
from .invariants import InvariantError, Invariants
from .liveness import Liveness
from .network import Network
from .node import SimNode
from .parts import Parts, patched
from .promises import Promises
from .resets import simulated_modules

SECOND = 1_000_000
SAFETY_US = 15 * SECOND
BROKER_EVERY = 8  # one in this many seeds has brokers on its nodes
#: One in this many seeds has a broker group with a master: one voter, and slaves. Its number modulo 16 is 11.
MASTER_EVERY, MASTER_TURN = 16, 11
MAX_EVENTS = 3_000_000  # of one run; more means that it loops for ever
CROWDED = 200  # messages in flight to a node above which none is repeated
#: Events of a node that is not running yet, or of the adversary about it.
_OUTSIDE = ("started", "crash", "isolate", "cut_off")
#: Coroutine steps of a node that runs or starts. They are not counted as events.
_OF_LOOPS = ("loop", "call")


class World:
    """Owns time. Every event is (time, number, node, life, kind, payload)."""

    def __init__(
        self,
        seed: int,
        core_class: type[RaftCore] = RaftCore,
        *,
        parts: Parts | None = None,
        without: frozenset[str] = frozenset(),
        quiet: tuple[tuple[int, int], ...] = (),
        broker: bool | None = None,
    ) -> None:
        """`broker`: the nodes have brokers; None: the seed decides."""
        self.seed = seed
        self.parts = parts or Parts(core_class)
        self.rng = rng = random.Random(seed)
        self.now = 0
        self.events = 0
        self.trace = 0
        self.values = 0
        self.reads_asked = 0
        self.reads_served = 0
        self.rejoins = 0
        self.segments_deleted = 0
        self.repairs = 0
        self.steps = 0  # of the loops of all nodes
        # the first one that the code under test might have swallowed
        self.defect: BaseException | None = None
        has_broker = seed % BROKER_EVERY == BROKER_EVERY - 1 if broker is None else broker
        self._draw_settings(has_broker=has_broker)
        self.broker = BrokerWorld(self) if has_broker else None
        self.network = Network(random.Random(rng.getrandbits(64)))
        self._heap: list[tuple[int, int, str, int, str, Any]] = []
        self._number = 0
        self._on_wire: Counter[str] = Counter()  # messages in flight, by target
        self._place = {name: place for place, name in enumerate(self.names)}
        self.healed: list[SimNode] = []
        self.nodes: dict[str, SimNode] = {}
        self.atlas = Atlas(self.names, self.master)
        self.invariants = Invariants(self.nodes, self.atlas, self.voters)
        self.promises = Promises(self.invariants)
        self.horizon = Horizon(self.invariants)
        self.calls = Calls(self, random.Random(rng.getrandbits(64)))
        self.checkpoint_ms = rng.choice((200, 1000, 4000))
        self.delete_per_second = rng.choice((2.0, 20.0, 1000.0))
        self.piece_bytes = rng.choice((50, 300, 1 << 18))
        self.repairs_logs = rng.random() < 0.6
        self._modules = simulated_modules(self)
        self.faults = Faults(self, without, quiet)
        if self.broker is not None:
            self.broker.tame(self.faults)
        self.is_new_group = rng.random() < 0.15
        with patched(self._modules, self.parts.patches):
            self._make_nodes()

    def _draw_settings(self, *, has_broker: bool) -> None:
        """Draw the size of the broker group and the settings of its nodes."""
        rng = self.rng
        count = rng.choice((3, 3, 3, 5, 5, 1) if self.seed % 10 == 0 else (3, 5))
        self.names = [f"n{i + 1}" for i in range(count)]
        has_master = self.seed % MASTER_EVERY == MASTER_TURN and count > 1 and not has_broker
        self.master = self.names[0] if has_master else ""
        self.flush = rng.choice(("sync", "sync", "sync", "async_timed", "async_notify"))
        self.segment_size = rng.choice((4096, 4096, 8192, 65_536))
        self.cache_bytes = rng.choice((2000, 20_000, 1 << 20))
        self.limits: dict[str, Any] = {
            "max_inflight_messages": rng.choice((1, 2, 8, 64)),
            "max_inflight_bytes": rng.choice((600, 4_000, 1 << 20)),
            "max_append_bytes": rng.choice((1, 700, 4_000, 1 << 20)),
            "max_uncommitted_bytes": rng.choice((2_000, 20_000, 1 << 20)),
        }
        if self.limits["max_append_bytes"] == 1:
            # 256 messages that overtake each other would be refused one by one.
            self.limits["max_inflight_messages"] = min(8, self.limits["max_inflight_messages"])

    @property
    def is_sync(self) -> bool:
        return self.flush == "sync"

    @property
    def voters(self) -> list[str]:
        """Nodes that decide what is committed."""
        return [self.master] if self.master else self.names

    def data_dir(self, name: str) -> Path:
        """Return a node's data folder on its disk."""
        return Path(f"/data/{name}")

    def _make_nodes(self) -> None:
        for name in self.names:
            node = self.nodes[name] = SimNode(self, name, self.parts)
            pace = self.faults.draw_pace()
            node.tick_us = int(10_000 / pace)
            node.clock.set_rate(pace)
            node.clock.step(self.rng.uniform(-2000, 2000))
            node.files.cold_share = self.faults.cold_share
        if not self.is_new_group:
            incarnations = {NodeId(name): node.make_folder() for name, node in self.nodes.items()}
            for node in self.nodes.values():
                node.make_member(incarnations)
        for node in self.nodes.values():
            node.start()

    # --- running --------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Run both phases. Raises: InvariantError, SimulationError (both are AssertionErrors)."""
        with patched(self._modules, self.parts.patches):
            try:
                self.faults.start()
                if self.broker is not None:
                    self.broker.start()
                self.run_until(SAFETY_US)
                Liveness(self).run()
                if self.broker is not None:
                    self.broker.finish()
                    self.trace = hash((self.trace, self.broker.trace))
                self.invariants.compare_disks()
            finally:
                for node in self.nodes.values():
                    node.end_tasks()

    def later(self, delay_us: int, node: str, kind: str, payload: Any = None) -> None:
        """Schedule an event of a node, void if its life ends before (node "": of the world)."""
        self._number += 1
        life = self.nodes[node].life_number if node else 0
        heapq.heappush(self._heap, (self.now + delay_us, self._number, node, life, kind, payload))

    def transmit(self, source: str, target: str, kind: str, packet: Any) -> None:
        """Send a frame or a greeting."""
        delays = self.network.deliveries(source, target, self.now)
        if self._on_wire[target] >= CROWDED:
            # Replies to repeated messages are repeated too: no network sustains that.
            del delays[1:]
        for delay in delays:
            self._number += 1
            self._on_wire[target] += 1
            heapq.heappush(self._heap, (self.now + delay, self._number, target, -1, kind, packet))

    def drop_messages(self) -> None:
        """Drop messages in flight, so that none disturbs what follows."""
        self._heap = [event for event in self._heap if event[4] not in ("frame", "greeting")]
        heapq.heapify(self._heap)
        self._on_wire.clear()

    def next_value(self) -> int:
        """Return a number for a new entry."""
        self.values += 1
        return self.values

    def next_read(self) -> int:
        """Return a number for a new read."""
        self.reads_asked += 1
        return self.reads_asked

    def node_of(self, data: Path) -> SimNode:
        """Return the node with that data folder."""
        return next(node for node in self.nodes.values() if node.config.data_dir == data)

    def note_defect(self, error: BaseException) -> None:
        """Record a defect that the code under test may have swallowed. The run ends with this event."""
        self.defect = self.defect or error

    def leader(self) -> SimNode | None:
        """Return the leader of the highest term, if it is up."""
        leaders = [n for n in self.nodes.values() if n.life is not None and n.life.leads]
        return max(leaders, key=lambda n: n.core.term) if leaders else None

    def is_healed(self, node: SimNode) -> bool:
        """Return whether a node belongs to the healed majority of the second phase."""
        return node in self.healed

    def start_node(self, node: SimNode) -> None:
        """Start a node. Recovery takes time, and may be interrupted too."""
        node.start()
        if node.starting:
            self.faults.on_recovery(node, node.files.busy_until)
            if node.installed is not None:
                self.faults.on_reset(node, max(1, node.files.busy_until - self.now))

    # --- what nodes tell ------------------------------------------------------------------------------------
    def on_fault(self, node: SimNode, reason: str, *, full: bool) -> None:
        """Handle a fault of a running node: it must have a reason, and its process ends."""
        self.faults.tell(f"{node.name} faults: {reason}")
        excused = full or node.files.failed is not None or node.name in self.atlas.hurt
        if not excused:
            raise InvariantError(f"{node.name} faults without a fault: {reason}")
        if "--rejoin" in reason or "is damaged" in reason:
            node.wants_rejoin = True
            # --rejoin keeps a learner's folder. A running node would repair it, which is not simulated.
            node.wants_new_disk = not node.core.is_voter
        self.later(self.faults.rng.randint(0, 300) * MS, "", "exit", node.name)

    def on_start_refused(self, node: SimNode, error: Exception) -> None:
        """Handle a node that refuses to start on its disk: a person deals with it."""
        node.starting = False
        self.faults.tell(f"{node.name} does not start: {error}")
        if node.name not in self.atlas.hurt:
            raise InvariantError(f"P18: {node.name} refuses a disk without damage: {error}")
        if isinstance(error, OldHardStateError):  # no fault here destroys both copies of a hard state
            raise InvariantError(f"P4: {node.name} holds an entry of a term that it did not promise: {error}")
        node.files.crash(None)
        node.wants_rejoin = True
        if isinstance(error, NewerFolderError):
            self.faults.disks.replace(node)  # --rejoin refuses what a newer build may have written
        self.later(self.faults.rng.randint(50, 3000) * MS, "", "restart", node.name)

    def on_start_failed(self, node: SimNode, error: OSError | DiskFullError) -> None:
        """Handle a disk error at a node's start."""
        node.starting = False
        self.faults.tell(f"{node.name} does not start: {error}")
        node.files.crash(None)
        if node.name in self.atlas.hurt:
            node.wants_rejoin = True
        self.later(self.faults.rng.randint(50, 1000) * MS, "", "restart", node.name)

    # --- events ---------------------------------------------------------------------------------------------
    def run_until(self, end: int) -> None:
        """Run all events that are due by then."""
        heap = self._heap
        nodes = self.nodes
        while heap and heap[0][0] <= end:
            self.now, _, name, life, kind, payload = heapq.heappop(heap)
            if kind in ("frame", "greeting"):
                self._on_wire[name] -= 1
            if kind == "client":
                payload()
                heap = self._heap
                continue
            if not name:
                self.faults.happen(kind, payload)
                heap = self._heap
                continue
            node = nodes[name]
            if life not in (-1, node.life_number):
                continue
            if kind in _OF_LOOPS:
                self._step(node, kind, payload)
            elif kind in _OUTSIDE:
                self._happen_outside(node, kind, payload)
            elif node.life is not None:
                self._happen(node, kind, payload)
            if self.defect is not None:
                raise self.defect
        self.now = end

    def _happen_outside(self, node: SimNode, kind: str, payload: Any) -> None:
        self.events += 1
        if kind == "started":
            node.on_started(payload)
            self.invariants.after(node)
        elif not self.faults.active:
            return
        elif kind == "crash":
            self.faults.kill(node, power=None if node.is_sync else False)
        elif kind == "isolate":
            self.faults.isolate(node)
        else:
            self.faults.cut_off(node, payload)

    def _step(self, node: SimNode, kind: str, payload: Any) -> None:
        if self.now < node.paused_until:
            self.later(node.paused_until - self.now, node.name, kind, payload)
            return
        self.steps += 1
        self._must_end()
        if kind == "call":
            self.calls.on_packet(node, payload)
        else:
            assert node.loop is not None
            node.loop.run(payload)
        self.invariants.after(node)
        self.trace = hash((self.trace, self.now, self._place[node.name], self.steps, node.files.calls))

    def _happen(self, node: SimNode, kind: str, payload: Any) -> None:
        self.events += 1
        self._must_end()
        life = node.life
        assert life is not None
        if self.now < node.paused_until:
            if kind in ("frame", "greeting"):
                node.inbox.append((kind, payload))
            else:
                self.later(node.paused_until - self.now, node.name, kind, payload)
            return
        if node.inbox:
            self._deliver_queued(node)  # input first, then one tick (D10)
        life.handlers[kind](payload)
        self.invariants.after(node)
        core = life.core
        self.trace = hash((self.trace, self.now, self._place[node.name], core.term, core.commit_index,
                           core.last_index, core.stable_index, node.files.calls))  # fmt: skip

    def _must_end(self) -> None:
        if self.events > MAX_EVENTS or self.steps > MAX_EVENTS:
            raise InvariantError(f"I10 liveness: {MAX_EVENTS:,} events and no end: {self.describe()}")

    def _deliver_queued(self, node: SimNode) -> None:
        inbox, node.inbox = node.inbox, []
        for kind, payload in inbox:
            if node.life is not None and node.life.core.fault is None:
                node.life.handlers[kind](payload)
                self.invariants.after(node)

    def describe(self) -> str:
        """Return one line on every node, to explain a failure."""
        parts = []
        for node in self.nodes.values():
            if node.life is None:
                parts.append(f"{node.name} {'starting' if node.starting else 'down'}")
                continue
            core = node.core
            parts.append(
                f"{node.name} {core.role.value} term {core.term} last {core.last_index} stable "
                f"{core.stable_index} commit {core.commit_index} applied {node.life.applied} leader "
                f"{core.leader_id} voter {core.is_voter}"
            )
        return "; ".join(parts) + f"; hurt {self.atlas.hurt}; cuts {sorted(self.network.cuts)}"
