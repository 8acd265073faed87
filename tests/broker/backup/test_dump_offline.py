"""Dumps of a node that is not running, from its folder alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ledgermq.broker.backup import stream as dump
from ledgermq.proto.digest_dump import NodeDigests, read_node_digests
from ledgermq.proto.dump_manifest import decode_manifest
from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.log.segment_keeper import LogFolders
from tests.spark_jobs.dump_maker import Log, make_data, make_log


@pytest.fixture
def log() -> Log:
    return make_log(60)


@pytest.fixture
def data(tmp_path: Path, log: Log) -> Path:
    """A data folder of n1 whose commit hint is 50."""
    return make_data(log, tmp_path / "data", commit=50)


def take(data: Path, out: Path) -> dict[str, object]:
    assert dump.main(["--data", str(data), "--out", str(out)]) == 0
    fields: dict[str, object] = json.loads((out / "n1" / "manifest.json").read_text())
    return fields


def test_what_was_dumped_is_told_to_programs(
    data: Path, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert dump.main(["--data", str(data), "--out", str(out), "--json"]) == 0
    files = [path for path in (out / "n1").rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert json.loads(capsys.readouterr().out) == {
        "dumps": [
            {
                "broker_group": "g0", "node": "n1", "first_index": 1, "commit_index": 50, "files": len(files),
                "bytes": sum(path.stat().st_size for path in files), "restorable": True,
                "folder": str(out / "n1"),
            }
        ],
        "missing": [],
    }  # fmt: skip


def test_the_whole_log_is_dumped_and_the_hint_is_the_commit_point(
    data: Path, log: Log, tmp_path: Path
) -> None:
    fields = take(data, tmp_path / "out")
    commit = log.entries[49]
    assert fields["commit"] == {"index": 50, "term": commit.term, "crc": commit.crc, "end_offset": commit.end}
    assert fields["end_offset"] == log.end
    assert (fields["voters"], fields["consume_queues"]) == (["n1", "n2", "n3"], "partial")
    copied = b"".join(path.read_bytes() for path in sorted((tmp_path / "out" / "n1" / "commitlog").iterdir()))
    assert copied == b"".join(bytes(content) for content in log.segments.values())


@pytest.mark.parametrize(("byte", "bit"), [(0, 1), (3, 64)])
def test_damage_in_the_middle_hides_nothing_behind_it(
    data: Path, log: Log, tmp_path: Path, byte: int, bit: int
) -> None:
    """A flipped bit in the version looks like a newer format."""
    path = data / "commitlog" / f"{131072:020d}"
    raw = bytearray(path.read_bytes())
    entry = next(entry for entry in log.entries if entry.physical_offset > 131072)
    raw[entry.physical_offset - 131072 + byte] ^= bit
    path.write_bytes(raw)
    assert take(data, tmp_path / "out")["end_offset"] == log.end


def test_units_above_the_commit_point_are_left_out(data: Path, log: Log, tmp_path: Path) -> None:
    take(data, tmp_path / "out")
    copied = (tmp_path / "out" / "n1" / "consumequeue" / "orders@7" / "0" / f"{0:020d}").read_bytes()
    below = [unit for unit in log.units[0] if int.from_bytes(unit[:8], "little") < log.entries[49].end]
    assert copied == b"".join(below) and len(below) < len(log.units[0])


def test_digests_are_made_of_what_the_disk_holds_and_the_rest_is_dumped_as_bytes(
    tmp_path: Path,
) -> None:
    log = make_log(200)
    data = make_data(log, tmp_path / "data", commit=190)

    def take_digests(name: str) -> NodeDigests:
        out = tmp_path / name
        assert dump.main(["--data", str(data), "--out", str(out), "--digests"]) == 0
        return read_node_digests(out / "n1", decode_manifest((out / "n1" / "manifest.json").read_bytes()))

    made = take_digests("intact")
    assert made.manifest.has_digests and not made.manifest.has_queues
    whole = [start for start in log.segments if start + log.segment_size <= log.entries[189].end]
    assert len(whole) > 2 and [each.start for each in made.segments] == whole
    rest = (tmp_path / "intact" / "n1" / "commitlog" / f"{whole[-1] + log.segment_size:020d}").read_bytes()
    assert rest == bytes(log.segments[whole[-1] + log.segment_size])
    path = data / "commitlog" / f"{whole[1]:020d}"
    raw = bytearray(path.read_bytes())
    raw[HEADER_SIZE + 100] ^= 1
    path.write_bytes(raw)
    damaged = take_digests("damaged")
    assert [each.start for each in damaged.segments] == [whole[0], *whole[2:]]
    for each in damaged.segments:
        assert any(np.array_equal(each.rows, other.rows) for other in made.segments)
    copied = tmp_path / "damaged" / "n1" / "commitlog" / f"{whole[1]:020d}"
    assert copied.read_bytes() == bytes(raw[: log.segment_size])


def check_refused(data: Path, out: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert dump.main(["--data", str(data), "--out", str(out)]) == 1
    assert text in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_that_a_running_node_has_locked_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = RealFileSystem().lock(LogFolders(data).lock)
    try:
        check_refused(data, tmp_path / "out", capsys, "is in use")
    finally:
        lock.release()


@pytest.mark.parametrize("trace", ["reset/marker", "checkpoint/rebuild"])
def test_a_folder_that_is_half_way_through_a_reset_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], trace: str
) -> None:
    (data / trace).parent.mkdir(exist_ok=True)
    (data / trace).write_bytes(b"")
    check_refused(data, tmp_path / "out", capsys, "Start the node")


def test_offline_refuses_what_is_no_data_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(tmp_path, tmp_path / "out", capsys, "is not a node's data folder")
