"""Real nodes with damaged logs: they fetch the same bytes from the others, at start and while running."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.raft.config import Member, RaftConfig
from ledgermq.raft.disk.files import RealFile, RealFileSystem
from ledgermq.raft.errors import DamagedLogError
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.repair import at_start as start_repair
from ledgermq.raft.repair.at_start import PATIENCE
from ledgermq.raft.repair.from_peers import RoundResult, run_round
from ledgermq.raft.repair.refetch import RefetchClient, RefetchError
from ledgermq.raft.types import LogIndex, NodeId

from ..node_cluster import SEGMENT, Cluster, RecordingStateMachine

pytestmark = pytest.mark.long
BIG = 200_000
OFTEN: dict[str, Any] = {"scrub_interval_s": 0.2, "scrub_bytes_per_second": 256 << 20}
NEVER: dict[str, Any] = {"scrub_bytes_per_second": 0}


async def start_filled(cluster: Cluster, count: int = 14) -> None:
    """Start all nodes and fill their logs."""
    await cluster.start()
    await fill(cluster, count)


async def fill(cluster: Cluster, count: int = 14) -> None:
    """More than two segments."""
    rng = random.Random(3)
    await cluster.send(*(rng.randbytes(BIG) for _ in range(count)))
    await cluster.settle()


def flip(cluster: Cluster, name: str, offset: int, size: int = 1) -> None:
    """Change bytes of a node's log, given by physical offset."""
    path = cluster.folder / name / "commitlog" / f"{offset // SEGMENT * SEGMENT:020d}"
    with path.open("r+b") as file:
        file.seek(offset % SEGMENT)
        old = file.read(size)
        file.seek(offset % SEGMENT)
        file.write(bytes(byte ^ 0x40 for byte in old))


def drop_indexes(cluster: Cluster, name: str) -> None:
    """Without its index files a start reads the whole log, even after a clean stop."""
    for path in (cluster.folder / name / "entryindex").iterdir():
        path.unlink()


def place_of(cluster: Cluster, name: str, index: int) -> tuple[int, int]:
    header = cluster.nodes[name].log.header_nowait(LogIndex(index))
    assert header is not None
    return header.physical_offset, header.end


async def settle_on_disk(cluster: Cluster) -> None:
    """Wait until every idle node has stored that its whole log is durable (the floor)."""
    await cluster.settle()
    await cluster.until(
        lambda: all(n.storage._writer.state.floor_index == n.last_index for n in cluster.nodes.values()),
        "every node stores its floor",
    )


async def settle_equal(cluster: Cluster, *names: str) -> None:
    await cluster.settle()
    first, *others = names or sorted(cluster.nodes)
    for other in others:
        assert cluster.log_bytes(other) == cluster.log_bytes(first)
        assert cluster.applied(other) == cluster.applied(first)


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize("where", ["sealed segment", "open segment", "filler", "last entry", "whole segment"])
@pytest.mark.cluster.with_args(**NEVER)
async def test_damage_found_at_the_start_is_fetched_from_the_others(
    cluster: Cluster, tmp_path: Path, where: str, stop: str
) -> None:
    await start_filled(cluster)
    last = cluster.nodes["n3"].last_index
    begin, end = {
        "sealed segment": (300_000, 300_003),
        "open segment": (place_of(cluster, "n3", last - 1)[0] + 500, None),
        "filler": (SEGMENT - 30_000, None),
        "last entry": (place_of(cluster, "n3", last)[1] - 100, None),
        "whole segment": (SEGMENT, 2 * SEGMENT),
    }[where]
    if where == "filler":
        before = next(i for i in range(1, last) if place_of(cluster, "n3", i + 1)[0] == SEGMENT)
        begin = place_of(cluster, "n3", before)[1] + 20
    incarnation = cluster.nodes["n3"].storage.incarnation
    await settle_on_disk(cluster)
    await (cluster.stop("n3") if stop == "clean" else cluster.kill("n3"))
    drop_indexes(cluster, "n3")
    flip(cluster, "n3", begin, (end or begin + 1) - begin)
    await cluster.start("n3")
    node = cluster.nodes["n3"]
    assert node.metrics.counter("ledgermq_raft_repaired_ranges_total")._value.get() == 1
    assert node.storage.incarnation == incarnation
    await cluster.send(b"and on")
    await settle_equal(cluster)
    assert node.role in ("follower", "leader")
    assert not (tmp_path / "n3" / "repair").exists()


