"""A reset on disk: after any crash the folder is the old one or the new one, and keeps its promises."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.raft.disk.files import File, FileSystem
from ledgermq.raft.errors import DamagedFolderError, DiskFullError
from ledgermq.raft.folder.quarantine import rejoin
from ledgermq.raft.folder.reset_install import ResetPlan, check_space, decide, discard_staging, open_staging
from ledgermq.raft.folder.storage import RaftStorage, is_initialized, open_storage
from ledgermq.raft.log.identity import Manifest
from ledgermq.raft.log.segment_keeper import LogFolders
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term
from tests.power_cut import Keep

from ..log_rig import DATA, SEGMENT, LogRig, storage_config
from ..simulated_disk import PowerCut, SimulatedDisk, crashes, power_back

FOLDERS = LogFolders(DATA)
STATE = bytes(range(256)) * 30
MACHINE = DATA / "machine"
PLAN = ResetPlan(
    term=Term(7),
    base=Manifest(
        first_index=LogIndex(101), first_offset=20 * SEGMENT, prev_term=Term(5), prev_crc=0xABCD,
        prev_timestamp=1_000
    ),
    state_index=LogIndex(110),
    state_size=len(STATE),
)  # fmt: skip


def installer(disk: FileSystem) -> Callable[[Path, ResetPlan], None]:
    """A state machine with its state in one file."""

    def install(staged: Path, plan: ResetPlan) -> None:
        source = disk.open(staged, writable=False)
        raw = source.pread(source.size(), 0)
        assert raw == STATE, "the staged state must be whole whenever it is installed"
        target = disk.open(MACHINE, create=True)
        target.pwritev([raw], 0)
        target.fdatasync()
        disk.sync_directory(DATA)

    return install


def old_folder() -> SimulatedDisk:
    """A voter with forty entries in several segments, a term and a vote."""
    disk = SimulatedDisk()
    rig = LogRig(disk)
    for number in range(40):
        rig.append(b"old %d " % number * 40, term=3)
    rig.persist(HardState(Term(7), NodeId("n2"), LogIndex(12)))
    rig.flusher.step(10)
    rig.storage.close()
    return disk


def stage(disk: SimulatedDisk) -> None:
    file: File = open_staging(disk, FOLDERS)
    for position in range(0, len(STATE), 1000):
        file.pwritev([STATE[position : position + 1000]], position)
    file.fdatasync()
    file.close()


def start(disk: SimulatedDisk) -> RaftStorage:
    return open_storage(storage_config(), disk, installer(disk))


def check_new(disk: SimulatedDisk, storage: RaftStorage) -> None:
    """Check that the folder is the new one: base, empty log, state, and the old promises."""
    log = storage.log
    assert (log.first_index, log.last_index, log.last_term, log.last_crc) == (101, 100, 5, 0xABCD)
    assert (log.first_offset, log.end_offset, log.last_timestamp) == (20 * SEGMENT, 20 * SEGMENT, 1_000)
    assert (storage.hard_state.term, storage.hard_state.voted_for) == (7, "n2")
    assert storage.hard_state.commit_hint == 100
    assert storage.hard_state.is_voter
    assert (storage.recovered.floor_index, storage.recovered.floor_term) == (100, 5)
    machine = disk.open(MACHINE, writable=False)
    assert machine.pread(machine.size(), 0) == STATE
    assert disk.list_directory(DATA / "reset") == []


def check_old(disk: SimulatedDisk, storage: RaftStorage) -> None:
    assert (storage.log.first_index, storage.log.last_index) == (1, 40)
    assert (storage.hard_state.term, storage.hard_state.voted_for) == (7, "n2")
    assert not disk.exists(MACHINE)
    assert disk.list_directory(DATA / "reset") == [], "what is left of an undecided reset is dropped"


def decided(disk: SimulatedDisk | None = None) -> SimulatedDisk:
    """Stage the state and decide to install it, by default in the old folder."""
    disk = disk or old_folder()
    stage(disk)
    decide(disk, FOLDERS, PLAN)
    return disk


@pytest.mark.parametrize("keep", list(Keep))
def test_a_crash_at_any_step_of_the_installation_leaves_a_folder_that_finishes_it(keep: Keep) -> None:
    steps = 0
    for after in crashes(decided, start, power_back(keep)):
        steps += 1
        check_new(after, start(after))
    assert steps > 30


@pytest.mark.parametrize("keep", list(Keep))
def test_a_crash_while_the_state_comes_in_leaves_the_old_folder_until_the_decision_is_durable(
    keep: Keep,
) -> None:
    found = set()
    for after in crashes(old_folder, decided, power_back(keep)):
        storage = start(after)
        is_new = storage.log.first_index == 101
        (check_new if is_new else check_old)(after, storage)
        found.add(is_new)
    assert False in found


@pytest.mark.parametrize("seed", range(40))
def test_repeated_crashes_end_in_the_new_folder(seed: int) -> None:
    rng = random.Random(seed)
    disk = decided()
    for _ in range(rng.randint(1, 5)):
        disk.cut_power_at(disk.steps + rng.randint(1, 40))
        try:
            storage = start(disk)
        except PowerCut:
            disk = disk.crash(rng, rng.choice(list(Keep)))
            continue
        check_new(disk, storage)
        disk = disk.crash(rng, rng.choice(list(Keep)))
    disk.on_step = None
    check_new(disk, start(disk))


def acknowledge(disk: SimulatedDisk, count: int) -> None:
    """Finish pending work, then store entries durably after it."""
    start(disk).close(clean=False)
    rig = LogRig(disk)
    for number in range(count):
        rig.append(b"new %d " % number * 30, term=7)
    rig.persist()
    rig.flusher.step(10)


@pytest.mark.parametrize("keep", list(Keep))
def test_what_is_acknowledged_after_a_reset_is_never_wiped_by_it(keep: Keep) -> None:
    """The installation must not be repeated once the new log may grow."""
    disk = decided()
    acknowledge(disk, 30)
    after = disk.crash(random.Random(1), keep)
    storage = start(after)
    assert (storage.log.first_index, storage.log.last_index, storage.log.last_term) == (101, 130, 7)
    assert storage.log.first_offset == 20 * SEGMENT


@pytest.mark.parametrize("keep", list(Keep))
def test_what_is_acknowledged_after_a_killed_installation_is_never_wiped_by_it(keep: Keep) -> None:
    """The successor of the killed process sees no marker. Only the disk may still have it."""
    for disk in crashes(decided, start, SimulatedDisk.killed):
        acknowledge(disk, 3)
        storage = start(disk.crash(random.Random(disk.steps), keep))
        assert (storage.log.first_index, storage.log.last_index) == (101, 103)


def killed_while_deciding(left: int) -> SimulatedDisk:
    """Return what the next process finds if `left` of the last operations of a decision were not done."""

    def staged() -> SimulatedDisk:
        disk = old_folder()
        stage(disk)
        return disk

    return list(crashes(staged, lambda disk: decide(disk, FOLDERS, PLAN), SimulatedDisk.killed))[-1 - left]


@pytest.mark.parametrize("keep", list(Keep))
def test_a_decision_that_a_killed_process_left_is_durable_before_it_is_carried_out(keep: Keep) -> None:
    """Its successor sees the marker and deletes the old log.

    If the marker were lost then, that would be damage.
    """
    for last_step in range(4):
        power_cuts = 0
        for after in crashes(partial(killed_while_deciding, last_step), start, power_back(keep)):
            power_cuts += 1
            storage = start(after)
            (check_old if storage.log.first_index == 1 else check_new)(after, storage)
        assert power_cuts > 5


def test_the_new_log_takes_truncations_and_survives_them() -> None:
    disk = decided()
    start(disk).close(clean=True)
    rig = LogRig(disk)
    for number in range(12):
        rig.append(b"new %d " % number * 30, term=7)
    rig.persist()
    rig.flusher.step(10)
    rig.log.truncate_from(LogIndex(101))
    rig.persist()
    rig.flusher.step(10)
    after = disk.crash(random.Random(1), Keep.NONE)
    storage = start(after)
    assert (storage.log.first_index, storage.log.last_index, storage.log.last_crc) == (101, 100, 0xABCD)


def test_a_term_that_was_not_durable_yet_is_raised_and_its_vote_is_free() -> None:
    """The core had entered the leader's term and had sent nothing in it before it fell silent."""
    disk = SimulatedDisk()
    rig = LogRig(disk)
    rig.append(b"one", term=2)
    rig.persist(HardState(Term(2), NodeId("n3"), LogIndex(0), is_voter=False))
    rig.flusher.step(10)
    rig.storage.close()
    decided(disk)
    storage = start(disk)
    assert storage.hard_state == HardState(Term(7), None, LogIndex(100), is_voter=False)


