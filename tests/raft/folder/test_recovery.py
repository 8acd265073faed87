"""Recovery after crashes and damage (P1, P15, P17, P18): no loss of synced data, no hidden damage."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.raft.disk import page_writer
from ledgermq.raft.disk.page_writer import PAGE
from ledgermq.raft.errors import (
    DamagedFolderError,
    DamagedLogError,
    DataFolderError,
    DiskFullError,
    NewerFolderError,
)
from ledgermq.raft.folder.storage import Machine, open_storage
from ledgermq.raft.log.segment import MARK_BLOCK, TRAILER_SIZE
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term
from tests.power_cut import Keep

from ..log_rig import DATA, SEGMENT, LogRig, Stored, reopen, storage_config
from ..simulated_disk import PowerCut, SimulatedDisk, SimulatedFile, crashes

FIRST_SEGMENT = DATA / "commitlog" / f"{0:020d}"


class History:
    """A random run that records the model after each operation, so that any crash can be judged.

    In one third of the seeds every turn bypasses the page cache, in another third the large ones do. Their
    segments have several pages.
    """

    def __init__(self, seed: int, disk: SimulatedDisk, flush: str = "sync") -> None:
        self.rng = random.Random(seed)
        pages, direct = ((1, 0), (3, 1), (4, 700))[seed % 3]
        self.rig = LogRig(
            disk, flush=flush, cache_bytes=2000, segment_size=pages * SEGMENT, direct_write_bytes=direct
        )
        # After operation n: the entries, those before its truncation, and the index of that.
        self.states: list[tuple[list[Stored], list[Stored], int]] = [([], [], 1 << 60)]
        self.hard: list[HardState] = [self.rig.storage.hard_state]

    def run(self, steps: int = 25) -> None:
        rig, rng = self.rig, self.rng
        for _ in range(steps):
            cut = 1 << 60
            before: list[Stored] = []
            for _ in range(rng.randint(0, 5)):
                rig.append_random(rng, term=rig.log.last_term + (rng.random() < 0.2))
            if rng.random() < 0.15 and rig.log.last_index > 1:
                cut = rng.randint(max(1, rig.log.last_index - 12), rig.log.last_index)
                before = list(rig.entries)
                rig.truncate(cut)
                for _ in range(rng.randint(0, 3)):
                    rig.append_random(rng)
            hard = self.hard[-1]
            if rng.random() < 0.3:
                hard = HardState(Term(hard.term + 1), NodeId(rng.choice(("n1", "n2", "n3"))), LogIndex(0))
            self.hard.append(hard)
            self.states.append((list(rig.entries), before, cut))
            rig.persist(hard if hard is not self.hard[-2] else None)
            if rng.random() < 0.6:
                rig.flusher.step(rng.randint(1, 4))
            if rng.random() < 0.5:
                rig.storage.run_background()
            if rng.random() < 0.1:
                rig.flusher.sync()

    def judge(self, disk: SimulatedDisk) -> None:
        """Open the crashed disk: it must hold everything durable, and nothing that never existed."""
        rig = reopen(disk, self.rig)
        found = rig.read_all()
        done = self.rig.durable_seq
        durable = self.states[done][0]
        lowest = min([len(durable), *(cut - 1 for _, _, cut in self.states[done + 1 :])])
        possible = [entries for after, before, _ in self.states[done:] for entries in (after, before)]
        assert any(found == entries[: len(found)] for entries in possible)
        assert len(found) >= lowest
        assert found[:lowest] == durable[:lowest]
        assert (rig.storage.hard_state.term, rig.storage.hard_state.voted_for) in [
            (hard.term, hard.voted_for) for hard in self.hard[done:]
        ]
        rig.entries = found
        rig.append(b"the log goes on after a crash")
        rig.flush()
        assert rig.read_all() == rig.entries


def cut_histories(seed: int, rng: random.Random) -> Iterator[tuple[History, SimulatedDisk]]:
    """Yield the same history twelve times, each cut at another step, and its disk without power."""
    whole = SimulatedDisk()
    first = History(seed, whole)
    begin = whole.steps
    first.run()
    for crash_at in sorted(rng.sample(range(begin + 1, whole.steps + 1), 12)):
        disk = SimulatedDisk()
        history = History(seed, disk)
        disk.cut_power_at(crash_at)
        with pytest.raises(PowerCut):
            history.run()
        yield history, disk


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("seed", range(36))
def test_power_cut_at_any_step_loses_nothing_durable(
    seed: int, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_writer, "_CHUNK", PAGE)  # makes a direct turn many writes
    rng = random.Random(seed)
    for history, disk in cut_histories(seed, rng):
        history.judge(disk.crash(rng, keep))


@pytest.mark.parametrize("seed", range(12))
def test_power_cut_during_recovery_loses_nothing_durable(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedDisk()
    history = History(seed, disk)
    history.run()
    crashed = disk.crash(rng, Keep.ANY)
    for crash_at in range(1, 12):
        again = crashed.crash(rng, Keep.ALL)
        again.cut_power_at(crash_at)
        try:
            reopen(again, history.rig)
        except PowerCut:
            history.judge(again.crash(rng, Keep.ANY))
        else:
            break


def killed_behind_a_filler() -> tuple[LogRig, SimulatedDisk]:
    """Return a log and its disk.

    The process was killed between a segment's filler and the next segment's first entry.
    """
    rig = LogRig(SimulatedDisk())
    while rig.log.end_offset < SEGMENT - 400:
        rig.append(bytes(200))
    rig.flush()
    kept = list(rig.entries)
    rig.append(bytes(900))

    def on_step(step: int, operation: str, path: Path) -> None:
        if operation == "write" and path.name == f"{SEGMENT:020d}":
            raise PowerCut

    rig.disk.on_step = on_step
    with pytest.raises(PowerCut):
        rig.flush()
    rig.entries = kept
    return rig, rig.disk.killed()


@pytest.mark.parametrize("keep", list(Keep))
def test_power_cut_while_recovery_takes_a_filler_back_is_no_damage(keep: Keep) -> None:
    rig, killed = killed_behind_a_filler()
    cuts = 0
    for cut in crashes(
        lambda: killed.crash(random.Random(1), Keep.ALL), partial(reopen, before=rig), lambda disk: disk
    ):
        cuts += 1
        for attempt in range(4):
            assert reopen(cut.crash(random.Random(attempt), keep), rig).read_all() == rig.entries
    assert cuts > 5


@pytest.mark.parametrize("seed", range(20))
def test_kill_loses_nothing_that_was_written_even_in_async_mode(seed: int) -> None:
    """D7: `async` promises that a killed process loses nothing, because the page cache outlives it."""
    disk = SimulatedDisk()
    history = History(seed, disk, flush="async_timed")
    history.run()
    history.judge(disk.killed())


@pytest.mark.parametrize("seed", range(20))
def test_power_cut_in_async_mode_keeps_everything_flushed(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedDisk()
    rig = LogRig(disk, flush="async_timed")
    for _ in range(30):
        rig.append_random(rng)
    rig.flush()
    rig.flusher.sync()
    flushed = list(rig.entries)
    for _ in range(30):
        rig.append_random(rng)
        rig.persist()
        rig.flusher.step()
    after = reopen(disk.crash(rng, Keep.ANY), rig)
    found = after.read_all()
    assert found[: len(flushed)] == flushed
    assert found == rig.entries[: len(found)]


def filled(count: int = 40, *, seed: int = 1) -> LogRig:
    rng = random.Random(seed)
    rig = LogRig(SimulatedDisk())
    for _ in range(count):
        rig.append(rng.randbytes(rng.randint(1, 500)))
        rig.persist()
        rig.flusher.step()
    rig.storage.run_background()
    return rig


def test_bit_flip_anywhere_in_an_unclean_log_is_found() -> None:
    """Before the last turn a flip is damage.

    In the last turn the entry may be cut, but is never served wrong.
    """
    rig = filled(24)
    last_turn = rig.log.end_offset - 1 - 500 - 2 * HEADER_SIZE
    rng = random.Random(7)
    for info in rig.log.segments():
        path = DATA / "commitlog" / f"{info.start_offset:020d}"
        for position in sorted(rng.sample(range(SEGMENT + TRAILER_SIZE), 150)):
            disk = rig.disk.killed().crash(rng, Keep.ALL)
            disk.flip(path, position, 1 << rng.randrange(8))
            offset = info.start_offset + position
            judge_flip(disk, rig, offset, is_log=position < SEGMENT, last_turn=last_turn)


def judge_flip(disk: SimulatedDisk, rig: LogRig, offset: int, *, is_log: bool, last_turn: int) -> None:
    before = {path: bytes(inode.durable) for path, inode in disk.names.items()}
    try:
        after = reopen(disk, rig)
        found = after.read_all()
    except NewerFolderError:
        assert is_log and offset >= last_turn  # the version byte: no later entry reveals the flip
        return
    except DamagedLogError as error:
        assert is_log
        assert "--rejoin" in str(error) and "commitlog" in str(error)
        assert {
            path: bytes(inode.durable) for path, inode in disk.names.items() if "commitlog" in str(path)
        } == {path: data for path, data in before.items() if "commitlog" in str(path)}
        return
    assert found == rig.entries[: len(found)]
    assert len(found) == len(rig.entries) or (is_log and offset >= last_turn)


def test_bit_flip_after_a_clean_stop_is_found_at_the_latest_by_the_read() -> None:
    rig = filled(24)
    end = rig.log.end_offset
    infos = rig.log.segments()
    rig.close()
    rng = random.Random(8)
    for info in infos:
        path = DATA / "commitlog" / f"{info.start_offset:020d}"
        for position in sorted(rng.sample(range(info.end_offset - info.start_offset), 120)):
            disk = rig.disk.crash(rng, Keep.ALL)
            disk.flip(path, position, 1 << rng.randrange(8))
            with pytest.raises((DamagedLogError, NewerFolderError)):
                reopen(disk, rig).read_all()
    assert end == rig.log.end_offset


def test_missing_segment_in_the_middle_is_refused() -> None:
    rig = filled(40)
    disk = rig.disk.killed()
    del disk.names[DATA / "commitlog" / f"{SEGMENT:020d}"]
    with pytest.raises(DamagedLogError, match="missing"):
        reopen(disk, rig)


def test_missing_first_segment_never_starts_an_empty_log() -> None:
    rig = filled(3)
    disk = rig.disk.killed()
    for path in [path for path in disk.names if path.parent.name == "commitlog"]:
        del disk.names[path]
    with pytest.raises(DamagedLogError, match="missing"):
        reopen(disk, rig)


def test_truncated_segment_file_is_refused() -> None:
    rig = filled(3)
    disk = rig.disk.killed()
    del disk.names[FIRST_SEGMENT].current[SEGMENT // 2 :]
    with pytest.raises(DamagedLogError, match="shorter"):
        reopen(disk, rig)


def test_torn_tail_is_cut_and_its_place_is_zeros() -> None:
    rig = filled(5)
    end = rig.log.end_offset
    rig.append(b"never flushed" * 20)
    rig.persist()
    disk = rig.disk.killed()
    inode = disk.names[FIRST_SEGMENT]
    inode.current[end : end + 40] = b"\xff" * 40
    after = reopen(disk, rig)
    assert after.log.last_index == 5
    assert after.storage.recovered.truncated_bytes == 40
    assert inode.durable[end:SEGMENT].count(0) == SEGMENT - end


def test_clean_stop_is_believed_and_nothing_is_scanned() -> None:
    rig = filled(60)
    rig.close()
    after = reopen(rig.disk, rig)
    assert after.storage.recovered.clean_stop
    assert after.storage.recovered.scanned_bytes == 0
    after.entries = rig.entries
    assert after.read_all() == rig.entries
    for _ in range(30):
        after.append_random(random.Random(3))
    after.flush()
    assert after.read_all() == after.entries


def test_damaged_index_files_are_rebuilt() -> None:
    rig = filled(60)
    rig.close()
    for path in [path for path in rig.disk.names if path.parent.name == "entryindex"]:
        rig.disk.flip(path, 70)
    after = reopen(rig.disk, rig)
    assert after.storage.recovered.scanned_bytes > 0
    assert after.read_all() == rig.entries


def test_boot_id_that_changed_without_a_clean_stop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = filled(3)
    monkeypatch.setattr(Machine, "boot_id", lambda self: "11111111-2222-3333-4444-555555555555")
    after = reopen(rig.disk.killed(), rig)
    assert after.storage.recovered.rebooted_unclean
    after.close()
    monkeypatch.setattr(Machine, "boot_id", lambda self: "99999999-2222-3333-4444-555555555555")
    assert not reopen(after.disk, rig).storage.recovered.rebooted_unclean


@pytest.mark.parametrize("part", ["commitlog", "hardstate"])
def test_failed_fsync_reports_nothing_as_durable(part: str) -> None:
    rig = filled(3)
    done = rig.durable_seq
    rig.append(b"x")
    rig.disk.fail("fdatasync", part)
    rig.persist(HardState(Term(2), NodeId("n2"), LogIndex(0)))
    with pytest.raises(OSError, match="injected"):
        rig.flusher.step()
    assert rig.durable_seq == done


def test_full_disk_refuses_the_entry_that_needs_a_new_segment_and_keeps_the_vote() -> None:
    rig = LogRig(SimulatedDisk())
    rig.disk.capacity = rig.disk.used  # no room for another segment
    accepted = 0
    with pytest.raises(DiskFullError, match="admin clean"):
        for _ in range(100):
            rig.append(bytes(200))
            accepted += 1
            rig.flush()
    assert rig.log.last_index == accepted == len(rig.entries)
    vote = HardState(Term(9), NodeId("n3"), LogIndex(0))
    rig.persist(vote)
    assert rig.flusher.step()
    after = reopen(rig.disk.crash(random.Random(1), Keep.NONE), rig)
    assert after.storage.hard_state.term == 9 and after.storage.hard_state.voted_for == "n3"
    assert after.read_all() == rig.entries
    after.disk.capacity *= 1000  # there is room again: the log continues
    after.entries = rig.entries.copy()
    for _ in range(10):
        after.append(bytes(200))
        after.flush()
    assert len(after.entries) == accepted + 10
    assert after.read_all() == after.entries


@pytest.mark.parametrize("step", range(1, 14))
def test_no_space_at_any_write_while_a_segment_is_made_leaves_a_good_log(step: int) -> None:
    rig = filled(8)
    begin = rig.disk.steps

    def on_step(number: int, operation: str, path: Path) -> None:
        if number == begin + step and operation in ("write", "create"):
            raise OSError(errno.ENOSPC, "injected", str(path))

    rig.disk.on_step = on_step
    try:
        for _ in range(12):
            rig.append(bytes(700))
            rig.flush()
    except (OSError, DiskFullError):
        pass
    rig.disk.on_step = None
    durable = rig.storage.statistics().flushed_index
    found = reopen(rig.disk.crash(random.Random(step), Keep.ANY), rig).read_all()
    assert len(found) >= durable
    assert found == rig.entries[: len(found)]


def test_hard_state_of_another_incarnation_is_refused() -> None:
    rig, other = filled(2), filled(2)
    disk = rig.disk.killed()
    disk.names[DATA / "hardstate"] = other.disk.names[DATA / "hardstate"]
    with pytest.raises(DamagedFolderError, match="incarnation"):
        reopen(disk, rig)


@pytest.mark.parametrize("name", ["identity", "manifest", "hardstate"])
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_folder_without_its_records_is_refused_and_left_alone(name: str, how: str) -> None:
    rig = filled(3)
    disk = rig.disk.killed()
    if how == "missing":
        del disk.names[DATA / name]
    else:
        for block in range(4):
            disk.names[DATA / name].current[block * MARK_BLOCK : block * MARK_BLOCK + 30] = b"?" * 30
    before = disk.contents()
    with pytest.raises(DataFolderError) as caught:
        open_storage(storage_config(), disk)
    assert f"{DATA}/{name}" in str(caught.value) and "--rejoin" in str(caught.value)
    assert disk.contents() == before


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_amid_an_asynchronous_sync_is_no_damage(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer goes on while the syncer waits for the disk, which may keep only the later bytes."""
    rng = random.Random(seed)
    rig = LogRig(SimulatedDisk(), flush="async_timed")
    writer = rig.storage._writer
    for _ in range(3):
        rig.append(bytes(700))
    rig.flush()

    def write_on_and_lose_power(file: object) -> None:
        rig.append(bytes(200))
        rig.flush()
        raise PowerCut

    monkeypatch.setattr(SimulatedFile, "fdatasync", write_on_and_lose_power)
    with pytest.raises(PowerCut):
        writer.sync(others_write=True)
    monkeypatch.undo()
    crashed = rig.disk.crash(rng, Keep.ANY)
    opened = open_storage(rig.config, crashed)
    assert opened.log.last_index <= 4
    opened.close()
