"""Real nodes of a broker group with a master: which node leads, and what a promotion changes and keeps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.raft.core.reign import TERMS_PER_GENERATION, Replication
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.errors import (
    BrokerGroupRecoveryError,
    ConfigurationError,
    DamagedLogError,
    ForeignFolderError,
    StorageFailedError,
)
from ledgermq.raft.folder.group_recovery import (
    PromotionPlan,
    StoppedFolder,
    Survivor,
    inspect,
    promote_folder,
    recover_folder,
    stopped_folder,
)
from ledgermq.raft.folder.opening import storage_config
from ledgermq.raft.folder.storage import create_data_folder
from ledgermq.raft.log.identity import Identity, read_identity, write_identity
from ledgermq.raft.log.segment_keeper import LogFolders
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.transport.hello import Standing
from ledgermq.raft.types import LogIndex, NodeId

from ..node_cluster import Cluster, run

FIRST = [b"one", b"two", b"three"]


def change(path: Path, how: Callable[[StoppedFolder, Survivor], Identity]) -> Identity:
    """Change the folder of a stopped node. Returns its new identity. Raises: see `how`."""
    with stopped_folder(path, RealFileSystem()) as folder:
        return how(folder, inspect(folder))


class Masters(Cluster):
    """n1 is the first master."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, replication=Replication.ASYNC_MASTER, master="n1", **settings)

    async def begin(self, *payloads: bytes) -> None:
        """Start all nodes, and commit and apply entries everywhere. Every node knows the group id then."""
        await super().begin(*(payloads or FIRST))
        await self.until(lambda: all(node.hello().group_id for node in self.nodes.values()), "group ids")

    async def promote(
        self, name: str, *, verified: bool = False, plan: PromotionPlan | None = None
    ) -> Identity:
        """Stop a node if it runs, promote its folder and start it."""
        if name in self.nodes:
            await self.stop(name)
        with stopped_folder(self.folder / name, RealFileSystem()) as folder:
            identity = promote_folder(folder, inspect(folder, verified=verified), plan)
        await self.start(name)
        return identity

    async def start_over(self, name: str) -> None:
        """Do what a broker does with a node that must be restarted from its folder."""
        await self.until(lambda: self.nodes[name].reset_decided.is_set(), f"{name} is left behind")
        await self.stop(name)
        await self.start(name)

    def quarantined(self, name: str) -> list[Path]:
        return sorted((self.folder / name).glob("quarantine-*"))


@pytest.fixture
def cluster_class() -> type[Masters]:
    return Masters


async def test_the_master_leads_and_its_slaves_follow(cluster: Masters) -> None:
    await cluster.begin()
    assert await cluster.leader() == "n1"
    assert all(cluster.applied(name) == FIRST for name in cluster.nodes)
    status = cluster.nodes["n1"].status()
    assert (status.voters, status.voters_reachable, status.master_id) == (1, 1, "n1")


async def test_without_its_master_a_group_has_no_leader_until_it_is_back(cluster: Masters) -> None:
    await cluster.begin()
    await cluster.kill("n1")
    await cluster.until(lambda: all(node.leader_id is None for node in cluster.nodes.values()), "no leader")
    assert "cluster promote NODE" in cluster.nodes["n2"].status().held_back
    await cluster.start("n1")
    await cluster.send(b"four")
    await cluster.settle()
    assert cluster.applied("n3") == [*FIRST, b"four"]


async def test_a_master_goes_on_alone(cluster: Masters) -> None:
    await cluster.begin()
    await cluster.kill("n2", "n3")
    await cluster.send(b"alone")
    await cluster.stop("n1")
    await cluster.start("n1")  # no peer answers: it leads anyway, after listening
    await cluster.send(b"again")
    await cluster.settle()
    assert cluster.applied("n1")[-2:] == [b"alone", b"again"]