def test_an_acknowledged_floor_above_the_base_does_not_stop_the_start() -> None:
    """Forty acknowledged entries that diverge from the leader's log before its base at 10."""
    disk = old_folder()
    stage(disk)
    base = Manifest(
        first_index=LogIndex(11), first_offset=2 * SEGMENT, prev_term=Term(5), prev_crc=1, prev_timestamp=1
    )
    decide(
        disk,
        FOLDERS,
        ResetPlan(term=Term(7), base=base, state_index=LogIndex(10), state_size=len(STATE)),
    )
    storage = start(disk)
    assert (storage.log.first_index, storage.log.last_index) == (11, 10)


def test_a_damaged_marker_is_refused_and_nothing_is_changed() -> None:
    disk = decided()
    disk.flip(DATA / "reset" / "marker", 40)
    before = disk.contents()
    with pytest.raises(DamagedFolderError, match="rejoin"):
        start(disk)
    assert disk.contents() == before
    moved = rejoin(storage_config(), disk)
    assert moved is not None
    assert open_storage(storage_config(), disk).log.last_index == 0


def test_a_tool_that_knows_no_state_machine_does_not_open_a_half_installed_folder() -> None:
    disk = decided()
    with pytest.raises(DamagedFolderError, match="ledgermq broker"):
        open_storage(storage_config(), disk)
    assert is_initialized(DATA, disk, "n1")
    check_new(disk, start(disk))


