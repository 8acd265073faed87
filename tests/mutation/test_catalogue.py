"""Catalogue of source mutants against the source: each bug applies, and the tests that must find it exist."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from .catalogue import MUTANTS
from .mutant import ROOT, SourceMutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_to_exactly_one_place_and_is_valid_python(mutant: SourceMutant) -> None:
    sound = (ROOT / mutant.path).read_text()
    broken = mutant.applied(sound)
    assert broken != sound
    ast.parse(broken)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_of_a_mutant_exist(mutant: SourceMutant) -> None:
    assert mutant.tests
    assert all((ROOT / "tests" / test).is_file() for test in mutant.tests)


def test_names_of_mutants_are_unique() -> None:
    assert not [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]
