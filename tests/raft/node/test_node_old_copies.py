"""Restored old copy of one node's folder: that node is told, and the healthy ones go on."""

from __future__ import annotations

import logging

import pytest

from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.log.identity import read_identity

from ..node_cluster import Cluster


async def replace_n1(cluster: Cluster) -> bytes:
    """Let n1 come back under a new incarnation. Returns the identity that n2 had before."""
    await cluster.begin(b"one")
    await cluster.until(
        lambda: all(n.group_id for n in cluster.nodes.values()), "every node knows the group id"
    )
    record = cluster.folder / "n2" / "identity"
    old = record.read_bytes()
    await cluster.stop("n1")
    await cluster.start("n1", rejoin=True)
    await cluster.until(lambda: cluster.nodes["n1"].role in ("follower", "leader"), "n1 votes again")
    await cluster.send(b"two")
    await cluster.settle()
    return old


async def test_a_node_whose_old_identity_was_put_back_stops_and_names_itself_and_no_other_does(
    cluster: Cluster,
) -> None:
    old = await replace_n1(cluster)
    await cluster.stop("n2")
    (cluster.folder / "n2" / "identity").write_bytes(old)
    await cluster.start("n2")
    stale = cluster.nodes["n2"]
    await cluster.until(lambda: stale.fault is not None, "n2 is told")
    assert stale.fault is not None
    assert "the data folder of n2 is an old copy" in stale.fault and "--rejoin" in stale.fault
    assert {name: node.fault for name, node in cluster.nodes.items() if node is not stale} == dict.fromkeys(
        ("n1", "n3")
    )
    await cluster.kill("n2")
    await cluster.send(b"three")
    await cluster.start("n2", rejoin=True)
    await cluster.settle()
    assert cluster.applied("n2") == [b"one", b"two", b"three"]


async def test_a_healthy_node_that_only_an_old_copy_greets_goes_on_and_says_whose_folder_is_old(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    old = await replace_n1(cluster)
    await cluster.stop("n1", "n2", "n3")
    (cluster.folder / "n2" / "identity").write_bytes(old)
    await cluster.start("n1", "n2")
    await cluster.until(lambda: any("refused by a node with an old" in text for text in caplog.messages))
    assert cluster.nodes["n1"].fault is None
    await cluster.start("n3")
    await cluster.until(lambda: cluster.nodes["n2"].fault is not None, "n3 knows n1, too")
    await cluster.kill("n2")
    await cluster.send(b"three")
    assert cluster.nodes["n1"].fault is cluster.nodes["n3"].fault is None

    (text,) = (text for text in caplog.messages if "refused by a node with an old data folder" in text)
    assert "node=n2" in text and "on n2: ledgermq broker --rejoin" in text


async def test_a_folder_remembers_what_it_and_the_others_were_before(cluster: Cluster) -> None:
    await replace_n1(cluster)
    (quarantined,) = (cluster.folder / "n1").glob("quarantine-1")
    before = read_identity(RealFileSystem(), quarantined / "identity", "n1").incarnation
    for name in ("n1", "n2", "n3"):
        identity = read_identity(RealFileSystem(), cluster.folder / name / "identity", name)
        assert identity.former == {"n1": (before,)}
