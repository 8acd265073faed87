"""Trials of the storage: each takes a seed and fails if an acknowledged entry is lost or wrong.

They test the storage itself, and show whether they find the bugs of `tests/sim/mutants_storage.py`.
"""

from __future__ import annotations

import contextlib
import errno
import random
from pathlib import Path

import pytest

from ledgermq.proto.errors import LayoutError
from ledgermq.raft.errors import RaftError
from ledgermq.raft.log.hard_state import BLOCK, RECORD_SIZE
from ledgermq.raft.types import HardState, NodeId, Term
from tests.power_cut import Keep

from ..sim.mutants_storage import StorageMutant
from .folder.test_recovery import History, cut_histories
from .log_rig import DATA, LogRig, reopen
from .simulated_disk import SimulatedDisk


def read_while_it_runs(seed: int) -> None:
    """Bytes that were just written, cut off and rewritten are read in their current form."""
    history = History(seed, SimulatedDisk())
    history.run()
    history.rig.flush()
    try:
        found = history.rig.read_all()
    except RaftError as error:
        raise AssertionError(f"an undamaged log is refused: {error}") from error
    assert found == history.rig.entries


def judge(history: History, disk: SimulatedDisk) -> None:
    """Judge the recovered log. Refusing an undamaged log is a bug too."""
    try:
        history.judge(disk)
    except RaftError as error:
        raise AssertionError(f"an undamaged log is refused: {error}") from error


def cut_power_often(seed: int) -> None:
    """Run a history into several power cuts and judge each recovered log."""
    rng = random.Random(seed)
    for history, disk in cut_histories(seed, rng):
        judge(history, disk.crash(rng, rng.choice(list(Keep))))


def cut_power_in_async_mode(seed: int) -> None:
    """Flushed entries are there. Entries only written may be gone, and that is no damage."""
    rng = random.Random(seed)
    rig = LogRig(SimulatedDisk(), flush="async_timed")
    flushed = 0
    for term in range(1, 40):
        rig.append_random(rng)
        rig.persist(HardState(Term(term)) if rng.random() < 0.3 else None)
        rig.flusher.step()
        if rng.random() < 0.2:
            rig.flusher.sync()
            flushed = len(rig.entries)
    try:
        found = reopen(rig.disk.crash(rng, rng.choice(list(Keep))), rig).read_all()
    except RaftError as error:
        raise AssertionError(f"an undamaged log is refused: {error}") from error
    assert found == rig.entries[: len(found)]
    assert len(found) >= flushed


def fail_a_flush(seed: int) -> None:
    """One flush of the log fails. A node that noticed is gone, and what it called durable is there."""
    rng = random.Random(seed)
    disk = SimulatedDisk()
    history = History(seed, disk)
    left = [rng.randint(0, 12)]

    def on_step(step: int, operation: str, path: Path) -> None:
        if operation == "fdatasync" and "commitlog" in str(path):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, "injected", str(path))

    disk.on_step = on_step
    with contextlib.suppress(OSError):
        history.run()
    disk.on_step = None
    for keep in (Keep.NONE, Keep.ANY):  # direct writes may be on disk anyway
        judge(history, disk.crash(rng, keep))


def filled(rng: random.Random) -> tuple[LogRig, HardState]:
    """A log of several segments and a few terms and votes. Its last turn is one entry."""
    rig = LogRig(SimulatedDisk())
    for term in range(1, 30):
        rig.append_random(rng, term)
        hard = HardState(Term(term), NodeId(rng.choice(("n1", "n2", "n3"))))
        rig.persist(hard)
        rig.flusher.step()
    rig.storage.run_background()
    rig.flusher.sync()
    rig.append(b"the last turn")
    rig.flush()
    hard = HardState(Term(40), NodeId("n3"))  # in one slot only
    rig.persist(hard)
    rig.flusher.step()
    return rig, hard


def flip_a_bit(seed: int) -> None:
    """A bit of the log flips: entries durable before the last turn are there, or the damage is reported."""
    rng = random.Random(seed)
    whole, _ = filled(rng)
    places = [(p, n) for p, n in sorted(whole.disk.names.items()) if p.parent.name == "commitlog"]
    for _ in range(12):
        disk = whole.disk.killed().crash(rng, Keep.ALL)
        info = rng.choice(whole.log.segments())
        path = next(path for path, _ in places if path.name == f"{info.start_offset:020d}")
        disk.flip(path, rng.randrange(info.end_offset - info.start_offset), 1 << rng.randrange(8))
        try:
            found = reopen(disk, whole).read_all()
        except (RaftError, LayoutError):
            continue
        assert found == whole.entries[: len(found)]
        assert len(found) >= len(whole.entries) - 1


def damage_the_hard_state(seed: int) -> None:
    """One damaged block of the hard state: nothing is forgotten. All damaged: the node does not start."""
    rng = random.Random(seed)
    whole, hard = filled(rng)
    for blocks in ([rng.randrange(4)], [0, 1, 2, 3]):
        disk = whole.disk.killed().crash(rng, Keep.ALL)
        for block in blocks:
            disk.flip(DATA / "hardstate", block * BLOCK + rng.randrange(RECORD_SIZE), 1 << rng.randrange(8))
        try:
            found = reopen(disk, whole).storage.hard_state
        except RaftError:
            assert len(blocks) == 4, "one damaged block of four must not stop a node"
            continue
        assert (found.term, found.voted_for) == (hard.term, hard.voted_for)


TRIALS = (
    damage_the_hard_state,
    read_while_it_runs,
    cut_power_in_async_mode,
    fail_a_flush,
    flip_a_bit,
    cut_power_often,
)


def try_all(seed: int) -> None:
    """Run every trial."""
    for trial in TRIALS:
        trial(seed)


def find(mutant: StorageMutant, seeds: int) -> tuple[int, str] | None:
    """Return how many seeds it took to find a bug, and the trial that found it; None if none did."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, replacement in mutant.patches:
            patch.setattr(owner, name, replacement)
        for seed in range(seeds):
            for trial in TRIALS:
                try:
                    trial(seed)
                except AssertionError:
                    return seed + 1, trial.__name__
    return None
