"""Background thread of the log, on a full disk."""

from __future__ import annotations

import threading
from pathlib import Path

from ledgermq.proto.entry import EntryKind
from ledgermq.raft.disk.files import DiskUse, RealFileSystem
from ledgermq.raft.errors import DiskFullError, StorageError
from ledgermq.raft.folder.storage import create_data_folder, open_storage
from ledgermq.raft.log.identity import Manifest, read_manifest
from ledgermq.raft.log.segment import create_segment
from ledgermq.raft.log.segment_keeper import LogFolders, SegmentKeeper
from ledgermq.raft.types import LogIndex, Term

from ..log_rig import DATA, storage_config
from ..simulated_disk import SimulatedDisk

SEGMENT = 4096


class RoomForOne(RealFileSystem):
    """A disk that holds one segment."""

    def __init__(self, segments: Path) -> None:
        self._segments = segments

    def disk_use(self, path: Path) -> DiskUse:
        return DiskUse(1 << 30, 0 if list(self._segments.iterdir()) else 1 << 30)


def test_the_deletion_that_makes_room_does_not_wait_for_the_segment_that_has_none(tmp_path: Path) -> None:
    folders = LogFolders(tmp_path)
    files = RoomForOne(folders.segments)
    for folder in (folders.segments, folders.indexes):
        files.make_directory(folder)
    create_segment(files, folders.segments, 0, SEGMENT)
    keeper = SegmentKeeper(files, folders, SEGMENT, [0])
    full, room = threading.Event(), threading.Event()
    keeper.start(lambda call: call(), lambda is_full: (full if is_full else room).set(), lambda error: None)
    try:
        keeper.prepare(SEGMENT)
        assert full.wait(30)
        keeper.delete(Manifest(), [0])
        assert room.wait(30), "the deletion never ran"
    finally:
        keeper.stop()
    assert [path.name for path in folders.segments.iterdir()] == [f"{SEGMENT:020d}"]


def test_a_bug_in_the_thread_is_told_and_does_not_leave_a_dead_thread_behind_in_silence(
    tmp_path: Path,
) -> None:
    folders = LogFolders(tmp_path)
    keeper = SegmentKeeper(BrokenFiles(), folders, SEGMENT, [0])
    told: list[StorageError] = []
    failed = threading.Event()

    def on_failed(error: StorageError) -> None:
        told.append(error)
        failed.set()

    keeper.start(lambda call: call(), lambda is_full: None, on_failed)
    keeper.prepare(SEGMENT)
    assert failed.wait(30)
    keeper.stop()
    assert "ZeroDivisionError" in str(told[0])


class BrokenFiles(RealFileSystem):
    """A file system with a bug of ours."""

    def disk_use(self, path: Path) -> DiskUse:
        return DiskUse(1 // 0, 0)


class NoRoom(SimulatedDisk):
    """A disk that other programs fill while it is used."""

    full = False

    def disk_use(self, path: Path) -> DiskUse:
        return DiskUse(1 << 40, 0 if self.full else 1 << 40)


def test_a_storage_whose_writer_waits_for_room_can_be_closed() -> None:
    disk = NoRoom()
    config = storage_config()
    create_data_folder(config, disk)
    storage = open_storage(config, disk)
    full = threading.Event()
    told: list[StorageError] = []
    storage.start(
        lambda call: call(), on_durable=lambda seq: None, on_failed=told.append,
        on_disk_full=lambda is_full: full.set(),
    )  # fmt: skip
    for index in range(1, 7):  # into a second segment, which was not prepared
        storage.log.stage_entry(
            EntryKind.RECORDS, [bytes(900)], section_count=1, index=LogIndex(index), term=Term(1), timestamp=1
        )
        if index == 1:
            disk.full = True
    storage.log.persist(1)
    assert full.wait(30)
    closing = threading.Thread(target=storage.close, daemon=True)
    closing.start()
    closing.join(30)
    ended = not closing.is_alive()
    disk.full = False
    closing.join(30)
    assert ended, "it waited for room"
    assert isinstance(told[0], DiskFullError)


def test_deletions_wait_in_their_order_while_there_is_no_room_for_the_base_point() -> None:
    """Not even the reserve is left. Without its durable base point a shorter log would look damaged."""
    disk = SimulatedDisk()
    folders = LogFolders(DATA)
    for start in range(0, 4 * SEGMENT, SEGMENT):
        create_segment(disk, folders.segments, start, SEGMENT)
    keeper = SegmentKeeper(disk, folders, SEGMENT, range(0, 4 * SEGMENT, SEGMENT))
    disk.capacity = disk.used
    for count in (1, 2):
        base = Manifest(first_index=LogIndex(count * 10 + 1), first_offset=count * SEGMENT)
        keeper.delete(base, [(count - 1) * SEGMENT])
        keeper.run_pending()
        assert len(disk.list_directory(folders.segments)) == 4 and keeper.has_work
    assert keeper.deleting == 2
    disk.capacity = 1 << 30
    keeper.run_pending()
    assert (keeper.deleting, keeper.has_work) == (0, False)
    assert disk.list_directory(folders.segments) == [f"{start:020d}" for start in (2 * SEGMENT, 3 * SEGMENT)]
    assert read_manifest(disk, folders.manifest, "n1").first_index == 21
