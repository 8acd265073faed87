"""Checkpoint files, and starting again from them after a crash."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from ledgermq.broker.checkpoint.layout import MAGIC, VERSION, encode_snapshot, take_snapshot
from ledgermq.broker.checkpoint.store import CheckpointStore, begin_checkpoint
from ledgermq.broker.errors import CheckpointError, CheckpointVersionError
from ledgermq.broker.reading.consume_queue_files import ConsumeQueueFiles
from ledgermq.broker.state.consume_queue import ColdRead
from ledgermq.broker.state.machine import BrokerState
from ledgermq.raft.disk.files import FileSystem, RealFile, RealFileSystem
from ledgermq.raft.log.identity import Manifest, write_manifest
from ledgermq.raft.types import LogIndex
from tests.power_cut import Keep
from tests.raft.simulated_disk import SimulatedDisk

from ..entry_log import Node, checkpoint

DATA = Path("/data")


def store_on(disk: FileSystem, data: Path = DATA) -> CheckpointStore:
    return CheckpointStore(disk, data / "checkpoint", ConsumeQueueFiles(disk, data / "consumequeue"))


def write(store: CheckpointStore, state: BrokerState) -> None:
    job = begin_checkpoint(state)
    store.run(job)
    state.queues.mark_written(job.runs)


def units(state: BrokerState, store: CheckpointStore, topic: int, queue: int) -> list[object]:
    while isinstance(found := state.queues.lookup(topic, queue, 0, 1 << 40), ColdRead):
        state.queues.admit(found, store.files.load(found))
    listed: list[object] = np.asarray(found).tolist()
    return listed


def busy_node(seed: int, entries: int) -> Node:
    """A node with messages, offsets and producers."""
    choose, node = random.Random(seed), Node()
    topic, group = node.topic(queues=3), node.group()
    for i in range(entries):
        node.log.now += 7
        node.fill(topic, choose.randint(0, 2), choose.randint(1, 400), size=[8, 24], first_id=1_000 * i)
        node.commit_offsets(group, (topic, 0, i))
    return node


@pytest.mark.parametrize("seed", range(6))
def test_a_node_that_lost_its_power_is_the_same_after_replaying_the_log(seed: int) -> None:
    """Queue files and checkpoints are written at random points; a cut keeps any part of unsynced bytes."""
    choose = random.Random(seed)
    full = busy_node(seed, 60)
    disk = SimulatedDisk()
    disk.make_directory(DATA)
    for _ in range(4):
        store = store_on(disk)
        state = store.load()
        stop = choose.randint(state.applied_index, len(full.log.raw))
        for index in range(state.applied_index + 1, stop + 1):
            state.apply(*full.log.entry(index))
            roll = choose.random()
            if roll < 0.05:
                write(store, state)
            elif roll < 0.15:
                runs = state.queues.unwritten()
                store.files.write(runs)
                state.queues.mark_written(runs)
        disk = disk.crash(choose, choose.choice(list(Keep)))
    store = store_on(disk)
    state = store.load()
    for index in range(state.applied_index + 1, len(full.log.raw) + 1):
        state.apply(*full.log.entry(index))
    assert checkpoint(state) == checkpoint(full.state), f"seed {seed}"
    for queue in full.state.queues:
        assert units(state, store, *queue.key) == queue.tail(0, queue.end).tolist(), f"seed {seed}"


def test_only_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    node, store = Node(), store_on(RealFileSystem(), tmp_path)
    assert store.kept_index == 0
    for _ in range(4):
        node.topic(name=f"t{node.state.applied_index}")
        write(store, node.state)
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == [
        f"{3:020d}",
        f"{4:020d}",
        "reserve",
    ]
    assert store.kept_index == 3
    assert store.load().applied_index == 4


def write_manifest_of_log(data: Path, first_index: int) -> None:
    write_manifest(RealFileSystem(), data / "manifest", Manifest(first_index=LogIndex(first_index)))


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(tmp_path: Path) -> None:
    node, store = Node(), store_on(RealFileSystem(), tmp_path)
    for name in ("a", "b"):
        node.topic(name=name)
        write(store, node.state)
    newest = tmp_path / "checkpoint" / f"{2:020d}"
    damaged = bytearray(newest.read_bytes())
    for position in (50, len(damaged) - 30, len(damaged) - 1):
        copy = bytearray(damaged)
        copy[position] ^= 1
        newest.write_bytes(copy)
        assert store.load().applied_index == 1, position
    newest.write_bytes(damaged[:-9])
    assert store.load().applied_index == 1
    (tmp_path / "checkpoint" / f"{1:020d}").write_bytes(
        b"LMQC\1\0\0\0 nonsense, and long enough to be looked at closely"
    )
    names = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    write_manifest_of_log(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"no other checkpoint is usable.* entry 2,.*--rejoin"):
        store.load()
    assert names == {path.name for path in (tmp_path / "checkpoint").iterdir()}, "nothing was changed"
    write_manifest_of_log(tmp_path, 1)
    assert store.load().applied_index == 0, "everything is made again from the first entry on"
    assert store.kept_index == 0, "a checkpoint that is no good is not counted on"


def test_without_any_checkpoint_a_trimmed_log_is_refused_before_queue_files_go(tmp_path: Path) -> None:
    node, store = Node(), store_on(RealFileSystem(), tmp_path)
    node.fill(node.topic(), 0, 5)
    write(store, node.state)
    kept = [path for path in (tmp_path / "consumequeue").rglob("*") if path.is_file()]
    shutil.rmtree(tmp_path / "checkpoint")
    write_manifest_of_log(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint.*Put the folder `checkpoint` back"):
        store_on(RealFileSystem(), tmp_path).load()
    assert kept and all(path.exists() for path in kept)


def test_a_checkpoint_that_the_disk_cannot_read_is_skipped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, store = Node(), store_on(RealFileSystem(), tmp_path)
    for name in ("a", "b"):
        node.topic(name=name)
        write(store, node.state)
    read = RealFile.pread

    def pread(file: RealFile, size: int, offset: int) -> bytes:
        if file.path == store.path(2):
            raise OSError(errno.EIO, "Input/output error")
        return read(file, size, offset)

    monkeypatch.setattr(RealFile, "pread", pread)
    assert store.load().applied_index == 1


def test_a_checkpoint_of_a_newer_format_stops_the_start_and_names_both_versions(tmp_path: Path) -> None:
    node, store = Node(), store_on(RealFileSystem(), tmp_path)
    node.topic()
    write(store, node.state)
    path = tmp_path / "checkpoint" / f"{1:020d}"
    raw = bytearray(path.read_bytes())
    raw[4:8] = (VERSION + 1).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(
        CheckpointVersionError, match=rf"{path}.*version {VERSION + 1}.*up to version {VERSION}"
    ):
        store.load()
    assert path.read_bytes() == bytes(raw), "nothing is changed"
    assert raw[:4] == MAGIC


def test_half_written_files_are_removed_and_never_loaded(tmp_path: Path) -> None:
    store = store_on(RealFileSystem(), tmp_path)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / f"{9:020d}.part").write_bytes(b"half")
    assert store.load().applied_index == 0
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["reserve"]


def test_a_snapshot_does_not_change_while_the_state_goes_on() -> None:
    node = busy_node(1, 5)
    snapshot = take_snapshot(node.state)
    before = b"".join(encode_snapshot(snapshot))
    topic = next(iter(node.state.topics)).topic_id
    node.fill(topic, 0, 30, first_id=10**9)
    node.topic(name="later")
    assert b"".join(encode_snapshot(snapshot)) == before
    assert checkpoint(node.state) != before


def test_on_a_full_disk_the_reserve_and_the_older_checkpoint_make_room_for_a_new_one(tmp_path: Path) -> None:
    """Retention needs a checkpoint before it may delete anything: else a full disk would stay full."""

    class FullDisk(RealFileSystem):
        refusals = 0

        def rename(self, old: Path, new: Path) -> None:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.ENOSPC, "no space left", str(old))
            super().rename(old, new)

    disk, node = FullDisk(), Node()
    store = store_on(disk, tmp_path)
    for number in range(3):
        node.topic(name=f"t{number}")
        disk.refusals = int(number == 2)
        write(store, node.state)
    names = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    assert names == [f"{2:020d}", f"{3:020d}", "reserve"]
    disk.refusals = 2
    node.topic(name="t3")
    with pytest.raises(OSError, match="no space left"):
        write(store, node.state)
    assert store_on(disk, tmp_path).load().applied_index == 3
