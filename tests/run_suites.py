"""Run suites of tests, each in its own pytest process, and end with one line: "N passed, N failed, N skipped
in T s".

    python tests/run_suites.py unit sim integration e2e

Processes of their own: the Spark session, gRPC threads and protobuf registrations of one suite do not reach
the next. A suite runs in several workers, one per core up to four (WORKERS=n: so many; 1: none but pytest
itself), which tests/conftest.py shares the tests out to. Tests marked `alone` come after the others, with
nothing beside them. All suites run even when one fails; the exit code is 1 when any test failed. Reports are
kept in build/test/.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test"

#: Paths of each suite; "unit" is what the others leave over.
SUITES: dict[str, list[str]] = {
    "unit": ["tests", "--ignore=tests/sim", "--ignore=tests/integration", "--ignore=tests/e2e"],
    "sim": ["tests/sim"],
    "integration": ["tests/integration"],
    "e2e": ["tests/e2e"],
}
#: Suites with tests that are marked `alone`.
WITH_LONERS = ("integration",)
_NO_TESTS_COLLECTED = 5
_WORKERS_MAX = 4


@dataclass
class Outcome:
    """What one suite gave. A suite that died without a report counts as one failure."""

    suite: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def add(self, other: Outcome) -> None:
        """Count what another run gave as well."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.seconds += other.seconds


def main(suites: list[str]) -> int:
    """Run the suites in this order; return the exit code."""
    unknown = [name for name in suites if name not in SUITES]
    if unknown or not suites:
        sys.stderr.write(f"unknown suite {', '.join(unknown)}; there are: {', '.join(SUITES)}\n")
        return 2
    if shutil.which("docker") is None or not _docker_answers():
        _say(
            "There is no Docker engine here: the tests with containers are skipped. "
            "Start one to run them: dockerd"
        )
    REPORTS.mkdir(parents=True, exist_ok=True)
    workers = _workers()
    outcomes = [_run(name, workers) for name in suites]
    _say("")
    for each in outcomes:
        _say(f"{each.suite:<12} {_counts(each)}")
    total = Outcome("total")
    for each in outcomes:
        total.add(each)
    _say(_counts(total))
    return 1 if total.failed or not total.passed else 0


def _run(suite: str, workers: int) -> Outcome:
    _say(f"\n=== {suite}")
    if workers == 1:
        return _run_part(suite, suite, [])
    options = ["--numprocesses", str(workers)]
    if suite not in WITH_LONERS:
        return _run_part(suite, suite, options)
    outcome = _run_part(suite, suite, [*options, "-m", "not alone"])
    outcome.add(_run_part(suite, f"{suite}-alone", ["-m", "alone"]))
    return outcome


def _run_part(suite: str, name: str, options: list[str]) -> Outcome:
    """Run the tests of a suite that the options choose, with a report of this name."""
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *options, *SUITES[suite]]
    started = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    outcome = _read(suite, report)
    outcome.seconds = time.monotonic() - started
    if code not in (0, _NO_TESTS_COLLECTED) and not outcome.failed:
        _say(f"{name}: pytest ended with code {code}; counted as one failure")
        outcome.failed = 1
    return outcome


def _workers() -> int:
    """Return how many processes share the tests of a suite. One seed of the simulator needs but one."""
    asked = "1" if os.environ.get("SEED") else os.environ.get("WORKERS", "")
    return int(asked) if asked else max(1, min(os.cpu_count() or 1, _WORKERS_MAX))


def _read(suite: str, report: Path) -> Outcome:
    outcome = Outcome(suite)
    if not report.exists():
        return outcome
    for result in ElementTree.parse(report).getroot().iter("testsuite"):
        failed = int(result.get("failures", 0)) + int(result.get("errors", 0))
        skipped = int(result.get("skipped", 0))
        outcome.failed += failed
        outcome.skipped += skipped
        outcome.passed += int(result.get("tests", 0)) - failed - skipped
    return outcome


def _docker_answers() -> bool:
    try:
        return (
            subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def _counts(outcome: Outcome) -> str:
    return (
        f"{outcome.passed:,} passed, {outcome.failed:,} failed, {outcome.skipped:,} skipped"
        f" in {outcome.seconds:.0f} s"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
