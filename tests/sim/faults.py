"""What goes wrong in a run. Every rate is drawn per seed from a wide range, and whole classes are switched off.

Fault classes: crash (torn flush), crash while a vote is being written, trouble for every new leader (figure 8), restart of all, pause, wiped disk, failing disk, slow disk, loss, repetition,
stragglers, cuts (isolation, split, one way, chain), clock rates, false hints, hand-overs, resignations, compaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgermq.raft.outputs import Role
from ledgermq.raft.types import LogIndex, NodeId

if TYPE_CHECKING:
    from .node import SimNode
    from .world import World

MS = 1000
CLASSES = (
    "crash",
    "restart_all",
    "pause",
    "wipe",
    "disk_error",
    "slow_disk",
    "cut",
    "hint",
    "operate",
    "compact",
)
MEAN_MS = {
    "crash": (700, 6000), "restart_all": (4000, 20000), "pause": (1000, 8000), "wipe": (5000, 15000),
    "disk_error": (3000, 15000), "slow_disk": (1000, 6000), "cut": (400, 4000), "hint": (300, 3000),
    "operate": (500, 4000), "compact": (1000, 5000),
}  # fmt: skip


class Faults:
    """The villain, and the user of the cluster."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.crashes = 0
        self.active = True
        self.mean_ms: dict[str, int] = {}
        for name in CLASSES:
            mean = self.rng.randint(*MEAN_MS[name])
            if self.rng.random() < 0.5:
                self.mean_ms[name] = mean
        if "wipe" in self.mean_ms:
            self.mean_ms.pop("compact", None)  # an empty node below the first retained entry needs a reset
        self.crash_in_vote = self.rng.choice((0.0, 0.0, 0.2))
        self.harass_leaders = self.rng.choice((0.0, 0.0, 0.8))
        self.harass_ms = self.rng.choice((30, 200, 1000))
        self.mean_ms["propose"] = self.rng.choice((15, 40, 150))
        self.mean_ms["read"] = self.rng.choice((20, 100, 500))
        self._draw_network()
        self.plays_figure_8 = False
        if self.rng.random() < 0.2:
            self._prefer_figure_8()
        self.skews_clocks = self.rng.random() < 0.3

    def _prefer_figure_8(self) -> None:
        """One entry per message, and every leader is soon alone: tails of several terms meet (paper, figure 8)."""
        self.world.limits["max_append_bytes"] = self.world.limits["max_inflight_messages"] = 1
        self.plays_figure_8 = True
        self.mean_ms = {"propose": 30, "read": 500}
        self.world.network.loss = self.world.network.straggle = 0.0
        self.world.network.delay_us = self.rng.choice(((1000, 10_000), (5000, 30_000)))

    def start(self) -> None:
        for name in self.mean_ms:
            self._again(name)

    def happen(self, kind: str) -> None:
        """One event of a class happens; another is drawn."""
        if kind == "restart":
            for node in self.world.nodes.values():
                if not node.up and self.active:
                    self.world.start_node(node)
                    return
            return
        if not self.active and kind not in ("propose", "read"):
            return
        if kind == "heal":
            self.world.network.heal()
            return
        getattr(self, f"_{kind}")()
        if self.active:
            self._again(kind)

    def draw_tick_us(self) -> int:
        """How long a node believes 10 ms to be."""
        return int(10_000 / self.rng.uniform(0.5, 2.0)) if self.skews_clocks else 10_000

    def on_vote_write(self, node: SimNode) -> None:
        """A node writes its term and vote: power may go before that is done, or just after."""
        if self.active and self.crash_in_vote and self.rng.random() < self.crash_in_vote:
            self.world.later(self.rng.randint(1, node.disk.delay_us[1]), node.name, "crash")

    def on_leader(self, node: SimNode) -> None:
        """A node won: it may die, or be left with a minority, before its first entries are everywhere."""
        if not self.active:
            return
        if self.plays_figure_8:
            self.world.later(self.rng.randint(1, self.rng.choice((10, 50, 800))) * MS, node.name, "isolate")
        elif self.harass_leaders and self.rng.random() < self.harass_leaders:
            kind = self.rng.choice(("crash", "isolate"))
            self.world.later(self.rng.randint(1, self.harass_ms) * MS, node.name, kind)

    def isolate(self, node: SimNode) -> None:
        """Cut a node, and perhaps one other with it, from the rest."""
        others = [name for name in self.world.names if name != node.name]
        self.rng.shuffle(others)
        keep = self.rng.randint(0, max(0, len(others) - 1) // 2)
        self.world.network.heal()
        self.world.network.cut([node.name, *others[:keep]], others[keep:])
        if not self.plays_figure_8:  # there, the next leader's isolation brings this one back
            self.world.later(self.rng.randint(500, 1500) * MS, "", "heal")

    def heal_a_majority(self) -> list[SimNode]:
        """End the faults of a majority (at times of all); what is cut or down elsewhere stays so."""
        world = self.world
        self.active = False
        names = list(world.names)
        self.rng.shuffle(names)
        need = len(names) // 2 + 1
        learners = any(not n.disk.hard_state.is_voter for n in world.nodes.values())
        size = len(names) if learners or self.rng.random() < 0.5 else need
        core = [world.nodes[name] for name in names[:size]]
        others = [world.nodes[name] for name in names[size:]]
        world.network.calm()
        world.cold_reads = 0.0
        for node in world.nodes.values():
            node.disk.delay_us = (100, 2000)
            node.tick_us = 10_000
            if node.up and node.core.fault is not None:
                self.kill(node)
            node.paused_until = min(node.paused_until, world.now)
        for node in core:
            if not node.up:
                world.start_node(node)
        self._break_the_rest([n.name for n in others], [n.name for n in core])
        return core

    def _break_the_rest(self, others: list[str], core: list[str]) -> None:
        for name in others:
            how = self.rng.randint(0, 3)
            node = self.world.nodes[name]
            if how == 0 and node.up:
                self.kill(node)
            elif how == 1:  # it cannot be heard, but hears
                self.world.network.cut([name], core, both_ways=False)
            elif how == 2:  # it hears nothing, but can be heard: the disruptive one
                self.world.network.cut(core, [name], both_ways=False)
            else:
                self.world.network.cut([name], core)

    # --- the user ----------------------------------------------------------------------------------------------
    def _propose(self) -> None:
        for node in self._running():
            if node.core.role is Role.LEADER:
                node.propose(self.rng.randint(1, 5))
                self.world.invariants.after(node)

    def _read(self) -> None:
        node = self._any_running()
        if node is not None:
            node.read()

    def _operate(self) -> None:
        node = self._any_running()
        if node is None:
            return
        what = self.rng.randint(0, 4)
        if what == 0:
            node.core.campaign()
        elif what == 1:
            node.core.resign()
        elif what == 2:
            node.core.want_commits(self.rng.random() < 0.5)
        else:
            to = None if what == 3 else NodeId(self.rng.choice(self.world.names))
            for each in self._running():
                if each.core.role is Role.LEADER and to != each.name:
                    each.core.transfer_leadership(to)
                    each.pump()
        node.pump()

    def _compact(self) -> None:
        """Delete what every node has on disk and has applied (a reset is not simulated)."""
        nodes = list(self.world.nodes.values())
        if any(not n.up or not n.disk.hard_state.is_voter for n in nodes):
            return
        safe = min(min(n.core.applied_index, n.disk.log.last, n.core.stable_index) for n in nodes)
        if safe <= max(n.log.base for n in nodes):
            return
        first = self.rng.randint(max(n.log.base for n in nodes) + 1, safe + 1)
        for node in nodes:
            node.core.compacted(LogIndex(first))
            node.log.compact(first)
            node.disk.log.compact(first)
            node.disk.checkpoint = max(node.disk.checkpoint, first - 1)

    # --- the villain -------------------------------------------------------------------------------------------
    def _crash(self) -> None:
        node = self._any_running()
        if node is not None:
            self.kill(node)

    def _restart_all(self) -> None:
        for node in self._running():
            self.kill(node)

    def _pause(self) -> None:
        node = self._any_running()
        if node is not None:
            node.paused_until = self.world.now + self.rng.randint(50, 2000) * MS

    def _wipe(self) -> None:
        """One disk at a time: two would be more than a majority of three can stand."""
        nodes = list(self.world.nodes.values())
        if len(nodes) == 1 or any(n.ghost is not None and not n.disk.hard_state.is_voter for n in nodes):
            return
        node = self._any_running()
        if node is not None:
            self.kill(node)
            node.wipe()
            self.world.invariants.on_wipe(node)

    def _disk_error(self) -> None:
        node = self._any_running()
        if node is not None:
            node.core.storage_failed("simulated")
            node.pump()
            self.world.later(self.rng.randint(100, 1000) * MS, node.name, "tick")

    def _slow_disk(self) -> None:
        node = self.world.nodes[self.rng.choice(self.world.names)]
        node.disk.delay_us = self.rng.choice(
            ((50, 500), (100, 3000), (20_000, 300_000), (100_000, 1_500_000))
        )

    def _cut(self) -> None:
        network = self.world.network
        names = list(self.world.names)
        self.rng.shuffle(names)
        shape = self.rng.randint(0, 5)
        if shape == 0:
            network.heal()
        elif shape == 1:
            network.cut(names[:1], names[1:])
        elif shape == 2:
            network.cut(names[:1], names[1:], both_ways=False)
        elif shape == 3:
            network.cut(names[1:], names[:1], both_ways=False)
        elif shape == 4:
            half = self.rng.randint(1, len(names))
            network.cut(names[:half], names[half:])
        else:
            network.cut(names[:1], names[-1:], both_ways=self.rng.random() < 0.5)
        if self.rng.random() < 0.6:
            self.world.later(self.rng.randint(100, 3000) * MS, "", "heal")

    def _hint(self) -> None:
        """A connection breaks, or seems to: the core is told, true or not."""
        node = self._any_running()
        if node is not None:
            peer = NodeId(self.rng.choice(self.world.names))
            node.core.link_down(peer, refused=self.rng.random() < 0.5)
            node.pump()

    def kill(self, node: SimNode) -> None:
        self.crashes += 1
        node.crash()
        self.world.later(self.rng.choice((1, 50, 400, 3000)) * MS, "", "restart")
        if self.rng.random() < 0.5:
            for each in self._running():
                each.core.link_down(NodeId(node.name), refused=True)
                each.pump()

    def _draw_network(self) -> None:
        rng, network = self.rng, self.world.network
        network.loss = rng.choice((0.0, 0.0, rng.uniform(0, 0.3)))
        network.repeat = rng.choice((0.0, rng.uniform(0, 0.3)))
        network.straggle = rng.choice((0.0, rng.uniform(0, 0.1)))
        network.straggle_us = rng.choice((20, 500, 5000)) * MS
        network.delay_us = rng.choice(((100, 1000), (200, 20_000), (1000, 100_000)))

    def _again(self, kind: str) -> None:
        delay = int(self.rng.expovariate(1 / self.mean_ms[kind]) * MS) + 1
        self.world.later(delay, "", kind)

    def _running(self) -> list[SimNode]:
        world = self.world
        return [n for n in world.nodes.values() if n.up and world.now >= n.paused_until]

    def _any_running(self) -> SimNode | None:
        running = self._running()
        return self.rng.choice(running) if running else None
