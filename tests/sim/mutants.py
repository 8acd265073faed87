"""Prove that the simulator works: run every mutant until it is detected.

    python -m tests.sim.mutants                     all, up to 1,000 seeds each
    python -m tests.sim.mutants --only VotesTwice   some; the rest of the tables stays unchanged

The trials of the storage detect its mutants, whole runs of the simulator the others.

The results go into mutant_seeds.json, and from there into the tables of docs/reliability.md; `make sim`
begins with them. A mutant is detected by a violated invariant or by an assertion of the code itself. Any
other exception means that the mutant is badly made, and is reported.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..raft import storage_trials
from . import mutants_broker, mutants_log, mutants_masters, mutants_resets, mutants_votes
from .invariants import InvariantError
from .mutant_list import MUTANTS, Mutant
from .mutants_storage import STORAGE_MUTANTS, StorageMutant

__all__ = ["MUTANTS", "Death", "find", "known_deaths"]

#: Importing them registers their mutants.
FAMILIES = (mutants_votes, mutants_log, mutants_resets, mutants_masters, mutants_broker)
MAX_SEEDS = 1000
STORAGE_SEEDS = 60
TARGET_MEDIAN = 50
SEEDS_FILE = Path(__file__).with_name("mutant_seeds.json")
REPORT = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


@dataclass(frozen=True, slots=True)
class Death:
    """How a mutant was detected. `seed` is None if it survived."""

    name: str
    seed: int | None
    seeds: int  # number of seeds that were run
    caught_by: str
    seconds: float


def find(mutant: Mutant, start: int = 1, count: int = MAX_SEEDS, *, proves: bool = True) -> Death:
    """Run seeds until one shows the bug. With `proves`, the real code must survive that seed."""
    began = time.monotonic()
    for seed in range(start, start + count):
        try:
            mutant.world(seed).run()
        except AssertionError as error:
            if proves and not _real_code_survives(mutant, seed):
                continue
            seconds = time.monotonic() - began
            return Death(mutant.name, seed, seed - start + 1, _caught_by(error), seconds)
    return Death(mutant.name, None, count, "", time.monotonic() - began)


def _real_code_survives(mutant: Mutant, seed: int) -> bool:
    try:
        mutant.sound_world(seed).run()
    except AssertionError:
        return False
    return True


def known_deaths() -> dict[str, dict[str, Any]]:
    """Return how each mutant was detected, by name: `seed`, number of `seeds`, `caught_by`."""
    known: dict[str, dict[str, Any]] = json.loads(SEEDS_FILE.read_text()) if SEEDS_FILE.exists() else {}
    return known


def _caught_by(error: AssertionError) -> str:
    text = str(error) or "an assertion"
    if isinstance(error, InvariantError):
        return text.split(":", 1)[0]
    return f"assertion in the code: {text.splitlines()[0]}"


def find_in_storage(mutant: StorageMutant, count: int = STORAGE_SEEDS) -> Death:
    """Run the storage trials until one shows the bug."""
    began = time.monotonic()
    found = storage_trials.find(mutant, count)
    seconds = time.monotonic() - began
    if found is None:
        return Death(mutant.name, None, count, "", seconds)
    seeds, trial = found
    return Death(mutant.name, seeds - 1, seeds, trial.replace("_", " "), seconds)


def _job(job: tuple[str, int]) -> Death:
    """Run a mutant by name in a process of the pool. 0 seeds: it is a mutant of the storage."""
    name, count = job
    logging.disable(logging.CRITICAL)  # torn tails and full disks are expected here
    if not count:
        return find_in_storage(next(mutant for mutant in STORAGE_MUTANTS if mutant.name == name))
    return find(next(mutant for mutant in MUTANTS if mutant.name == name), count=count)


def main() -> int:
    """Return 0 if all were detected, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("--only", nargs="*", help="names; default: all")
    parser.add_argument("--seeds", type=int, default=MAX_SEEDS, help="at most, each")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    names = {mutant.name for mutant in MUTANTS} | {mutant.name for mutant in STORAGE_MUTANTS}
    wanted = set(options.only or names)
    if wanted - names:
        unknown = ", ".join(sorted(wanted - names))
        parser.error(f"unknown mutant {unknown}; there are: {', '.join(sorted(names))}")
    chosen = [mutant for mutant in MUTANTS if mutant.name in wanted]
    stored = [mutant for mutant in STORAGE_MUTANTS if mutant.name in wanted]
    with multiprocessing.Pool(options.processes) as pool:
        in_storage = _collect(pool.imap_unordered(_job, [(mutant.name, 0) for mutant in stored]))
        in_runs = _collect(pool.imap_unordered(_job, [(mutant.name, options.seeds) for mutant in chosen]))
    deaths = {**in_storage, **in_runs}
    _record(deaths)
    return 1 if any(death.seed is None for death in deaths.values()) else 0


