"""P19 with real nodes: first start, an empty disk under a known id, and the way back."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from ledgermq.raft.errors import AddressInUseError, DataFolderError
from ledgermq.raft.folder.storage import Machine
from ledgermq.raft.transport.hello import Standing

from ..node_cluster import Cluster


def standing(cluster: Cluster, name: str) -> Standing:
    return cluster.nodes[name].hello(None).standing


async def test_new_nodes_wait_for_all_members_before_any_of_them_votes(cluster: Cluster) -> None:
    await cluster.start("n1", "n2")
    await cluster.until(
        lambda: all(
            len(node.status().peers) == 3 and node.role == "learner" for node in cluster.nodes.values()
        )
    )
    await cluster.until(
        lambda: all(any(p.connected and p.node_id != n for p in node.status().peers) for n,
        node in cluster.nodes.items())
    )  # fmt: skip
    assert {standing(cluster, name) for name in ("n1", "n2")} == {Standing.FRESH}
    never = "new broker group: waits for n3, which has never been reached (all of its nodes must meet once)"
    assert {node.status().held_back for node in cluster.nodes.values()} == {never}
    assert not any(peer.catching_up for node in cluster.nodes.values() for peer in node.status().peers)
    await cluster.start("n3")
    await cluster.send(b"one")
    assert {standing(cluster, name) for name in cluster.nodes} == {Standing.VOTER}
    assert {node.status().held_back for node in cluster.nodes.values()} == {""}


async def test_a_new_node_that_starts_again_tells_whom_it_has_met_before(cluster: Cluster) -> None:
    await cluster.start("n1", "n2")
    await cluster.until(lambda: "n2" in cluster.nodes["n1"].hello(None).known_incarnations, "n1 knows n2")
    await cluster.kill("n1", "n2")
    await cluster.start("n1")
    assert cluster.nodes["n1"].status().held_back == (
        "new broker group: waits for n3, which has never been reached, and for n2, which has not been "
        "reached since this node started (all of its nodes must meet once)"
    )


async def test_an_empty_disk_under_a_voters_id_stops_with_the_way_out(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.begin(b"one")
    await cluster.kill("n3")
    shutil.rmtree(tmp_path / "n3")
    await cluster.start("n3")
    reason = await cluster.nodes["n3"].wait_fatal()
    assert "n3 is a known voter of broker group g0 and its data folder is empty" in reason
    assert "ledgermq broker --rejoin" in reason
    assert cluster.fatal["n3"] == reason
    await cluster.kill("n3")
    await cluster.start("n3")  # a superseded folder is no voter either
    assert "known voter" in await cluster.nodes["n3"].wait_fatal()
    await cluster.kill("n3")
    await cluster.send(b"two")


async def test_two_empty_disks_cannot_outvote_the_one_that_remembers(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.begin(b"one")
    await cluster.kill("n1", "n2", "n3")
    for name in ("n2", "n3"):
        shutil.rmtree(tmp_path / name)
    await cluster.start("n1")
    await cluster.start("n2")
    assert "known voter" in await cluster.nodes["n2"].wait_fatal()
    await cluster.start("n3")
    assert "known voter" in await cluster.nodes["n3"].wait_fatal()
    assert not cluster.nodes["n1"].is_leader


async def test_a_node_that_rejoins_fetches_everything_and_votes_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.start()
    sent = [b"message %d" % n for n in range(20)]
    await cluster.send(*sent)
    await cluster.settle()
    old = cluster.nodes["n3"].storage.incarnation
    await cluster.kill("n3")
    shutil.rmtree(tmp_path / "n3")
    await cluster.start("n3", rejoin=True)
    await cluster.until(lambda: standing(cluster, "n3") is Standing.VOTER, "n3 votes again")
    assert cluster.nodes["n3"].storage.incarnation != old
    await cluster.settle()
    assert cluster.applied("n3") == sent
    other = await cluster.leader()
    if other != "n3":
        await cluster.kill(other)  # now the vote of n3 is needed
    await cluster.send(b"with n3")


async def test_a_node_that_rejoins_with_its_old_disk_keeps_the_old_data_aside(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.begin(b"one")
    await cluster.kill("n3")
    await cluster.start("n3", rejoin=True)
    await cluster.until(lambda: standing(cluster, "n3") is Standing.VOTER, "n3 votes again")
    assert list((tmp_path / "n3").glob("quarantine-*/commitlog"))
    await cluster.kill("n3")
    await cluster.start("n3")  # without the flag it keeps its standing
    assert standing(cluster, "n3") is Standing.VOTER
    await cluster.send(b"two")
    await cluster.settle()
    assert len({cluster.log_bytes(name) for name in cluster.nodes}) == 1


async def test_a_learner_does_not_vote_while_a_member_that_must_know_it_is_away(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.begin(b"one")
    await cluster.kill("n3")
    leader = await cluster.leader()
    other = next(name for name in cluster.nodes if name != leader)
    await cluster.kill(other)
    shutil.rmtree(tmp_path / "n3")
    await cluster.start("n3", rejoin=True)
    await cluster.until(lambda: not cluster.nodes[leader].is_leader, "one voter of three is no majority")
    assert standing(cluster, "n3") is Standing.LEARNER
    await cluster.start(other)
    await cluster.until(lambda: standing(cluster, "n3") is Standing.VOTER, "n3 votes again")
    await cluster.send(b"two")


@pytest.mark.cluster("n1")
async def test_a_node_alone_in_its_group_cannot_rejoin(cluster: Cluster) -> None:
    await cluster.begin(b"one")
    await cluster.stop("n1")
    with pytest.raises(DataFolderError, match="no other node has its data"):
        await cluster.start("n1", rejoin=True)
    await cluster.start("n1")
    await cluster.settle()
    assert cluster.applied("n1") == [b"one"]


@pytest.mark.cluster("n1")
async def test_a_port_in_use_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    with socket.socket() as other:
        host, port = cluster.members[0].address.split(":")
        other.bind((host, int(port)))
        other.listen()
        with pytest.raises(AddressInUseError, match=port):
            await cluster.start("n1")
    assert not (tmp_path / "n1").exists()


@pytest.mark.cluster(flush="async_timed")
async def test_with_async_flush_a_node_whose_machine_rebooted_catches_up_before_it_votes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.begin(b"one")
    victim = next(name for name, node in cluster.nodes.items() if not node.is_leader)
    old = cluster.nodes[victim].storage.incarnation
    await cluster.kill(victim)
    await cluster.send(b"two")
    monkeypatch.setattr(Machine, "boot_id", lambda self: "99999999-2222-3333-4444-555555555555")
    await cluster.start(victim)
    assert standing(cluster, victim) is Standing.LEARNER
    # late messages of the old one no longer count
    assert cluster.nodes[victim].storage.incarnation != old
    await cluster.until(lambda: standing(cluster, victim) is Standing.VOTER, "it votes again")
    await cluster.settle()
    assert cluster.applied(victim) == [b"one", b"two"]
