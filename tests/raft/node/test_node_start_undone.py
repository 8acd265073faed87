"""A failed or cancelled start leaves nothing behind: no port, no lock, no writing thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.errors import DamagedFolderError
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.types import LogIndex

from ..node_cluster import Cluster, RecordingStateMachine


class SlowFolder(RealFileSystem):
    """Blocks while a data folder is opened, once its lock is taken."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def sync_directory(self, path: Path) -> None:
        self.reached.set()
        assert self.go_on.wait(60)
        super().sync_directory(path)


@pytest.mark.cluster("n1")
async def test_a_start_that_is_cancelled_while_the_folder_is_opened_gives_it_back(cluster: Cluster) -> None:
    await cluster.start("n1")
    await cluster.send(b"one")
    await cluster.stop("n1")
    disk = SlowFolder()
    node = RaftNode(cluster.config("n1"), RecordingStateMachine(), files=disk)
    starting = asyncio.create_task(node.start())
    await cluster.until(disk.reached.is_set)
    starting.cancel()
    await asyncio.sleep(0)
    disk.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await cluster.start("n1")
    await cluster.send(b"two")


@pytest.mark.cluster("n1")
async def test_a_start_whose_log_does_not_fit_its_state_gives_port_and_lock_back(cluster: Cluster) -> None:
    await cluster.start("n1")
    await cluster.send(b"one")
    await cluster.stop("n1")
    ahead = RecordingStateMachine(last_applied_index=LogIndex(99))
    with pytest.raises(DamagedFolderError, match="its state is that of entry 99"):
        await RaftNode(cluster.config("n1"), ahead).start()
    await cluster.start("n1")
    await cluster.send(b"two")
