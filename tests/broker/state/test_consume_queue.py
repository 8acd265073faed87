"""ConsumeQueues: units from sections, tails in memory, files in the background."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ledgermq.broker.errors import ConsumeQueueError, QueueNotFoundError
from ledgermq.broker.reading.consume_queue_files import ConsumeQueueFiles
from ledgermq.broker.state.consume_queue import (
    BLOCK_UNITS,
    TAIL_UNITS,
    UNIT_DTYPE,
    UNIT_SIZE,
    UNITS_PER_FILE,
    ColdRead,
    ConsumeQueue,
    ConsumeQueues,
    QueueSums,
    record_starts,
    units_of,
)
from ledgermq.proto.errors import CorruptError
from ledgermq.proto.record import record_positions
from ledgermq.raft.disk.files import RealFile, RealFileSystem

from ..entry_log import records

KEY = (1, 0)


def some_units(start: int, count: int) -> np.ndarray:
    units = np.empty(count, UNIT_DTYPE)
    units["physical_offset"] = np.arange(start, start + count) * 100
    units["size"] = 96
    units["tag_hash"] = np.arange(start, start + count) % 7
    return units


class Rig:
    """A queue whose files are in a folder."""

    def __init__(
        self, folder: Path, begin: int = 0, files: type[ConsumeQueueFiles] = ConsumeQueueFiles
    ) -> None:
        self.folder = folder / "orders@1" / "0"
        self.files = files(RealFileSystem(), folder)
        self.queues = ConsumeQueues(self.files)
        self.queue = ConsumeQueue(KEY, "orders@1", begin, begin)
        self.queues.add(self.queue)
        self.noticed: list[ConsumeQueueError] = []
        self.queues.on_damage = self.noticed.append

    def append(self, count: int, *, write: bool = True) -> None:
        """Append units to the queue, and write them to its files."""
        self.queues.append(self.queue, some_units(self.queue.end, count))
        if write:
            self.write()

    def write(self) -> None:
        runs = self.queues.unwritten()
        self.files.write(runs)
        self.files.sync()
        self.queues.mark_written(runs)

    def look_up(self, offset: int, count: int) -> list[object]:
        """Look up as the shell does, with the reads of cold blocks."""
        while isinstance(found := self.queues.lookup(*KEY, offset, count), ColdRead):
            self.queues.admit(found, self.files.load(found))
        listed: list[object] = found.tolist()
        return listed

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.files.close()


@pytest.mark.parametrize("sizes", [[100], [1, 50, 300], [100, 100, 108]])
def test_the_starts_of_records_are_those_of_the_slow_check(sizes: list[int]) -> None:
    body = b"".join(records(40, size=sizes, tags=[5, -6]))
    starts = record_starts(body, 40)
    assert starts.tolist() == record_positions(body, 40).tolist()
    units = units_of(body, starts, 1_000)
    assert units["physical_offset"].tolist() == (starts + 1_000).tolist()
    assert units["tag_hash"].tolist() == [5, -6] * 20
    assert units["size"].sum() == len(body)


def test_a_count_that_does_not_fit_the_body_is_damage() -> None:
    body = b"".join(records(4, size=[1, 50]))
    for count in (0, 3, 5):
        with pytest.raises(CorruptError):
            record_starts(body, count)


def test_a_queue_that_is_not_there_is_named() -> None:
    with pytest.raises(QueueNotFoundError, match="no queue 3"):
        ConsumeQueues().lookup(1, 3, 0, 1)


def test_units_written_piece_by_piece_are_the_bytes_of_one_run(tmp_path: Path) -> None:
    choose = random.Random(1)
    pieces, whole = Rig(tmp_path / "a"), Rig(tmp_path / "b")
    while pieces.queue.end < 2 * UNITS_PER_FILE + 17:
        pieces.append(choose.choice([1, 256, 60_000]), write=choose.random() < 0.5)
    pieces.write()
    total = pieces.queue.end
    whole.append(total)
    assert pieces.names()[:2] == [f"{0:020d}", f"{UNITS_PER_FILE * 20:020d}"]
    for name in pieces.names():
        assert (pieces.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    for offset in (0, 5, BLOCK_UNITS - 3, UNITS_PER_FILE - 2, total - TAIL_UNITS - 10, total - 3):
        assert pieces.look_up(offset, 20) == some_units(offset, min(20, total - offset)).tolist()
    pieces.files.close()
    whole.files.close()


def test_a_file_has_300_000_units_of_20_bytes_and_the_layout_stays(rig: Rig) -> None:
    """A3.7 to A3.10 and A3.12: 8 bytes of offset, 4 of size, 8 of tag hash; the number gives the place."""
    assert not rig.folder.exists(), "a queue has files when it has messages"
    units = some_units(0, 300_001)
    units[299_999] = units[300_000] = (0x0102030405060708, 0x11121314, -2)
    rig.queues.append(rig.queue, units)
    rig.write()
    assert rig.names() == ["0" * 20, "00000000000006000000"]
    unit = bytes.fromhex("0807060504030201 14131211 feffffffffffffff")
    first = (rig.folder / ("0" * 20)).read_bytes()
    assert len(first) == 300_000 * 20 and first[299_999 * 20 :] == unit
    assert (rig.folder / "00000000000006000000").read_bytes() == unit


def test_memory_keeps_only_the_newest_units_after_they_are_written(rig: Rig) -> None:
    rig.append(50_000, write=False)
    assert rig.queue.tail_start == 0
    rig.write()
    assert rig.queue.tail_start == 50_000 - TAIL_UNITS
    assert rig.queues.unwritten() == []


class Cached(ConsumeQueueFiles):
    """Reads as if the page cache held all files."""

    reads = 0

    def read_nowait(self, folder: str, queue_id: int, start: int, count: int) -> bytes | None:
        self.reads += 1
        at = start % UNITS_PER_FILE * UNIT_SIZE
        return self.path(folder, queue_id, start).read_bytes()[at : at + count * UNIT_SIZE]


def test_units_that_left_memory_come_from_the_page_cache_a_block_at_a_time(tmp_path: Path) -> None:
    """A3.14: cached pages are read without a thread, once, and a bounded number of blocks stays."""
    rig = Rig(tmp_path, files=Cached)
    rig.append(300 * BLOCK_UNITS)
    for _ in range(3):
        found = rig.queues.lookup(*KEY, 10, 50)
        assert isinstance(found, np.ndarray) and found.tolist() == some_units(10, 50).tolist()
    assert isinstance(rig.files, Cached) and rig.files.reads == 1
    for block in range(299):
        found = rig.queues.lookup(*KEY, block * BLOCK_UNITS, 1)
        assert isinstance(found, np.ndarray) and found["physical_offset"][0] == block * BLOCK_UNITS * 100
    assert len(rig.queues._blocks) == 256
    rig.files.close()


def test_what_is_appended_while_a_run_is_written_is_not_lost(rig: Rig) -> None:
    rig.append(10, write=False)
    runs = rig.queues.unwritten()
    rig.append(5_000, write=False)
    rig.files.write(runs)
    rig.queues.mark_written(runs)
    assert [(run.start, len(run.units)) for run in rig.queues.unwritten()] == [(10, 5_000)]
    assert rig.look_up(0, 5_010) == some_units(0, 5_010).tolist()


def test_a_partly_written_block_is_read_again_when_it_has_grown(rig: Rig) -> None:
    for _ in range(4):
        rig.append(3_000)
        assert rig.look_up(0, 20_000) == some_units(0, rig.queue.end).tolist()


def test_a_queue_that_begins_late_has_sparse_files_and_hides_what_is_below(tmp_path: Path) -> None:
    begin = 2 * UNITS_PER_FILE + 5
    rig = Rig(tmp_path, begin)
    rig.append(3_000)
    assert rig.look_up(0, begin + 2) == some_units(begin, 2).tolist()
    assert len(rig.names()) == 1
    assert rig.files.damage(rig.queue) is None
    rig.files.close()


def test_files_below_the_begin_offset_and_of_deleted_topics_go(rig: Rig) -> None:
    rig.append(UNITS_PER_FILE + 10)
    assert rig.files.remove_below([("orders@1", 0, UNITS_PER_FILE - 1)]) == []
    assert len(rig.names()) == 2
    assert rig.files.read_nowait("orders@1", 0, 0, 1) is not None  # a reader has it open
    (gone,) = rig.files.remove_below([("orders@1", 0, UNITS_PER_FILE)])
    assert gone == rig.files.path("orders@1", 0, 0)
    rig.files.forget([gone])
    with pytest.raises(ConsumeQueueError, match="the file is gone"):
        rig.files.read_nowait("orders@1", 0, 0, 1)
    assert len(rig.names()) == 1
    rig.files.remove_orphans({"orders@1"})
    assert len(rig.names()) == 1
    rig.files.remove_orphans(set())
    assert rig.names() == []


def test_files_that_do_not_hold_what_the_checkpoint_counts_on_are_found_at_the_start(rig: Rig) -> None:
    rig.append(10)

    def damage(begin: int, end: int) -> str:
        return str(rig.files.damage(ConsumeQueue(KEY, "orders@1", begin, end)) or "")

    assert damage(0, 10) == damage(0, 0) == ""
    assert "has 200 bytes, the checkpoint counts on 220" in damage(0, 11)
    assert "missing" in damage(UNITS_PER_FILE, UNITS_PER_FILE + 1)
    below = damage(UNITS_PER_FILE + 7, UNITS_PER_FILE + 7)
    assert "missing" in below, "a checksum covers what is below the begin"
    assert damage(UNITS_PER_FILE, UNITS_PER_FILE) == damage(2 * BLOCK_UNITS, 2 * BLOCK_UNITS) == ""


def test_the_first_unit_at_or_behind_a_place_in_the_log_is_found(rig: Rig) -> None:
    rig.append(9_000)
    for physical, expected in [(0, 0), (1, 1), (100, 1), (850_050, 8_501), (10**9, 9_000)]:
        while isinstance(found := rig.queues.first_at_or_behind(rig.queue, physical), ColdRead):
            rig.queues.admit(found, rig.files.load(found))
        assert found == expected


@pytest.mark.parametrize("count", [10, BLOCK_UNITS, BLOCK_UNITS + 10])
@pytest.mark.parametrize("cold", [False, True])
def test_units_that_were_changed_in_their_file_are_never_believed(rig: Rig, count: int, cold: bool) -> None:
    rig.append(count)
    path = rig.files.path("orders@1", 0, 0)
    raw = bytearray(path.read_bytes())
    raw[13] ^= 4
    path.write_bytes(raw)
    again = ConsumeQueues(rig.files)
    again.add(ConsumeQueue(KEY, "orders@1", 0, count, QueueSums(*rig.queue.sums.from_block(0))))
    again.on_damage = rig.noticed.append
    with pytest.raises(ConsumeQueueError, match=r"block at byte 0: the checksum.*Move this node's folder "):
        if cold:
            again.admit(ColdRead(KEY, "orders@1", 0, min(count, BLOCK_UNITS)), bytes(raw[: BLOCK_UNITS * 20]))
        again.lookup(*KEY, 0, 5)
    assert [error.path for error in rig.noticed] == [str(path)]


def test_a_file_that_was_cut_short_is_damage_and_not_read_for_ever(rig: Rig) -> None:
    rig.append(BLOCK_UNITS)
    rig.queue._tail_start = BLOCK_UNITS
    path = rig.files.path("orders@1", 0, 0)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConsumeQueueError, match="shorter than what was written"):
        rig.look_up(0, 5)


@pytest.mark.parametrize("cold", [False, True])
def test_a_file_that_is_gone_is_damage_of_its_block(rig: Rig, cold: bool) -> None:
    """The observer can rebuild the block from the log."""
    rig.append(3 * BLOCK_UNITS)
    rig.files.path("orders@1", 0, 0).unlink()
    read = ColdRead(KEY, "orders@1", 1, BLOCK_UNITS)
    with pytest.raises(ConsumeQueueError, match="the file is gone"):
        if cold:
            with pytest.raises(ConsumeQueueError) as caught:
                rig.files.load(read)
            rig.queues.unreadable(read, caught.value)
        else:
            rig.queues.lookup(*KEY, BLOCK_UNITS + 5, 1)
    assert [error.block for error in rig.noticed] == [(KEY, 1)]


@pytest.mark.parametrize("cold", [False, True])
def test_a_bad_sector_is_damage_of_its_block_and_nothing_else_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    """The observer can rebuild the block from the log; else each turn that meets it would fail for ever."""
    rig.append(3 * BLOCK_UNITS)
    code = errno.EIO

    def read(file: RealFile, size: int, offset: int) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(RealFile, "pread", read)
    monkeypatch.setattr(RealFile, "pread_nowait", read)
    asked = ColdRead(KEY, "orders@1", 1, BLOCK_UNITS)
    with pytest.raises(ConsumeQueueError, match="the disk cannot read it"):
        rig.files.load(asked) if cold else rig.queues.lookup(*KEY, BLOCK_UNITS + 5, 1)
    assert cold or [error.block for error in rig.noticed] == [(KEY, 1)]
    code = errno.ENOMEM
    with pytest.raises(OSError, match="memory"):
        rig.files.load(asked) if cold else rig.queues.lookup(*KEY, BLOCK_UNITS + 5, 1)


def test_a_file_that_went_with_its_messages_is_no_damage(rig: Rig) -> None:
    rig.append(3 * BLOCK_UNITS, write=False)
    rig.queue.begin = BLOCK_UNITS
    gone = ConsumeQueueError("x", "the file is gone")
    rig.queues.unreadable(ColdRead(KEY, "orders@1", 0), gone)
    assert rig.noticed == []
    with pytest.raises(ConsumeQueueError, match="the file is gone"):
        rig.queues.unreadable(ColdRead(KEY, "orders@1", 1), gone)
    assert [error.block for error in rig.noticed] == [(KEY, 1)]
    rig.queues.remove_topic(1, 1)
    rig.queues.unreadable(ColdRead(KEY, "orders@1", 1), gone)
    assert len(rig.noticed) == 1


def test_a_part_of_a_block_is_checked_together_with_the_tail_in_memory(rig: Rig) -> None:
    rig.append(900)
    rig.queue._tail, rig.queue._tail_start = rig.queue.tail(900, 900).copy(), 900
    rig.append(300, write=False)
    assert rig.look_up(0, 1200) == some_units(0, 1200).tolist()
