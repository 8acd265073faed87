"""Dumps: what is copied, what the manifest says, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c

from ledgermq.broker.backup import stream as dump
from ledgermq.broker.backup.dump_files import (
    BLOCK_SIZE,
    CommitPoint,
    DumpError,
    DumpOvertakenError,
    DumpPoint,
    QueueSource,
    dump_chunks,
    write_dump,
)
from ledgermq.broker.checkpoint.layout import take_snapshot
from ledgermq.broker.checkpoint.state_digest import state_digest
from ledgermq.broker.errors import ConsumeQueueError
from ledgermq.proto.dump_manifest import decode_manifest
from ledgermq.proto.entry import EntryKind, encode_entry
from ledgermq.raft.log.identity import Manifest

from ..entry_log import Node

SEGMENT_SIZE = 6 << 20


def make_point(folder: Path, sizes: list[int], *, end: int | None = None) -> DumpPoint:
    """Write a segment of entries with payloads of `sizes` bytes; the point is behind the last or at `end`."""
    raw, prev_crc = bytearray(), 0
    for number, size in enumerate(sizes, 1):
        data = encode_entry(
            EntryKind.RECORDS, [os.urandom(size)], section_count=1, index=number, term=1,
            physical_offset=len(raw), timestamp=number, prev_crc=prev_crc,
        )  # fmt: skip
        prev_crc = int.from_bytes(data[4:8], "little")
        raw += data
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(raw.ljust(SEGMENT_SIZE + 8192, b"\0"))
    commit_offset = len(raw) if end is None else end
    return DumpPoint(
        cluster="local", broker_group="g0", node="n1", incarnation=5, voters=("n1", "n2"),
        segment_size=SEGMENT_SIZE, log_folder=folder, segment_starts=(0,), base=Manifest(),
        commit=CommitPoint(len(sizes), 1, prev_crc, commit_offset), end_offset=commit_offset, log_time_ms=7,
        queues=(),
    )  # fmt: skip


def files_of(point: DumpPoint) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for chunk in dump_chunks(point):
        assert len(files.get(chunk.path, b"")) == chunk.offset
        files[chunk.path] = files.get(chunk.path, b"") + chunk.data
    return files


def unit(offset: int) -> bytes:
    return offset.to_bytes(8, "little") + (100).to_bytes(4, "little") + bytes(8)


def test_the_log_is_copied_as_it_stands_up_to_the_point_and_the_manifest_comes_last(tmp_path: Path) -> None:
    point = make_point(tmp_path / "commitlog", [1000, 70_000, 5])
    raw = (point.log_folder / f"{0:020d}").read_bytes()
    files = files_of(point)
    assert list(files) == [f"commitlog/{0:020d}", "manifest.json"]
    assert files[f"commitlog/{0:020d}"] == raw[: point.end_offset]
    assert point.total_bytes == point.end_offset
    manifest = json.loads(files["manifest.json"])
    assert manifest["files"] == [{"path": f"commitlog/{0:020d}", "size": point.end_offset}]
    assert manifest["commit"] == {
        "index": 3, "term": 1, "crc": point.commit.crc, "end_offset": point.end_offset,
    }  # fmt: skip


def test_damage_at_rest_is_copied_not_refused(tmp_path: Path) -> None:
    point = make_point(tmp_path / "commitlog", [1000, 1000, 1000])
    path = point.log_folder / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[8] ^= 255  # the size of the first entry
    raw[1500] ^= 1
    path.write_bytes(raw)
    assert files_of(point)[f"commitlog/{0:020d}"] == bytes(raw[: point.end_offset])


def test_checksums_are_of_raw_blocks_and_index_points_are_entry_starts(tmp_path: Path) -> None:
    point = make_point(tmp_path / "commitlog", [100_001] * 50)
    raw = (point.log_folder / f"{0:020d}").read_bytes()
    manifest = json.loads(files_of(point)["manifest.json"])
    assert [start for start, _, _ in manifest["checksums"]] == [0, BLOCK_SIZE]
    for start, size, crc in manifest["checksums"]:
        assert crc == crc32c(raw[start : start + size])
    assert manifest["index_points"][0] == [1, 0]
    index, offset = manifest["index_points"][1]
    assert offset >= BLOCK_SIZE and int.from_bytes(raw[offset + 16 : offset + 24], "little") == index


def test_queue_units_above_the_point_are_left_out(tmp_path: Path) -> None:
    point = make_point(tmp_path / "commitlog", [1000, 1000])
    units = [unit(64), unit(800), unit(point.commit.end), unit(point.commit.end + 500)]
    queue = QueueSource("t", 3, 1, 10, 14, lambda lo, hi: b"".join(units[lo - 10 : hi - 10]))
    files = files_of(replace(point, queues=(queue,)))
    assert files[f"consumequeue/t@3/1/{200:020d}"] == unit(64) + unit(800)
    assert json.loads(files["manifest.json"])["consume_queues"] == "complete"


def test_a_long_queue_is_cut_into_files_like_the_nodes_own(tmp_path: Path) -> None:
    point = make_point(tmp_path / "commitlog", [1000])
    queue = QueueSource("t", 3, 0, 299_990, 300_010, lambda lo, hi: unit(64) * (hi - lo))
    files = files_of(replace(point, queues=(queue,)))
    sizes = {path: len(data) for path, data in files.items() if path.startswith("consumequeue")}
    assert sizes == {
        f"consumequeue/t@3/0/{299_990 * 20:020d}": 200,
        f"consumequeue/t@3/0/{300_000 * 20:020d}": 200,
    }


def test_the_stream_carries_the_same_bytes_and_the_total(tmp_path: Path) -> None:
    point = make_point(tmp_path / "commitlog", [900_000, 900_000])
    queue = QueueSource("t", 3, 0, 0, 1, lambda lo, hi: unit(64))

    async def take(point: DumpPoint) -> list[tuple[str, int, bytes, int]]:
        return [(c.path, c.offset, c.data, c.total_bytes) async for c in dump.dump_stream(point)]

    chunks = asyncio.run(take(point))
    assert (
        b"".join(data for path, _, data, _ in chunks if path.startswith("commitlog"))
        == files_of(point)[f"commitlog/{0:020d}"]
    )
    assert {total for _, _, _, total in chunks} == {point.total_bytes}
    chunks = asyncio.run(take(replace(point, queues=(queue,))))
    assert any(path.startswith("consumequeue") for path, *_ in chunks)


def test_a_segment_that_retention_deleted_meanwhile_is_told(tmp_path: Path) -> None:
    point = make_point(tmp_path / "commitlog", [1000])
    (point.log_folder / f"{0:020d}").unlink()
    with pytest.raises(DumpError, match="Run the dump again"):
        files_of(point)


def test_a_dump_is_never_written_over_another(tmp_path: Path) -> None:
    point = make_point(tmp_path / "commitlog", [1000])
    write_dump(dump_chunks(point), tmp_path / "out")
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    with pytest.raises(DumpError, match="holds a dump already"):
        write_dump(dump_chunks(point), tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before


def test_what_is_left_of_a_dump_that_was_not_finished_is_no_part_of_the_next_one(tmp_path: Path) -> None:
    point = make_point(tmp_path / "commitlog", [1000])
    left = tmp_path / "out" / "commitlog" / f"{SEGMENT_SIZE:020d}"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of a log that was longer")
    write_dump(dump_chunks(point), tmp_path / "out")
    assert not left.exists() and (tmp_path / "out" / "manifest.json").exists()


def test_an_empty_log_gives_a_manifest_only(tmp_path: Path) -> None:
    assert list(files_of(make_point(tmp_path / "commitlog", []))) == ["manifest.json"]


def test_the_point_of_an_empty_log_is_what_its_base_names(tmp_path: Path) -> None:
    base: Any = SimpleNamespace(first_index=11, first_offset=4096, prev_term=3, prev_crc=9)
    log: Any = SimpleNamespace(base=base, last_timestamp=0, segments=list, segment_size=SEGMENT_SIZE)
    names = ("cluster", "group", "node_id", "incarnation", "group_id", "former_group_ids")
    status: Any = SimpleNamespace(applied_index=10, durable_index=10, **dict.fromkeys(names))
    point = asyncio.run(dump.live_point(log, status, voters=(), log_folder=tmp_path, queues=None))
    assert point.commit == CommitPoint(10, 3, 9, 4096)


@pytest.mark.parametrize("later", [0, 1])
def test_a_state_is_digested_if_it_is_the_one_after_the_last_dumped_entry(tmp_path: Path, later: int) -> None:
    node = Node()
    node.fill(node.topic(), 0, 3)
    index = node.state.applied_index - later
    base: Any = SimpleNamespace(first_index=11, first_offset=0, prev_term=3, prev_crc=9, prev_timestamp=0)
    log: Any = SimpleNamespace(base=base, last_timestamp=0, segments=list, segment_size=SEGMENT_SIZE)
    names = ("cluster", "group", "node_id")
    status: Any = SimpleNamespace(
        applied_index=index, durable_index=index + 5, incarnation=1, group_id=1, former_group_ids=(),
        **dict.fromkeys(names, "a"),
    )  # fmt: skip
    snapshot = take_snapshot(node.state)
    point = asyncio.run(
        dump.live_point(log, status, voters=(), log_folder=tmp_path, queues=None, snapshot=snapshot)
    )
    manifest = decode_manifest(files_of(point)["manifest.json"])
    assert manifest.state_digest == (None if later else state_digest(snapshot))


def test_a_queue_file_that_goes_while_it_is_copied_asks_for_another_dump_not_for_a_rebuild(
    tmp_path: Path,
) -> None:
    def gone(first: int, behind: int) -> bytes:
        raise ConsumeQueueError("consumequeue/orders@7/0/0", "the file is gone")

    point = make_point(tmp_path / "commitlog", [100])
    point = replace(point, queues=(QueueSource("orders", 7, 0, 0, 3, gone),))
    with pytest.raises(DumpOvertakenError, match=r"while the dump was taken.*[Rr]un the dump again"):
        list(dump_chunks(point))


def test_a_manifest_has_its_name_only_when_the_files_before_it_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, synced, fsync = tmp_path / "out", list[str](), os.fsync

    def noting(fd: int) -> None:
        assert not (folder / "manifest.json").exists() or "manifest.json.part" in synced
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    write_dump(dump_chunks(make_point(tmp_path / "commitlog", [1000, 70_000])), folder)
    assert synced == [f"{0:020d}", "commitlog", "manifest.json.part", "out"]
    assert json.loads((folder / "manifest.json").read_text())["node"] == "n1"
