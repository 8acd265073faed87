"""Rules of broker storage (docs/seeds.md, A3) that have no other test: flush modes, memory, copies."""

from __future__ import annotations

import asyncio
import threading
from array import array
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from ledgermq.proto.entry import EntryHeader, EntryKind
from ledgermq.raft.disk.files import RealFile, RealFileSystem
from ledgermq.raft.disk.page_writer import PAGE
from ledgermq.raft.folder.storage import StorageConfig, create_data_folder, open_storage
from ledgermq.raft.log.entry_index import read_index, write_index
from ledgermq.raft.log.open_files import MAX_OPEN_FILES
from ledgermq.raft.log.segment import TRAILER_SIZE, Segment, place_entry, segment_path
from ledgermq.raft.log.segment_keeper import LogFolders
from ledgermq.raft.types import LogIndex, Term

from ..log_rig import LogRig
from ..simulated_disk import SimulatedDisk
from .test_storage import Session, config_for

HOUR_MS = 3_600_000


class HeldDisk(RealFileSystem):
    """A disk whose flushes of segments wait while it is held."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.begun = threading.Event()  # set when a flush of a segment has begun
        self.direct_bytes = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        return _HeldFile(super().open(path, create=create, writable=writable), self)


class _HeldFile(RealFile):
    def __init__(self, opened: RealFile, disk: HeldDisk) -> None:
        super().__init__(opened.path, opened._fd)
        self._disk = disk

    def write_past_cache(self, data: memoryview, offset: int) -> None:
        self._disk.direct_bytes += len(data)
        super().write_past_cache(data, offset)

    def fdatasync(self) -> None:
        if self.path.parent.name == "commitlog" and not self.path.suffix:
            self._disk.begun.set()
            assert self._disk.free.wait(30)
        super().fdatasync()


async def begun(disk: HeldDisk) -> None:
    """Wait until a flush has begun."""
    assert await asyncio.to_thread(disk.begun.wait, 30)


async def opened(config: StorageConfig, disk: HeldDisk) -> Session:
    """A session with one durable entry."""
    create_data_folder(config, disk)
    session = Session(open_storage(config, disk))
    await session.append(b"first")
    return session


@pytest.mark.parametrize("flush", ["async_timed", "async_notify"])
@pytest.mark.parametrize("direct", [0, PAGE])
async def test_an_asynchronous_append_is_done_while_no_flush_of_the_disk_ends(
    flush: str, direct: int, tmp_path: Path
) -> None:
    """A3.5, A3.15: no flush is waited for.

    Bytes in the page cache, or written past it, are readable like the rest.
    """
    disk = HeldDisk()
    config = replace(config_for(tmp_path, flush), flush_interval_ms=1, direct_write_bytes=direct)
    session = await opened(config, disk)
    disk.free.clear()
    large = b"b" * 2 * PAGE
    try:
        await session.append(b"a", 3)
        await begun(disk)
        await session.append(large, 3)
        assert (disk.direct_bytes >= 2 * PAGE) == bool(direct)
        assert await session.payloads() == [b"first", *[b"a"] * 3, *[large] * 3]
        assert session.storage.statistics().flushed_index < 7
    finally:
        disk.free.set()
    await asyncio.to_thread(session.storage.close)
    assert session.storage.statistics().flushed_index == 7


async def test_a_synchronous_append_is_done_when_the_disk_has_it(tmp_path: Path) -> None:
    """A3.16: the same entries, and nothing is reported before fdatasync returns."""
    disk = HeldDisk()
    session = await opened(config_for(tmp_path, "sync"), disk)
    disk.begun.clear()
    disk.free.clear()
    appending = asyncio.create_task(session.append(b"a"))
    try:
        await begun(disk)
        assert session.done.empty() and not appending.done()
        assert session.storage.statistics().flushed_index == 1
    finally:
        disk.free.set()
    await appending
    assert session.storage.statistics().flushed_index == 2
    await asyncio.to_thread(session.storage.close)


def test_the_asynchronous_modes_flush_by_time_by_bytes_and_when_they_are_woken(tmp_path: Path) -> None:
    """A3.15: every 500 ms or that many bytes (timed), or at each append (notify), after 500 ms at
    the latest.
    """
    assert {each.name: each.default for each in fields(StorageConfig)}["flush_interval_ms"] == 500

    async def scenario(name: str, flush: str, interval_ms: int, flush_bytes: int, size: int) -> None:
        disk = HeldDisk()
        config = replace(
            config_for(tmp_path / name, flush), flush_interval_ms=interval_ms, flush_bytes=flush_bytes
        )
        session = await opened(config, disk)
        disk.begun.clear()
        await session.append(bytes(size))
        await begun(disk)
        await asyncio.to_thread(session.storage.close)

    async def all_of_them() -> None:
        await scenario("time", "async_timed", 1, 1 << 30, 10)
        await scenario("bytes", "async_timed", HOUR_MS, 1000, 5000)
        await scenario("woken", "async_notify", HOUR_MS, 1 << 30, 10)

    asyncio.run(asyncio.wait_for(all_of_them(), 60))


async def test_few_bytes_wait_for_their_time(tmp_path: Path) -> None:
    disk = HeldDisk()
    config = replace(config_for(tmp_path, "async_timed"), flush_interval_ms=HOUR_MS, flush_bytes=1 << 20)
    session = await opened(config, disk)
    disk.begun.clear()  # caused by the opening
    await session.append(b"a", 50)
    assert not disk.begun.is_set() and session.storage.statistics().flushed_index == 0
    await asyncio.to_thread(session.storage.close)
    assert disk.begun.is_set() and session.storage.statistics().flushed_index == 51


def test_memory_does_not_grow_with_the_log() -> None:
    """A3.18: memory keeps a few numbers of a closed segment.

    Its offsets, descriptors and entries are bounded.
    """
    rig = LogRig(SimulatedDisk(), cache_bytes=4096)
    while len(rig.log.segments()) < 300:
        rig.append(bytes(700))
        rig.flush()
    assert len(rig.read_all()) == len(rig.entries), "everything was read once"
    contents, files = rig.log, rig.log._files
    assert sum(segment.offsets is not None for segment in contents._segments) <= 2
    assert contents.cache.size <= 4096 and len(contents.cache._views) < 8192
    assert len(files._handles) <= MAX_OPEN_FILES < 300
    assert files._indexes._bytes <= files._indexes._max_bytes
    assert all(len(segment.runs) == 1 for segment in contents._segments), "terms are kept as runs"
    rig.close()


def test_what_is_in_memory_is_handed_out_without_a_copy() -> None:
    """A3.19: readers see the very bytes that a leader encoded or a follower received."""
    leader, follower = LogRig(SimulatedDisk()), LogRig(SimulatedDisk())
    header = leader.append(b"payload of an entry")
    ((_, payload),) = leader.log.entries_nowait(LogIndex(1), LogIndex(1), 1 << 20) or ()
    read = leader.log.read_at_nowait(header.physical_offset + 64, len(payload))
    assert read is not None and shares(read, payload)
    # As a socket would fill it.
    frame = bytearray(leader.log.read_wire_nowait(LogIndex(1), LogIndex(1), 1 << 20) or b"")
    batch = follower.log.check_wire(memoryview(frame), Term(0))
    follower.log.stage_wire(batch, LogIndex(1))
    ((_, payload),) = follower.log.entries_nowait(LogIndex(1), LogIndex(1), 1 << 20) or ()
    assert shares(payload, memoryview(frame))
    leader.close()
    follower.close()


def shares(one: memoryview, other: memoryview) -> bool:
    return bool(np.shares_memory(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)))


def test_segments_may_be_as_large_as_32_bits_can_say(tmp_path: Path) -> None:
    """A3.20: no file is mapped, so the 2 GiB of a Java mapping are no limit. The formats allow 4 GiB."""
    size, folders = 4 << 30, LogFolders(tmp_path)
    assert place_entry(size - 128, 128, size) == size - 128 and place_entry(size - 64, 128, size) == size
    segment = Segment(0, LogIndex(1))
    segment.add(EntryHeader(7, 64, EntryKind.NOOP, 0, 1, 1, size - 64, 5, 0, 0))
    files = RealFileSystem()
    files.make_directory(folders.indexes)
    write_index(files, folders.indexes, segment)
    assert read_index(files, folders.indexes, 0).offsets == array("I", [size - 64])
    file = files.open(tmp_path / "large", create=True)  # sparse
    file.pwritev([b"behind", b" 2 GiB"], size - 64)
    assert file.pread(100, size - 64) == b"behind 2 GiB" and file.size() == size - 52
    file.close()


def test_the_next_segment_is_there_before_it_is_needed_and_flushes_change_no_metadata(tmp_path: Path) -> None:
    """A3.21, A3.22: created in the background once a quarter of the open one is used; every block
    is zeroed.
    """
    config = config_for(tmp_path, "sync")
    size, folder = config.segment_size, LogFolders(config.data_dir).segments
    files = RealFileSystem()
    create_data_folder(config, files)
    storage = open_storage(config, files)
    log = storage.log
    flusher = storage.start_stepped(on_durable=lambda seq: None)

    def append_up_to(end: int, seq: int) -> None:
        while log.end_offset < end:
            log.stage_entry(
                EntryKind.RECORDS, [bytes(1000)], section_count=1, index=LogIndex(log.last_index + 1),
                term=Term(1), timestamp=0,
            )  # fmt: skip
        log.persist(seq)
        while flusher.step():
            pass

    next_one = segment_path(folder, size)
    append_up_to(size // 8, 1)
    assert not next_one.exists()
    append_up_to(size // 2, 2)
    storage.run_background()
    before = next_one.stat()
    assert before.st_size == size + TRAILER_SIZE and before.st_blocks * 512 >= before.st_size
    assert not any(next_one.read_bytes())
    append_up_to(size + size // 8, 3)
    after = next_one.stat()
    assert any(next_one.read_bytes())
    assert (after.st_size, after.st_blocks, after.st_ino) == (before.st_size, before.st_blocks, before.st_ino)
    storage.close()
