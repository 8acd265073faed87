"""Two slaves promoted one after the other: the second one gives way, or waits for a person (D24)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.raft.core.reign import Claim
from ledgermq.raft.folder.group_recovery import PromotionPlan, claim_of, promote_folder
from ledgermq.raft.reset import succession
from ledgermq.raft.transport.hello import Standing
from ledgermq.raft.types import NodeId

from ..node.test_node_master import FIRST, Masters, change
from ..node_cluster import run


async def begin_with_rivals(cluster: Masters) -> None:
    """n1 is gone. n2 and n3 were promoted beside each other and are stopped."""
    await cluster.begin()
    await cluster.kill("n1")
    await cluster.stop("n2", "n3")
    for name in ("n2", "n3"):
        change(cluster.folder / name, promote_folder)


async def is_held(cluster: Masters, name: str, log: pytest.LogCaptureFixture) -> None:
    """Wait until a node has finished listening and reports that it does not lead."""
    await cluster.until(lambda: f"{name} does not lead: " in log.text, f"{name} does not lead")
    assert f"{name} does not lead: " in cluster.nodes[name].status().held_back
    assert not cluster.nodes[name].is_leader and not cluster.machines[name].ready


def test_who_stepped_aside_and_hears_of_another_promotion_gives_up_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Masters) -> None:
        await cluster.begin()
        await cluster.kill("n1")
        late = cluster.nodes["n3"]
        await cluster.until(lambda: late.leader_id is None, "n3 has no master")
        await cluster.stop("n2")
        assert late.step_aside() == "" and not late.is_left_behind
        await cluster.promote("n2")
        await cluster.until(lambda: late.is_left_behind, "n3 hears of n2")
        await cluster.stop("n3")  # at once: the decision is stored before it has stopped
        stored = change(tmp_path / "n3", lambda folder, _: folder.identity).successor
        assert stored is not None and stored.master == "n2"
        await cluster.start("n3")
        await cluster.send(b"four")
        await cluster.settle()
        assert cluster.applied("n2") == cluster.applied("n3") == [*FIRST, b"four"]

    with caplog.at_level(logging.ERROR):
        run(Masters(tmp_path), scenario)
    assert "the promotion of this node is given up: n2 was promoted before" in caplog.text


def test_what_is_heard_while_the_node_stops_still_counts(tmp_path: Path) -> None:
    async def scenario(cluster: Masters) -> None:
        await cluster.begin()
        await cluster.kill("n1")
        late, other = cluster.nodes["n3"], cluster.nodes["n2"]
        await cluster.until(lambda: late.leader_id is None, "n3 has no master")
        reign = other.config.reign
        assert late.step_aside() == "" and reign is not None
        await cluster.stop("n3")
        late._resets.succession.left_behind(reign.next(other.config.node_id, 1, other.last_index))
        assert late.is_left_behind
        assert change(tmp_path / "n3", lambda folder, _: folder.identity).successor is None

    run(Masters(tmp_path), scenario)


def test_a_promoted_node_that_hears_a_rival_does_not_lead_and_joins_it_when_it_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Masters) -> None:
        await begin_with_rivals(cluster)
        await cluster.start("n2")
        await cluster.until(lambda: cluster.nodes["n2"].is_leader_ready, "n2 leads")
        await cluster.start("n3")
        await is_held(cluster, "n3", caplog)
        assert "n2 was promoted beside it" in caplog.text and "start it with --rejoin" in caplog.text
        assert "cluster promote n3 --instead-of n2" in caplog.text
        assert cluster.nodes["n2"].is_leader_ready
        await cluster.stop("n3")
        await cluster.start("n3", rejoin=True)
        await cluster.start_over("n3")
        await cluster.send(b"four")
        await cluster.settle()
        assert cluster.applied("n3") == [*FIRST, b"four"]

    run(Masters(tmp_path), scenario)


def test_of_two_rivals_that_start_at_once_none_leads_until_one_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Masters) -> None:
        await begin_with_rivals(cluster)
        await cluster.start("n2", "n3")
        await is_held(cluster, "n2", caplog)
        await is_held(cluster, "n3", caplog)
        await cluster.stop("n2")
        assert not cluster.machines["n3"].ready, "that n2 is away does not say that it was given up"
        await cluster.start("n2", rejoin=True)
        await cluster.start_over("n2")
        await cluster.send(b"four")  # n3 leads without another start
        await cluster.settle()
        assert await cluster.leader() == "n3"
        assert cluster.applied("n2") == [*FIRST, b"four"]

    run(Masters(tmp_path), scenario)


def test_a_rival_that_is_gone_when_the_node_starts_again_does_not_hold_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Masters) -> None:
        await begin_with_rivals(cluster)
        await cluster.start("n2", "n3")
        await is_held(cluster, "n3", caplog)
        await cluster.stop("n2", "n3")
        await cluster.start("n3")
        await cluster.send(b"four")
        assert await cluster.leader() == "n3"

    run(Masters(tmp_path), scenario)


def test_a_slave_of_a_rival_tells_of_it_and_goes_with_its_master_when_that_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Masters) -> None:
        await begin_with_rivals(cluster)
        await cluster.start("n2", "n1")
        await cluster.start_over("n1")
        await cluster.until(lambda: cluster.nodes["n1"].hello().standing is Standing.VOTER, "n1 is level")
        await cluster.stop("n2")
        await cluster.start("n3")
        await is_held(cluster, "n3", caplog)
        assert "as n1 says" in caplog.text
        await cluster.stop("n1")
        await cluster.start("n1", rejoin=True)
        await cluster.until(lambda: cluster.nodes["n3"].is_leader_ready, "n3 leads")
        await cluster.start("n2", rejoin=True)
        await cluster.start_over("n2")
        await cluster.start_over("n1")
        await cluster.send(b"four")
        await cluster.settle()
        assert cluster.applied("n1") == cluster.applied("n2") == [*FIRST, b"four"]

    run(Masters(tmp_path), scenario)


async def lead_beside(cluster: Masters, patience: pytest.MonkeyPatch) -> None:
    """n2 and n3 each lead alone, store something, and then hear each other."""
    await begin_with_rivals(cluster)
    await cluster.start("n3")
    await cluster.send(b"only at n3")
    patience.setattr(succession, "PATIENCE_S", 0.0)
    await cluster.start("n2")
    nodes = cluster.nodes
    await cluster.until(lambda: nodes["n2"].is_leader_ready and nodes["n3"].is_leader_ready, "both lead")
    await nodes["n2"].propose([b"only at n2"], 1).committed
    await cluster.until(
        lambda: all(node.generations_beside() for node in nodes.values()), "they hear each other"
    )


def kept(cluster: Masters, name: str) -> bytes:
    [folder] = cluster.quarantined(name)
    return b"".join(path.read_bytes() for path in sorted((folder / "commitlog").iterdir()))


def test_of_two_masters_that_lead_the_one_that_is_promoted_again_stays_and_the_other_one_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: Masters) -> None:
        await lead_beside(cluster, monkeypatch)
        await cluster.start("n1")  # follows the one that it hears first
        await cluster.start_over("n1")
        chosen = cluster.nodes["n2"]
        assert chosen.step_aside() == "n2 leads"
        assert chosen.step_aside(though_leading=True) == "" and not chosen.is_leader
        made = await cluster.promote("n2", plan=PromotionPlan(claims=chosen.generations_beside()))
        assert made.reign is not None and (made.reign.generation, len(made.reign.former_group_ids)) == (2, 3)
        await cluster.start_over("n3")
        await cluster.start_over("n1")
        await cluster.send(b"four")
        await cluster.settle()
        assert await cluster.leader() == "n2"
        expected = [*FIRST, b"only at n2", b"four"]
        assert {tuple(cluster.applied(name)) for name in cluster.nodes} == {tuple(expected)}
        assert b"only at n3" in kept(cluster, "n3")

    run(Masters(tmp_path), scenario)


def test_who_is_promoted_after_a_claim_leaves_it_behind_however_late_that_one_comes(tmp_path: Path) -> None:
    async def scenario(cluster: Masters) -> None:
        await cluster.begin()
        await cluster.kill("n1")
        late, plan = cluster.nodes["n2"], PromotionPlan()
        claim = claim_of(late.storage.identity, plan, late.last_index)
        other = Claim(group_id=1, reign=replace(claim.reign, master=NodeId("n1")))
        told = cluster.nodes["n3"]
        first, second = await asyncio.gather(told.note_claim(claim), told.note_claim(other))
        assert (first, second) == (None, claim), "in turn"
        await cluster.kill("n2")
        await cluster.until(lambda: told.leader_id is None, "n3 has no master")
        assert "n2 told this node that it is to become the master (generation 1)" in told.status().held_back
        await cluster.kill("n3")  # it still knows the announcement after a crash
        assert change(tmp_path / "n3", lambda folder, _: folder.identity).claims == (claim,)
        made = await cluster.promote("n3")
        assert made.reign is not None and made.claims == ()
        assert made.reign.generation == 2 and claim.group_id in made.reign.former_group_ids
        await cluster.send(b"four")
        begun = change(tmp_path / "n2", lambda folder, survivor: promote_folder(folder, survivor, plan))
        assert (begun.group_id, begun.reign) == (claim.group_id, claim.reign)
        await cluster.start("n2")
        await cluster.start_over("n2")
        await cluster.settle()
        assert cluster.applied("n2") == cluster.applied("n3") == [*FIRST, b"four"]
        assert len(cluster.quarantined("n2")) == 1

    run(Masters(tmp_path), scenario)
