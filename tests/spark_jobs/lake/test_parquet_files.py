"""Parquet files of a lake: what is written is read back, and any damage is found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
import pyarrow as pa

from ledgermq.spark_jobs.lake import parquet_files
from ledgermq.spark_jobs.lake.lake_folder import FOLDER
from ledgermq.spark_jobs.lake.lake_state import LakeFile
from ledgermq.spark_jobs.lake.parquet_files import (
    LakeDamageError,
    LakeWriter,
    checked_file,
    merge_files,
    read_file,
)

from .lake_maker import messages, staged


def ranges(file: LakeFile) -> list[tuple[int, int, int]]:
    return [(each.queue, each.first, each.end) for each in file.ranges]


def content(root: Path, file: LakeFile) -> pa.Table:
    return pa.Table.from_batches(list(checked_file(root / file.staged, file)))


def test_all_columns_come_back(tmp_path: Path) -> None:
    (file,) = staged(tmp_path, [messages(0, 10), messages(0, 5, queue=1), messages(10, 300)])
    assert ranges(file) == [(0, 0, 300), (1, 0, 5)]
    expected = pa.Table.from_batches([messages(0, 10), messages(0, 5, queue=1), messages(10, 300)])
    assert content(tmp_path, file).equals(expected)


def test_a_batch_is_cut_by_topic_hour_and_queue(tmp_path: Path) -> None:
    batch = pa.Table.from_batches(
        [messages(3590, 3610), messages(7, 9, queue=2), messages(11, 12, queue=2)]
    ).combine_chunks().to_batches()[0]  # fmt: skip
    writer = LakeWriter(tmp_path, f"{FOLDER}/staging/x")
    writer.add(batch, pa.array(["orders"] * 22 + ["payments"]))
    found = sorted(writer.finish(), key=lambda file: (file.topic, file.hour))
    assert [(file.topic, ranges(file)) for file in found] == [
        ("orders", [(0, 3590, 3600), (2, 7, 9)]), ("orders", [(0, 3600, 3610)]), ("payments", [(2, 11, 12)]),
    ]  # fmt: skip
    assert sum(content(tmp_path, file).num_rows for file in found) == 23


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "_OPEN_FILES", 2)
    monkeypatch.setattr(parquet_files, "_GROUP_ROWS", 10)
    found = staged(tmp_path, [messages(3600 * hour, 3600 * hour + 25) for hour in (1, 2, 3, 1)])
    assert sorted(file.count for file in found) == [25, 25, 25, 25]
    assert sum(content(tmp_path, file).num_rows for file in found) == 100


def test_merged_files_have_the_same_messages(tmp_path: Path) -> None:
    files = [
        *staged(tmp_path, [messages(0, 10), messages(5, 8, queue=1)]),
        *staged(tmp_path, [messages(10, 40)]),
    ]
    sources = [(tmp_path / file.staged, file) for file in files]
    merged = merge_files(tmp_path, sources, f"{FOLDER}/staging/m")
    assert ranges(merged) == [(0, 0, 40), (1, 5, 8)]
    assert sum(each.checksum for each in merged.ranges) % (1 << 64) == sum(
        each.checksum for file in files for each in file.ranges
    ) % (1 << 64)
    assert content(tmp_path, merged).num_rows == 43


def test_a_damaged_file_is_not_merged(tmp_path: Path) -> None:
    good, bad = staged(tmp_path, [messages(0, 10)])[0], staged(tmp_path, [messages(10, 40)])[0]
    (tmp_path / bad.staged).write_bytes((tmp_path / good.staged).read_bytes())
    with pytest.raises(LakeDamageError):
        merge_files(tmp_path, [(tmp_path / file.staged, file) for file in (good, bad)], "m")


def test_any_flipped_bit_of_the_messages_is_found(tmp_path: Path) -> None:
    """Bytes that no message is made of, like those of statistics, may differ."""
    (file,) = staged(tmp_path, [messages(0, 400)])
    path = tmp_path / file.staged
    data, before = path.read_bytes(), content(tmp_path, file)
    choose = random.Random(1)
    found = 0
    for _ in range(300):
        broken = bytearray(data)
        broken[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        path.write_bytes(broken)
        try:
            assert content(tmp_path, file).equals(before)
        except LakeDamageError:
            found += 1
    assert found > 200


def test_files_that_are_gone_cut_or_others_are_damaged(tmp_path: Path) -> None:
    (file,) = staged(tmp_path, [messages(0, 40)])
    path = tmp_path / file.staged
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(LakeDamageError, match="bytes instead of"):
        list(read_file(path, file))
    path.write_bytes(bytes(len(data)))
    with pytest.raises(LakeDamageError):
        list(read_file(path, file))
    path.unlink()
    with pytest.raises(LakeDamageError, match="it is gone"):
        list(read_file(path, file))
    (other,) = staged(tmp_path, [messages(1, 41)])
    lies = LakeFile("p", "orders", file.hour, other.size, file.ranges)
    with pytest.raises(LakeDamageError, match="it has 39 of the 40 messages"):
        list(checked_file(tmp_path / other.staged, lies))
