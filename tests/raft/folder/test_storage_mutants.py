"""Bugs injected into the storage: trials with power cuts, damage and failing disks must detect each."""

from __future__ import annotations

import pytest

from ...sim.mutants_storage import STORAGE_MUTANTS, StorageMutant
from ..storage_trials import find, try_all

SEEDS = 60


@pytest.mark.parametrize("seed", range(3))
def test_the_storage_passes_what_its_mutants_fail(seed: int) -> None:
    try_all(seed)


@pytest.mark.parametrize("mutant", STORAGE_MUTANTS, ids=lambda mutant: mutant.name)
def test_the_trials_find_the_bug(mutant: StorageMutant) -> None:
    assert find(mutant, SEEDS), f"{SEEDS} seeds did not find {mutant.name}: {mutant.what}"
