"""Real nodes over a recovered folder and its copies: which join, which are refused, nothing lost."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.folder.group_recovery import clone_folder, inspect, recover_folder, stopped_folder
from ledgermq.raft.folder.storage import Machine
from ledgermq.raft.node import status_view as node_status
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.node_status import PeerStatus
from ledgermq.raft.transport.hello import Standing
from ledgermq.raft.types import NodeId

from ..node_cluster import Cluster

ALL = [b"one", b"two", b"three"]


async def lose_the_majority(cluster: Cluster) -> None:
    """Commit `ALL`, stop all nodes, recover n1's folder and set the others aside as `old-n2`, `old-n3`."""
    await cluster.begin(*ALL)
    await cluster.kill("n1", "n2", "n3")
    for name in ("n2", "n3"):
        (cluster.folder / name).rename(cluster.folder / f"old-{name}")
    with stopped_folder(cluster.folder / "n1", RealFileSystem()) as folder:
        recover_folder(folder, inspect(folder))


def clone(cluster: Cluster, *names: str, source: str = "n1") -> None:
    """Copy the recovered folder and turn the copies into other members' folders."""
    for name in names:
        data = cluster.folder / name
        shutil.copytree(cluster.folder / source, data)
        with stopped_folder(data, RealFileSystem()) as folder:
            clone_folder(folder, NodeId(name), inspect(folder))


def standings(cluster: Cluster) -> dict[str, Standing]:
    return {name: node.hello(None).standing for name, node in cluster.nodes.items()}


def all_vote(cluster: Cluster) -> bool:
    return set(standings(cluster).values()) == {Standing.VOTER} and len(cluster.nodes) == 3


async def leader_beside(cluster: Cluster, lost: str) -> RaftNode:
    """Return the node that leads the others of `lost`."""
    others = [node for name, node in cluster.nodes.items() if name != lost]
    await cluster.until(lambda: any(node.is_leader_ready for node in others), "the others have a leader")
    return next(node for node in others if node.is_leader_ready)


def refused(node: RaftNode, peer: str) -> str:
    """Return why `node` refused the last greeting of `peer`."""
    return seen(node, peer).refused


def seen(node: RaftNode, peer: str) -> PeerStatus:
    """Return `peer` as `node` sees it."""
    return next(each for each in node.status().peers if each.node_id == peer)


async def test_a_recovered_folder_and_its_clones_are_a_group_with_everything_that_it_held(
    cluster: Cluster,
) -> None:
    await lose_the_majority(cluster)
    clone(cluster, "n2", "n3")
    await cluster.begin(b"four")
    assert all(cluster.applied(name) == [*ALL, b"four"] for name in cluster.nodes)
    assert all_vote(cluster)
    assert cluster.log_bytes("n1") == cluster.log_bytes("n2") == cluster.log_bytes("n3")
    await cluster.kill("n1", "n2", "n3")
    await cluster.start("n2", "n3")  # two of three are enough by now
    await cluster.send(b"five")
    await cluster.settle()
    assert cluster.applied("n2")[:4] == [*ALL, b"four"]


async def test_first_members_wait_until_all_have_met(cluster: Cluster) -> None:
    await lose_the_majority(cluster)
    clone(cluster, "n2", "n3")
    await cluster.start("n1", "n2")
    greetings = {"n2": cluster.nodes["n1"].hello, "n1": cluster.nodes["n2"].hello}
    await cluster.until(
        lambda: all(other in hello(None).known_incarnations for other, hello in greetings.items()),
        "n1 and n2 have met",
    )
    assert set(standings(cluster).values()) == {Standing.FRESH}
    await cluster.start("n3")
    await cluster.send(b"four")
    await cluster.settle()
    assert cluster.applied("n3")[:3] == ALL


async def test_one_clone_and_one_node_that_rejoins_are_enough(cluster: Cluster) -> None:
    await lose_the_majority(cluster)
    clone(cluster, "n2")
    await cluster.start("n1", "n2")
    await cluster.start("n3", rejoin=True)
    await cluster.until(lambda: all_vote(cluster), "n3 votes, too")
    await cluster.send(b"four")
    await cluster.settle()
    assert cluster.applied("n3") == [*ALL, b"four"]
    assert len({node.hello(None).group_id for node in cluster.nodes.values()}) == 1


