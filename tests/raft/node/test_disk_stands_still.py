"""A leader with a hanging disk transfers leadership, a leader with a slow disk does not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.raft.core.outputs import Role
from ledgermq.raft.drive.leadership import LeaderDuties
from ledgermq.raft.errors import TransferFailedError
from ledgermq.raft.node import raft_node as node_module
from ledgermq.raft.types import LogIndex, NodeId
from tests.gated_disk import FLUSHES, Gate, GatedFileSystem

from ..node_cluster import Cluster, kill


async def test_the_lead_goes_to_a_node_whose_disk_works(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "REPORT_INTERVAL_S", 0.1)
    await cluster.start(files=GatedFileSystem())
    await cluster.send(b"before")
    leader = await cluster.leader()
    old = cluster.nodes[leader]
    term, gate = old.term, Gate(cluster.folder / leader, FLUSHES)
    with gate.closed():
        proposal = old.propose([b"while the disk stands still"], 1)
        await proposal.committed
        assert old.applied_index < proposal.header.index, "it shows nothing new"
        others = [node for name, node in cluster.nodes.items() if name != leader]
        await cluster.until(lambda: any(node.is_leader_ready for node in others), "another leads")
        follower = next(node for node in others if node.is_leader_ready)
        assert follower.term == term + 1, "a hand-over, no election"
        assert follower.applied_index >= proposal.header.index
        await follower.propose([b"under the next leader"], 1).committed
        assert gate.waiting == 1
    await cluster.until(
        lambda: len({tuple(machine.applied) for machine in cluster.machines.values()}) == 1,
        "all are equal",
    )


async def test_the_lead_goes_to_a_node_whose_state_is_whole(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that rebuilds its queues would serve nothing for minutes."""
    monkeypatch.setattr(node_module, "REPORT_INTERVAL_S", 0.1)
    await cluster.start()
    leader = await cluster.leader()
    node = cluster.nodes[leader]
    rebuilding: Any = SimpleNamespace(needs_entries_to=LogIndex(99))
    monkeypatch.setattr(node, "_state_transfer", rebuilding)
    others = [other for name, other in cluster.nodes.items() if name != leader]
    await cluster.until(lambda: any(other.is_leader_ready for other in others), "another leads")
    follower = next(other for other in others if other.is_leader_ready)
    await follower.propose([b"under the next leader"], 1).committed


@pytest.mark.parametrize("cleanly", [False, True])
async def test_a_node_that_closes_ends_the_hand_over_under_way(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, cleanly: bool
) -> None:
    """Nothing of it is left to touch a core whose storage is closed."""
    await cluster.start()
    leader = await cluster.leader()
    leadership, began = cluster.nodes[leader]._leadership, asyncio.Event()

    async def nobody_takes_over(to: NodeId | None) -> NodeId:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError("it is cancelled")

    monkeypatch.setattr(leadership, "transfer", nobody_takes_over)
    moving = leadership._moving = asyncio.create_task(leadership._move_away())
    await began.wait()
    node = cluster.nodes.pop(leader)
    await (node.stop(transfer=False) if cleanly else kill(node))
    assert moving.done()
    assert leadership._moving is None


class Watched(LeaderDuties):
    """Counts leadership transfers."""

    def __init__(self) -> None:
        self.fake = SimpleNamespace(role=Role.LEADER, stable_index=5, commit_index=5)
        core: Any = self.fake
        nothing: Any = SimpleNamespace(counter=lambda name: None, node_id="n1")
        super().__init__(nothing, core, nothing, nothing, nothing, lambda reason: None)
        self.hand_overs = 0
        self.fails = False

    async def transfer(self, to: NodeId | None) -> NodeId:
        self.hand_overs += 1
        if self.fails:
            raise TransferFailedError("no follower is near enough")
        return NodeId("n2")

    async def looks(self, *seen: tuple[int, int]) -> int:
        """Look at these pairs of durable and committed index, one after the other. Returns the transfers."""
        for self.fake.stable_index, self.fake.commit_index in seen:
            self.look_at_disk()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return self.hand_overs


def test_a_disk_that_flushes_anything_between_two_looks_is_only_slow() -> None:
    assert asyncio.run(Watched().looks((5, 5), (5, 9), (6, 12), (7, 40), (8, 100), (100, 100))) == 0


def test_a_group_that_is_idle_is_no_disk_that_stands_still() -> None:
    assert asyncio.run(Watched().looks((5, 5), (5, 5), (5, 6), (6, 6), (6, 6))) == 0


def test_a_follower_hands_nothing_over() -> None:
    watched = Watched()
    watched.fake.role = Role.FOLLOWER
    assert asyncio.run(watched.looks((5, 9), (5, 9), (5, 9))) == 0


def test_a_voter_that_is_alone_keeps_the_lead_while_its_state_is_made_whole() -> None:
    """A single node, or a master: no other node may lead."""

    async def looks(voters: tuple[str, ...], needed: int) -> int:
        watched = Watched()
        watched.fake.quorum = SimpleNamespace(voters=voters)
        watched.look_at_state(LogIndex(needed))
        await asyncio.sleep(0)
        return watched.hand_overs

    assert asyncio.run(looks(("n1",), 9)) == 0
    assert asyncio.run(looks(("n1", "n2", "n3"), 0)) == 0
    assert asyncio.run(looks(("n1", "n2", "n3"), 9)) == 1


def test_a_hand_over_that_fails_is_tried_again() -> None:
    watched = Watched()
    watched.fails = True
    assert asyncio.run(watched.looks((5, 9), (5, 9), (5, 9), (5, 9))) == 3
