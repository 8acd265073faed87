"""CommitLog against a list: staging, wire form, truncation, retention, reads."""

from __future__ import annotations

import asyncio
import random
from array import array

import pytest

from ledgermq.proto.entry import HEADER_SIZE, EntryKind, decode_header, entry_size, walk_wire
from ledgermq.raft.drive.applier import Applier
from ledgermq.raft.errors import (
    DamagedLogError,
    DiskFullError,
    EntryTooLargeError,
    InvalidWireError,
    LogCompactedError,
    LogTruncatedError,
    StorageError,
)
from ledgermq.raft.log.open_files import LogFiles
from ledgermq.raft.log.segment import place_entry
from ledgermq.raft.types import LogIndex, Term

from ..log_rig import DATA, SEGMENT, LogRig, reopen
from ..node_cluster import RecordingStateMachine
from ..simulated_disk import SimulatedDisk


@pytest.fixture
def rig() -> LogRig:
    return LogRig(SimulatedDisk())


def fill(rig: LogRig, count: int, size: int = 300) -> None:
    for number in range(count):
        rig.append(bytes([number % 251]) * size)
    rig.flush()


def wire_of(rig: LogRig, lo: int, hi: int, max_bytes: int = 1 << 20) -> bytes:
    wire = rig.log.read_wire_nowait(LogIndex(lo), LogIndex(hi), max_bytes)
    assert wire is not None
    return wire


@pytest.mark.parametrize("seed", range(40))
def test_log_behaves_like_a_list(seed: int) -> None:
    """Random appends, truncations, flushes, retention, kills and clean restarts, checked against a list."""
    rng = random.Random(seed)
    cache = rng.choice((0, 2000, 1 << 20))
    pages, direct = ((1, 0), (3, 1), (4, 700))[seed % 3]
    rig = LogRig(SimulatedDisk(), cache_bytes=cache, segment_size=pages * SEGMENT, direct_write_bytes=direct)
    rig.disk.cold = rng.random() < 0.5
    for _ in range(60):
        action = rng.random()
        if action < 0.6:
            for _ in range(rng.randint(1, 4)):
                rig.append_random(rng, term=rig.log.last_term + (rng.random() < 0.1))
            rig.persist()
        elif action < 0.7 and rig.log.last_index > rig.log.first_index:
            rig.truncate(rng.randint(rig.log.first_index + 1, rig.log.last_index))
            if rng.random() < 0.5:
                rig.append_random(rng)
            rig.persist()
        elif action < 0.85:
            rig.flusher.step(rng.randint(1, 3))
            rig.storage.run_background()
        elif action < 0.9:
            rig.flush()
            rig.log.delete_segments_before(LogIndex(rng.randint(rig.log.first_index, rig.log.last_index + 1)))
        else:
            rig.flush()
            rig = restart(rig, rng)
        check(rig, rng)
    rig.flush()
    check(rig, rng)


def restart(rig: LogRig, rng: random.Random) -> LogRig:
    """Stop cleanly, or be killed; come back with the same entries."""
    disk = rig.disk
    if rng.random() < 0.5:
        rig.close()
    else:
        disk = disk.killed()
        disk.cold = rig.disk.cold
    after = reopen(disk, rig)
    after.entries = rig.entries
    return after


def check(rig: LogRig, rng: random.Random) -> None:
    expected = rig.retained()
    log = rig.log
    assert rig.read_all(rng.choice((1, 700, 1 << 20))) == expected
    assert log.last_index == (expected[-1].index if expected else log.first_index - 1)
    runs = [(entry.index, entry.term) for entry in expected]
    runs = [run for place, run in enumerate(runs) if place == 0 or runs[place - 1][1] != run[1]]
    assert log.term_runs() == runs
    if expected:
        one = rng.choice(expected)
        header = asyncio.run(log.header_at(LogIndex(one.index)))
        assert (header.index, header.term) == (one.index, one.term)
        if one.payload:
            at = asyncio.run(log.read_at(header.physical_offset + HEADER_SIZE, len(one.payload)))
            assert bytes(at) == one.payload


