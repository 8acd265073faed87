"""Starts after a process died of its disk, or was killed: what it sees need not be on the disk.

The simulator found these cases: each log was called durable after a restart, and lost by the next power cut.
"""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.proto.entry import EntryKind
from ledgermq.raft.errors import DamagedLogError
from ledgermq.raft.folder.opening import is_learner
from ledgermq.raft.folder.quarantine import rejoin
from ledgermq.raft.folder.storage import Machine, create_data_folder, open_storage
from ledgermq.raft.log.hard_state import BLOCK, HardStateFile
from ledgermq.raft.log.segment import mark_position
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term
from tests.power_cut import Keep

from ..log_rig import DATA, SEGMENT, LogRig, reopen, storage_config
from ..simulated_disk import PowerCut, SimulatedDisk
from .test_recovery import filled


def segment_file(start: int) -> Path:
    return DATA / "commitlog" / f"{start:020d}"


@pytest.mark.parametrize("sizes", [(300,), (900, 900, 900, 900, 900)])
def test_what_a_failed_fsync_left_in_the_page_cache_is_written_again(sizes: tuple[int, ...]) -> None:
    """The kernel marks the pages clean. An fsync after the restart would write nothing and succeed."""
    rig = filled(3)
    disk = rig.disk
    disk.keeps_failed_pages = True
    for size in sizes:
        rig.append(bytes(size))
    disk.fail("fdatasync", "commitlog")
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
    """Its successor sees the new segment and uses it, but the folder was never synced."""
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
    disk.names[segment_file(0)].unreadable = 70
    with pytest.raises(DamagedLogError, match="damaged at byte 0") as refusal:
        open_storage(storage_config(), disk)
    assert refusal.value.damage is not None  # where a repair begins
    # An older turn's; the latest one counts.
    disk.names[segment_file(0)].unreadable = mark_position(0, SEGMENT)
    assert reopen(disk, rig).read_all() == rig.entries


@pytest.mark.parametrize("name", ["identity", "manifest"])
def test_unreadable_sector_of_a_record_is_what_its_second_copy_is_for(name: str) -> None:
    for at in (5, 4096 + 5):
        rig = filled(2)
        disk = rig.disk.killed()
        before = bytes(disk.names[DATA / name].current)
        disk.names[DATA / name].unreadable = at
        open_storage(storage_config(), disk).close()
        assert disk.names[DATA / name].unreadable == -1, "it was written again, to other sectors"
        assert bytes(disk.names[DATA / name].current) == before


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


def test_node_whose_asynchronous_sync_failed_does_not_vote_before_it_caught_up() -> None:
    """The kernel dropped acknowledged entries from the page cache, and no reboot reveals it (D7)."""
    disk = SimulatedDisk()
    rig = LogRig(disk, flush="async_timed", learner_after_reboot=True)
    rig.append(b"kept")
    rig.flush()
    rig.flusher.sync()
    rig.append(b"acknowledged, and gone")
    rig.flush()
    disk.fail("fdatasync", "commitlog")
    with pytest.raises(OSError, match="injected"):
        rig.flusher.sync(others_write=True)
    disk.on_step = None
    rig.storage.note_failure()
    after = open_storage(rig.config, disk.killed())
    assert after.log.last_index == 1
    assert not after.hard_state.is_voter
    after.close()


def test_thread_that_fails_in_asynchronous_mode_marks_the_node_as_a_learner() -> None:
    disk = SimulatedDisk()
    config = replace(storage_config(flush="async_notify"), learner_after_reboot=True)
    create_data_folder(config, disk)
    storage = open_storage(config, disk)
    failed = threading.Event()
    storage.start(
        lambda call: call(),
        on_durable=lambda seq: None,
        on_failed=lambda error: failed.set(),
        on_disk_full=lambda full: None,
    )
    disk.fail("fdatasync", "commitlog")
    storage.log.stage_entry(EntryKind.NOOP, [], section_count=0, index=LogIndex(1), term=Term(1), timestamp=1)
    storage.log.persist(1)
    assert failed.wait(60)
    storage.close(clean=False)  # waits for the threads
    after = open_storage(config, disk.killed())
    assert not after.hard_state.is_voter
    after.close()


def test_a_vote_that_was_given_up_does_not_come_back_with_an_operation_that_was_under_way() -> None:
    """The writer may have taken an operation with a hard state just before the syncer failed."""
    rig = LogRig(SimulatedDisk(), flush="async_timed", learner_after_reboot=True)
    rig.persist(HardState(Term(4), NodeId("n1"), is_voter=True))
    rig.storage.note_failure()
    rig.flusher.step()
    after = open_storage(rig.config, rig.disk.killed())
    assert not after.hard_state.is_voter
    after.close()


class Booted(Machine):
    """A machine in one of its boots."""

    def __init__(self, boot: int) -> None:
        self._boot = boot

    def boot_id(self) -> str:
        return f"00000000-0000-0000-0000-{self._boot:012d}"


def test_a_new_member_in_an_asynchronous_mode_is_still_new_after_a_power_cut() -> None:
    """It promised nothing.

    As learners, the nodes of a broker group that lost power while it formed would never elect.
    """
    disk = SimulatedDisk()
    config = replace(storage_config(flush="async_timed"), learner_after_reboot=True, machine=Booted(1))
    create_data_folder(config, disk, is_voter=False)
    first = open_storage(config, disk)
    again = open_storage(replace(config, machine=Booted(2)), disk.crash(random.Random(1), Keep.NONE))
    assert again.recovered.rebooted_unclean
    assert again.incarnation == first.incarnation  # by which the others know it
    assert not again.hard_state.is_voter and not is_learner(again)
