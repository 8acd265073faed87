"""Catalogue of source mutants against the source: each bug applies, and the tests that must find it exist."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from .__main__ import check_sound
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


def test_tests_that_fail_without_a_bug_find_no_mutant(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sound.py").write_text("def test_a() -> None: pass\n")
    (tmp_path / "tests" / "test_broken.py").write_text("import a_module_that_is_missing\n")
    check_sound(["test_sound.py"], tmp_path)
    with pytest.raises(RuntimeError, match=r"test_broken\.py fail without a mutant"):
        check_sound(["test_broken.py"], tmp_path)


def test_names_of_mutants_are_unique() -> None:
    assert not [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]
