"""What is refused before anything is read, and how a log is cut into slices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledgermq.spark_jobs import verify
from ledgermq.spark_jobs.dump_folder import find_dumps, group_folders, read_dump, slices_of
from ledgermq.spark_jobs.errors import SparkJobError

from .dump_maker import Log, make_dumps, make_log, take_dump
from .local_scan import faults


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(folder: Path) -> str:
    with pytest.raises(SparkJobError) as caught:
        find_dumps(folder)
    return str(caught.value)


def test_dumps_are_found_in_the_order_of_the_nodes(tmp_path: Path) -> None:
    make_dumps(tmp_path / "dumps", Log(), nodes=("n3", "n1"))
    assert [dump.node for dump in find_dumps(tmp_path / "dumps")] == ["n1", "n3"]


def test_two_dumps_of_one_incarnation_are_refused(tmp_path: Path) -> None:
    take_dump(Log(), tmp_path / "dumps", "n1", incarnation=5)
    take_dump(Log(), tmp_path / "dumps", "n2", incarnation=5)
    assert "two dumps of the same incarnation 5" in refusal(tmp_path / "dumps")


def test_two_dumps_of_one_node_are_refused(tmp_path: Path) -> None:
    take_dump(Log(), tmp_path / "dumps", "n1")
    take_dump(Log(), tmp_path / "dumps", "n2")
    edit_manifest(tmp_path / "dumps" / "n2", node="n1")
    assert "two dumps of the same node n1" in refusal(tmp_path / "dumps")


@pytest.mark.parametrize("change", [{"group": "g1"}, {"cluster": "other"}])
def test_dumps_of_different_groups_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    take_dump(Log(), tmp_path / "dumps", "n1")
    take_dump(Log(), tmp_path / "dumps", "n2", **change)
    assert "Only replicas of one broker group can be compared" in refusal(tmp_path / "dumps")


@pytest.mark.parametrize(
    ("change", "is_refused"),
    [
        ({"group_id": "0000000000000008"}, True),
        ({"group_id": "0000000000000008", "former_group_ids": ["0000000000000007"]}, False),
        ({"group_id": "0000000000000007"}, False),
        ({"group_id": "0000000000000000"}, False),
    ],
)
def test_dumps_of_two_groups_of_one_name_are_refused(
    tmp_path: Path, change: dict[str, Any], is_refused: bool
) -> None:
    """They would look like replicas that have diverged."""
    make_dumps(tmp_path / "dumps", Log(), nodes=("n1", "n2"))
    edit_manifest(tmp_path / "dumps" / "n1", group_id="0000000000000007")
    edit_manifest(tmp_path / "dumps" / "n2", **change)
    if is_refused:
        assert "two broker groups that are both called" in refusal(tmp_path / "dumps")
    else:
        assert len(find_dumps(tmp_path / "dumps")) == 2


def test_the_dumps_of_several_groups_are_in_a_folder_each(tmp_path: Path) -> None:
    make_dumps(tmp_path / "one", Log(), nodes=("n1",))
    assert group_folders(tmp_path / "one") == [tmp_path / "one"]
    assert group_folders(tmp_path / "nothing") == [tmp_path / "nothing"]
    for group in ("g1", "g0"):
        make_dumps(tmp_path / "both" / group, Log(), nodes=("n1",))
    assert group_folders(tmp_path / "both") == [tmp_path / "both" / "g0", tmp_path / "both" / "g1"]


def test_a_group_without_a_finished_dump_is_not_left_out(tmp_path: Path) -> None:
    make_dumps(tmp_path / "g0", Log(), nodes=("n1",))
    (tmp_path / "g1" / "n4" / "commitlog").mkdir(parents=True)
    assert group_folders(tmp_path) == [tmp_path / "g0", tmp_path / "g1"]
    assert "was not finished" in refusal(tmp_path / "g1")
    assert verify.main([str(tmp_path)]) == verify.EXIT_UNUSABLE


def test_a_wrong_folder_is_told_with_what_to_do(tmp_path: Path) -> None:
    assert "is not a folder" in refusal(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "holds no dump" in refusal(tmp_path / "empty") and "ledgermq dump" in refusal(tmp_path / "empty")
    (tmp_path / "data" / "commitlog").mkdir(parents=True)
    assert f"dump it first: ledgermq dump --data {tmp_path / 'data'} DIR" in refusal(tmp_path / "data")


def test_the_dump_of_one_node_points_to_its_parent(tmp_path: Path) -> None:
    folder = take_dump(Log(), tmp_path / "dumps", "n1")
    assert f"ledgermq check {tmp_path / 'dumps'}" in refusal(folder)


def test_an_unfinished_dump_is_refused(tmp_path: Path) -> None:
    make_dumps(tmp_path / "dumps", make_log(5))
    (tmp_path / "dumps" / "n2" / "manifest.json").unlink()
    assert "was not finished" in refusal(tmp_path / "dumps")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "cannot be read"),
        ("[]", "is not the manifest"),
        (
            '{"format": "ledgermq-dump", "format_version": 3}',
            "has format version 3; this build reads version 2",
        ),
        ('{"format": "ledgermq-dump", "format_version": 1}', "is damaged or incomplete"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_named(tmp_path: Path, content: str, text: str) -> None:
    folder = take_dump(Log(), tmp_path / "dumps", "n1")
    (folder / "manifest.json").write_text(content)
    message = refusal(tmp_path / "dumps")
    assert text in message and "n1/manifest.json" in message


def test_slices_begin_at_index_points_and_cover_the_segments(tmp_path: Path) -> None:
    log = make_log(60)
    folder = take_dump(log, tmp_path / "dumps", "n1")
    edit_manifest(folder, index_points=[[e.index, e.physical_offset] for e in log.entries])
    parts = list(slices_of(read_dump(folder), 8000))
    starts = {entry.physical_offset for entry in log.entries} | set(log.segments)
    assert len(parts) > 10 and all(part.lo in starts for part in parts)
    assert sum(part.hi - part.lo for part in parts) == log.end
    assert faults(folder, slice_size=8000) == []


def test_index_points_that_lie_do_no_harm(tmp_path: Path) -> None:
    log = make_log(60)
    folder = take_dump(log, tmp_path / "dumps", "n1")
    edit_manifest(folder, index_points=[[9, offset] for offset in range(0, log.end, 4104)])
    assert faults(folder, slice_size=4104) == []


def test_ranges_leave_out_slices_that_do_not_touch_them(tmp_path: Path) -> None:
    folder = take_dump(make_log(60), tmp_path / "dumps", "n1")
    parts = list(slices_of(read_dump(folder), ranges=[(70_000, 70_001)]))
    assert [part.lo for part in parts] == [65536]


@pytest.mark.parametrize(
    "change",
    [
        {"log_time_ms": 10**18},
        {"end_offset": 1 << 63},
        {"end_offset": -9},
        {"queues": [["orders", 1, 0, 0, 1 << 63]]},
        {"queues": [["orders", 1, 0, 0]]},
        {"index_points": [[1, 1 << 63]]},
        {"commit": {"index": float("inf"), "end_offset": 0, "crc": 0}},
        {"node": "n1\x1b[2J"},
        {"voters": ["n1", "a\nforged line"]},
        {"queues": [["x" * 300, 1, 0, 0, 1]]},
    ],
)
def test_numbers_and_names_that_cannot_be_are_a_damaged_manifest(
    tmp_path: Path, change: dict[str, object]
) -> None:
    take_dump(Log(), tmp_path / "dumps", "n1")
    edit_manifest(tmp_path / "dumps" / "n1", **change)
    assert "is damaged or incomplete" in refusal(tmp_path / "dumps")


def test_a_manifest_of_nothing_but_brackets_is_damaged(tmp_path: Path) -> None:
    take_dump(Log(), tmp_path / "dumps", "n1")
    (tmp_path / "dumps" / "n1" / "manifest.json").write_text("[" * 200_000)
    assert "cannot be read" in refusal(tmp_path / "dumps")


def test_a_check_that_fails_in_itself_accuses_no_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 means that the replicas differ; a Java process that died means nothing."""

    def lost(*_: object) -> None:
        raise RuntimeError("the JVM has gone")

    make_dumps(tmp_path / "dumps", Log(), nodes=("n1",))
    monkeypatch.setattr(verify, "_with_spark", lost)
    assert verify.main([str(tmp_path / "dumps")]) == verify.EXIT_UNUSABLE
    assert "Nothing can be said about the dumps" in capsys.readouterr().err