async def test_two_empty_folders_cannot_outvote_the_recovered_one(cluster: Cluster) -> None:
    await lose_the_majority(cluster)
    await cluster.start("n2", "n3")
    await cluster.start("n1")
    await cluster.until(lambda: cluster.fatal.keys() == {"n2", "n3"}, "both give up")
    assert all("was recovered without the data folder of" in text for text in cluster.fatal.values())
    assert cluster.nodes["n1"].hello(None).standing is Standing.FRESH
    assert cluster.nodes["n1"].last_index > 0


async def test_a_lost_node_that_comes_back_with_its_old_folder_is_refused_in_words(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR)
    await lose_the_majority(cluster)
    clone(cluster, "n2", "n3")
    await cluster.begin(b"four")
    await cluster.kill("n2")
    (tmp_path / "n2").rename(tmp_path / "clone-n2")
    (tmp_path / "old-n2").rename(tmp_path / "n2")
    await cluster.start("n2")
    await cluster.until(
        lambda: "recovered without the data folder of n2" in caplog.text, "the refusal is told"
    )
    leader = await leader_beside(cluster, "n2")
    await cluster.until(
        lambda: cluster.nodes["n2"].status().held_back.startswith("refused by n1, n3: "), "n2 says so"
    )
    assert "ledgermq broker --rejoin" in cluster.nodes["n2"].status().held_back
    assert not leader.status().held_back
    assert "recovered without the data folder of n2" in refused(leader, "n2")
    await cluster.until(lambda: seen(leader, "n2").refused_lately, "it is there and refused")
    await cluster.kill("n2")
    with monkeypatch.context() as later:
        later.setattr(node_status, "REFUSED_LATELY_S", 0.0)
        assert refused(leader, "n2") and not seen(leader, "n2").refused_lately
    await cluster.send(b"five")
    assert not cluster.fatal
    await cluster.start("n2", rejoin=True)
    await cluster.until(lambda: all_vote(cluster), "n2 votes again")
    assert not cluster.nodes["n2"].status().held_back
    assert not any(refused(node, "n2") for node in cluster.nodes.values())

    assert "ledgermq broker --rejoin" in caplog.text


@pytest.mark.cluster(flush="async_timed")
async def test_a_learner_that_was_left_behind_comes_back_with_an_empty_folder(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut of all machines in an async flush mode each node waits as a learner."""
    await lose_the_majority(cluster)
    (tmp_path / "old-n3").rename(tmp_path / "n3")
    monkeypatch.setattr(Machine, "boot_id", lambda self: "99999999-2222-3333-4444-555555555555")
    await cluster.start("n3")
    assert standings(cluster) == {"n3": Standing.LEARNER}
    await cluster.kill("n3")
    clone(cluster, "n2")
    await cluster.start("n1", "n2")
    await cluster.start("n3", rejoin=True)
    begun = cluster.nodes["n3"].storage.incarnation
    await cluster.kill("n3")
    await cluster.start("n3", rejoin=True)  # the flag is still set
    assert cluster.nodes["n3"].storage.incarnation == begun
    await cluster.until(lambda: all_vote(cluster), "n3 votes again")
    await cluster.settle()
    assert cluster.applied("n3") == ALL


async def test_a_second_clone_for_the_same_node_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    await lose_the_majority(cluster)
    shutil.copytree(tmp_path / "n1", tmp_path / "spare")
    clone(cluster, "n2", "n3")
    await cluster.begin(b"four")
    await cluster.kill("n2")
    shutil.rmtree(tmp_path / "n2")
    clone(cluster, "n2", source="spare")
    await cluster.start("n2")
    await cluster.until(lambda: "n2" in cluster.fatal, "n2 gives up")
    assert "a node that forgot its votes must not vote" in cluster.fatal["n2"]
    await cluster.kill("n2")
    shutil.rmtree(tmp_path / "n2")
    await cluster.start("n2", rejoin=True)
    await cluster.until(lambda: all_vote(cluster), "n2 votes again")
