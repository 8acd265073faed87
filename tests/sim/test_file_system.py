"""Simulated disk and the parser of its images: what a power cut keeps, and when."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from ledgermq.proto.entry import EntryKind, decode_header, encode_entry
from ledgermq.raft.disk.checked_file import write_record
from ledgermq.raft.disk.page_writer import PAGE
from ledgermq.raft.log.identity import Manifest, write_manifest
from ledgermq.raft.types import LogIndex, Term
from tests.power_cut import Keep

from .disk_image import DiskImage
from .file_system import FailedSync, SimFileSystem, SimulationError

FOLDER = Path("/data/n1/commitlog")
PATH = FOLDER / f"{0:020d}"
SIZE = PAGE


class Clock:
    """Microseconds, advanced by hand."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def disk(seed: int = 1) -> tuple[SimFileSystem, Clock]:
    clock = Clock()
    files = SimFileSystem(random.Random(seed), clock)
    files.make_directory(FOLDER)
    file = files.open(PATH, create=True)
    file.pwritev([bytes(SIZE)], 0)
    file.fdatasync()
    files.sync_directory(FOLDER)
    files.finish()
    clock.now = files.busy_until
    return files, clock


def durable(files: SimFileSystem) -> bytes:
    return bytes(files.durable_names[PATH].durable)


def test_process_sees_a_write_at_once_and_the_disk_when_its_time_has_come() -> None:
    files, clock = disk()
    file = files.open(PATH)
    file.pwritev([b"x" * 100], 0)
    assert file.pread(3, 0) == b"xxx"
    file.fdatasync()
    files.advance()
    assert durable(files)[:1] == b"\0"
    clock.now = files.busy_until
    files.advance()
    assert durable(files)[:100] == b"x" * 100


def test_crash_undoes_what_had_not_happened_yet() -> None:
    files, clock = disk()
    file = files.open(PATH)
    file.pwritev([b"x" * 100], 0)
    clock.now = files.busy_until
    file.pwritev([b"y" * 100], 0)
    files.rng = random.Random(2)
    before = clock.now
    files.crash(None)
    assert clock.now == before
    assert files.open(PATH).pread(100, 0) == b"x" * 100


@pytest.mark.parametrize("keep", list(Keep))
def test_power_cut_keeps_flushed_bytes_and_some_of_the_rest(keep: Keep) -> None:
    kept = set()
    for seed in range(60):
        files, clock = disk(seed)
        files.block = 512
        file = files.open(PATH)
        file.pwritev([b"a" * 512], 0)
        file.fdatasync()
        file.pwritev([b"b" * 1024], 1024)
        clock.now = files.busy_until
        files.crash(keep)
        found = files.open(PATH).pread(SIZE, 0)
        assert found == durable(files)
        assert found[:512] == b"a" * 512
        kept.add(found.count(b"b"))
    if keep is Keep.NONE:
        assert kept == {0}
    elif keep is Keep.ALL:
        assert kept == {1024}
    else:
        assert {0, 512, 1024} < kept  # and torn ones


def test_failed_sync_may_leave_pages_that_only_the_cache_has() -> None:
    files, clock = disk()
    file = files.open(PATH)
    files.fail_sync = FailedSync.KEEP
    file.pwritev([b"x" * SIZE], 0)
    with pytest.raises(OSError, match=str(errno.EIO)):
        file.fdatasync()
    with pytest.raises(SimulationError, match="P15"):
        file.fdatasync()
    clock.now = files.busy_until
    files.crash(None)
    again = files.open(PATH)
    again.fdatasync()
    clock.now = files.busy_until
    assert again.pread(SIZE, 0) == b"x" * SIZE
    files.crash(Keep.ALL)
    assert files.open(PATH).pread(SIZE, 0) == durable(files) != b"x" * SIZE


def test_failed_sync_takes_no_page_of_what_went_past_the_page_cache() -> None:
    files, clock = disk()
    file, page = files.open(PATH), b"y" * PAGE
    file.write_past_cache(memoryview(page), SIZE)
    files.fail_sync = FailedSync.DROP
    with pytest.raises(OSError, match="Input/output error"):
        file.fdatasync()
    clock.now = files.busy_until
    files.crash(None)
    again = files.open(PATH)
    assert again.pread(PAGE, SIZE) == page
    again.fdatasync()
    clock.now = files.busy_until
    files.crash(Keep.NONE)
    assert files.open(PATH).pread(PAGE, SIZE) == page, "the next flush of the drive takes it along"


