"""Records stored twice in their files: they survive any flipped bit, bad sector or power cut."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from ledgermq.proto.errors import CorruptError, NewerFormatError
from ledgermq.raft.disk.checked_file import keep_record, read_record, write_record
from tests.power_cut import Keep

from ..simulated_disk import SimulatedDisk, crashes

PATH = Path("/data/identity")
FIELDS: dict[str, object] = {"node_id": "n1", "members": {"n1": 7, "n2": 9}}
BLOCK = 4096


def disk_with(fields: dict[str, object], *, twice: bool = True, version: int = 4) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(PATH.parent)
    write_record(disk, PATH, "identity", version, fields, twice=twice)
    return disk


def read(disk: SimulatedDisk) -> dict[str, object]:
    return read_record(disk, PATH, "identity", 4)


def test_a_flipped_bit_anywhere_takes_nothing() -> None:
    disk, choose = disk_with(FIELDS), random.Random(1)
    size = len(disk.names[PATH].current)
    assert size == 2 * BLOCK
    for position in range(size):
        mask = 1 << choose.randrange(8)
        disk.flip(PATH, position, mask)
        assert read(disk) == FIELDS, (position, mask)
        disk.flip(PATH, position, mask)


def test_a_block_that_cannot_be_read_or_is_cut_off_takes_nothing() -> None:
    for at in (0, BLOCK - 1, BLOCK, 2 * BLOCK - 1):
        disk = disk_with(FIELDS)
        disk.names[PATH].unreadable = at
        assert read(disk) == FIELDS
    for size in (BLOCK, BLOCK + 1, 2 * BLOCK - 1):
        disk = disk_with(FIELDS)
        del disk.names[PATH].current[size:]
        assert read(disk) == FIELDS


def test_large_records_stand_twice_too_and_a_single_one_may_be_as_long() -> None:
    fields: dict[str, object] = {"text": "x" * 9000}
    disk = disk_with(fields)
    assert len(disk.names[PATH].current) == 6 * BLOCK
    disk.flip(PATH, 5000)
    assert read(disk) == fields
    length = 2 * BLOCK - len(disk_with({"text": ""}, twice=False).names[PATH].current)
    single = disk_with({"text": "x" * length}, twice=False)
    assert len(single.names[PATH].current) == 2 * BLOCK
    assert read(single) == {"text": "x" * length}


def test_damage_of_both_copies_and_a_newer_version_are_told_apart() -> None:
    disk = disk_with(FIELDS)
    disk.flip(PATH, 60)
    disk.flip(PATH, BLOCK + 60)
    with pytest.raises(CorruptError, match="checksum"):
        read(disk)
    with pytest.raises(NewerFormatError):
        read(disk_with(FIELDS, version=5))
    with pytest.raises(NewerFormatError):  # the error of an earlier build
        read_record(disk_with(FIELDS), PATH, "identity", 3)


def test_a_record_that_a_former_build_wrote_or_of_which_one_copy_is_damaged_is_written_twice_again() -> None:
    whole = bytes(disk_with(FIELDS).names[PATH].current)
    damaged = disk_with(FIELDS)
    damaged.flip(PATH, BLOCK + 60)
    unreadable = disk_with(FIELDS)
    unreadable.names[PATH].unreadable = 7
    for disk in (disk_with(FIELDS, twice=False, version=1), damaged, unreadable):
        keep_record(disk, PATH, "identity", 4, read(disk))
        assert bytes(disk.names[PATH].current) == whole
        steps = disk.steps
        keep_record(disk, PATH, "identity", 4, FIELDS)
        assert disk.steps == steps, "nothing is written when it is whole"


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("twice", [True, False])
def test_a_power_cut_at_any_step_leaves_the_old_record_or_the_new_one(keep: Keep, twice: bool) -> None:
    """`twice`: how the old record was stored. So the upgrade from an earlier build is safe too."""
    new: dict[str, object] = {"node_id": "n1", "members": {"n1": 7, "n2": 11}}

    def write(disk: SimulatedDisk) -> None:
        write_record(disk, PATH, "identity", 4, new, twice=True)

    for disk in crashes(partial(disk_with, FIELDS, twice=twice), write, SimulatedDisk.killed):
        for seed in range(8):
            assert read(disk.crash(random.Random(seed), keep)) in (FIELDS, new)