@pytest.mark.parametrize("seed", range(15))
def test_follower_that_takes_the_wire_form_has_the_same_bytes(seed: int) -> None:
    rng = random.Random(seed)
    leader, follower = LogRig(SimulatedDisk(), cache_bytes=2000), LogRig(SimulatedDisk(), cache_bytes=2000)
    for _ in range(80):
        leader.append_random(rng)
        if rng.random() < 0.4:
            leader.flush()
    while follower.log.last_index < leader.log.last_index:
        lo = LogIndex(follower.log.last_index + 1)
        overlap = max(1, lo - rng.randint(0, 3))
        wire = asyncio.run(
            leader.log.read_wire(LogIndex(overlap), leader.log.last_index, rng.randint(1, 6000))
        )
        batch = follower.log.check_wire(wire, follower.log.last_term)
        if batch.last_index < lo:
            continue
        follower.log.stage_wire(batch, lo)
        follower.flush()
    leader.flush()
    for path in sorted(name for name in leader.disk.names if name.parent == DATA / "commitlog"):
        if path in follower.disk.names:
            assert follower.disk.names[path].current[:SEGMENT] == leader.disk.names[path].current[:SEGMENT]
    assert follower.read_all() == leader.read_all()


def test_wire_read_ends_at_whole_entries_and_gives_at_least_one(rig: LogRig) -> None:
    fill(rig, 5)
    assert [header.index for _, header in walk_wire(wire_of(rig, 1, 5, 1))] == [1]
    assert [header.index for _, header in walk_wire(wire_of(rig, 1, 5, 2 * 368 + 5))] == [1, 2]


def test_filler_travels_in_front_of_the_entry_that_it_leads_to(rig: LogRig) -> None:
    fill(rig, 30)
    second = next(info for info in rig.log.segments() if info.start_offset == SEGMENT)
    wire = asyncio.run(rig.log.read_wire(second.first_index, second.first_index, 1))
    kinds = [header.kind for _, header in walk_wire(wire)]
    assert kinds == [EntryKind.FILLER, EntryKind.RECORDS]


