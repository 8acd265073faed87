"""The manifest is not believed: what it claims is compared with the files and the log."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from ledgermq.spark_jobs.findings import Kind, Severity
from ledgermq.spark_jobs.group_checks import attribute_changes
from ledgermq.spark_jobs.node_checks import MAX_NAMED_FILES

from .dump_maker import flip_bit, make_log, reseal, segment_of, take_dump
from .local_scan import faults, scan_node
from .test_dump_folder import edit_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return take_dump(make_log(60), tmp_path / "dumps", "n1")


def kinds(folder: Path) -> list[str]:
    return [str(finding.kind) for finding in faults(folder)]


def test_a_wrong_commit_checksum_is_found(folder: Path) -> None:
    commit = json.loads((folder / "manifest.json").read_text())["commit"]
    edit_manifest(folder, commit=commit | {"crc": 1})
    assert kinds(folder) == ["manifest"]


def test_a_commit_index_that_the_log_does_not_reach_is_found(folder: Path) -> None:
    commit = json.loads((folder / "manifest.json").read_text())["commit"]
    edit_manifest(folder, commit=commit | {"index": 61})
    assert "manifest" in kinds(folder)


def test_a_wrong_first_index_is_found(folder: Path) -> None:
    edit_manifest(folder, first={"index": 4, "offset": 0})
    assert kinds(folder) == ["manifest"]


def test_a_length_that_no_log_has_is_found_in_bounded_space(folder: Path) -> None:
    log_end, claimed = make_log(60).end, 1 << 62
    edit_manifest(folder, end_offset=claimed)
    dump, _, findings = scan_node(folder)
    missing = sorted(f for f in findings if f.kind in (Kind.MISSING_SEGMENT, Kind.MISSING_RANGE))
    assert len(missing) == MAX_NAMED_FILES + 1
    assert (missing[0].offset, missing[-1].end_offset) == (log_end, claimed)
    assert all(one.end_offset == other.offset for one, other in pairwise(missing))
    last_file = (claimed - 1) // dump.segment_size
    assert sum(each.count for each in missing) == last_file - log_end // dump.segment_size + 1


def test_a_segment_that_is_not_listed_is_found(folder: Path) -> None:
    files = json.loads((folder / "manifest.json").read_text())["files"]
    edit_manifest(folder, files=[file for file in files if not file["path"].endswith(f"{65536:020d}")])
    assert kinds(folder) == ["manifest"]


def test_a_consume_queue_file_that_is_gone_is_found(folder: Path) -> None:
    for path in folder.glob("consumequeue/*/1/*"):
        path.unlink()
    assert set(kinds(folder)) == {"consume-queue"}


def test_bytes_that_changed_after_the_dump_are_told_from_damage_at_rest(tmp_path: Path) -> None:
    log = make_log(60)
    copied = take_dump(log, tmp_path / "a" / "dumps", "n1")
    flip_bit(copied, 900)
    log.segments[0][900] ^= 1
    at_rest = take_dump(log, tmp_path / "b" / "dumps", "n1")
    for folder, text in ((copied, "changed after it was dumped"), (at_rest, "so on the node's disk")):
        _, _, findings = scan_node(folder)
        (finding,) = attribute_changes(findings)
        assert finding.kind is Kind.CRC and text in finding.detail


def test_a_change_that_fits_all_checksums_is_still_seen_as_a_changed_dump(folder: Path) -> None:
    log = make_log(60)
    last = log.entries[-1]
    path, position = segment_of(folder, last.physical_offset)
    raw = bytearray(path.read_bytes())
    reseal(raw, position, timestamp=last.timestamp + 5)
    path.write_bytes(raw)
    _, _, findings = scan_node(folder)
    assert {finding.kind for finding in findings} == {Kind.CHANGED_DUMP, Kind.MANIFEST}


def test_damage_above_the_commit_point_is_a_note(tmp_path: Path) -> None:
    log = make_log(60)
    folder = take_dump(log, tmp_path / "dumps", "n1", commit=50)
    flip_bit(folder, log.entries[55].physical_offset + 70)
    _, _, findings = scan_node(folder)
    assert {finding.severity for finding in findings} == {Severity.INFO}
