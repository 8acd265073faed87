"""Liveness phase: a majority is healed, the rest stays broken, the broker group must recover (I9, I10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgermq.raft.core.outputs import Role
from ledgermq.raft.types import NodeId

from .calm import Calm, highest_term
from .invariants import InvariantError

if TYPE_CHECKING:
    from .node import SimNode
    from .world import World

SECOND = 1_000_000
SETTLE_US = 40 * SECOND  # time limit for a healed majority to agree
STEADY_US = 3 * SECOND


class Liveness:
    """Runs the second phase of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.faults.rng

    def run(self) -> None:
        """Heal, demand agreement, then demand stability. Raises: InvariantError."""
        core = self._heal_a_majority()
        self.world.drop_messages()
        self._settle(core)
        term = highest_term(self.world)
        self._stay_steady(core)
        Calm(self.world, self._agree).run(term)

    def _heal_a_majority(self) -> list[SimNode]:
        """End the faults of a majority (sometimes of all nodes). Cuts and crashes elsewhere remain."""
        world, rng = self.world, self.rng
        world.faults.active = False
        names = list(world.names)
        rng.shuffle(names)
        if world.master:
            names.sort(key=lambda name: name != world.master)  # the master first: nothing works without it
        need = len(names) // 2 + 1
        learners = any(not n.up or not n.core.is_voter or n.wants_rejoin for n in world.nodes.values())
        size = len(names) if learners or world.atlas.hurt or rng.random() < 0.5 else need
        core = world.healed = [world.nodes[name] for name in names[:size]]
        world.network.calm()
        world.faults.disks.stop()
        for node in world.nodes.values():
            node.tick_us = 10_000
            node.clock.set_rate(1.0)
            node.paused_until = min(node.paused_until, world.now)
            if node.up and node.core.fault is not None:
                world.faults.kill(node, power=False)
            elif node.up and node.core.is_voter:
                world.faults.disks.scrub(node.name)
        for node in core:
            if not node.up and not node.starting:
                world.start_node(node)
        self._break_the_rest(names[size:], names[:size])
        return core

    def _break_the_rest(self, others: list[str], core: list[str]) -> None:
        for name in others:
            how = self.rng.randint(0, 3)
            node = self.world.nodes[name]
            network = self.world.network
            if how == 0 and node.up:
                self.world.faults.kill(node, power=False)
            elif how == 1:  # it hears, but is not heard
                network.cut([name], core, both_ways=False)
            elif how == 2:  # it is heard, but hears nothing: the disruptive case
                network.cut(core, [name], both_ways=False)
            else:
                network.cut([name], core)

    def _settle(self, core: list[SimNode]) -> None:
        """Demand that the healed nodes agree and commit within a bounded time."""
        world = self.world
        # A slow disk first finishes what it was asked for: some flushes of seconds each.
        end = max([world.now, *(node.files.busy_until for node in core)]) + SETTLE_US
        while world.now < end:
            world.run_until(world.now + SECOND // 4)
            leader = world.leader()
            if leader is None or leader not in core or leader.life is None:
                continue
            if not self._agree(core, leader):
                continue
            before = leader.core.commit_index
            if leader.life.propose([200]):
                world.run_until(world.now + SECOND // 2)
                if leader.up and leader.core.commit_index > before and self._agree(core, leader):
                    return
        raise InvariantError(f"I10 liveness: no agreement in {SETTLE_US // SECOND} s: {world.describe()}")

    def _stay_steady(self, core: list[SimNode]) -> None:
        """Demand that the leader of a healthy majority keeps its lead (I9), and that reads are answered."""
        world = self.world
        leader = world.leader()
        assert leader is not None and leader.life is not None
        term, served = leader.core.term, world.reads_served
        for node in core:
            assert node.life is not None
            node.life.read(world.next_read())
        proposed = [leader.life.propose([100]) for _ in range(3)]
        world.run_until(world.now + STEADY_US)
        if leader.core.term != term or leader.core.role is not Role.LEADER:
            raise InvariantError(f"I9 spurious election: term {term} ended: {world.describe()}")
        if world.reads_served < served + len(core):
            raise InvariantError(f"I10 liveness: a read was not answered: {world.describe()}")
        if not all(proposed[:1]) or not self._agree(core, leader):
            raise InvariantError(f"I10 liveness: a proposal stays undecided: {world.describe()}")

    def _agree(self, core: list[SimNode], leader: SimNode) -> bool:
        last = leader.core.last_index
        return all(
            n.life is not None and n.core.commit_index == last and n.core.last_index == last
            and n.core.is_voter and n.core.leader_id == NodeId(leader.name) and n.life.applied == last
            for n in core
        )  # fmt: skip
