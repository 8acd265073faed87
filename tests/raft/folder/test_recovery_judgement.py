"""Recovery's judgement of each kind of log end, case by case: a torn turn is cut off, damage is refused.

`test_recovery.py` runs random histories. Here each line of the decision (rule P18) has its own case.
"""

from __future__ import annotations

import random

import pytest

from ledgermq.proto.entry import EntryHeader, EntryKind, encode_entry
from ledgermq.raft.damage import RepairNote
from ledgermq.raft.errors import DamagedLogError
from ledgermq.raft.log.repair_note import write_note
from ledgermq.raft.log.segment import MARK_BLOCK, TRAILER_SIZE
from ledgermq.raft.types import LogIndex
from tests.power_cut import Keep

from ..log_rig import DATA, SEGMENT, LogRig, reopen
from ..simulated_disk import SimulatedDisk

FIRST_SEGMENT = DATA / "commitlog" / f"{0:020d}"


def turns(*counts: int, size: int = 100) -> LogRig:
    """Write that many entries per flush turn. By default they fit the first segment. Nothing stores the
    floor.
    """
    rig = LogRig(SimulatedDisk(), cache_bytes=1 << 16)
    for count in counts:
        for _ in range(count):
            rig.append(bytes([rig.log.last_index % 256]) * size)
        rig.persist()
        rig.flusher.step()
    return rig


def entry(rig: LogRig, index: int) -> EntryHeader:
    header = rig.log.header_nowait(LogIndex(index))
    assert header is not None
    return header


def damage(disk: SimulatedDisk, header: EntryHeader) -> None:
    disk.flip(FIRST_SEGMENT, header.physical_offset + header.size - 16)


def flip_newest_mark(disk: SimulatedDisk, rig: LogRig) -> None:
    """Make the mark of the last turn unreadable. The mark of the turn before stays."""
    inode = disk.names[FIRST_SEGMENT]
    blocks = [
        bytes(inode.current[SEGMENT + b * MARK_BLOCK : SEGMENT + b * MARK_BLOCK + 64]) for b in range(2)
    ]
    newest = max(range(2), key=lambda block: int.from_bytes(blocks[block][16:24], "little"))
    disk.flip(FIRST_SEGMENT, SEGMENT + newest * MARK_BLOCK + 20)


def test_damage_in_the_last_turn_is_torn() -> None:
    rig = turns(2, 3)
    disk = rig.disk.killed()
    damage(disk, entry(rig, 4))
    assert reopen(disk, rig).log.last_index == 3


def test_damage_before_the_last_turn_is_refused() -> None:
    rig = turns(2, 3)
    disk = rig.disk.killed()
    damage(disk, entry(rig, 2))
    with pytest.raises(DamagedLogError, match="on stable storage"):
        reopen(disk, rig)


def test_damage_in_a_turn_is_refused_when_a_later_turn_wrote_behind_it() -> None:
    """The later turn's mark is unreadable, so the earlier turn seems to be the last.

    Its entries show otherwise.
    """
    rig = turns(2, 3, 2)
    disk = rig.disk.killed()
    flip_newest_mark(disk, rig)
    damage(disk, entry(rig, 4))
    with pytest.raises(DamagedLogError, match="a valid entry follows") as caught:
        reopen(disk, rig)
    assert caught.value.offset == entry(rig, 4).physical_offset


def test_damage_is_refused_when_both_marks_are_unreadable_and_a_valid_entry_follows() -> None:
    rig = turns(2, 3, 2)
    disk = rig.disk.killed()
    for block in range(2):
        disk.flip(FIRST_SEGMENT, SEGMENT + block * MARK_BLOCK + 20)
    damage(disk, entry(rig, 6))
    with pytest.raises(DamagedLogError, match="a valid entry follows"):
        reopen(disk, rig)


def test_what_follows_the_log_is_never_cut_when_both_marks_are_unreadable() -> None:
    """No power cut destroys both. Only damage does, and then it is unknown which turns were acknowledged."""
    rig = turns(2, 3, 2)
    disk = rig.disk.killed()
    for block in range(2):
        disk.flip(FIRST_SEGMENT, SEGMENT + block * MARK_BLOCK + 20)
    whole = disk.crash(random.Random(1), Keep.ALL)
    damage(disk, entry(rig, 7))
    before = bytes(disk.names[FIRST_SEGMENT].current)
    with pytest.raises(DamagedLogError, match="both flush marks") as caught:
        reopen(disk, rig)
    assert caught.value.damage is not None and caught.value.damage.note.open_ended
    assert bytes(disk.names[FIRST_SEGMENT].current) == before
    assert reopen(whole, rig).log.last_index == 7, "a log that ends in zeros is believed"


def test_a_log_that_ends_below_what_was_acknowledged_is_refused() -> None:
    rig = turns(2, 3)
    rig.flusher.sync()  # stores the floor: entry 5
    disk = rig.disk.killed()
    damage(disk, entry(rig, 5))
    with pytest.raises(DamagedLogError, match="entry 5 was acknowledged"):
        reopen(disk, rig)


def test_entries_in_a_later_segment_make_a_gap_damage() -> None:
    """Also if no flush mark is readable, which alone would show that the bytes before were durable."""
    rig = turns(*[1] * 12, size=600)
    first, *later = rig.log.segments()
    header = entry(rig, first.last_index)
    disk = rig.disk.killed()
    for segment in (first, *later):
        path = DATA / "commitlog" / f"{segment.start_offset:020d}"
        disk.names[path].current[SEGMENT:] = bytes(TRAILER_SIZE)
    disk.names[FIRST_SEGMENT].current[header.physical_offset : SEGMENT] = bytes(
        SEGMENT - header.physical_offset
    )
    with pytest.raises(DamagedLogError, match="valid entries follow in the next file"):
        reopen(disk, rig)


def test_a_log_that_an_interrupted_repair_left_short_is_refused() -> None:
    rig = turns(2, 3)
    end = rig.log.end_offset
    disk = rig.disk.killed()
    write_note(disk, DATA, RepairNote(must_reach=end + 200, reach_index=7, open_ended=False))
    with pytest.raises(DamagedLogError, match="a repair was interrupted"):
        reopen(disk, rig)


def test_after_a_crash_an_index_file_above_the_floor_is_not_believed() -> None:
    """It has the first and the last entry of its segment. The entries between them were never compared."""
    rig = turns(*[1] * 12, size=600)
    rig.storage.run_background()
    disk = rig.disk.killed()
    assert rig.storage.hard_state.commit_hint == 0
    damage(disk, entry(rig, 3))
    with pytest.raises(DamagedLogError) as caught:
        reopen(disk, rig)
    assert caught.value.offset == entry(rig, 3).physical_offset


def test_a_whole_entry_of_another_history_behind_the_end_is_cut_off() -> None:
    """Place, index and term would match. Only the chain shows that it continues another entry."""
    rig = turns(2, 3)
    last = entry(rig, 5)
    stale = encode_entry(
        EntryKind.RECORDS,
        [b"of another history"],
        section_count=1,
        index=6,
        term=last.term,
        physical_offset=last.end,
        timestamp=last.timestamp,
        prev_crc=last.crc ^ 1,
    )
    disk = rig.disk.killed()
    disk.names[FIRST_SEGMENT].current[last.end : last.end + len(stale)] = stale
    after = reopen(disk, rig)
    assert after.log.last_index == 5
    assert after.storage.recovered.truncated_bytes > 0
    assert disk.names[FIRST_SEGMENT].durable[last.end : SEGMENT].count(0) == SEGMENT - last.end
