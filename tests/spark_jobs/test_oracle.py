"""The fast checks against a slow and obvious second checker, on logs and damage drawn from seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from .dump_maker import make_log, take_dump
from .fault_injector import KINDS, inject
from .local_scan import faults
from .oracle import fillers_are_right, wrong_indexes


@pytest.mark.parametrize("seed", range(8))
def test_an_undamaged_log_has_no_findings_however_it_is_sliced(tmp_path: Path, seed: int) -> None:
    log = make_log(80, seed=seed, segment_size=(16 << 10) << seed % 3)
    folder = take_dump(log, tmp_path / "dumps", "n1")
    assert wrong_indexes(log, folder) == []
    for slice_size in (1, 4096, 1 << 30):
        assert faults(folder, slice_size=slice_size) == []


@pytest.mark.parametrize("seed", range(len(KINDS) * 12))
def test_every_kind_of_damage_is_found_where_the_oracle_sees_it(tmp_path: Path, seed: int) -> None:
    log = make_log(60, seed=seed)
    folder = take_dump(log, tmp_path / "dumps", "n1")
    what = inject(log, folder, seed)
    wrong = wrong_indexes(log, folder)
    assert wrong or not fillers_are_right(log, folder), f"seed {seed}: {what} changed nothing"
    found = faults(folder)
    assert found, f"seed {seed}: {what} was not found"
    named = [finding.index for finding in found if finding.index >= 0]
    # A change that has a fitting checksum is seen at the entry itself or at the one that follows it.
    assert min(named) in (wrong[0], wrong[0] + 1), f"seed {seed}: {what}: {[f.line() for f in found]}"


@pytest.mark.parametrize("seed", range(40))
def test_one_flipped_bit_is_exactly_one_finding(tmp_path: Path, seed: int) -> None:
    log = make_log(40, seed=seed)
    folder = take_dump(log, tmp_path / "dumps", "n1")
    what = inject(log, folder, seed * len(KINDS))  # kind "flip"
    wrong = wrong_indexes(log, folder)
    found = faults(folder)
    assert [(f.index, str(f.kind)) for f in found] == [(wrong[0], "crc")], f"seed {seed}: {what}: {found}"