def test_a_full_disk_stops_the_installation_with_a_sentence_and_it_goes_on_with_room() -> None:
    disk = decided()
    room = disk.capacity
    disk.capacity = 8 * SEGMENT  # not enough, even with the old log's space
    with pytest.raises(DiskFullError, match="Free space"):
        start(disk)
    disk.capacity = room
    check_new(disk, start(disk))


def test_a_state_that_does_not_fit_is_not_even_fetched() -> None:
    disk = old_folder()
    check_space(disk, FOLDERS, SEGMENT, PLAN)
    disk.capacity = disk.used + 4096
    with pytest.raises(DiskFullError, match="cannot catch up"):
        check_space(disk, FOLDERS, SEGMENT, PLAN)


def test_a_new_attempt_starts_with_an_empty_file() -> None:
    disk = old_folder()
    stage(disk)
    file = open_staging(disk, FOLDERS)
    assert file.size() == 0
    discard_staging(disk, FOLDERS)
    check_old(disk, start(disk))


def test_entries_that_come_from_before_the_base_are_skipped_and_the_rest_continues_the_chain() -> None:
    """The next leader's log begins earlier, and it sends from there."""
    source = LogRig(SimulatedDisk())
    for number in range(60):
        source.append(b"entry %d " % number * 30, term=3)
    source.flush()
    starts = [segment.first_index for segment in source.log.segments()]
    first = starts[2]
    wire = asyncio.run(source.log.read_wire(LogIndex(first - 3), LogIndex(first - 1), 1 << 20))
    rest = asyncio.run(source.log.read_wire(first, LogIndex(first + 4), 1 << 20))
    source.log.delete_segments_before(first)
    disk = old_folder()
    stage(disk)
    decide(
        disk,
        FOLDERS,
        ResetPlan(term=Term(3), base=source.log.base, state_index=first, state_size=len(STATE)),
    )
    start(disk).close(clean=True)
    rig = LogRig(disk)
    batch = rig.log.check_wire(wire + rest, Term(0))
    assert batch.first_index == first - 3
    rig.log.stage_wire(batch, first)
    rig.flush()
    assert (rig.log.first_index, rig.log.last_index) == (first, batch.last_index)
    assert rig.log.last_index > first
    again = open_storage(storage_config(), disk.crash(random.Random(1), Keep.NONE))
    stored = asyncio.run(again.log.read_wire(first, batch.last_index, 1 << 20))
    assert stored
    assert rest.endswith(stored), "all but the filler in front, which belongs to the segment that is gone"
    assert len(rest) - len(stored) <= HEADER_SIZE
