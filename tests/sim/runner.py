"""Runner: runs many seeds in processes, shrinks failures, and keeps the records of soak runs.

Owns: the simulator's only clock and only processes. A seed gives the same run in every process.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import subprocess
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from .faults import CLASSES
from .parts import Parts
from .world import SAFETY_US, SECOND, World

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
SOAK_BATCH = 40
_SHOWN = 30  # number of events to show for a failure
#: Numbers of an outcome that are summed.
_COUNTED = (
    "events", "disk_calls", "committed", "crashes", "rejoins", "resets", "segments_deleted", "repairs",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Result of one seed. `error` is empty if every invariant held."""

    seed: int
    events: int
    disk_calls: int
    committed: int
    crashes: int
    rejoins: int
    resets: int
    segments_deleted: int
    repairs: int
    trace: int
    flush: str
    happened: dict[str, int]
    error: str = ""
    told: tuple[str, ...] = ()  # faults of a failed run


def run_seed(
    seed: int,
    *,
    without: frozenset[str] = frozenset(),
    quiet: tuple[tuple[int, int], ...] = (),
    parts: Parts | None = None,
) -> Outcome:
    """Run one seed, without some classes of faults, and without any in some stretches (microseconds)."""
    logging.disable(logging.CRITICAL)  # the nodes log a lot about the injected faults
    error = ""
    world = World(seed, parts=parts, without=without, quiet=quiet)
    try:
        world.run()
    except AssertionError as broken:
        error = f"{type(broken).__name__}: {broken}"
    except Exception as bug:  # noqa: BLE001 (a bug of the code under test, or of the simulator: a failure as well)
        error = f"unexpected {type(bug).__name__}: {bug}"
    if error:
        error = f"at {world.now / SECOND:.6f} s, event {world.events:,}: {error}"
    return Outcome(
        seed,
        world.events,
        sum(node.files.calls for node in world.nodes.values()),
        world.invariants.max_committed,
        world.faults.crashes,
        world.rejoins,
        world.horizon.resets,
        world.segments_deleted,
        world.repairs,
        world.trace & 0xFFFFFFFFFFFFFFFF,
        world.flush,
        dict(world.faults.happened),
        error,
        tuple(world.faults.told[-_SHOWN:]) if error else (),
    )


def run_many(seeds: Iterable[int], workers: int = WORKERS) -> Iterator[Outcome]:
    """Run seeds in processes. Outcomes keep the order of the seeds."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(run_seed, seeds)


# --- failures -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Shrunk:
    """A failure with a reduced set of faults that still causes it."""

    outcome: Outcome
    classes: tuple[str, ...]  # needed classes
    busy: tuple[tuple[int, int], ...]  # seconds of the first phase in which faults are needed
    runs: int


def shrink(failed: Outcome, parts: Parts | None = None, *, max_runs: int = 60) -> Shrunk:
    """Leave out class after class, then second after second, while the seed still fails in any way."""
    best, runs = failed, 0
    without: frozenset[str] = frozenset()
    quiet: tuple[tuple[int, int], ...] = ()
    for name in CLASSES:
        if runs == max_runs:
            break
        runs += 1
        outcome = run_seed(failed.seed, without=without | {name}, parts=parts)
        if outcome.error:
            best, without = outcome, without | {name}
    for second in range(SAFETY_US // SECOND):
        if runs == max_runs:
            break
        runs += 1
        more = (*quiet, (second * SECOND, (second + 1) * SECOND))
        outcome = run_seed(failed.seed, without=without, quiet=more, parts=parts)
        if outcome.error:
            best, quiet = outcome, more
    still = {begin // SECOND for begin, _ in quiet}
    busy = tuple((s, s + 1) for s in range(SAFETY_US // SECOND) if s not in still)
    return Shrunk(best, tuple(name for name in CLASSES if name not in without), busy, runs)


def commit_id() -> str:
    """Return the commit of the code, with "+" if files differ from it."""
    try:
        found = _git("rev-parse", "--short=12", "HEAD")
        return found + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def report(failed: Outcome, *, shrinks: bool = True) -> str:
    """Return what a person needs to reproduce a failure: seed, commit, error and a shrunk list of faults."""
    lines = [
        f"seed {failed.seed} FAILED {failed.error}",
        f"  code: {commit_id()}   again: make sim SEED={failed.seed}   or   python -m tests.sim --seed "
        f"{failed.seed}",
    ]
    told = failed.told
    if shrinks:
        small = shrink(failed)
        told = small.outcome.told
        lines += [
            f"  shrunk in {small.runs} runs to: {', '.join(small.classes) or 'no faults at all'}",
            f"  with faults in seconds: {', '.join(f'{a}-{b}' for a, b in small.busy) or 'none'}",
            f"  then it fails {small.outcome.error}",
        ]
    return "\n".join([*lines, "  the last faults:", *(f"    {line}" for line in told)])


# --- totals and the long run --------------------------------------------------------------------------------
@dataclass
class Total:
    """Sum of many outcomes."""

    seeds: int = 0
    events: int = 0
    disk_calls: int = 0
    committed: int = 0
    crashes: int = 0
    rejoins: int = 0
    resets: int = 0
    segments_deleted: int = 0
    repairs: int = 0
    violations: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add one outcome."""
        self.seeds += 1
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        if outcome.error:
            self.violations.append(outcome.seed)

    def __str__(self) -> str:
        return (
            f"{self.seeds:,} seeds, {self.events:,} events, {self.disk_calls:,} disk calls, "
            f"{self.committed:,} entries, {self.crashes:,} crashes, {self.rejoins:,} rejoins, "
            f"{self.resets:,} resets, {self.segments_deleted:,} segments deleted, {self.repairs:,} repairs, "
            f"{len(self.violations)} violations"
        )


def soak(book: Path, seconds: float, *, workers: int = WORKERS) -> Total:
    """Run seeds that are not in the book yet, for at least one batch and `seconds`.

    Appends a line per batch. May be stopped at any time.
    """
    book.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    total = Total()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for first in count(next_seed(book), SOAK_BATCH):
            seeds = range(first, first + SOAK_BATCH)
            batch, started = Total(), time.monotonic()
            for outcome in pool.map(run_seed, seeds):
                batch.add(outcome)
                total.add(outcome)
                if outcome.error:
                    print(report(outcome, shrinks=False), flush=True)
            line = {"commit": commit_id(), "first": seeds[0], "last": seeds[-1], **asdict(batch)}
            line["seconds"] = round(time.monotonic() - started, 1)
            with book.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"seeds {seeds[0]}-{seeds[-1]}: {batch}", flush=True)
            if time.monotonic() - begin >= seconds:
                break
    return total


def next_seed(book: Path) -> int:
    """Return the first seed after those in the book."""
    return max((line["last"] + 1 for line in read_book(book)), default=0)


def read_book(book: Path) -> list[dict[str, Any]]:
    """Return the lines of a soak's book, without a truncated last one."""
    lines: list[dict[str, Any]] = []
    for raw in book.read_text().splitlines() if book.exists() else []:
        try:
            lines.append(json.loads(raw))
        except json.JSONDecodeError:
            continue
    return lines


def sum_of(book: Path) -> dict[str, Total]:
    """Return the totals of a book by commit."""
    totals: dict[str, Total] = {}
    for line in read_book(book):
        total = totals.setdefault(line["commit"], Total())
        for name, known in asdict(total).items():  # older lines have fewer
            setattr(total, name, known + line.get(name, type(known)()))
    return totals
