"""Behaviour of a healthy broker group at the end of a run, with no fault left but the one under test.

E7   a node that was away comes back and disturbs no other node: the term stays
E8   a follower that cannot reach the leader, but others can, deposes no leader
E10  after a resignation the others elect at once, not after an election timeout
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .invariants import InvariantError, demand

if TYPE_CHECKING:
    from .node import SimNode
    from .world import World

SECOND = 1_000_000
RETURN_US = 40 * SECOND  # a follower that was reset retries after pauses of up to ten seconds
AWAY_US = 2 * SECOND
RESIGN_US = SECOND * 2 // 5  # the shortest election timeout: no node may have waited for silence


class Calm:
    """Last part of a run: the broker group is steady, its leader is known."""

    def __init__(self, world: World, agree: Callable[[list[SimNode], SimNode], bool]) -> None:
        self._world = world
        self._agree = agree
        self._rng = world.faults.rng

    def run(self, term_before: int) -> None:
        """Run all checks. `term_before`: highest term of any node when the majority became steady."""
        world = self._world
        leader = self._leader()
        highest = highest_term(world)
        demand(highest == term_before, f"I9: cut off from a quorum, a node went to term {highest}")
        all_follow = highest == leader.core.term
        self._everybody_returns()
        if all_follow and self._leader().core.term != highest:
            raise InvariantError(f"E7: a node that returned ended term {highest}: {world.describe()}")
        if len(world.names) > 1:
            self._one_cannot_reach_the_leader()
            if not world.master:  # no other node could lead
                self._leader_resigns()

    def _everybody_returns(self) -> None:
        """Repair everything. All nodes must agree."""
        world = self._world
        world.network.heal()
        world.healed = list(world.nodes.values())
        for node in world.healed:
            if not node.up and not node.starting:
                world.start_node(node)
        self._until_agreed(RETURN_US, "I10 liveness: a node that returned does not catch up")

    def _one_cannot_reach_the_leader(self) -> None:
        """a - b - c: the leader and one follower do not hear each other, or one does not hear the other."""
        world = self._world
        leader = self._leader()
        term = leader.core.term
        other = self._rng.choice([name for name in world.names if name != leader.name])
        ends = [leader.name, other]
        shape = self._rng.randint(0, 2)
        if shape == 2:
            ends.reverse()
        world.network.cut(ends[:1], ends[1:], both_ways=shape == 0)
        world.run_until(world.now + AWAY_US)
        if self._leader().core.term != term:
            raise InvariantError(
                f"E8: {other}, cut off from the leader only, ended its term: {world.describe()}"
            )
        before = leader.core.commit_index
        assert leader.life is not None
        leader.life.propose([100])
        world.run_until(world.now + SECOND // 2)
        demand(leader.core.commit_index > before, f"E8: no commit with a majority: {world.describe()}")
        world.network.heal()
        self._until_agreed(RETURN_US, "I10 liveness: no agreement after a cut")

    def _leader_resigns(self) -> None:
        world = self._world
        leader = self._leader()
        term = leader.core.term
        assert leader.life is not None
        if self._rng.random() < 0.5:  # its messages may arrive after its resignation
            leader.life.propose([100])
        leader.core.resign()
        leader.life.pump()
        end = world.now + RESIGN_US
        while world.now < end:
            world.run_until(world.now + SECOND // 100)
            successor = world.leader()
            if successor is not None and successor.core.term > term:
                return
        raise InvariantError(
            f"E10: no node leads {RESIGN_US // 1000} ms after a resignation: {world.describe()}"
        )

    def _leader(self) -> SimNode:
        leader = self._world.leader()
        demand(leader is not None, f"I9: a healthy group without a leader: {self._world.describe()}")
        assert leader is not None
        return leader

    def _until_agreed(self, limit_us: int, otherwise: str) -> None:
        world = self._world
        end = world.now + limit_us
        while world.now < end:
            world.run_until(world.now + SECOND // 4)
            leader = world.leader()
            if leader is not None and self._agree(list(world.nodes.values()), leader):
                return
        raise InvariantError(f"{otherwise}: {world.describe()}")


def highest_term(world: World) -> int:
    """Return the highest term of the running nodes."""
    return max(int(node.core.term) for node in world.nodes.values() if node.up)
