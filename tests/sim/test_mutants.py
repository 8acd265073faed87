"""The simulator must detect the bugs that it exists for: each mutant is detected, as the table says."""

from __future__ import annotations

import os
import statistics

import pytest

from .mutant_list import Mutant
from .mutants import MAX_SEEDS, MUTANTS, TARGET_MEDIAN, find, known_deaths
from .mutants_storage import STORAGE_MUTANTS

MARGIN = 60  # seeds beyond the known number: a change of the simulator gives every seed another history

pytestmark = pytest.mark.skipif(bool(os.environ.get("SEED")), reason="one seed was asked for")


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_simulator_finds_out(mutant: Mutant) -> None:
    """Start with the seed that is known to show the bug; go on for as many as it needs, and more."""
    known = known_deaths()[mutant.name]
    count = min(MAX_SEEDS, 2 * known["seeds"] + MARGIN)
    death = find(mutant, known["seed"], count, proves=False)
    assert death.seed is not None, f"{count} seeds did not show the bug of {mutant.name}: {mutant.what}"


def test_the_table_lists_every_mutant_and_keeps_the_targets() -> None:
    known = known_deaths()
    assert set(known) == {mutant.name for mutant in MUTANTS} | {mutant.name for mutant in STORAGE_MUTANTS}
    needed = [known[mutant.name]["seeds"] for mutant in MUTANTS]
    assert max(needed) <= MAX_SEEDS
    assert statistics.median(needed) <= TARGET_MEDIAN
