"""ConsumeQueues: units from sections, tails in memory, files in the background."""

from __future__ import annotations

import errno
import os
import random
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


def queues_in(folder: Path, begin: int = 0, end: int = 0) -> tuple[ConsumeQueues, ConsumeQueueFiles]:
    files = ConsumeQueueFiles(RealFileSystem(), folder)
    queues = ConsumeQueues(files)
    queues.add(ConsumeQueue(KEY, "orders@1", begin, end))
    return queues, files


def write_out(queues: ConsumeQueues, files: ConsumeQueueFiles) -> None:
    runs = queues.unwritten()
    files.write(runs)
    files.sync()
    queues.mark_written(runs)


def look_up(queues: ConsumeQueues, files: ConsumeQueueFiles, offset: int, count: int) -> np.ndarray:
    """Look up like the shell: loading what is cold."""
    while isinstance(found := queues.lookup(*KEY, offset, count), ColdRead):
        queues.admit(found, files.load(found))
    return found


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
    queues, files = queues_in(tmp_path / "a")
    whole, rebuilt = queues_in(tmp_path / "b")
    queue, total = queues.named(*KEY), 0
    while total < 2 * UNITS_PER_FILE + 17:
        count = choose.choice([1, 256, 60_000])
        queues.append(queue, some_units(total, count))
        total += count
        if choose.random() < 0.5:
            write_out(queues, files)
    whole.append(whole.named(*KEY), some_units(0, total))
    write_out(queues, files)
    write_out(whole, rebuilt)
    names = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert [path.name for path in names][:2] == [f"{0:020d}", f"{UNITS_PER_FILE * 20:020d}"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    for offset in (0, 5, BLOCK_UNITS - 3, UNITS_PER_FILE - 2, total - TAIL_UNITS - 10, total - 3):
        assert (
            look_up(queues, files, offset, 20).tolist()
            == some_units(offset, min(20, total - offset)).tolist()
        )
    files.close()
    rebuilt.close()


def test_a_file_has_300_000_units_of_20_bytes_and_the_layout_stays(tmp_path: Path) -> None:
    """A3.7 to A3.10 and A3.12: 8 bytes of offset, 4 of size, 8 of tag hash; the place of a unit follows from its number."""
    queues, files = queues_in(tmp_path)
    folder = tmp_path / "orders@1" / "0"
    queue = queues.named(*KEY)
    assert not folder.exists(), "a queue has files when it has messages"
    units = some_units(0, 300_001)
    units[299_999] = units[300_000] = (0x0102030405060708, 0x11121314, -2)
    queues.append(queue, units)
    write_out(queues, files)
    assert sorted(path.name for path in folder.iterdir()) == ["0" * 20, "00000000000006000000"]
    unit = bytes.fromhex("0807060504030201 14131211 feffffffffffffff")
    first = (folder / ("0" * 20)).read_bytes()
    assert len(first) == 300_000 * 20 and first[299_999 * 20 :] == unit
    assert (folder / "00000000000006000000").read_bytes() == unit
    files.close()


def test_memory_keeps_only_the_newest_units_after_they_are_written(tmp_path: Path) -> None:
    queues, files = queues_in(tmp_path)
    queue = queues.named(*KEY)
    queues.append(queue, some_units(0, 50_000))
    assert queue.tail_start == 0
    write_out(queues, files)
    assert queue.tail_start == 50_000 - TAIL_UNITS
    assert queues.unwritten() == []
    files.close()


def test_units_that_left_memory_come_from_the_page_cache_a_block_at_a_time(tmp_path: Path) -> None:
    """A3.14: what the system has cached is read without a thread, once; so many blocks stay as the limit says."""

    class Cached(ConsumeQueueFiles):
        reads = 0

        def read_nowait(self, folder: str, queue_id: int, start: int, count: int) -> bytes | None:
            self.reads += 1
            path = self.path(folder, queue_id, start)
            at = start % UNITS_PER_FILE * UNIT_SIZE
            return path.read_bytes()[at : at + count * UNIT_SIZE]

    files = Cached(RealFileSystem(), tmp_path)
    queues = ConsumeQueues(files)
    queues.add(ConsumeQueue(KEY, "orders@1", 0, 0))
    count = 300 * BLOCK_UNITS
    queues.append(queues.named(*KEY), some_units(0, count))
    write_out(queues, files)
    for _ in range(3):
        found = queues.lookup(*KEY, 10, 50)
        assert isinstance(found, np.ndarray) and found.tolist() == some_units(10, 50).tolist()
    assert files.reads == 1
    for block in range(299):
        found = queues.lookup(*KEY, block * BLOCK_UNITS, 1)
        assert isinstance(found, np.ndarray) and found["physical_offset"][0] == block * BLOCK_UNITS * 100
    assert len(queues._blocks) == 256
    files.close()


def test_what_is_appended_while_a_run_is_written_is_not_lost(tmp_path: Path) -> None:
    queues, files = queues_in(tmp_path)
    queue = queues.named(*KEY)
    queues.append(queue, some_units(0, 10))
    runs = queues.unwritten()
    queues.append(queue, some_units(10, 5_000))
    files.write(runs)
    queues.mark_written(runs)
    assert [(run.start, len(run.units)) for run in queues.unwritten()] == [(10, 5_000)]
    assert look_up(queues, files, 0, 5_010).tolist() == some_units(0, 5_010).tolist()
    files.close()


def test_a_partly_written_block_is_read_again_when_it_has_grown(tmp_path: Path) -> None:
    queues, files = queues_in(tmp_path)
    queue = queues.named(*KEY)
    for start in range(0, 12_000, 3_000):
        queues.append(queue, some_units(start, 3_000))
        write_out(queues, files)
        assert look_up(queues, files, 0, 20_000).tolist() == some_units(0, start + 3_000).tolist()
    files.close()


def test_a_queue_that_begins_late_has_sparse_files_and_hides_what_is_below(tmp_path: Path) -> None:
    queues, files = queues_in(tmp_path, begin=2 * UNITS_PER_FILE + 5, end=2 * UNITS_PER_FILE + 5)
    queue = queues.named(*KEY)
    queues.append(queue, some_units(queue.end, 3_000))
    write_out(queues, files)
    assert look_up(queues, files, 0, 2 * UNITS_PER_FILE + 7)["tag_hash"].tolist() == [
        (2 * UNITS_PER_FILE + 5) % 7,
        (2 * UNITS_PER_FILE + 6) % 7,
    ]
    assert len(list((tmp_path / "orders@1" / "0").iterdir())) == 1
    assert files.damage(queue) is None
    files.close()


def test_files_below_the_begin_offset_and_of_deleted_topics_go(tmp_path: Path) -> None:
    queues, files = queues_in(tmp_path)
    queue = queues.named(*KEY)
    queues.append(queue, some_units(0, UNITS_PER_FILE + 10))
    write_out(queues, files)
    assert files.remove_below([("orders@1", 0, UNITS_PER_FILE - 1)]) == []
    assert len(list((tmp_path / "orders@1" / "0").iterdir())) == 2
    before = files.read_nowait("orders@1", 0, 0, 1)  # a reader has it open
    assert before is not None
    (gone,) = files.remove_below([("orders@1", 0, UNITS_PER_FILE)])
    assert gone == files.path("orders@1", 0, 0)
    files.forget([gone])
    with pytest.raises(ConsumeQueueError, match="the file is gone"):
        files.read_nowait("orders@1", 0, 0, 1)
    assert len(list((tmp_path / "orders@1" / "0").iterdir())) == 1
    files.remove_orphans({"orders@1"})
    assert len(list((tmp_path / "orders@1" / "0").iterdir())) == 1
    files.remove_orphans(set())
    assert list((tmp_path / "orders@1" / "0").iterdir()) == []
    files.close()


def test_files_that_do_not_hold_what_the_checkpoint_counts_on_are_found_at_the_start(tmp_path: Path) -> None:
    queues, files = queues_in(tmp_path)
    queues.append(queues.named(*KEY), some_units(0, 10))
    write_out(queues, files)

    def damage(begin: int, end: int) -> str:
        return str(files.damage(ConsumeQueue(KEY, "orders@1", begin, end)) or "")

    assert damage(0, 10) == damage(0, 0) == ""
    assert "has 200 bytes, the checkpoint counts on 220" in damage(0, 11)
    assert "missing" in damage(UNITS_PER_FILE, UNITS_PER_FILE + 1)
    assert "missing" in damage(UNITS_PER_FILE + 7, UNITS_PER_FILE + 7), (
        "a checksum covers what is below the begin"
    )
    assert damage(UNITS_PER_FILE, UNITS_PER_FILE) == damage(2 * BLOCK_UNITS, 2 * BLOCK_UNITS) == ""
    files.close()


def test_the_first_unit_at_or_behind_a_place_in_the_log_is_found(tmp_path: Path) -> None:
    queues, files = queues_in(tmp_path)
    queue = queues.named(*KEY)
    queues.append(queue, some_units(0, 9_000))
    write_out(queues, files)
    for physical, expected in [(0, 0), (1, 1), (100, 1), (850_050, 8_501), (10**9, 9_000)]:
        while isinstance(found := queues.first_at_or_behind(queue, physical), ColdRead):
            queues.admit(found, files.load(found))
        assert found == expected
    files.close()


@pytest.mark.parametrize("count", [10, BLOCK_UNITS, BLOCK_UNITS + 10])
@pytest.mark.parametrize("cold", [False, True])
def test_units_that_were_changed_in_their_file_are_never_believed(
    tmp_path: Path, count: int, cold: bool
) -> None:
    queues, files = queues_in(tmp_path)
    queue = queues.named(*KEY)
    queues.append(queue, some_units(0, count))
    write_out(queues, files)
    sums = QueueSums(*queue.sums.from_block(0))
    path = files.path("orders@1", 0, 0)
    raw = bytearray(path.read_bytes())
    raw[13] ^= 4
    path.write_bytes(raw)
    again = ConsumeQueues(files)
    again.add(ConsumeQueue(KEY, "orders@1", 0, count, sums))
    noticed: list[ConsumeQueueError] = []
    again.on_damage = noticed.append
    with pytest.raises(ConsumeQueueError, match=r"block at byte 0: the checksum.*Move this node's folder "):
        if cold:
            again.admit(ColdRead(KEY, "orders@1", 0, min(count, BLOCK_UNITS)), bytes(raw[: BLOCK_UNITS * 20]))
        again.lookup(*KEY, 0, 5)
    assert [error.path for error in noticed] == [str(path)]


def test_a_file_that_was_cut_short_is_damage_and_not_read_for_ever(tmp_path: Path) -> None:
    queues, files = queues_in(tmp_path)
    queues.append(queues.named(*KEY), some_units(0, BLOCK_UNITS))
    write_out(queues, files)
    queues.named(*KEY)._tail_start = BLOCK_UNITS
    path = files.path("orders@1", 0, 0)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConsumeQueueError, match="shorter than what was written"):
        look_up(queues, files, 0, 5)


