"""Compaction plan: small files of past hours become one, and nothing else is touched."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.spark_jobs.lake.compaction_plan import MANY, compactions
from ledgermq.spark_jobs.lake.lake_state import LakeFile, LakeRange


def file(number: int, hour: int, size: int = 10, topic: str = "orders") -> LakeFile:
    return LakeFile(f"{number:03}", topic, hour, size, (LakeRange("g0", 0, number, number + 1, 0),))


def numbers(groups: list[tuple[LakeFile, ...]]) -> list[list[int]]:
    return [[int(each.path) for each in group] for group in groups]


def test_small_files_of_past_hours_become_one() -> None:
    files = [file(1, 5), file(2, 5), file(3, 6), file(4, 6), file(5, 5)]
    assert numbers(compactions(files, target=100)) == [[1, 2, 5]]
    assert numbers(compactions(files, target=100, everything=True)) == [[1, 2, 5], [3, 4]]


def test_an_hour_is_past_for_its_own_topic() -> None:
    files = [file(1, 5), file(2, 5), file(3, 6, topic="payments")]
    assert compactions(files, target=100) == []


def test_the_current_hour_is_merged_when_it_has_many() -> None:
    files = [file(number, 5) for number in range(MANY)]
    assert compactions(files[1:], target=10_000) == []
    assert numbers(compactions(files, target=10_000)) == [list(range(MANY))]


def test_large_files_are_left_and_groups_have_the_size_of_the_target() -> None:
    files = [file(1, 5, 50), file(2, 5, 49), file(3, 5, 49), file(4, 5, 49), file(5, 6)]
    assert numbers(compactions(files, target=100)) == [[2, 3]]
    assert compactions([file(1, 5), file(2, 6)], target=100) == []


def test_files_without_a_size_are_merged_like_others() -> None:
    """No writer makes them; a manifest may say so."""
    assert numbers(compactions([file(1, 5, 0), file(2, 5, 0), file(3, 6)], target=100)) == [[1, 2]]
