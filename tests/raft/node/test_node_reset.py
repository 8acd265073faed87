"""RaftNodes over real gRPC and files: a follower that fell behind retention is reset and complete again."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledgermq.proto.entry import EntryHeader
from ledgermq.raft.disk.files import FileSystem, RealFile, RealFileSystem
from ledgermq.raft.errors import StateTransferError
from ledgermq.raft.folder.reset_install import ResetPlan
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.reset import receiver as reset_receiver
from ledgermq.raft.types import LogIndex, NodeId

from ..node_cluster import Cluster, RecordingStateMachine

BODY = 200_000  # five to a segment
PIECE = 100_000


class TravellingStateMachine(RecordingStateMachine):
    """Its state is what it applied; a received one is ahead of its log. Implements both protocols."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.needs_entries_to = self.counts_on_log_to = LogIndex(0)
        self.opened = 0
        self.refuse = ""
        self.hold: asyncio.Event | None = None  # pieces after the first wait for it
        self.loaded = False

    def load(self) -> LogIndex:
        path = self.folder / "machine"
        if path.exists() and not self.loaded:
            stored = json.loads(path.read_text())
            self.applied = [(index, term, bytes.fromhex(text)) for index, term, text in stored["applied"]]
            self.last_applied_index = LogIndex(stored["base"])
            self.needs_entries_to = LogIndex(stored["state_index"])
        self.loaded = True
        return self.last_applied_index

    def apply(self, entries: Sequence[tuple[EntryHeader, memoryview]]) -> None:
        for header, payload in entries:
            if header.index <= self.needs_entries_to:
                assert header.index == self.last_applied_index + 1
                self.last_applied_index = LogIndex(header.index)
            else:
                super().apply([(header, payload)])

    # --- StateTransfer --------------------------------------------------------------------------------------
    async def open(self, first_index: LogIndex) -> Outgoing:
        self.opened += 1
        if self.refuse:
            raise StateTransferError(self.refuse)
        rows = [(index, term, payload.hex()) for index, term, payload in self.applied]
        return Outgoing(self, self.last_applied_index, json.dumps(rows).encode())

    def install(self, staged: Path, plan: ResetPlan) -> None:
        stored = {
            "base": plan.base_index,
            "state_index": plan.state_index,
            "applied": json.loads(staged.read_text()),
        }
        (self.folder / "machine").write_text(json.dumps(stored))
        self.loaded = False
        self.load()


class Outgoing:
    def __init__(self, machine: TravellingStateMachine, index: LogIndex, raw: bytes) -> None:
        self.index = index
        self.size = len(raw)
        self._machine = machine
        self._raw = raw

    async def pieces(self) -> AsyncIterator[bytes]:
        for position in range(0, self.size, PIECE):
            yield self._raw[position : position + PIECE]
            if self._machine.hold is not None:
                await self._machine.hold.wait()

    def close(self) -> None:
        pass


class ResetCluster(Cluster):
    """Its state machines can be transferred. `reset` waits for the decision and restarts the node."""

    async def start(self, *names: str, files: FileSystem | None = None, **changes: Any) -> None:
        for name in names or [m.node_id for m in self.members]:
            machine = self.machines[name] = TravellingStateMachine(self.folder / name)
            machine.load()
            node = RaftNode(
                self.config(name, **changes), machine, state_transfer=machine, files=files,
                on_fatal=partial(self.fatal.__setitem__, name),
            )  # fmt: skip
            await node.start()
            self.nodes[name] = node

    def machine(self, name: str) -> TravellingStateMachine:
        found = self.machines[name]
        assert isinstance(found, TravellingStateMachine)
        return found

    async def leave_behind(self, name: str) -> str:
        """Kill a follower and delete everywhere what it needs. Returns the leader."""
        await self.send(b"first")
        leader = await self.leader()
        if leader == name:
            await self.nodes[leader].transfer_leadership()
            leader = await self.leader()
        await self.kill(name)
        for number in range(24):
            await self.send(b"%03d" % number + bytes(BODY))
        node = self.nodes[leader]
        node.delete_segments_before(LogIndex(node.applied_index))
        assert node.first_index > 2
        return leader

    async def reset(self, name: str) -> None:
        """Wait until the node is to be restarted, and restart it."""
        async with asyncio.timeout(30):
            await self.nodes[name].reset_decided.wait()
        await self.stop(name)
        await self.start(name)

    async def same(self, name: str, other: str) -> None:
        """Wait until both have applied the same."""
        await self.until(
            lambda: self.machines[name].applied == self.machines[other].applied, f"{name} is like {other}"
        )


@pytest.fixture
def cluster_class() -> type[ResetCluster]:
    return ResetCluster


async def test_a_voter_that_retention_left_behind_is_reset_and_can_lead(
    cluster: ResetCluster, tmp_path: Path
) -> None:
    await cluster.start()
    leader = await cluster.leave_behind("n3")
    await cluster.start("n3")
    await cluster.until(
        lambda: any(p.node_id == "n3" and p.catching_up for p in cluster.nodes[leader].status().peers),
        "shown as catching up",
    )
    await cluster.reset("n3")
    assert cluster.nodes["n3"].first_index == cluster.nodes[leader].first_index
    await cluster.send(b"after")
    await cluster.same("n3", leader)
    assert cluster.nodes["n3"].role == "follower", "it votes all the time"
    assert not (tmp_path / "n3" / "reset" / "state").exists()

    assert await cluster.nodes[leader].transfer_leadership(to=NodeId("n3")) == "n3"
    assert await cluster.leader() == "n3"
    await cluster.send(b"led by the one that was reset")
    await cluster.same(leader, "n3")
    assert cluster.fatal == {}


