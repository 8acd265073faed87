"""Broker groups with the same names on one machine: their nodes tell each other apart."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.log.identity import read_identity, write_identity
from ledgermq.raft.transport.hello import Refusal, RefusalKind, Standing
from ledgermq.raft.types import NodeId

from ..node_cluster import Cluster, run


def group_ids(cluster: Cluster) -> set[int]:
    return {node.hello(None).group_id for node in cluster.nodes.values()}


async def one_id(cluster: Cluster) -> int:
    """Wait until every running node knows the same group id, and return it."""
    await cluster.until(lambda: 0 not in group_ids(cluster), "every node knows the group id")
    (found,) = group_ids(cluster)
    return found


def run_two(
    folder: Path,
    scenario: Callable[[Cluster, Cluster], Coroutine[Any, Any, None]],
    names: tuple[str, ...] = ("n1", "n2", "n3"),
) -> None:
    """Run a scenario with two broker groups of the same names."""

    async def both(mine: Cluster) -> None:
        other = Cluster(folder / "other", names)
        try:
            await scenario(mine, other)
        finally:
            await other.close()

    run(Cluster(folder / "mine", names), both)


async def test_all_members_make_the_same_group_id_and_keep_it(cluster: Cluster) -> None:
    await cluster.begin(b"one")
    made = await one_id(cluster)
    await cluster.kill("n1", "n2", "n3")
    await cluster.start()
    assert group_ids(cluster) == {made}


async def test_a_node_that_rejoins_takes_the_group_id_of_the_others(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.begin(b"one")
    made = await one_id(cluster)
    await cluster.kill("n3")
    shutil.rmtree(tmp_path / "n3")
    await cluster.start("n3", rejoin=True)
    await cluster.until(lambda: cluster.nodes["n3"].hello(None).standing is Standing.VOTER, "n3 votes")
    assert await one_id(cluster) == made


async def test_nodes_whose_records_are_older_than_group_ids_agree_on_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.begin(b"one")
    made = await one_id(cluster)
    await cluster.kill("n1", "n2", "n3")
    files = RealFileSystem()
    for name in ("n1", "n2", "n3"):
        path = tmp_path / name / "identity"
        write_identity(files, path, replace(read_identity(files, path, name), group_id=0))
    await cluster.start()
    assert await one_id(cluster) == made
    await cluster.send(b"two")


def test_a_node_of_another_group_at_a_members_address_counts_as_unreachable_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(mine: Cluster, other: Cluster) -> None:
        for cluster in (mine, other):
            await cluster.begin(b"one")
        assert await one_id(mine) != await one_id(other)
        await mine.stop("n1")
        await other.stop("n1")
        # It takes the address of the other n1, and dials its peers.
        await other.start("n1", members=mine.members)
        await mine.until(lambda: len(refusals(caplog)) >= 4, "both sides of both pairs tell")
        await mine.send(b"two")
        assert not mine.fatal and not other.fatal
        assert other.nodes["n1"].role != "faulted"
        assert all(not p.connected for p in mine.nodes["n2"].status().peers if p.node_id == "n1")

        await other.kill("n1")
        await mine.start("n1")  # the address is free again: no repair was needed
        await mine.send(b"three")
        await mine.settle()
        assert mine.applied("n1") == [b"one", b"two", b"three"]

    with caplog.at_level(logging.ERROR):
        run_two(tmp_path, scenario)
    assert all("another broker group with the same names" in line for line in refusals(caplog))
    assert not any("rejoin" in record.getMessage() for record in caplog.records)
    assert len(refusals(caplog)) == 4, "once per pair and side"


async def test_only_nodes_of_its_own_group_can_make_a_node_give_up_its_data_folder(cluster: Cluster) -> None:
    await cluster.start()
    made, node = await one_id(cluster), cluster.nodes["n3"]
    refusal = Refusal(RefusalKind.INCARNATION, "n3 came back with an old data folder")
    peers = [cluster.nodes[name].hello(None) for name in ("n1", "n2")]
    for stranger in (0, made ^ 1):
        for hello in peers:
            node._gate.on_refused(hello.node_id, refusal, replace(hello, group_id=stranger))
        assert node.fault is None
    node._gate.on_refused(NodeId("n2"), refusal, replace(peers[1], known_incarnations={NodeId("n3"): 5}))
    assert node.fault is None, "one of three"
    node._gate.on_refused(NodeId("n1"), refusal, replace(peers[0], known_incarnations={NodeId("n3"): 5}))
    assert node.fault == refusal.text


def test_a_node_that_rejoins_does_not_vote_while_two_groups_answer_at_its_peers_addresses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(mine: Cluster, other: Cluster) -> None:
        for cluster in (mine, other):
            await cluster.begin(b"one")
            await one_id(cluster)
        await mine.kill("n1", "n5")
        await other.kill("n1")
        await other.start("n1", members=mine.members)
        await mine.start("n5", rejoin=True)
        await mine.until(lambda: "two broker groups with the same names" in caplog.text, "n5 tells")
        await mine.send(b"two")
        await mine.settle()
        greeting = mine.nodes["n5"].hello(None)
        assert (greeting.standing, greeting.group_id) == (Standing.LEARNER, 0)
        assert not mine.fatal and not other.fatal

    with caplog.at_level(logging.ERROR):
        run_two(tmp_path, scenario, ("n1", "n2", "n3", "n4", "n5"))


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("peer refused")]
