"""A slow disk must not cost leadership. A failing disk must stop its node, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path

import pytest

from ledgermq.raft.disk.files import RealFile, RealFileSystem
from ledgermq.raft.folder.opening import storage_config
from ledgermq.raft.folder.storage import open_storage
from ledgermq.raft.types import NodeId

from ..node_cluster import Cluster


class FaultyFile(RealFile):
    """A file whose fdatasync is slow, or fails, as set in its file system."""

    faults: FaultyFileSystem

    def fdatasync(self) -> None:
        if self.faults.broken:
            raise OSError(errno.EIO, "Input/output error", str(self.path))
        if self.faults.delay_s:
            time.sleep(self.faults.delay_s)
        super().fdatasync()


class FaultyFileSystem(RealFileSystem):
    """The real file system with switches."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.broken = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        opened = super().open(path, create=create, writable=writable)
        file = FaultyFile(path, opened._fd)
        file.faults = self
        return file


async def test_slow_fsyncs_on_every_node_cause_no_election(cluster: Cluster) -> None:
    disks = [FaultyFileSystem() for _ in cluster.members]
    for name, disk in zip(("n1", "n2", "n3"), disks, strict=True):
        await cluster.start(name, files=disk)
    await cluster.send(b"quick")
    leader = await cluster.leader()
    term = cluster.nodes[leader].term
    for disk in disks:
        disk.delay_s = 0.2
    proposals = [cluster.nodes[leader].propose([b"slow %d" % n], 1) for n in range(10)]
    for proposal in proposals:
        await proposal.committed
    await cluster.send(*(b"one by one %d" % n for n in range(5)))
    assert {node.term for node in cluster.nodes.values()} == {term}
    assert await cluster.leader() == leader


async def test_a_failed_fsync_silences_the_node_for_ever_and_the_others_go_on(cluster: Cluster) -> None:
    disks = {name: FaultyFileSystem() for name in ("n1", "n2", "n3")}
    for name, disk in disks.items():
        await cluster.start(name, files=disk)
    await cluster.send(b"one")
    first = await cluster.leader()
    disks[first].broken = True
    proposal = cluster.nodes[first].propose([b"two"], 1)
    reason = await cluster.nodes[first].wait_fatal()
    assert "failed" in reason
    assert cluster.fatal[first] == reason
    assert cluster.nodes[first].role == "faulted"
    assert proposal.committed.exception() is not None  # unknown: the followers may have it
    assert cluster.nodes[first].metrics.counter("ledgermq_raft_proposals_lost_total")._value.get() == 1
    disks[first].broken = False  # the disk works again, but its contents are still unknown
    await cluster.kill(first)
    await cluster.send(b"three")
    assert await cluster.leader() != first


async def test_a_fault_in_the_middle_of_a_stop_silences_the_node_and_ends_the_hand_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.begin(b"one")
    first = await cluster.leader()
    node = cluster.nodes.pop(first)
    monkeypatch.setattr(node._core, "transfer_leadership", lambda to=None: NodeId("n0"))
    stopping = asyncio.create_task(node.stop())
    await cluster.until(lambda: node._stopping)
    assert not stopping.done(), "no node takes the lead"
    node.fail("the disk failed")
    assert (node.fault, cluster.fatal[first]) == ("the disk failed", "the disk failed")
    assert node._core.is_silent
    await stopping
    assert await node.wait_fatal() == "the disk failed"
    again = open_storage(storage_config(cluster.config(first)), RealFileSystem())
    assert not again.recovered.clean_stop
    again.close()
