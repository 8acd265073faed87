"""What a start finds after a process that died of its disk, or was killed: what it sees need not be on the disk.

The simulator found these: each was a log that a node called durable after a restart, and the next power cut took.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from ledgermq.raft.errors import DamagedFolderError, DamagedLogError
from ledgermq.raft.hard_state import BLOCK, HardStateFile
from ledgermq.raft.segment import mark_position
from ledgermq.raft.storage import open_storage, rejoin

from .log_rig import DATA, SEGMENT, LogRig, reopen, storage_config
from .simulated_disk import Keep, PowerCut, SimulatedDisk
from .test_recovery import fail, filled


def segment_file(start: int) -> Path:
    return DATA / "commitlog" / f"{start:020d}"


@pytest.mark.parametrize("sizes", [(300,), (900, 900, 900, 900, 900)])
def test_what_a_failed_fsync_left_in_the_page_cache_is_written_again(sizes: tuple[int, ...]) -> None:
    """The kernel calls the pages clean: an fsync after the restart would write nothing and succeed."""
    rig = filled(3)
    disk = rig.disk
    disk.keeps_failed_pages = True
    for size in sizes:
        rig.append(bytes(size))
    disk.on_step = fail("fdatasync", "commitlog", errno.EIO)
    rig.persist()
    with pytest.raises(OSError, match="injected"):
        rig.flusher.step()
    disk.on_step = None
    restarted = reopen(disk.killed(), rig)
    found = restarted.log.last_index
    after = reopen(restarted.disk.crash(random.Random(1), Keep.NONE), rig)
    assert after.log.last_index == found >= 3
    assert after.read_all() == rig.entries[:found]


def test_name_of_a_segment_that_a_killed_process_left_is_made_durable() -> None:
    """Its successor sees the new segment and uses it; the folder was never synced."""
    rig = filled(2)

    def die(step: int, operation: str, path: Path) -> None:
        if operation == "sync_directory" and path.name == "commitlog":
            raise PowerCut

    while not rig.disk.exists(segment_file(SEGMENT)):
        rig.append(bytes(700))
        rig.persist()
        rig.flusher.step()
        rig.disk.on_step = die
        try:
            rig.storage.run_background()
        except PowerCut:
            break
        rig.disk.on_step = None
    rig.disk.on_step = None
    assert segment_file(SEGMENT) in rig.disk.names and segment_file(SEGMENT) not in rig.disk.durable_names
    restarted = reopen(rig.disk.killed(), rig)
    restarted.entries = list(rig.entries)
    while restarted.log.end_offset < SEGMENT + 100:
        restarted.append(bytes(700))
        restarted.flush()
    after = reopen(restarted.disk.crash(random.Random(1), Keep.NONE), rig)
    assert after.read_all() == restarted.entries


def test_unreadable_sector_of_the_log_is_damage_and_named() -> None:
    rig = filled(10)
    disk = rig.disk.killed()
    for position in (70, mark_position(0, SEGMENT)):
        disk.names[segment_file(0)].unreadable = position
        with pytest.raises(DamagedLogError, match="cannot be read"):
            open_storage(storage_config(), disk)


@pytest.mark.parametrize("name", ["identity", "manifest"])
def test_unreadable_record_is_damage_and_named(name: str) -> None:
    rig = filled(2)
    disk = rig.disk.killed()
    disk.names[DATA / name].unreadable = 5
    with pytest.raises(DamagedFolderError, match=r"cannot be read.*--rejoin"):
        open_storage(storage_config(), disk)


def test_unreadable_sector_of_the_hard_state_is_what_its_copies_are_for() -> None:
    rig = filled(2)
    disk = rig.disk.killed()
    state = HardStateFile.open(disk, DATA / "hardstate").state
    for block in range(4):
        disk.names[DATA / "hardstate"].unreadable = block * BLOCK + 7
        assert HardStateFile.open(disk, DATA / "hardstate").state == state


@pytest.mark.parametrize("name", ["identity", "hardstate", f"commitlog/{0:020d}"])
def test_node_with_an_unreadable_sector_can_rejoin(name: str) -> None:
    rig = filled(10)
    disk = rig.disk.killed()
    disk.names[DATA / name].unreadable = 5
    assert rejoin(storage_config(), disk) is not None
    assert LogRig(disk).log.last_index == 0


def test_unreadable_index_file_is_rebuilt() -> None:
    rig = filled(40)
    rig.close()
    disk: SimulatedDisk = rig.disk.killed()
    disk.names[DATA / "entryindex" / f"{0:020d}"].unreadable = 5
    assert reopen(disk, rig).read_all() == rig.entries
