"""Bugs put in on purpose: the power-cut test must see each of them, or it proves nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ledgermq.raft import log_writer
from ledgermq.raft.errors import StorageError
from ledgermq.raft.files import File
from ledgermq.raft.hard_state import DurableState, HardStateFile
from ledgermq.raft.log_writer import LogWriter

from .simulated_disk import Keep, PowerCut, SimulatedDisk, SimulatedFile
from .test_recovery import History, cut_power_at

SEEDS = 60


def without_fdatasync(part: str) -> Callable[[pytest.MonkeyPatch], None]:
    real = SimulatedFile.fdatasync

    def fdatasync(self: SimulatedFile) -> None:
        if part not in str(self.path):
            real(self)

    return lambda patch: patch.setattr(SimulatedFile, "fdatasync", fdatasync)


def without_cut_intent(patch: pytest.MonkeyPatch) -> None:
    real = HardStateFile.write

    def write(self: HardStateFile, state: DurableState) -> None:
        real(self, replace(state, cut_turn=0, cut_offset=0))

    patch.setattr(HardStateFile, "write", write)


def without_zeroing(patch: pytest.MonkeyPatch) -> None:
    def zero_tail(file: File, start: int, end: int) -> None:
        """A truncation that only forgets."""

    patch.setattr(log_writer, "zero_tail", zero_tail)
    patch.setattr(
        log_writer, "_PAGE", 8
    )  # segments of one page: what pads the next append would hide the bug


def without_sync_between_segments(patch: pytest.MonkeyPatch) -> None:
    real = LogWriter._file_for

    def file_for(self: LogWriter, offset: int) -> File:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(LogWriter, "sync", lambda self: False)
            return real(self, offset)

    patch.setattr(LogWriter, "_file_for", file_for)


MUTANTS = {
    "log not synced": without_fdatasync("commitlog"),
    "vote not synced": without_fdatasync("hardstate"),
    "truncation without an intent": without_cut_intent,
    "truncation without zeros": without_zeroing,
    "next segment written before the last is durable": without_sync_between_segments,
}


def cut_power_often(seed: int) -> None:
    """Run a history into several power cuts and judge what comes back."""
    rng = random.Random(seed)
    whole = SimulatedDisk()
    history = History(seed, whole)
    begin = whole.steps
    history.run()
    for crash_at in sorted(rng.sample(range(begin + 1, whole.steps + 1), 12)):
        disk = SimulatedDisk()
        history = History(seed, disk)
        cut_power_at(disk, crash_at)
        with pytest.raises(PowerCut):
            history.run()
        history.judge(disk.crash(rng, rng.choice(list(Keep))))


@pytest.mark.parametrize("name", MUTANTS)
def test_power_cuts_find_the_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(SEEDS):
        try:
            cut_power_often(seed)
        except (AssertionError, StorageError):
            return
    pytest.fail(f"{SEEDS} seeds did not find: {name}")