async def test_a_master_whose_disk_is_empty_does_not_lead(cluster: Masters, tmp_path: Path) -> None:
    """Its slaves have what it lost: they must not take over an empty log."""
    await cluster.begin()
    await cluster.kill("n1")
    (tmp_path / "n1").rename(tmp_path / "gone")
    await cluster.start("n1")
    await cluster.until(lambda: "n1" in cluster.fatal, "n1 is refused")
    assert "--rejoin" in cluster.fatal["n1"]


async def test_a_promoted_slave_leads_with_everything_that_it_held(
    cluster: Masters, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await cluster.begin()
    await cluster.kill("n1")
    made = await cluster.promote("n2")
    assert made.reign is not None and (made.reign.master, made.reign.generation) == ("n2", 1)
    await cluster.start_over("n3")
    await cluster.send(b"four")
    await cluster.settle()
    assert await cluster.leader() == "n2"
    assert cluster.nodes["n2"].term > TERMS_PER_GENERATION
    assert cluster.applied("n2") == cluster.applied("n3") == [*FIRST, b"four"]
    await cluster.until(lambda: cluster.nodes["n3"].hello().standing is Standing.VOTER, "n3 is level")
    assert cluster.nodes["n3"].hello().group_id == made.group_id


async def test_the_former_master_is_left_behind_and_keeps_what_only_it_had(cluster: Masters) -> None:
    await cluster.begin()
    await cluster.kill("n2", "n3")
    await cluster.send(b"only at n1")
    await cluster.kill("n1")
    await cluster.promote("n2")
    await cluster.send(b"four")
    await cluster.start("n1")
    await cluster.until(lambda: cluster.nodes["n1"].reset_decided.is_set(), "n1 is left behind")
    assert not cluster.nodes["n1"].is_leader
    assert cluster.machines["n1"].ready == []  # it never served as the master again
    await cluster.start_over("n1")
    await cluster.settle()
    assert cluster.applied("n1") == [*FIRST, b"four"]
    [kept] = cluster.quarantined("n1")
    with stopped_folder(kept, RealFileSystem()) as folder:
        survivor = inspect(folder)
    reign = cluster.nodes["n1"].config.reign
    assert reign is not None and survivor.last_index > reign.began_after
    assert b"only at n1" in b"".join(path.read_bytes() for path in sorted((kept / "commitlog").iterdir()))


async def test_a_master_that_runs_stops_as_soon_as_it_hears_of_its_successor(cluster: Masters) -> None:
    """It was cut off, not dead. Proposals to it are refused from that moment on."""
    await cluster.begin()
    await cluster.stop("n2")
    assert cluster.nodes["n1"].is_leader_ready
    await cluster.promote("n2")
    await cluster.until(lambda: cluster.nodes["n1"].reset_decided.is_set(), "n1 is left behind")
    assert not cluster.nodes["n1"].is_leader
    assert cluster.machines["n1"].lost  # its state machine was told
    await cluster.start_over("n1")
    await cluster.start_over("n3")
    await cluster.send(b"four")
    await cluster.settle()
    assert {tuple(cluster.applied(name)) for name in cluster.nodes} == {(*FIRST, b"four")}


async def test_a_slave_tells_the_former_master_while_the_new_one_is_away(cluster: Masters) -> None:
    await cluster.begin()
    await cluster.kill("n1")
    await cluster.promote("n2")
    await cluster.start_over("n3")
    await cluster.send(b"four")
    await cluster.kill("n2")
    await cluster.start("n1")
    await cluster.until(lambda: cluster.nodes["n1"].reset_decided.is_set(), "n1 is left behind")
    assert cluster.machines["n1"].ready == []


async def test_a_node_that_missed_two_promotions_goes_with_the_newest(cluster: Masters) -> None:
    await cluster.begin()
    await cluster.kill("n1")
    await cluster.promote("n2")
    await cluster.start_over("n3")
    await cluster.send(b"four")
    await cluster.settle()
    await cluster.until(lambda: cluster.nodes["n3"].hello().group_id != 0, "n3 knows the group")
    await cluster.kill("n2")
    await cluster.promote("n3")
    await cluster.send(b"five")
    await cluster.start("n1")
    await cluster.start_over("n1")
    await cluster.settle()
    assert cluster.applied("n1") == cluster.applied("n3") == [*FIRST, b"four", b"five"]
    assert cluster.nodes["n1"].status().generation == 2


async def test_the_successor_is_stored_before_the_folder_is_moved_aside(
    cluster: Masters, tmp_path: Path
) -> None:
    """A crash in between: the next start does it, even if no peer answers any more."""
    await cluster.begin()
    await cluster.kill("n1", "n3")
    await cluster.promote("n2")
    await cluster.start("n1")
    await cluster.until(lambda: cluster.nodes["n1"].reset_decided.is_set(), "n1 is left behind")
    await cluster.kill("n1", "n2")
    files = RealFileSystem()
    stored = read_identity(files, LogFolders(tmp_path / "n1").identity, "n1")
    assert stored.successor is not None and stored.successor.master == "n2"
    await cluster.start("n1")
    assert len(cluster.quarantined("n1")) == 1
    await cluster.until(lambda: cluster.nodes["n1"].role == "learner", "a learner without a master")


async def test_a_slave_that_steps_aside_has_no_master_any_more(cluster: Masters) -> None:
    """From that turn on, until it leads: what a returning master stores must not count here."""
    await cluster.begin()
    slave = cluster.nodes["n2"]
    assert slave.step_aside() == "n1 leads"
    await cluster.kill("n1", "n3")
    await cluster.until(lambda: slave.leader_id is None, "n2 has no master")
    held = slave.last_index
    assert slave.step_aside() == ""
    await cluster.start("n1")
    await cluster.until(lambda: cluster.nodes["n1"].is_leader_ready, "n1 leads alone")
    proposal = cluster.nodes["n1"].propose([b"alone"], 1)
    await proposal.committed
    assert cluster.nodes["n1"].copies.held_by(LogIndex(proposal.header.index)) == 0
    assert (slave.last_index, slave.leader_id) == (held, None)
    await cluster.promote("n2", verified=True)
    await cluster.until(lambda: cluster.nodes["n1"].reset_decided.is_set(), "n1 is left behind")
    assert cluster.nodes["n1"].step_aside() != "", "who was left behind is not promoted beside its successor"
    await cluster.start_over("n1")
    await cluster.settle()
    assert cluster.applied("n1") == cluster.applied("n2") == FIRST


async def test_a_slave_that_stepped_aside_and_was_not_promoted_is_a_slave_again(cluster: Masters) -> None:
    await cluster.begin()
    await cluster.kill("n1")
    await cluster.until(lambda: cluster.nodes["n2"].leader_id is None, "n2 has no master")
    assert cluster.nodes["n2"].step_aside() == ""
    await cluster.kill("n2")
    await cluster.start("n2", "n1")
    await cluster.send(b"four")
    await cluster.settle()
    assert cluster.applied("n2") == [*FIRST, b"four"]


@pytest.mark.cluster(scrub_bytes_per_second=0)
async def test_a_running_slave_reads_and_verifies_its_whole_log(cluster: Masters, tmp_path: Path) -> None:
    await cluster.begin()
    await cluster.send(*[bytes([number]) * 200_000 for number in range(12)])  # several segments
    await cluster.settle()
    slave, read = cluster.nodes["n2"], list[int]()
    await cluster.until(lambda: slave.status().durable_index == slave.last_index, "all of it is on the disk")
    assert await slave.care.verify(read.append) == slave.last_index
    assert len(read) > 2 and sum(read) >= slave.log.end_offset
    path = sorted((tmp_path / "n2" / "commitlog").glob("0" + "?" * 19))[1]
    raw = bytearray(path.read_bytes())
    raw[5000] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DamagedLogError, match=path.name):
        await slave.care.verify(read.append)


