"""Seeds of the simulator. One seed again: make sim SEED=17"""

from __future__ import annotations

import os

import pytest

from .invariants import InvariantError
from .world import World

SEEDS = (
    [int(os.environ["SEED"])] if os.environ.get("SEED") else list(range(int(os.environ.get("SEEDS", "60"))))
)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_history_keeps_every_invariant_and_ends_in_agreement(seed: int) -> None:
    world = World(seed)
    try:
        result = world.run()
    except (InvariantError, AssertionError) as error:
        pytest.fail(
            f"seed {seed} at {world.now / 1e6:.6f} s, event {world.events}: {error}\n"
            f"again: make sim SEED={seed}   or   python -m tests.sim --seed {seed}"
        )
    assert result.committed > 0


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_the_same_seed_gives_the_same_history(seed: int) -> None:
    assert World(seed).run() == World(seed).run()
