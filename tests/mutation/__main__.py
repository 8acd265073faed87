"""Run the tests of each mutant of the source against it: `python -m tests.mutation [--only NAME ...]`.

Works on copies of the source below build/mutation, one per worker. Prints which test found each mutant, and
exits with 1 if one survived.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from .catalogue import MUTANTS
from .mutant import ROOT, SourceMutant

PACKAGES = ("proto", "rpc", "raft", "broker", "nameserver", "client", "spark_jobs")
_TEST_SECONDS = 600
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def make_copy(folder: Path) -> Path:
    """Copy what git tracks, and link the packages so that `ledgermq.<package>` is found there first."""
    shutil.rmtree(folder, ignore_errors=True)
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.json", "*.toml",
    "*.proto", "*.pyi", "tests/raft/scenarios/*.txt"],
                             cwd=ROOT, capture_output=True, text=True, check=True)  # fmt: skip
    for name in tracked.stdout.split():
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    links = folder / "build" / "path" / "ledgermq"
    links.mkdir(parents=True)
    for package in PACKAGES:
        (links / package).symlink_to(folder / package)
    return folder


def check_sound(tests: Sequence[str], copy: Path) -> None:
    """Run tests without a bug: else whatever fails them would count as found. Raises: RuntimeError."""
    done = _run(tests, copy)
    if done is None or done.returncode:
        said = "no end within the time" if done is None else done.stdout[-2000:] + done.stderr[-2000:]
        raise RuntimeError(f"{', '.join(tests)} fail without a mutant:\n{said}")


def killer(mutant: SourceMutant, copy: Path) -> str:
    """Return the first test that fails with the bug in the copy; "" if none does."""
    path = copy / mutant.path
    sound = path.read_text()
    path.write_text(mutant.applied(sound))
    try:
        done = _run(mutant.tests, copy)
    finally:
        path.write_text(sound)
    if done is None:
        return "no end within the time"
    if done.returncode == 0:
        return ""
    found = _FAILED.search(done.stdout)
    if done.returncode != 1 or found is None:
        raise RuntimeError(
            f"{mutant.name}: pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return found.group(1)


def _run(tests: Sequence[str], copy: Path) -> subprocess.CompletedProcess[str] | None:
    """Run tests in a copy; None: they did not end."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "--no-header", "-p", "no:randomly"]
    environment = {**os.environ, "PYTHONPATH": f"{copy / 'build' / 'path'}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run([*command, *(f"tests/{test}" for test in tests)], cwd=copy, env=environment,
                              capture_output=True, text=True, check=False, timeout=_TEST_SECONDS)  # fmt: skip
    except subprocess.TimeoutExpired:
        return None


def run(mutants: Sequence[SourceMutant], workers: int) -> Iterator[tuple[SourceMutant, str, float]]:
    """Yield (mutant, its killer, seconds), in order."""
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(workers):
        copies.put(make_copy(ROOT / "build" / "mutation" / str(number)))

    def one(mutant: SourceMutant) -> tuple[SourceMutant, str, float]:
        copy, begun = copies.get(), time.monotonic()
        try:
            return mutant, killer(mutant, copy), time.monotonic() - begun
        finally:
            copies.put(copy)

    def check(tests: Sequence[str]) -> None:
        copy = copies.get()
        try:
            check_sound(tests, copy)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(check, dict.fromkeys(mutant.tests for mutant in mutants)))
        yield from pool.map(one, mutants)


def main() -> int:
    """Return 0 if every mutant was found, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", nargs="*", help="names; default: all")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := set(options.only or ()) - known.keys():
        parser.error(f"unknown mutant {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}")
    chosen = [known[name] for name in options.only] if options.only else list(MUTANTS)
    survivors = []
    for mutant, test, seconds in run(chosen, options.workers):
        print(f"{mutant.name:<44} {seconds:6.1f} s  {test or 'SURVIVED'}", flush=True)
        if not test:
            survivors.append(mutant)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants of the source found")
    for mutant in survivors:
        print(f"survived: {mutant.name}: {mutant.what} ({mutant.path})")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
