"""Two slaves that are promoted one after the other: the second one gives way, or waits for a person (D24)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ledgermq.raft.group_recovery import promote_folder
from ledgermq.raft.hello import Standing

from .node_cluster import run
from .test_node_master import FIRST, Masters, change


async def begin_with_rivals(cluster: Masters) -> None:
    """n1 is gone; n2 and n3 were promoted beside each other and are stopped."""
    await cluster.begin()
    await cluster.kill("n1")
    await cluster.stop("n2", "n3")
    for name in ("n2", "n3"):
        change(cluster.folder / name, promote_folder)


async def is_held(cluster: Masters, name: str, log: pytest.LogCaptureFixture) -> None:
    """Wait until a node has listened for as long as it does, and says that it does not lead."""
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
        await cluster.stop("n3")  # at once: what was decided is stored before it has stopped
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
        await cluster.send(b"four")  # n3 leads without a further start
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