async def test_a_wiped_node_comes_back_as_a_learner_and_votes_when_it_holds_everything(
    cluster: ResetCluster,
) -> None:
    await cluster.start()
    leader = await cluster.leave_behind("n3")
    await cluster.start("n3", rejoin=True)
    assert cluster.nodes["n3"].role == "learner"
    async with asyncio.timeout(30):
        await cluster.nodes["n3"].reset_decided.wait()
    await cluster.stop("n3")
    await cluster.start("n3", rejoin=True)
    await cluster.until(lambda: cluster.nodes["n3"].role == "follower", "a voter again")
    await cluster.same("n3", leader)
    await cluster.kill(next(n for n in ("n1", "n2") if n != leader))
    await cluster.send(b"n3 is needed for this")


async def test_segments_wait_for_the_follower_and_go_when_it_streams(cluster: ResetCluster) -> None:
    await cluster.start()
    leader = await cluster.leave_behind("n3")
    node = cluster.nodes[leader]
    first = node.first_index
    cluster.machine(leader).hold = hold = asyncio.Event()
    await cluster.start("n3")
    await cluster.until(lambda: cluster.machine(leader).opened > 0, "a transfer is under way")
    for number in range(12):
        await cluster.send(b"meanwhile %d" % number + bytes(BODY))
    assert node.delete_segments_before(LogIndex(node.applied_index)) == 0, "n3 starts from the first one"
    assert node.first_index == first
    hold.set()
    await cluster.reset("n3")
    await cluster.same("n3", leader)
    await cluster.until(
        lambda: node.delete_segments_before(LogIndex(node.applied_index)) > 0, "retention is free again"
    )


async def test_a_leader_change_in_the_middle_starts_the_transfer_anew(cluster: ResetCluster) -> None:
    await cluster.start()
    leader = await cluster.leave_behind("n3")
    other = next(n for n in ("n1", "n2") if n != leader)
    cluster.nodes[other].delete_segments_before(LogIndex(cluster.nodes[other].applied_index))
    cluster.machine(leader).hold = asyncio.Event()
    await cluster.start("n3")
    await cluster.until(lambda: cluster.machine(leader).opened > 0, "a transfer is under way")
    await cluster.nodes[leader].transfer_leadership(to=NodeId(other))
    await cluster.reset("n3")
    await cluster.same("n3", other)
    assert cluster.machine(other).opened > 0


async def test_a_follower_that_dies_in_the_middle_of_the_transfer_starts_it_anew(
    cluster: ResetCluster, tmp_path: Path
) -> None:
    await cluster.start()
    leader = await cluster.leave_behind("n3")
    cluster.machine(leader).hold = hold = asyncio.Event()
    await cluster.start("n3")
    await cluster.until((tmp_path / "n3" / "reset" / "state").exists, "chunks arrive")
    await cluster.kill("n3")
    hold.set()
    await cluster.start("n3")
    assert cluster.nodes["n3"].first_index == 1, "nothing was decided: the old log is still its log"
    await cluster.reset("n3")
    await cluster.same("n3", leader)


async def test_a_state_that_the_leader_cannot_give_is_asked_for_again(cluster: ResetCluster) -> None:
    await cluster.start()
    leader = await cluster.leave_behind("n3")
    cluster.machine(leader).refuse = "the checkpoint could not be written"
    await cluster.start("n3")
    await cluster.until(lambda: cluster.machine(leader).opened >= 2, "asked twice")
    cluster.machine(leader).refuse = ""
    await cluster.reset("n3")
    await cluster.same("n3", leader)


class FullFile(RealFile):
    """A file on a full disk."""

    def pwritev(self, buffers: Any, offset: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "state")


class SmallDisk(RealFileSystem):
    """No room for incoming data until `full` is off."""

    def __init__(self) -> None:
        self.full = True

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        file = super().open(path, create=create, writable=writable)
        if create and path.name == "state" and self.full:
            return FullFile(path, file._fd)
        return file


async def test_a_follower_whose_disk_is_full_says_so_and_is_reset_when_there_is_room(
    cluster: ResetCluster, tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(reset_receiver, "RETRY_MAX_S", 0.5)
    await cluster.start()
    leader = await cluster.leave_behind("n3")
    disk = SmallDisk()
    await cluster.start("n3", files=disk)
    await cluster.until(lambda: "cannot catch up. Free space" in caplog.text, "a clear error")
    assert not (tmp_path / "n3" / "reset" / "state").exists(), "what is not whole gives its room back"
    disk.full = False
    await cluster.reset("n3")
    await cluster.same("n3", leader)


async def test_a_defect_behind_the_point_of_no_return_ends_the_node(
    cluster: ResetCluster, monkeypatch: Any
) -> None:
    """The core is silent by then. A node that only logged it would neither serve nor restart."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    await cluster.start()
    await cluster.leave_behind("n3")
    monkeypatch.setattr(reset_receiver, "decide", broken)
    await cluster.start("n3")
    async with asyncio.timeout(30):
        assert "defect of LedgerMQ" in await cluster.nodes["n3"].wait_fatal()