@pytest.mark.parametrize("cold", [False, True])
def test_a_file_that_is_gone_is_damage_of_its_block(tmp_path: Path, cold: bool) -> None:
    """Whoever is told can make the block again from the log."""
    queues, files = queues_in(tmp_path)
    queues.append(queues.named(*KEY), some_units(0, 3 * BLOCK_UNITS))
    write_out(queues, files)
    noticed: list[ConsumeQueueError] = []
    queues.on_damage = noticed.append
    files.path("orders@1", 0, 0).unlink()
    read = ColdRead(KEY, "orders@1", 1, BLOCK_UNITS)
    with pytest.raises(ConsumeQueueError, match="the file is gone"):
        if cold:
            with pytest.raises(ConsumeQueueError) as caught:
                files.load(read)
            queues.unreadable(read, caught.value)
        else:
            queues.lookup(*KEY, BLOCK_UNITS + 5, 1)
    assert [error.block for error in noticed] == [(KEY, 1)]


@pytest.mark.parametrize("cold", [False, True])
def test_a_bad_sector_is_damage_of_its_block_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    """Whoever is told can make the block again from the log; else each turn that meets it would fail for ever."""
    queues, files = queues_in(tmp_path)
    queues.append(queues.named(*KEY), some_units(0, 3 * BLOCK_UNITS))
    write_out(queues, files)
    noticed: list[ConsumeQueueError] = []
    queues.on_damage = noticed.append
    code = errno.EIO

    def read(file: RealFile, size: int, offset: int) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(RealFile, "pread", read)
    monkeypatch.setattr(RealFile, "pread_nowait", read)
    asked = ColdRead(KEY, "orders@1", 1, BLOCK_UNITS)
    with pytest.raises(ConsumeQueueError, match="the disk cannot read it"):
        files.load(asked) if cold else queues.lookup(*KEY, BLOCK_UNITS + 5, 1)
    assert cold or [error.block for error in noticed] == [(KEY, 1)]
    code = errno.ENOMEM
    with pytest.raises(OSError, match="memory"):
        files.load(asked) if cold else queues.lookup(*KEY, BLOCK_UNITS + 5, 1)