def _record(deaths: dict[str, Death]) -> None:
    """Store how mutants were detected (a survivor is removed), and rewrite the tables."""
    known = known_deaths()
    for name, death in deaths.items():
        known.pop(name, None)
        if death.seed is not None:
            known[name] = {"seed": death.seed, "seeds": death.seeds, "caught_by": death.caught_by}
    names = [mutant.name for mutant in MUTANTS] + [mutant.name for mutant in STORAGE_MUTANTS]
    known = {name: known[name] for name in names if name in known}
    SEEDS_FILE.write_text(json.dumps(known, indent=1) + "\n")
    for section, mutants, limit in (
        ("mutants", MUTANTS, MAX_SEEDS),
        ("storage mutants", STORAGE_MUTANTS, STORAGE_SEEDS),
    ):
        summary = _summary(mutants, known, limit)
        print(f"{section}: {summary}")
        _write(section, [summary + ".", "", *_table(mutants, known)])


def _collect(deaths: Iterable[Death]) -> dict[str, Death]:
    collected: dict[str, Death] = {}
    for death in deaths:
        collected[death.name] = death
        found = f"{death.seeds:>5} seeds  {death.caught_by}" if death.seed is not None else "SURVIVED"
        print(f"{death.name:<42} {death.seconds:6.1f} s {found}", flush=True)
    return collected


def _summary(mutants: Sequence[Mutant | StorageMutant], known: dict[str, dict[str, Any]], limit: int) -> str:
    needed = [known[mutant.name]["seeds"] for mutant in mutants if mutant.name in known]
    median = statistics.median(needed) if needed else 0
    return (
        f"{len(needed)} of {len(mutants)} mutants found out; seeds needed: median {median:g}, most"
        f" {max(needed, default=0)} (targets: all within {limit:,}, median at most {TARGET_MEDIAN})"
    )


def _table(mutants: Sequence[Mutant | StorageMutant], known: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| mutant | row | the bug | seeds | caught by |", "|---|---|---|---|---|"]
    for mutant in sorted(mutants, key=_row):
        death = known.get(mutant.name, {"seeds": "?", "caught_by": "not found"})
        what = " ".join(mutant.what.split())
        lines.append(
            f"| `{mutant.name}` | {mutant.rows} | {what} | {death['seeds']} | {death['caught_by']} |"
        )
    return lines


def _row(mutant: Mutant | StorageMutant) -> tuple[int, int, str]:
    """Sort E, C, K, B, R, then the rest; C2 before C10."""
    first = mutant.rows.split(",")[0]
    number = first[1:].split(".")[0]
    return "ECKBRPV".index(first[0]), int(number) if number.isdecimal() else 0, mutant.name


def _write(section: str, lines: list[str]) -> None:
    """Replace the text between the marks of a section of the report."""
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    head, rest = REPORT.read_text().split(begin)
    tail = rest.split(end)[1]
    REPORT.write_text(f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}{tail}")


if __name__ == "__main__":
    sys.exit(main())
