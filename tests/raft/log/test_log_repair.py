"""Repair of a damaged log from a peer's entries; without it the node gives up its vote (P18, P19)."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.raft.damage import Before, Damage, RepairNote
from ledgermq.raft.errors import DamagedLogError, InvalidWireError, LogCompactedError, OtherHistoryError
from ledgermq.raft.folder.storage import open_storage
from ledgermq.raft.log.repair_note import note_path, read_note
from ledgermq.raft.log.rewrite import LogRepair, RewriteProgress, StoppedLog
from ledgermq.raft.log.segment import TRAILER_SIZE
from ledgermq.raft.log.segment_keeper import LogFolders
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term
from tests.power_cut import Keep

from ..log_rig import DATA, SEGMENT, LogRig, storage_config
from ..simulated_disk import SimulatedDisk, crashes, power_back

LAST = 40
VOTER = HardState(Term(3), NodeId("n2"), LogIndex(0), is_voter=True)


def filled(count: int = LAST, *, flush: str = "sync", clean: bool = False) -> LogRig:
    """A log of several segments, one flush turn per entry. Its contents are always the same."""
    rig = LogRig(SimulatedDisk(), flush=flush)
    rng = random.Random(1)
    for number in range(count):
        rig.append(rng.randbytes(rng.randint(0, 700)), term=1 + number // 20)
        rig.persist(VOTER if number == 0 else None)
        rig.flusher.step()
        rig.storage.run_background()
    if clean:
        rig.close()
    return rig


@dataclass
class Peer:
    """A member that has everything, and has committed up to `commit`."""

    rig: LogRig
    commit: int = LAST

    def wire(self, first: int, size: int = 1000) -> bytes:
        return asyncio.run(self.rig.log.read_wire(LogIndex(first), LogIndex(self.commit), size))


def repair_once(disk: SimulatedDisk, error: DamagedLogError, peer: Peer) -> bool:
    """Do what start_repair does with one finding. Returns whether the vote was given up."""
    assert error.damage is not None
    stopped = StoppedLog("n1", disk, LogFolders(DATA), SEGMENT)
    repair, note = stopped.begin(error.damage)
    while repair.next_index <= peer.commit:
        try:
            progress = repair.take(peer.wire(repair.next_index))
        except OtherHistoryError:
            assert repair.go_back()
            continue
        if progress is RewriteProgress.CONNECTED:
            stopped.end()
            return False
        if note.is_reached(repair.offset, repair.before.index):
            return False
    stopped.give_up_vote(repair, note)
    return True


def repaired(disk: SimulatedDisk, peer: Peer, flush: str = "sync") -> tuple[LogRig, int, bool]:
    """Open the log, repairing as often as needed.

    Returns it, the number of repairs, and whether the vote is gone.
    """
    stopped = StoppedLog("n1", disk, LogFolders(DATA), SEGMENT)
    gave_up = False
    for count in range(50):
        stopped.finish_rejoin()
        try:
            rig = LogRig(disk, flush=flush)
        except DamagedLogError as error:
            disk.locked.clear()
            gave_up = repair_once(disk, error, peer) or gave_up
            continue
        stopped.end()
        return rig, count, gave_up
    raise AssertionError("the repair comes to no end")


def damage_of(disk: SimulatedDisk) -> Damage:
    with pytest.raises(DamagedLogError) as caught:
        LogRig(disk)
    disk.locked.clear()
    assert caught.value.damage is not None
    return caught.value.damage


def zero(disk: SimulatedDisk, begin: int, end: int) -> None:
    """Lose a range of the log, given by physical offsets."""
    for offset in range(begin, end):
        inode = disk.names[DATA / "commitlog" / f"{offset // SEGMENT * SEGMENT:020d}"]
        inode.current[offset % SEGMENT] = 0
        inode.durable[offset % SEGMENT] = 0


def place_of(rig: LogRig, index: int) -> tuple[int, int]:
    header = asyncio.run(rig.log.header_at(LogIndex(index)))
    return header.physical_offset, header.end


def log_bytes(disk: SimulatedDisk, end: int) -> bytes:
    paths = sorted(path for path in disk.names if path.parent.name == "commitlog")
    return b"".join(bytes(disk.names[path].durable[:SEGMENT]) for path in paths)[:end]


@pytest.mark.parametrize("flush", ["sync", "async_timed"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("first", "last"), [(3, 3), (5, 12), (1, 2), (1, 39)])
def test_damage_in_the_middle_is_replaced_by_the_same_bytes_and_the_vote_is_kept(
    first: int, last: int, clean: bool, flush: str
) -> None:
    whole = filled()
    damaged = filled(flush=flush, clean=clean)
    if not clean:
        damaged.flusher.sync()
    disk = damaged.disk.killed()
    begin, end = place_of(whole, first)[0], place_of(whole, last)[1]
    zero(disk, begin, end)
    for path in [path for path in disk.names if path.parent.name == "entryindex"]:
        del disk.names[path]  # otherwise a clean stop is trusted, and the scrubber or a reader finds it
    after, count, gave_up = repaired(disk, Peer(whole), flush)
    assert count >= 1 and not gave_up
    assert after.storage.hard_state.is_voter
    after.entries = whole.entries
    assert after.read_all() == whole.entries
    assert log_bytes(disk, whole.log.end_offset) == log_bytes(whole.disk, whole.log.end_offset)
    assert not disk.exists(note_path(DATA))


def test_every_single_flip_in_an_unclean_log_is_repaired_or_was_in_the_last_turn() -> None:
    whole = filled(24)
    last_begin = place_of(whole, 24)[0]
    rng = random.Random(5)
    for offset in sorted(rng.sample(range(last_begin), 120)):
        disk = whole.disk.crash(rng, Keep.ALL)
        path = DATA / "commitlog" / f"{offset // SEGMENT * SEGMENT:020d}"
        disk.flip(path, offset % SEGMENT, 1 << rng.randrange(8))
        after, _, gave_up = repaired(disk, Peer(whole, 24))
        assert not gave_up, offset
        after.entries = whole.entries
        assert after.read_all() == whole.entries, offset


@pytest.mark.parametrize("clean", [True, False])
def test_damage_up_to_the_tail_is_repaired_when_what_was_promised_is_known_and_committed(clean: bool) -> None:
    whole = filled()
    damaged = filled(clean=clean)
    if not clean:
        damaged.flusher.sync()
    disk = damaged.disk.killed()
    zero(disk, place_of(whole, 30)[0], whole.log.end_offset)
    after, _, gave_up = repaired(disk, Peer(whole))
    assert not gave_up and after.storage.hard_state == VOTER
    assert after.read_all() == whole.entries


def test_damage_up_to_the_tail_behind_what_the_others_committed_costs_the_vote_before_the_cut() -> None:
    """It is unknown whether the lost entries were acknowledged.

    Under a new incarnation they no longer count.
    """
    whole = filled()
    damaged = filled(clean=True)
    old = damaged.storage.incarnation
    disk = damaged.disk.killed()
    zero(disk, place_of(whole, 30)[0], place_of(whole, 38)[1])
    voted_when_cut: list[bool] = []

    def watch(step: int, operation: str, path: Path) -> None:
        """Record whether the vote counts, durably, while the last valid entries are gone."""
        begin, end = place_of(whole, LAST)
        segment = disk.names[DATA / "commitlog" / f"{begin // SEGMENT * SEGMENT:020d}"]
        if not segment.current[begin % SEGMENT : end % SEGMENT].strip(b"\0"):
            voted_when_cut.append(bool(disk.names[DATA / "hardstate"].durable[newest_block(disk) + 12] & 2))

    disk.on_step = watch
    after, _, gave_up = repaired(disk, Peer(whole, commit=33))
    assert gave_up
    assert after.log.last_index == 33
    assert after.read_all() == whole.entries[:33]
    state = after.storage.hard_state
    assert (state.term, state.voted_for, state.is_voter) == (VOTER.term, VOTER.voted_for, False)
    assert after.storage.incarnation not in (0, old)
    assert after.storage.identity.members[NodeId("n1")] == 0  # the learner's mark
    assert voted_when_cut and not any(voted_when_cut)


def newest_block(disk: SimulatedDisk) -> int:
    """Return the position of the latest hard state record."""
    raw = disk.names[DATA / "hardstate"].durable
    return max((0, 4096), key=lambda at: int.from_bytes(raw[at + 16 : at + 24], "little"))


def test_in_an_asynchronous_group_damage_at_the_tail_always_costs_the_vote() -> None:
    whole = filled()
    damaged = filled(flush="async_timed")
    damaged.flusher.sync()
    disk = damaged.disk.killed()
    zero(disk, place_of(whole, 30)[0], whole.log.end_offset)
    after, _, gave_up = repaired(disk, Peer(whole), "async_timed")
    assert gave_up and not after.storage.hard_state.is_voter
    assert after.read_all() == whole.entries


@pytest.mark.parametrize("flush", ["sync", "async_timed"])
def test_power_cut_at_any_step_of_a_repair_hides_no_damage(flush: str) -> None:
    """Whatever a crash leaves, the node comes back with everything, or without its vote; never shorter with
    it.
    """
    whole = filled(24)
    damaged = filled(24, flush=flush)
    damaged.flusher.sync()
    start = damaged.disk.killed()
    zero(start, place_of(whole, 15)[0], whole.log.end_offset)
    repair = partial(repaired, peer=Peer(whole, commit=22), flush=flush)
    for keep in Keep:
        cuts = 0
        for disk in crashes(start.copy, repair, power_back(keep)):
            cuts += 1
            after, _, _ = repair(disk)
            last = after.log.last_index
            assert after.read_all() == whole.entries[:last]
            assert last == 24 or (last >= 14 and not after.storage.hard_state.is_voter), (cuts, keep)
        assert cuts > 10


def test_a_missing_and_a_short_segment_are_made_again() -> None:
    whole = filled()
    for damage in ("missing", "short"):
        disk = filled(clean=True).disk.killed()
        path = DATA / "commitlog" / f"{SEGMENT:020d}"
        if damage == "missing":
            del disk.names[path]
        else:
            del disk.names[path].current[SEGMENT // 2 :]
        after, _, gave_up = repaired(disk, Peer(whole))
        assert not gave_up
        assert after.read_all() == whole.entries
        assert len(disk.names[path].current) == SEGMENT + TRAILER_SIZE


def test_a_log_that_lost_its_last_file_after_a_crash_comes_back_as_a_learner() -> None:
    """The flush marks are lost with the file: how far it reached is unknown."""
    whole = filled()
    disk = filled().disk.killed()
    path = sorted(path for path in disk.names if path.parent.name == "commitlog")[-2]
    last = sorted(path for path in disk.names if path.parent.name == "commitlog")[-1]
    del disk.names[last], disk.names[path].current[100:]
    after, _, gave_up = repaired(disk, Peer(whole))
    assert gave_up and not after.storage.hard_state.is_voter
    assert after.read_all() == whole.entries


@pytest.mark.parametrize("damaged_entry", [21, 22, 25])
def test_other_entries_than_the_committed_ones_are_replaced_by_those(damaged_entry: int) -> None:
    """Entries after the damage, or before it, were never committed: their chain does not match the committed
    ones.
    """
    whole = filled()
    damaged = filled(20)
    rng = random.Random(99)
    for _ in range(6):
        damaged.append(rng.randbytes(200), term=1)
        damaged.flush()
    disk = damaged.disk.killed()
    zero(disk, *place_of(damaged, damaged_entry))
    after, _, gave_up = repaired(disk, Peer(whole))
    assert not gave_up
    assert after.read_all() == whole.entries[: after.log.last_index]
    # Everything that it may have acknowledged and that counts.
    assert after.log.end_offset >= damaged.log.end_offset


def whole_of_term(term: int) -> LogRig:
    """Entries that the others committed while a node with the log of `filled()` was down: they differ from 38
    on.
    """
    rig = filled(37)
    for _ in range(3):
        rig.append(bytes(700), term=term)
        rig.flush()
    return rig


@pytest.mark.parametrize(("commit", "keeps_vote"), [(LAST, True), (38, False)])
def test_the_term_of_an_entry_is_durable_before_the_entry_is_written(commit: int, keeps_vote: bool) -> None:
    """The others may have elected a leader while this node was down.

    Its repair then brings an unknown term.
    """
    whole = whole_of_term(7)
    start = filled(clean=True).disk.killed()
    zero(start, place_of(whole, 38)[0], filled().log.end_offset)
    after, _, gave_up = repaired(start.copy(), Peer(whole, commit))
    assert gave_up is not keeps_vote
    state = after.storage.hard_state
    assert (state.term, state.voted_for, state.is_voter) == (7, None, keeps_vote)
    assert after.read_all() == whole.entries[:commit]
    ends = set()
    for keep in Keep:
        for disk in crashes(start.copy, partial(repaired, peer=Peer(whole, commit)), power_back(keep)):
            StoppedLog("n1", disk, LogFolders(DATA), SEGMENT).finish_rejoin()
            with suppress(DamagedLogError):
                opened = LogRig(disk)
                assert opened.log.last_term <= opened.storage.hard_state.term, keep
                ends.add(opened.log.last_term)
    assert 7 in ends


def test_entries_that_do_not_fit_are_not_written() -> None:
    whole = filled()
    disk = filled().disk.killed()
    zero(disk, *place_of(whole, 10))
    repair, _ = StoppedLog("n1", disk, LogFolders(DATA), SEGMENT).begin(damage_of(disk))
    before = log_bytes(disk, whole.log.end_offset)
    other = LogRig(SimulatedDisk())
    for number in range(12):
        other.append(random.Random(number).randbytes(150))
    other.flush()
    good = Peer(whole).wire(10)
    flipped = bytearray(good)
    flipped[HEADER_SIZE + 3] ^= 1
    for wire in (Peer(whole).wire(11), Peer(other, 12).wire(10), bytes(flipped), good[:-8]):
        with pytest.raises(InvalidWireError):
            repair.take(wire)
    assert log_bytes(disk, whole.log.end_offset) == before
    assert repair.take(good) is RewriteProgress.CONNECTED


def test_in_a_running_node_nothing_behind_the_settled_entries_is_written() -> None:
    whole = filled()
    disk = filled().disk.killed()
    begin, _ = place_of(whole, 10)
    zero(disk, begin, whole.log.end_offset)
    header = asyncio.run(whole.log.header_at(LogIndex(9)))
    before = Before.after(header)
    repair = LogRepair(disk, LogFolders(DATA), SEGMENT, before, begin, LogIndex(12), keeps_indexes=True)
    while repair.before.index < 12:
        assert repair.take(Peer(whole).wire(repair.next_index, 4000)) is RewriteProgress.MORE
    assert repair.before.index == 12
    behind = place_of(whole, 12)[1]
    assert log_bytes(disk, whole.log.end_offset)[behind:].count(0) == whole.log.end_offset - behind


def test_a_note_that_cannot_be_read_asks_for_everything() -> None:
    whole = filled()
    disk = filled().disk.killed()
    zero(disk, *place_of(whole, 10))
    repair, note = StoppedLog("n1", disk, LogFolders(DATA), SEGMENT).begin(damage_of(disk))
    assert read_note(disk, DATA) == note == RepairNote(whole.log.end_offset, 0, open_ended=False)
    assert repair.take(Peer(whole).wire(10)) is RewriteProgress.CONNECTED
    disk.flip(note_path(DATA), 60)
    with pytest.raises(DamagedLogError, match="where a repair was interrupted") as again:
        open_storage(storage_config(), disk)
    assert again.value.damage is not None and again.value.damage.note.open_ended


def first_of_second_segment(rig: LogRig) -> int:
    return next(i for i in range(1, LAST) if place_of(rig, i)[0] == SEGMENT)


def test_the_first_entry_behind_what_retention_deleted_is_repaired_by_a_peer_that_still_has_more() -> None:
    """The peer also sends the filler that closes a segment deleted here."""
    whole, damaged = filled(), filled()
    first = first_of_second_segment(whole)
    assert damaged.log.delete_segments_before(LogIndex(first))
    damaged.flush()
    damaged.storage.run_background()
    disk = damaged.disk.killed()
    zero(disk, *place_of(whole, first))
    after, _, gave_up = repaired(disk, Peer(whole))
    assert not gave_up and after.log.first_index == first
    assert after.read_all() == whole.entries[first - 1 :]


def test_the_first_entry_of_a_segment_is_repaired_by_a_peer_that_deleted_the_one_before() -> None:
    """It has no filler to send. The filler follows from the entry before it."""
    whole, peer = filled(), filled()
    first = first_of_second_segment(whole)
    assert peer.log.delete_segments_before(LogIndex(first))
    disk = filled().disk.killed()
    zero(disk, whole.log.segments()[0].end_offset, place_of(whole, first)[1])
    after, _, gave_up = repaired(disk, Peer(peer))
    assert not gave_up
    assert after.read_all() == whole.entries
    assert log_bytes(disk, whole.log.end_offset) == log_bytes(whole.disk, whole.log.end_offset)


def test_a_segment_that_retention_deletes_during_its_repair_is_not_made_again() -> None:
    whole = filled()
    disk = filled().disk.killed()
    begin, _ = place_of(whole, 3)
    header = asyncio.run(whole.log.header_at(LogIndex(2)))
    before = Before.after(header)
    repair = LogRepair(disk, LogFolders(DATA), SEGMENT, before, begin, LogIndex(12), keeps_indexes=True)
    del disk.names[DATA / "commitlog" / f"{0:020d}"]
    with pytest.raises(LogCompactedError):
        repair.take(Peer(whole).wire(3))
    assert not disk.exists(DATA / "commitlog" / f"{0:020d}")