def test_entry_larger_than_a_quarter_of_a_segment_is_refused(rig: LogRig) -> None:
    with pytest.raises(EntryTooLargeError):
        rig.append(bytes(SEGMENT // 4))
    assert rig.log.last_index == 0


def test_an_entry_is_placed_where_it_fits(rig: LogRig) -> None:
    for size in (0, 1, 900, 950, 8, 960, 700):
        place = place_entry(rig.log.end_offset, entry_size(size), SEGMENT)
        assert rig.append(bytes(size)).physical_offset == place


def test_damaged_wire_is_refused_at_every_byte(rig: LogRig) -> None:
    leader = LogRig(SimulatedDisk())
    leader.append(b"a" * 40)
    leader.append(b"b" * 13)
    good = wire_of(leader, 1, 2)
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        with pytest.raises(InvalidWireError):
            rig.log.check_wire(bytes(bad), Term(0))
    for size in range(len(good)):
        with pytest.raises(InvalidWireError):
            if rig.log.check_wire(good[:size], Term(0)).last_index == 1:
                raise InvalidWireError("the first entry alone is whole")
    assert rig.log.last_index == 0


def test_wire_that_does_not_continue_the_log_is_refused(rig: LogRig) -> None:
    other = LogRig(SimulatedDisk())
    other.append(b"x")
    other.append(b"y")
    rig.append(b"z")
    with pytest.raises(InvalidWireError, match="does not continue this log"):
        rig.log.check_wire(wire_of(other, 2, 2), rig.log.last_term)
    assert rig.log.last_index == 1


def test_wire_that_follows_another_term_than_the_last_one_here_is_left_to_the_core(rig: LogRig) -> None:
    """The core refuses it, so the leader learns where the logs diverge.

    If dropped, it would be sent for ever.
    """
    leader = LogRig(SimulatedDisk())
    leader.append(b"same")
    rig.append(b"same")
    leader.append(b"of term 3", term=3)
    rig.append(b"of term 2, never committed", term=2)
    leader.append(b"next")
    assert rig.log.check_wire(wire_of(leader, 3, 3), Term(3)).first_index == rig.log.last_index + 1


def test_entries_of_other_replicas_with_another_segment_size_are_refused(rig: LogRig) -> None:
    other = LogRig(SimulatedDisk(), segment_size=4 * SEGMENT)
    for _ in range(10):
        other.append(bytes(600))
    with pytest.raises(InvalidWireError):
        rig.log.check_wire(wire_of(other, 1, 10), Term(0))


def test_reads_outside_the_log_are_refused(rig: LogRig) -> None:
    fill(rig, 40)
    rig.log.delete_segments_before(LogIndex(20))
    first = rig.log.first_index
    assert 1 < first <= 20
    with pytest.raises(LogCompactedError):
        rig.log.read_wire_nowait(LogIndex(first - 1), first, 1)
    with pytest.raises(LogTruncatedError):
        rig.log.entries_nowait(first, LogIndex(41), 1 << 20)
    with pytest.raises(LogCompactedError):
        rig.log.read_at_nowait(0, 1)
    with pytest.raises(LogTruncatedError):
        rig.log.read_at_nowait(rig.log.end_offset - 1, 2)


async def test_cold_read_that_races_a_truncation_is_dropped(rig: LogRig) -> None:
    fill(rig, 40)
    rig.disk.cold = True
    task = asyncio.ensure_future(rig.log.read_wire(LogIndex(2), LogIndex(3), 1 << 20))
    await asyncio.sleep(0)
    rig.truncate(3)
    with pytest.raises(LogTruncatedError):
        await task


async def test_cold_reads_of_what_a_truncation_leaves_are_answered(rig: LogRig) -> None:
    """Committed entries are never cut off. A reader may be unable to retry: apply would end the node."""
    fill(rig, 40)
    rig.disk.cold = True
    log, lo, hi = rig.log, LogIndex(2), LogIndex(3)
    header = log.header_nowait(hi) or await log.header_at(hi)
    reading = asyncio.gather(
        log.entries(lo, hi, 1 << 20),
        log.read_wire(lo, hi, 1 << 20),
        log.read_at(header.physical_offset, header.size),
        log.header_at(hi),
    )
    await asyncio.sleep(0)
    assert not reading.done()
    rig.truncate(hi + 1)
    entries, wire, raw, again = await reading
    assert [bytes(payload) for _, payload in entries] == [e.payload for e in rig.entries[1:3]]
    assert [found.index for _, found in walk_wire(wire)] == [2, 3]
    assert decode_header(raw) == again == header


async def test_entries_that_are_applied_cold_while_the_tail_is_cut_off_are_applied(rig: LogRig) -> None:
    """A restarted follower applies committed entries from disk while the new leader replaces its tail."""
    fill(rig, 40)
    rig.disk.cold = True
    state_machine = RecordingStateMachine()
    applier = Applier(
        rig.log,
        state_machine,
        LogIndex(0),
        1 << 20,
        lambda: None,
        lambda reason: applier.halt(reason),  # as the node does: waiters are told
        lambda error: False,
    )
    applier.advance(LogIndex(3))
    await asyncio.sleep(0)
    rig.truncate(4)
    await applier.wait(LogIndex(3))
    await applier.close("the test ends")
    assert state_machine.last_applied_index == 3


def test_a_cold_read_that_retention_overtakes_is_no_damage(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is deleted while its index is read. Reporting damage would be a false alarm."""
    fill(rig, 40)
    rig.close()
    again = reopen(rig.disk, rig)
    again.disk.cold = True
    load = LogFiles.offsets

    async def overtaken(files: LogFiles, start: int) -> array[int]:
        offsets = await load(files, start)
        again.log.delete_segments_before(LogIndex(30))
        again.storage.run_background()
        return offsets

    monkeypatch.setattr(LogFiles, "offsets", overtaken)
    with pytest.raises(LogCompactedError):
        asyncio.run(again.log.read_wire(LogIndex(1), LogIndex(2), 1 << 20))


def test_late_report_about_truncated_entries_does_not_evict_the_new_ones() -> None:
    """The ABA problem of rule P7 in the cache: an unwritten entry must never be evicted."""
    rig = LogRig(SimulatedDisk(), cache_bytes=0)
    fill(rig, 2)
    for _ in range(3):
        rig.append(b"old" * 50)
    rig.persist()
    rig.truncate(3)
    for _ in range(3):
        rig.append(b"new" * 50)
    rig.persist()
    assert rig.flusher.step(1)  # the old ones are written, the new ones are not
    assert rig.read_all() == rig.entries
    rig.flush()
    assert rig.read_all() == rig.entries


def test_retention_keeps_the_base_point_through_restarts(rig: LogRig) -> None:
    fill(rig, 40)
    gone = rig.log.delete_segments_before(LogIndex(25))
    rig.storage.run_background()
    assert [info.start_offset for info in gone] == [SEGMENT * n for n in range(len(gone))]
    assert not any(DATA / "commitlog" / f"{info.start_offset:020d}" in rig.disk.names for info in gone)
    after = reopen(rig.disk.killed(), rig)
    after.entries = rig.entries
    assert after.log.first_index == rig.log.first_index == gone[-1].last_index + 1
    assert after.log.base.prev_term == Term(1)
    assert after.read_all() == after.retained()
    after.append(b"goes on")
    after.flush()
    assert after.read_all() == after.retained()


def test_retention_never_deletes_the_last_segment_with_entries(rig: LogRig) -> None:
    fill(rig, 40)
    rig.log.delete_segments_before(LogIndex(1000))
    assert len(rig.log.segments()) == 1
    assert rig.log.last_index == 40


def test_follower_at_the_horizon_computes_the_filler_that_was_deleted(rig: LogRig) -> None:
    fill(rig, 40)
    second = rig.log.segments()[1]
    follower = LogRig(SimulatedDisk())
    while follower.log.last_index < second.first_index - 1:
        lo = LogIndex(follower.log.last_index + 1)
        wire = asyncio.run(rig.log.read_wire(lo, LogIndex(second.first_index - 1), 1 << 20))
        follower.log.stage_wire(follower.log.check_wire(wire, follower.log.last_term), lo)
    rig.log.delete_segments_before(second.first_index)
    wire = asyncio.run(rig.log.read_wire(second.first_index, second.last_index, 1 << 20))
    assert decode_header(wire).kind is EntryKind.RECORDS
    follower.log.stage_wire(follower.log.check_wire(wire, follower.log.last_term), second.first_index)
    follower.flush()
    segment = DATA / "commitlog" / f"{0:020d}"
    assert follower.disk.names[segment].current[:SEGMENT] == rig_bytes(rig)[:SEGMENT]


def rig_bytes(rig: LogRig) -> bytes:
    """Return the first segment of a log that was filled the same way and not cut."""
    twin = LogRig(SimulatedDisk())
    fill(twin, 40)
    return bytes(twin.disk.names[DATA / "commitlog" / f"{0:020d}"].current)


def test_index_that_is_damaged_while_the_node_runs_is_named(rig: LogRig) -> None:
    fill(rig, 60)
    rig.close()
    fresh = reopen(rig.disk, rig)
    fresh.disk.flip(DATA / "entryindex" / f"{0:020d}", 60)
    with pytest.raises(StorageError, match="only an index; restart the node"):
        asyncio.run(fresh.log.read_wire(LogIndex(1), LogIndex(2), 100))


def test_segment_that_vanishes_while_the_node_runs_is_named(rig: LogRig) -> None:
    fill(rig, 60)
    fresh = reopen(rig.disk.killed(), rig)
    del fresh.disk.names[DATA / "commitlog" / f"{0:020d}"]
    with pytest.raises(DamagedLogError, match="commitlog/00000000000000000000"):
        asyncio.run(fresh.log.entries(LogIndex(1), LogIndex(2), 100))


def test_on_a_full_disk_a_reserve_is_left_for_the_first_entry_of_a_term() -> None:
    """Without it, a node that wins an election on a full disk could not store its no-op, and would stop."""
    rig = LogRig(SimulatedDisk())
    log, keeper = rig.storage.log, rig.storage._keeper
    keeper.full = True
    entry = entry_size(40)
    with pytest.raises(DiskFullError, match="ledgermq admin clean"):
        for _ in range(SEGMENT // entry):
            log.check_proposal(entry, urgent=False)
            rig.append(bytes(40))
    room = SEGMENT - log.end_offset
    assert SEGMENT // 16 <= room < SEGMENT // 8 + 2 * entry
    log.check_proposal(entry, urgent=True)
    for term in (8, 9):
        header = log.stage_entry(
            EntryKind.NOOP, [], section_count=0, index=LogIndex(log.last_index + 1), term=Term(term),
            timestamp=log.last_timestamp,
        )  # fmt: skip
        assert header.end <= SEGMENT
    rig.close()
