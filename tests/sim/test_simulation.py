"""Seeds of the simulator, as run by `make sim`. One seed again: make sim SEED=17

SEEDS=40 makes it shorter; the bounds below are those of a full run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ledgermq.raft.folder.recovery import LogRecovery

from .file_system import SimFileSystem
from .mutants_votes import ForgetsItsTerm
from .parts import Parts
from .runner import ROOT, Outcome, Total, next_seed, report, run_many, run_seed, shrink, soak, sum_of

ONE = os.environ.get("SEED")
COUNT = int(os.environ.get("SEEDS") or 320)
FULL_COUNT = 300
FULL_EVENTS = 3_000_000
TWICE = 20

#: Takes minutes on two free cores, and longer on a busy machine.
pytestmark = pytest.mark.timeout(3600)
not_for_one_seed = pytest.mark.skipif(bool(ONE), reason="one seed was asked for")


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """Return the outcomes of all seeds, run once; in other processes unless it is a single seed."""
    return [run_seed(int(ONE))] if ONE else list(run_many(range(COUNT)))


def test_random_histories_keep_every_invariant_and_end_in_agreement(outcomes: list[Outcome]) -> None:
    total = Total()
    failures: list[str] = []
    for outcome in outcomes:
        total.add(outcome)
        assert outcome.error or outcome.committed > 0
        if outcome.error:
            failures.append(report(outcome, shrinks=len(failures) < 2))
    print(total)
    assert not failures, "\n".join(failures)
    if total.seeds >= FULL_COUNT:
        assert total.events >= FULL_EVENTS


@not_for_one_seed
def test_the_same_seeds_give_the_same_histories_in_another_process(outcomes: list[Outcome]) -> None:
    """The other process hashes its strings with another key. Nothing may depend on that."""
    count = min(TWICE, COUNT)
    command = [sys.executable, "-m", "tests.sim", "--seeds", str(count), "--traces", "--no-shrink"]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    there = dict(line.split() for line in done.stdout.splitlines()[:-1])
    assert there == {str(outcome.seed): f"{outcome.trace:016x}" for outcome in outcomes[:count]}


@not_for_one_seed
def test_a_soak_goes_on_where_its_book_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.runner.SOAK_BATCH", 2)
    book = tmp_path / "soak.jsonl"
    assert next_seed(book) == 0
    assert soak(book, 0).seeds == 2
    with book.open("a") as file:
        file.write('{"commit": "abc", "la')  # stopped in the middle of a line
    assert next_seed(book) == 2


@not_for_one_seed
def test_the_totals_of_a_book_are_the_sums_of_its_lines(tmp_path: Path) -> None:
    book = tmp_path / "soak.jsonl"
    batch = Total(40, 1, 2, 3, 4, 5, 6, 7, 8, [9])
    line = {"commit": "abc", **asdict(batch)}
    older = {"commit": "abc", "seeds": 40, "events": 100, "violations": [10]}
    book.write_text("".join(json.dumps(each) + "\n" for each in (line, line, older)))
    assert sum_of(book) == {"abc": Total(120, 102, 4, 6, 8, 10, 12, 14, 16, [9, 9, 10])}


@not_for_one_seed
def test_a_failure_is_shrunk_to_the_faults_that_it_needs() -> None:
    """The mutant forgets on a restart. So crashes are needed, and most other faults are not."""
    parts = Parts(ForgetsItsTerm)
    failed = next(o for o in (run_seed(seed, parts=parts) for seed in range(100)) if o.error)
    small = shrink(failed, parts)
    assert small.outcome.error
    assert len(small.classes) < 10
    assert run_seed(failed.seed, parts=parts).trace == failed.trace


class ForgetfulFileSystem(SimFileSystem):
    """A disk that never flushes the log."""

    def sync_call(self, path: Path, call: Any) -> None:
        if call.inode is None or call.inode.segment < 0:
            super().sync_call(path, call)


def believe_the_page_cache(self: LogRecovery, segments: object, begin: int) -> None:
    """Skip the rewrite of what a failed flush left."""


@not_for_one_seed
@pytest.mark.parametrize(
    "parts",
    [
        Parts(ForgetsItsTerm),
        Parts(file_system_class=ForgetfulFileSystem),
        Parts(patches=((LogRecovery, "_write_again", believe_the_page_cache),)),
    ],
    ids=["core", "file system", "patch"],
)
def test_a_bug_in_any_part_is_seen(parts: Parts) -> None:
    """Ways to add mutants: another core, another disk, a patch of the storage code."""
    assert any(run_seed(seed, parts=parts).error for seed in range(150))
