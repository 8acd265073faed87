"""`make fuzz FOR=60s TARGET=name`: fuzz one decoder, or all of them in turn, with new inputs.

A failure is written to build/fuzz/ and printed with the command that repeats it. Keep its input in
corpus/<target>/ once it is fixed.
"""

from __future__ import annotations

import argparse
import hashlib
import secrets
import sys
import traceback
from pathlib import Path

from ledgermq.client.durations import parse_duration

from .fuzzer import CORPUS, FuzzFailure, run
from .targets import TARGETS

_BUILD = Path(__file__).parent.parent.parent / "build" / "fuzz"


def main() -> int:
    """Return the exit code: 1 if a target failed."""
    options = _options()
    if options.write_corpus:
        return _write_corpus()
    chosen = [TARGETS[name] for name in options.target or TARGETS]
    seconds = parse_duration(options.length) / len(chosen)
    failed = 0
    for target in chosen:
        try:
            print(f"{target.name:<24} {run(target, options.seed, seconds):>9,} inputs", flush=True)
        except FuzzFailure as failure:
            failed += 1
            _report(failure, options.seed)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--for", dest="length", default="60s", help="for all targets together (default 60s)")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this one")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--write-corpus", action="store_true", help="write the real encodings anew")
    return parser.parse_args()


def _report(failure: FuzzFailure, seed: int) -> None:
    _BUILD.mkdir(parents=True, exist_ok=True)
    path = _BUILD / f"{failure.target.name}-{hashlib.sha256(failure.data).hexdigest()[:12]}.bin"
    path.write_bytes(failure.data)
    print(f"FAILED {failure} (seed {seed}); the input is in {path}", flush=True)
    traceback.print_exception(failure.__cause__, limit=-6)


def _write_corpus() -> int:
    """Real encodings are named seed-N. Other files were found by fuzzing and stay."""
    for target in TARGETS.values():
        folder = CORPUS / target.name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("seed-*.bin"):
            old.unlink()
        for number, seed in enumerate(target.seeds()):
            (folder / f"seed-{number}.bin").write_bytes(bytes(seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