def test_a_file_that_went_with_its_messages_is_no_damage(tmp_path: Path) -> None:
    queues, _ = queues_in(tmp_path)
    queue = queues.named(*KEY)
    queues.append(queue, some_units(0, 3 * BLOCK_UNITS))
    queue.begin = BLOCK_UNITS
    gone = ConsumeQueueError("x", "the file is gone")
    noticed: list[ConsumeQueueError] = []
    queues.on_damage = noticed.append
    queues.unreadable(ColdRead(KEY, "orders@1", 0), gone)
    assert noticed == []
    with pytest.raises(ConsumeQueueError, match="the file is gone"):
        queues.unreadable(ColdRead(KEY, "orders@1", 1), gone)
    assert [error.block for error in noticed] == [(KEY, 1)]
    queues.remove_topic(1, 1)
    queues.unreadable(ColdRead(KEY, "orders@1", 1), gone)
    assert len(noticed) == 1


def test_a_part_of_a_block_is_checked_together_with_the_tail_in_memory(tmp_path: Path) -> None:
    queues, files = queues_in(tmp_path)
    queue = queues.named(*KEY)
    queues.append(queue, some_units(0, 900))
    write_out(queues, files)
    queue._tail, queue._tail_start = queue.tail(900, 900).copy(), 900
    queues.append(queue, some_units(900, 300))
    assert look_up(queues, files, 0, 1200).tolist() == some_units(0, 1200).tolist()