@pytest.mark.cluster.with_args(**NEVER)
async def test_without_its_peers_a_damaged_node_waits_says_for_what_and_goes_on_when_they_come(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await start_filled(cluster, 7)
    await cluster.stop("n1", "n2", "n3")
    drop_indexes(cluster, "n3")
    flip(cluster, "n3", 300_000)
    before = (tmp_path / "n3" / "commitlog" / f"{0:020d}").read_bytes()
    starting = asyncio.create_task(cluster.start("n3"))
    await cluster.until(lambda: "does not start yet" in caplog.text)
    assert "n3 does not start yet" in caplog.text and "n1: not reached" in caplog.text
    assert "ledgermq broker --rejoin" in caplog.text
    assert (tmp_path / "n3" / "commitlog" / f"{0:020d}").read_bytes() == before
    await cluster.start("n1", "n2")
    await starting
    await settle_equal(cluster)


@pytest.mark.cluster.with_args("n1", **NEVER)
async def test_a_node_alone_refuses_to_start(cluster: Cluster) -> None:
    await start_filled(cluster, 7)
    await cluster.stop("n1")
    drop_indexes(cluster, "n1")
    flip(cluster, "n1", 300_000)
    with pytest.raises(DamagedLogError, match="nothing was cut off"):
        await cluster.start("n1")


@pytest.mark.cluster.with_args(flush="async_timed", **NEVER)
async def test_damage_at_the_tail_of_an_asynchronous_node_makes_it_a_learner_that_votes_again(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But only if a majority goes on without its vote."""
    rounds: list[str] = []

    async def counted_round(config: RaftConfig, *arguments: Any) -> RoundResult:
        rounds.append(config.node_id)
        return await run_round(config, *arguments)

    monkeypatch.setattr(start_repair, "run_round", counted_round)
    await cluster.start()
    await fill(cluster, 4)  # one segment
    last = cluster.nodes["n3"].last_index
    begin, end = place_of(cluster, "n3", last - 2)[0], place_of(cluster, "n3", last)[1]
    old = cluster.nodes["n3"].storage.incarnation
    await settle_on_disk(cluster)
    await cluster.kill("n1", "n2", "n3")
    drop_indexes(cluster, "n3")
    flip(cluster, "n3", begin, end - begin)
    hard_state = (tmp_path / "n3" / "hardstate").read_bytes()
    await cluster.start("n1")  # has everything, but is no majority: the vote may still be needed
    starting = asyncio.create_task(cluster.start("n3"))
    await cluster.until(lambda: "knows of no leader" in caplog.text)
    rounds.clear()
    await cluster.until(lambda: len(rounds) > 2 * PATIENCE, "it asks more often than it has patience")
    assert not starting.done()
    assert (tmp_path / "n3" / "hardstate").read_bytes() == hard_state
    await cluster.start("n2")
    await starting
    node = cluster.nodes["n3"]
    assert node.storage.incarnation != old
    await cluster.until(lambda: node.role == "follower", "it votes again")
    await cluster.send(b"and on")
    await settle_equal(cluster)
    for name in ("n1", "n2"):
        known = cluster.nodes[name].hello(None).known_incarnations
        assert known[node.config.node_id] == node.storage.incarnation


@pytest.mark.cluster.with_args(**NEVER)
async def test_damage_met_while_applying_is_repaired_without_ending_the_node(cluster: Cluster) -> None:
    await start_filled(cluster)
    await cluster.stop("n3")
    flip(cluster, "n3", 300_000)  # a clean stop: the index is trusted, and apply finds the damage
    flip(cluster, "n3", SEGMENT + 300_000)
    await cluster.start("n3")
    await cluster.until(lambda: cluster.nodes["n3"].status().log_check.repaired == 2)
    await settle_equal(cluster)
    assert not cluster.fatal


@pytest.mark.cluster.with_args(**OFTEN)
async def test_the_scrubber_finds_what_nobody_reads_and_repairs_it(cluster: Cluster) -> None:
    await start_filled(cluster)
    leader = await cluster.leader()
    # A different place on each, including the leader.
    for number, name in enumerate(sorted(cluster.nodes), 1):
        last = cluster.nodes[name].last_index
        flip(cluster, name, number * 100_000)
        flip(cluster, name, SEGMENT + number * 100_000, HEADER_SIZE * number)
        flip(cluster, name, place_of(cluster, name, last - number)[0])
    await cluster.until(
        lambda: all(node.status().log_check.repaired >= 3 for node in cluster.nodes.values()),
        "everything is repaired",
    )
    await settle_equal(cluster)
    assert await cluster.leader() == leader
    await cluster.send(b"and on")
    check = cluster.nodes["n1"].status().log_check
    assert check.found == check.repaired and "repaired" in check.last
    passes = check.passes
    await cluster.until(lambda: cluster.nodes["n1"].status().log_check.passes > passes + 1)
    assert cluster.nodes["n1"].status().log_check.found == check.found


@pytest.mark.cluster.with_args(**OFTEN)
async def test_the_scrubber_puts_back_the_zeros_behind_a_filler_and_a_damaged_index(
    cluster: Cluster, tmp_path: Path
) -> None:
    await start_filled(cluster)
    good = cluster.log_bytes("n2")
    flip(cluster, "n1", SEGMENT - 1000)
    index = tmp_path / "n1" / "entryindex" / f"{0:020d}"
    await cluster.until(index.exists)
    was = index.read_bytes()
    index.write_bytes(was[:-1] + bytes([was[-1] ^ 1]))
    await cluster.until(lambda: cluster.log_bytes("n1") == good, "zeros again")
    await cluster.until(lambda: index.read_bytes() == was, "the index is rebuilt")


@pytest.mark.cluster.with_args(**NEVER)
async def test_a_leader_that_sends_damaged_entries_finds_out_and_repairs_itself(cluster: Cluster) -> None:
    await start_filled(cluster)
    await cluster.stop("n1", "n2", "n3")
    await cluster.start("n1", "n2")
    leader = await cluster.leader()
    await cluster.settle()
    flip(cluster, leader, 300_000)
    await cluster.start("n3", rejoin=True)
    await cluster.until(lambda: cluster.nodes["n3"].role == "follower", "it has everything and votes")
    await settle_equal(cluster)
    assert cluster.nodes[leader].status().log_check.repaired == 1


@pytest.mark.cluster.with_args(**NEVER)
async def test_two_of_three_members_are_made_whole_by_the_third_without_a_leader(cluster: Cluster) -> None:
    """Committed entries are recorded with the floor, so a member can send them before there is a majority."""
    await start_filled(cluster)
    await settle_on_disk(cluster)
    await cluster.kill("n1", "n2", "n3")
    for name, offset in (("n1", 100_000), ("n2", 500_000)):
        drop_indexes(cluster, name)
        flip(cluster, name, offset)
    await asyncio.gather(*(cluster.start(name) for name in ("n1", "n2", "n3")))
    await cluster.send(b"and on")
    await settle_equal(cluster)


class FailingSync(RealFileSystem):
    """Once `armed`, the next flush of a segment fails, once."""

    def __init__(self) -> None:
        self.armed = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        found = super().open(path, create=create, writable=writable)
        return _FailingFile(self, path, found._fd)


class _FailingFile(RealFile):
    def __init__(self, disk: FailingSync, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def fdatasync(self) -> None:
        if self._disk.armed and self.path.parent.name == "commitlog":
            self._disk.armed = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        super().fdatasync()


@pytest.mark.cluster.with_args(**NEVER)
async def test_a_failed_flush_of_a_repair_ends_the_node(cluster: Cluster) -> None:
    disk = FailingSync()
    await cluster.start("n1", "n2")
    await cluster.start("n3", files=disk)
    await fill(cluster)
    disk.armed = True
    flip(cluster, "n3", 300_000)
    error = cluster.nodes["n3"].log.damage_at(300_000, "a test")
    assert not await cluster.nodes["n3"].care.damage_at_read(error)
    assert "this node stops" in await cluster.nodes["n3"].wait_fatal()
    assert not disk.armed


@pytest.mark.cluster.with_args(**NEVER)
async def test_a_defect_in_a_repair_ends_the_node_instead_of_stalling_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken_round(*_: object) -> None:
        raise ZeroDivisionError

    await start_filled(cluster)
    monkeypatch.setattr("ledgermq.raft.repair.while_running.run_round", broken_round)
    flip(cluster, "n3", 300_000)
    error = cluster.nodes["n3"].log.damage_at(300_000, "a test")
    assert not await cluster.nodes["n3"].care.damage_at_read(error)
    assert "defect of LedgerMQ" in await cluster.nodes["n3"].wait_fatal()


@pytest.mark.cluster.with_args(**NEVER)
async def test_damage_behind_what_is_committed_ends_the_node(cluster: Cluster) -> None:
    await start_filled(cluster, 2)
    node = cluster.nodes["n1"]
    error = node.log.damage_at(node.log.end_offset - 1, "a test")
    error.offset = node.log.end_offset + 8
    assert not await node.care.damage_at_read(error)
    assert "a test" in await node.wait_fatal()


@pytest.mark.cluster.with_args(**NEVER)
async def test_only_members_of_the_same_group_get_entries(cluster: Cluster) -> None:
    await start_filled(cluster, 2)
    asker, asked = cluster.config("n2"), Member(NodeId("n1"), cluster.members[0].address)
    progress = pb.RepairProgress()
    mine = cluster.nodes["n2"].storage.identity.group_id
    await cluster.until(lambda: cluster.nodes["n1"].storage.identity.group_id == mine != 0)
    offer = await RefetchClient(asker, mine).ask(asked, LogIndex(1), 100, progress)
    assert offer.entries and offer.commit_index == cluster.nodes["n1"].commit_index
    behind = await RefetchClient(asker, mine).ask(asked, LogIndex(offer.commit_index + 1), 100, progress)
    assert not behind.entries
    strangers = [
        (replace(asker, cluster_id="other"), asked, mine),
        (replace(asker, segment_size=2 * SEGMENT), asked, mine),
        (asker, Member(NodeId("n3"), asked.address), mine),
        (asker, asked, 4711),
        (asker, asked, 0),
    ]
    for config, member, group_id in strangers:
        with pytest.raises(RefetchError):
            await RefetchClient(config, group_id).ask(member, LogIndex(1), 100, progress)


@pytest.mark.cluster.with_args(**NEVER)
async def test_a_node_that_is_starting_can_be_stopped_while_it_waits(
    cluster: Cluster, tmp_path: Path
) -> None:
    await start_filled(cluster, 7)
    await cluster.stop("n1", "n2", "n3")
    drop_indexes(cluster, "n3")
    flip(cluster, "n3", 300_000)
    node = RaftNode(cluster.config("n3"), RecordingStateMachine())
    starting = asyncio.create_task(node.start())
    await cluster.until((tmp_path / "n3" / "repair").exists, "it waits for the others")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await cluster.start("n1", "n2", "n3")  # port and lock are free again
    await settle_equal(cluster)


async def test_a_deleted_folder_of_segments_is_fetched_from_the_others(cluster: Cluster) -> None:
    await start_filled(cluster)
    await settle_on_disk(cluster)
    await cluster.kill("n3")
    shutil.rmtree(cluster.folder / "n3" / "commitlog")
    await cluster.send(b"meanwhile")
    await cluster.start("n3")
    await settle_equal(cluster)
    await cluster.until(lambda: cluster.nodes["n3"].role == "follower", "it votes again")
