"""A bug of ours must end the node at once and visibly, and never leave it half alive."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.raft.errors import NodeStoppedError

from ..node_cluster import Cluster


def broken(*_arguments: Any, **_named: Any) -> None:
    raise AssertionError("a bug of ours")


async def test_an_entry_that_the_core_counted_and_the_log_does_not_hold_faults_the_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.begin(b"one")
    first = await cluster.leader()
    node = cluster.nodes[first]
    monkeypatch.setattr(node.log, "stage_entry", broken)
    with pytest.raises(NodeStoppedError, match="nothing was appended"):
        node.propose([b"two"], 1)
    assert "defect of LedgerMQ" in await node.wait_fatal()
    assert node.role == "faulted"
    with pytest.raises(NodeStoppedError, match="a bug of ours"):
        node.propose([b"three"], 1)
    await cluster.kill(first)
    await cluster.send(b"four")


async def test_a_message_that_the_core_cannot_handle_faults_the_node_and_the_others_go_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.begin(b"one")
    leader = await cluster.leader()
    follower = next(name for name in cluster.nodes if name != leader)
    node = cluster.nodes[follower]
    monkeypatch.setattr(node._core, "step", broken)
    assert f"handling a message of {leader}" in await node.wait_fatal()
    assert node.role == "faulted"
    await cluster.kill(follower)
    await cluster.send(b"two")


@pytest.mark.cluster("n1")
async def test_a_bug_in_the_thread_that_writes_the_log_faults_the_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start("n1")
    await cluster.send(b"one")
    node = cluster.nodes["n1"]
    monkeypatch.setattr(node.storage._writer, "run", broken)
    proposal = node.propose([b"two"], 1)
    assert "AssertionError: a bug of ours" in await node.wait_fatal()
    assert proposal.committed.exception() is not None
