"""Run seeds: python -m tests.sim --seeds 50 --start 0, or one again: python -m tests.sim --seed 17"""

from __future__ import annotations

import argparse
import sys
import time

from .invariants import InvariantError
from .world import World


def main() -> int:
    """Return 0 when every seed held, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, help="only this one")
    options = parser.parse_args()
    seeds = (
        [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    )
    failed = events = committed = 0
    started = time.monotonic()
    for seed in seeds:
        world = World(seed)
        try:
            result = world.run()
        except (InvariantError, AssertionError) as error:
            failed += 1
            print(f"seed {seed} FAILED at {world.now / 1e6:.6f} s after {world.events} events: {error}")
            print(f"  again: make sim SEED={seed}   or   python -m tests.sim --seed {seed}")
            if options.seed is not None:
                raise
            continue
        except Exception:
            print(
                f"seed {seed} broke the simulator or a core at {world.now / 1e6:.6f} s; again: make sim SEED={seed}"
            )
            raise
        events += result.events
        committed += result.committed
        if options.seed is not None:
            print(result)
    elapsed = time.monotonic() - started
    print(f"{len(seeds)} seeds, {failed} failed, {events:,} events, {committed:,} entries in {elapsed:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
