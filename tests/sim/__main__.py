"""Run seeds: python -m tests.sim --seeds 50 --start 0; --seed 17 repeats one; --soak FILE --for 60m."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from .runner import WORKERS, Total, report, run_many, run_seed, soak, sum_of

_UNITS = {"s": 1, "m": 60, "h": 3600}


def main() -> int:
    """Return 0 if every seed held, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, help="only this one, in this process")
    parser.add_argument("--traces", action="store_true", help="print the trace hash of each seed")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes")
    parser.add_argument("--soak", type=Path, help="append to this book, and go on where it ends")
    parser.add_argument("--for", dest="duration", type=seconds, default=3600.0, help="how long: 90s, 60m, 2h")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for fewer faults")
    options = parser.parse_args()
    if options.seed is not None:
        return _one(options.seed, shrinks=not options.no_shrink)
    if options.soak is not None:
        total = soak(options.soak, options.duration, workers=options.workers)
        for commit, each in sum_of(options.soak).items():
            print(f"{commit}: {each}")
        return 1 if total.violations else 0
    return _many(options)


def _one(seed: int, *, shrinks: bool) -> int:
    outcome = run_seed(seed)
    if outcome.error:
        print(report(outcome, shrinks=shrinks))
        return 1
    print(outcome)
    return 0


def _many(options: argparse.Namespace) -> int:
    total = Total()
    started = time.monotonic()
    for outcome in run_many(range(options.start, options.start + options.seeds), options.workers):
        total.add(outcome)
        if outcome.error:
            print(report(outcome, shrinks=not options.no_shrink), flush=True)
        elif options.traces:
            print(f"{outcome.seed} {outcome.trace:016x}")
    print(f"{total} in {time.monotonic() - started:.1f} s")
    return 1 if total.violations else 0


def seconds(text: str) -> float:
    """Read a duration like 90s, 60m or 2h. Raises: ArgumentTypeError."""
    found = re.fullmatch(r"(\d+)([smh])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 90s, 60m or 2h")
    return float(int(found[1]) * _UNITS[found[2]])


if __name__ == "__main__":
    sys.exit(main())
