"""The key index on a disk that is slow or full: its files come later, and nothing else is touched."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ledgermq.broker.reading import key_index, key_runs
from ledgermq.broker.reading.key_run import BLOCK_ITEMS, RunRange, open_run, write_run
from ledgermq.raft.disk.files import Buffer, RealFile, RealFileSystem

from ..key_checks import FORM, check, files_of, filled, hashes
from ..key_log import MessageLog, indexed, settled


class HeldFiles(RealFileSystem):
    """Files get their names only while `free` is set."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.waiting = threading.Event()

    def rename(self, old: Path, new: Path) -> None:
        self.waiting.set()
        assert self.free.wait(30)
        super().rename(old, new)


async def test_segments_roll_while_a_run_is_written(tmp_path: Path) -> None:
    """Everything is found meanwhile, and no more than three closed segments wait in memory."""
    node, files = MessageLog(), HeldFiles()
    topic = node.topic(queues=1)

    def send(count: int) -> None:
        for _ in range(count):
            node.send(topic, 0, (f"m-{len(node.stored)}", ["all"]), pad=500)

    async with indexed(node.log, tmp_path, files=files) as index:
        try:
            await index.catch_up(30)  # it follows from the begin
            send(20)
            await index.catch_up(30)
            assert await asyncio.to_thread(files.waiting.wait, 30)
            assert len(node.log.segments()) == 2
            await check(node, index)
            send(100)
            await index.catch_up(0.5)
            assert len(index._finished.closed) == key_index._MAX_CLOSED + 1
            assert index.entries_behind
            found = await index.search(hashes(node, node.stored[-1])[0], 0, node.end, 9)
            assert not found.offsets and found.unsearched
        finally:
            files.free.set()
        await settled(index)
        await check(node, index)


class FullFiles(RealFileSystem):
    """A disk that has no room `times` times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        opened = super().open(path, create=create, writable=writable)
        return _FullFile(opened, self) if create else opened


class _FullFile(RealFile):
    def __init__(self, opened: RealFile, disk: FullFiles) -> None:
        super().__init__(opened.path, opened._fd)
        self._disk = disk

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        if self._disk.times:
            self._disk.times -= 1
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        super().pwritev(buffers, offset)


async def test_a_full_disk_delays_the_files_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_runs, "RETRY_SECONDS", 0)
    monkeypatch.setattr(key_index, "RETRY_SECONDS", 0)
    node, _ = filled()
    files = FullFiles(5)
    async with indexed(node.log, tmp_path, part_items=30, files=files) as index:
        await settled(index)
        await check(node, index)
    assert not files.times
    assert len([path for path in files_of(tmp_path) if not path.suffix]) == len(node.log.segments()) - 1


@pytest.mark.parametrize("fails_at", [0, 2, 3])
def test_a_run_that_cannot_be_written_takes_no_room(fails_at: int, tmp_path: Path) -> None:
    """Nor does one whose writing is ended: by a disk without room, or by a node that stops."""
    items = [np.arange(start, start + 3 * BLOCK_ITEMS, dtype=np.uint64) for start in (0, 3 * BLOCK_ITEMS)]
    paced: list[int] = []

    def pace(size: int) -> None:
        paced.append(size)
        if len(paced) == fails_at:
            raise key_runs.StoppedError

    files = FullFiles(0 if fails_at else 1)
    taken = RunRange(0, 1, 2, 3, 4)
    path = tmp_path / "keyindex" / "run"
    arguments = (files, path, taken, FORM, 6 * BLOCK_ITEMS, items, pace)
    if fails_at < 3:
        with pytest.raises((OSError, key_runs.StoppedError)):
            write_run(*arguments)
        assert files_of(path.parent) == []
    run = write_run(*arguments)
    assert files_of(path.parent) == [path] and open_run(files, path) == run
