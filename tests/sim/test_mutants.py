"""The simulator must see the bugs that it is there for: each mutant dies within 200 seeds."""

from __future__ import annotations

import os

import pytest

from ledgermq.raft.core import RaftCore

from .mutants import MUTANTS
from .world import World

MAX_SEEDS = 200


@pytest.mark.skipif(bool(os.environ.get("SEED")), reason="one seed was asked for")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_kills(mutant: type[RaftCore]) -> None:
    for seed in range(MAX_SEEDS):
        try:
            World(seed, mutant).run()
        except AssertionError:
            return
    pytest.fail(f"{mutant.__name__} survived {MAX_SEEDS} seeds: {mutant.__doc__}")
