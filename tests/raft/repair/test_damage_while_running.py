"""Damage in a running node that one repair does not fix, or that the disk reports only as unreadable."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.proto import raft_pb2 as pb
from ledgermq.raft.config import Member
from ledgermq.raft.disk.files import Buffer, RealFile, RealFileSystem
from ledgermq.raft.repair.refetch import RefetchClient, RefetchError
from ledgermq.raft.types import LogIndex, NodeId

from ..node.test_node_repair import NEVER, OFTEN, fill, flip, settle_equal, start_filled
from ..node_cluster import Cluster


class BadSectors(RealFileSystem):
    """Sectors of the first segment, by byte, that return EIO until they are written."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        found = super().open(path, create=create, writable=writable)
        if path.parent.name == "commitlog" and path.name == f"{0:020d}":
            return _BadFile(self, path, found._fd)
        return found


class _BadFile(RealFile):
    def __init__(self, disk: BadSectors, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def _check(self, size: int, offset: int) -> None:
        if any(offset <= bad < offset + size for bad in self._disk.bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))

    def pread(self, size: int, offset: int) -> bytes:
        self._check(size, offset)
        return super().pread(size, offset)

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        self._check(size, offset)
        return super().pread_nowait(size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        super().pwritev(buffers, offset)
        end = offset + sum(map(len, buffers))
        self._disk.bad = {bad for bad in self._disk.bad if not offset <= bad < end}


@pytest.mark.cluster.with_args(**NEVER)
async def test_two_damaged_places_of_one_segment_are_both_repaired_before_they_are_applied(
    cluster: Cluster,
) -> None:
    await start_filled(cluster)
    await cluster.stop("n3")
    flip(cluster, "n3", 300_000)  # a clean stop: the index is trusted, and apply finds the damage
    flip(cluster, "n3", 700_000)
    await cluster.start("n3")
    await settle_equal(cluster)
    assert cluster.nodes["n3"].status().log_check.repaired == 2
    assert not cluster.fatal


@pytest.mark.cluster.with_args(**NEVER)
async def test_a_sector_that_cannot_be_read_when_its_entry_is_applied_is_repaired(cluster: Cluster) -> None:
    await start_filled(cluster)
    await cluster.stop("n3")
    disk = BadSectors(500_000)
    await cluster.start("n3", files=disk)
    await settle_equal(cluster)
    assert cluster.nodes["n3"].status().log_check.repaired == 1
    assert not disk.bad and not cluster.fatal


@pytest.mark.cluster.with_args(**NEVER)
async def test_a_page_in_which_the_log_ends_is_repaired_by_the_next_start(cluster: Cluster) -> None:
    """In a running node only the log's writer writes it."""
    disk = BadSectors()
    await cluster.start("n1", "n2")
    await cluster.start("n3", files=disk)
    await cluster.send(b"one")
    await cluster.settle()
    node = cluster.nodes["n3"]
    disk.bad.add(100)
    assert not await node.care.damage_at_read(node.log.damage_at(100, "a test"))
    assert "start the node again" in await node.wait_fatal()
    assert disk.bad, "nothing was written"
    await cluster.stop("n3")
    cluster.fatal.clear()
    await cluster.start("n3", files=disk)
    await settle_equal(cluster)
    assert not disk.bad and not cluster.fatal


@pytest.mark.cluster.with_args(**NEVER)
async def test_a_member_that_is_asked_for_entries_gives_out_no_damaged_ones_and_repairs_its_own(
    cluster: Cluster,
) -> None:
    await start_filled(cluster)
    mine = cluster.nodes["n2"].storage.identity.group_id
    await cluster.until(lambda: cluster.nodes["n1"].storage.identity.group_id == mine != 0)
    await cluster.kill("n1", "n2", "n3")  # data in memory needs no disk
    await cluster.start()
    await cluster.settle()
    flip(cluster, "n1", 300_000)
    asked = Member(NodeId("n1"), cluster.members[0].address)
    client = RefetchClient(cluster.config("n2"), mine)
    progress = pb.RepairProgress()
    with pytest.raises(RefetchError, match="its own copy is damaged"):
        await client.ask(asked, LogIndex(1), 1 << 20, progress)
    await cluster.until(lambda: cluster.nodes["n1"].status().log_check.repaired == 1)
    assert (await client.ask(asked, LogIndex(1), 1 << 20, progress)).entries
    await client.close()
    async with grpc.aio.insecure_channel(asked.address) as channel:
        garbage: Any = channel.unary_unary("/ledgermq.v1.RaftService/Refetch", None, None)(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError, match="is no RefetchRequest"):
            await garbage


@pytest.mark.cluster.with_args("n1", **OFTEN)
async def test_a_defect_of_the_scrubber_ends_the_node_instead_of_leaving_the_log_unread(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    await cluster.start("n1")
    await cluster.send(b"one")
    monkeypatch.setattr("ledgermq.raft.repair.scrubber.scan_segment", broken)
    async with asyncio.timeout(30):
        assert "defect of LedgerMQ" in await cluster.nodes["n1"].wait_fatal()


class BadIndex(RealFileSystem):
    """The first index file is unreadable until it is replaced."""

    def __init__(self) -> None:
        self.bad: tuple[Path, int] | None = None

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        if self.bad is not None and path == self.bad[0] and path.stat().st_ino == self.bad[1]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return super().open(path, create=create, writable=writable)


@pytest.mark.cluster.with_args("n1", **OFTEN)
async def test_the_scrubber_replaces_an_index_file_that_cannot_be_read(
    cluster: Cluster, tmp_path: Path
) -> None:
    disk = BadIndex()
    await cluster.start("n1", files=disk)
    await fill(cluster)
    index = tmp_path / "n1" / "entryindex" / f"{0:020d}"
    await cluster.until(index.exists)
    bad = index.stat().st_ino
    disk.bad = index, bad
    await cluster.until(lambda: index.stat().st_ino != bad, "replaced")
    passes = cluster.nodes["n1"].status().log_check.passes
    await cluster.until(lambda: cluster.nodes["n1"].status().log_check.passes > passes)