async def test_a_write_that_fails_while_the_log_is_verified_ends_the_node(
    cluster: Masters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros after a filler are restored. If that fails, the contents of the disk are unknown (P15)."""

    async def fail(*_: object) -> None:
        raise StorageFailedError(tmp_path, OSError(5, "no"))

    await cluster.begin()
    care = cluster.nodes["n2"].care
    monkeypatch.setattr(care._scrubber, "verify", fail)
    with pytest.raises(StorageFailedError):
        await care.verify(lambda _: None)
    assert "n2" in cluster.fatal


async def test_a_folder_that_was_never_finished_is_not_bound_to_the_first_master_that_was_named(
    cluster: Masters, tmp_path: Path
) -> None:
    files, path = RealFileSystem(), LogFolders(tmp_path / "n1").identity
    create_data_folder(storage_config(cluster.config("n1", master="n3")), files)
    made = read_identity(files, path, "n1")
    assert made.reign is not None and made.reign.master == "n3"
    with pytest.raises(ForeignFolderError, match="the master of broker group g0 is n3"):
        await cluster.start("n1")
    write_identity(files, path, replace(made, complete=False))
    await cluster.begin()
    assert await cluster.leader() == "n1"


async def test_a_folder_does_not_change_between_a_majority_and_a_master(cluster: Masters) -> None:
    await cluster.begin()
    await cluster.kill("n1", "n2", "n3")
    with pytest.raises(ForeignFolderError, match="fixed when a broker group is made"):
        await cluster.start("n1", replication=Replication.QUORUM, master="")
    with pytest.raises(ForeignFolderError, match="cluster promote n2"):
        await cluster.start("n1", master="n2")
    await cluster.start("n1", "n2", "n3", master="")  # the folder knows
    assert await cluster.leader() == "n1"


async def test_who_is_not_told_the_master_and_has_no_folder_does_not_start(cluster: Masters) -> None:
    with pytest.raises(ConfigurationError, match="Set `master`"):
        await cluster.start("n2", master="")


async def test_nodes_with_different_masters_refuse_each_other(cluster: Masters) -> None:
    await cluster.start("n1", "n3")
    await cluster.start("n2", master="n2")

    def refusal(node: RaftNode) -> str:
        return next(peer.refused for peer in node.status().peers if peer.node_id == NodeId("n2"))

    await cluster.until(lambda: "`replication` and `master`" in refusal(cluster.nodes["n1"]), "refused")
    assert not any(node.is_leader for node in cluster.nodes.values())


async def test_a_group_with_a_master_is_promoted_not_recovered(cluster: Masters, tmp_path: Path) -> None:
    await cluster.begin()
    await cluster.kill("n1", "n2", "n3")
    with pytest.raises(BrokerGroupRecoveryError, match="cluster promote n2"):
        change(tmp_path / "n2", recover_folder)


def test_a_folder_of_a_quorum_group_is_not_promoted(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.begin(*FIRST)
        await cluster.kill("n1", "n2", "n3")
        with pytest.raises(BrokerGroupRecoveryError, match="cannot be promoted"):
            change(tmp_path / "n2", promote_folder)

    run(Cluster(tmp_path), scenario)


async def test_a_slave_that_lost_its_disk_comes_back_by_rejoin(cluster: Masters) -> None:
    await cluster.begin()
    await cluster.kill("n1")
    await cluster.promote("n2")
    await cluster.start_over("n3")
    await cluster.send(b"four")
    await cluster.kill("n3")
    await cluster.start("n3", rejoin=True)  # the folder's generation is kept, whatever is configured
    await cluster.settle()
    assert cluster.applied("n3") == [*FIRST, b"four"]
    # n1 is gone for good: a slave needs only the master's answer.
    await cluster.until(lambda: cluster.nodes["n3"].hello().standing is Standing.VOTER, "n3 is level")