@pytest.mark.parametrize(
    ("keep", "is_moved"), [(Keep.NONE, {False}), (Keep.ANY, {False, True}), (Keep.ALL, {True})]
)
def test_power_cut_takes_back_the_move_of_a_folder_that_was_not_synced(
    keep: Keep, is_moved: set[bool]
) -> None:
    aside = FOLDER.parent / "aside"
    found = set()
    for seed in range(20):
        files, clock = disk(seed)
        files.make_directory(aside)
        files.rename(FOLDER, aside / "commitlog")
        files.sync_directory(aside)  # where it was is not
        clock.now = files.busy_until  # the folder that it left is not
        files.crash(keep)
        moved, back = aside / "commitlog" / PATH.name, PATH
        assert files.exists(moved) != files.exists(back)
        assert files.exists(moved.parent) == files.exists(moved) and files.exists(FOLDER) == files.exists(
            back
        )
        found.add(files.exists(moved))
    assert found == is_moved


def test_move_of_a_folder_stays_when_both_names_are_synced() -> None:
    aside = FOLDER.parent / "aside"
    files, clock = disk()
    files.rename(FOLDER, aside)
    files.sync_directory(FOLDER.parent)
    clock.now = files.busy_until
    files.crash(Keep.NONE)
    assert files.exists(aside / PATH.name) and not files.exists(PATH)


@pytest.mark.parametrize("seed", range(20))
def test_file_that_was_moved_to_another_folder_is_in_one_of_them_at_least(seed: int) -> None:
    aside = FOLDER.parent / "aside"
    files, clock = disk(seed)
    files.make_directory(aside)
    files.rename(PATH, aside / PATH.name)
    clock.now = files.busy_until
    files.crash(Keep.ANY)
    assert files.exists(PATH) or files.exists(aside / PATH.name)


def test_file_whose_folder_was_not_synced_may_be_gone() -> None:
    files, clock = disk()
    files.open(FOLDER / "new", create=True)
    clock.now = files.busy_until
    files.crash(Keep.NONE)
    assert files.list_directory(FOLDER) == [PATH.name]


def test_image_holds_whole_entries_and_forgets_what_is_overwritten() -> None:
    files, clock = disk()
    write_manifest(files, FOLDER.parent / "manifest", Manifest())
    clock.now = files.busy_until
    image = DiskImage(files, FOLDER.parent, SIZE)
    file = files.open(PATH)

    def write(index: int, offset: int, prev_crc: int, payload: bytes) -> tuple[int, int]:
        entry = encode_entry(
            EntryKind.RECORDS, [payload], section_count=1, index=index, term=1, physical_offset=offset,
            timestamp=1, prev_crc=prev_crc,
        )  # fmt: skip
        file.pwritev([entry], offset)
        file.fdatasync()
        clock.now = files.busy_until
        return decode_header(entry).crc, offset + len(entry)

    first, end = write(1, 0, 0, b"one")
    second, _ = write(2, end, first, b"two")
    assert (image.crc(1), image.crc(2), image.last) == (first, second, 2)
    other, _ = write(2, end, first, b"another")
    assert other != second and image.crc(2) == other
    write(3, 1000, other, b"behind a gap")
    assert image.last == 2
    write(2, end, 77, b"does not chain")
    assert image.last == 1 and image.crc(2) is None


def test_image_begins_behind_the_base_of_the_manifest_and_gives_up_a_log_that_is_being_reset() -> None:
    files, clock = disk()
    image = DiskImage(files, FOLDER.parent, SIZE)
    assert (image.base, image.last) == (0, 0), "nothing is known without a manifest"
    base = Manifest(first_index=LogIndex(8), first_offset=0, prev_term=Term(1), prev_crc=77, prev_timestamp=1)
    write_manifest(files, FOLDER.parent / "manifest", base)
    entry = encode_entry(
        EntryKind.RECORDS, [b"x"], section_count=1, index=8, term=1, physical_offset=0, timestamp=1,
        prev_crc=77,
    )  # fmt: skip
    file = files.open(PATH)
    file.pwritev([entry], 0)
    file.fdatasync()
    clock.now = files.busy_until
    assert (image.base, image.last, image.crc(8)) == (7, 8, decode_header(entry).crc)
    write_record(files, FOLDER.parent / "reset" / "marker", "reset", 1, {"first_index": 30})
    assert image.last == 8, "the decision is not durable yet"
    clock.now = files.busy_until
    assert (image.base, image.last, image.crc(8), image.known()) == (29, 29, None, {})
