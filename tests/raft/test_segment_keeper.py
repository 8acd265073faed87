"""The background thread of the log, on a disk that is full."""

from __future__ import annotations

import threading
from pathlib import Path

from ledgermq.raft.errors import StorageError
from ledgermq.raft.files import DiskUse, RealFileSystem
from ledgermq.raft.identity import Manifest
from ledgermq.raft.segment import create_segment
from ledgermq.raft.segment_keeper import LogFolders, SegmentKeeper

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
    """A file system of ours with a bug."""

    def disk_use(self, path: Path) -> DiskUse:
        return DiskUse(1 // 0, 0)
