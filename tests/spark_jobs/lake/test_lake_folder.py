"""Lake folder: commits on a real disk, stopped behind every single change of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.lake.compaction_plan import compaction_of, compactions
from ledgermq.spark_jobs.lake.lake_folder import (
    FOLDER,
    SNAPSHOT_EVERY,
    LakeDisk,
    LakeFolder,
    lake_path,
)
from ledgermq.spark_jobs.lake.parquet_files import merge_files

from .lake_maker import HOUR_MS, add_batch, messages, new_lake, plain_rows, rows


class KilledError(BaseException):
    """The process ends here."""


class MortalDisk(LakeDisk):
    """A disk whose process is killed before one of its changes, or between the two of `create`."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def _step(self) -> None:
        if self.left == 0:
            raise KilledError
        self.left -= 1

    def create(self, path: Path, data: bytes) -> bool:
        self._step()
        if self.left == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(f".{path.name}.{os.getpid()}").write_bytes(data[: len(data) // 2])
        self._step()
        return super().create(path, data)

    def move(self, old: Path, new: Path) -> None:
        self._step()
        super().move(old, new)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)


def compact(lake: LakeFolder) -> None:
    groups = compactions(lake.state.files.values(), everything=True)
    merged = {
        group: merge_files(lake.root, [(lake.where(file), file) for file in group], f"{FOLDER}/staging/c")
        for group in groups
    }
    lake.commit(compaction_of(lake.state, merged, now_ms=9))


def first_batch(lake: LakeFolder) -> None:
    add_batch(lake, messages(0, 4000), messages(0, 2000, queue=1))


def second_batch(lake: LakeFolder) -> None:
    add_batch(lake, messages(4000, 4500), messages(2000, 2100, queue=1))


def in_order(root: Path, disk: LakeDisk, *changes: Callable[[LakeFolder], None]) -> None:
    with new_lake(root, disk) as lake:
        for change in changes:
            change(lake)


def wanted(first: int, second: int) -> list[tuple[int, int, bytes]]:
    return [(0, n, f"body 0/{n}".encode()) for n in range(first)] + [
        (1, n, f"body 1/{n}".encode()) for n in range(second)
    ]


@pytest.mark.parametrize("change", [second_batch, compact])
def test_a_process_that_is_killed_before_any_change_leaves_all_or_nothing(
    change: Callable[[LakeFolder], None], tmp_path: Path
) -> None:
    """And a program that knows no manifest never sees a message twice."""
    outcomes = set()
    for steps in range(100):
        root = tmp_path / str(steps)
        in_order(root, LakeDisk(), first_batch, *[second_batch] * (change is compact))
        disk = MortalDisk(steps)
        try:
            with LakeFolder.for_writing(root, disk=disk) as lake:
                change(lake)
        except KilledError:
            pass
        before, after = (wanted(4000, 2000), wanted(4500, 2100))
        allowed = (after,) if change is compact else (before, after)
        plain = plain_rows(root)
        assert len(plain) == len(set(plain))
        assert set(plain) <= set(after)
        with LakeFolder.for_reading(root) as lake:
            assert rows(lake) in allowed, steps
        with LakeFolder.for_writing(root) as lake:
            found = rows(lake)
            assert found in allowed
            assert plain_rows(root) == found
            assert not lake.staging.exists()
            outcomes.add((len(found), len(lake.state.files)))
            if found == before:
                second_batch(lake)
            assert rows(lake) == plain_rows(root) == after
        if disk.left:
            break
    else:
        raise AssertionError("the change has more steps than were tried")
    assert len(outcomes) == 2, "the kills came before the commit and behind it"


def test_a_lake_is_made_or_not(tmp_path: Path) -> None:
    for steps in range(10):
        root = tmp_path / str(steps)
        disk = MortalDisk(steps)
        try:
            in_order(root, disk)
        except KilledError:
            in_order(root, LakeDisk(), first_batch)
            assert len(plain_rows(root)) == 6000
        if disk.left:
            return
    raise AssertionError


def test_snapshots_stand_for_the_commits_before_them(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        for number in range(SNAPSHOT_EVERY + 2):
            add_batch(lake, messages(number, number + 1))
        names = sorted(path.name[:20] for path in (tmp_path / FOLDER / "log").iterdir())
        assert [int(name) for name in names] == [SNAPSHOT_EVERY, SNAPSHOT_EVERY + 1, SNAPSHOT_EVERY + 2]
        expected = rows(lake)
    with LakeFolder.for_reading(tmp_path) as lake:
        assert rows(lake) == expected == wanted(SNAPSHOT_EVERY + 2, 0)


@pytest.mark.parametrize("number", [2, 3])
def test_a_process_that_is_killed_while_it_writes_a_snapshot_harms_nothing(
    number: int, tmp_path: Path
) -> None:
    with new_lake(tmp_path) as lake:
        for offset in range(SNAPSHOT_EVERY - 1):
            add_batch(lake, messages(offset, offset + 1))
    steps = 3  # those of the batch
    with (
        pytest.raises(KilledError),
        LakeFolder.for_writing(tmp_path, disk=MortalDisk(steps + number)) as lake,
    ):
        add_batch(lake, messages(SNAPSHOT_EVERY - 1, SNAPSHOT_EVERY))
    with LakeFolder.for_writing(tmp_path) as lake:
        assert rows(lake) == wanted(SNAPSHOT_EVERY, 0)
        add_batch(lake, messages(SNAPSHOT_EVERY, SNAPSHOT_EVERY + 1))
        assert rows(lake) == plain_rows(tmp_path)


def test_a_lake_has_one_writer_and_readers_keep_their_files(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        first_batch(lake)
        with pytest.raises(SparkJobError, match="another job archives into"):
            LakeFolder.for_writing(tmp_path)
        with LakeFolder.for_reading(tmp_path), lake.without_readers() as alone:
            assert not alone
        with lake.without_readers() as alone:
            assert alone
            with pytest.raises(SparkJobError, match="try again"):
                LakeFolder.for_reading(tmp_path)
        LakeFolder.for_reading(tmp_path).close()


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("x")
    with pytest.raises(SparkJobError, match=r"is no lake and not empty: it holds notes\.txt"):
        new_lake(other)
    assert [path.name for path in other.iterdir()] == ["notes.txt"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(SparkJobError, match="is a file"):
        new_lake(tmp_path / "file")
    with pytest.raises(SparkJobError, match="is no lake"):
        LakeFolder.for_reading(tmp_path / "nothing")
    with new_lake(tmp_path / "lake") as lake:
        first_batch(lake)
        path = next(iter(lake.state.files))
    (tmp_path / "lake" / path).with_name("part-0.parquet").write_bytes(b"x")
    with pytest.raises(SparkJobError, match=r"part-0\.parquet is no file of the lake"):
        LakeFolder.for_writing(tmp_path / "lake")


def test_a_manifest_that_is_missing_or_damaged_is_an_error(tmp_path: Path) -> None:
    in_order(tmp_path, LakeDisk(), first_batch, second_batch)
    log = tmp_path / FOLDER / "log"
    kept = (log / f"{1:020d}.json").read_bytes()
    (log / f"{1:020d}.json").unlink()
    with pytest.raises(SparkJobError, match=r"damaged: commit 2"):
        LakeFolder.for_writing(tmp_path)
    (log / f"{1:020d}.json").write_bytes(kept[:-20])
    with pytest.raises(SparkJobError, match=r"damaged: 00000000000000000001\.json: its checksum"):
        LakeFolder.for_reading(tmp_path)


def test_files_that_are_gone_are_named(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        first_batch(lake)
        assert lake.missing() == []
        path = min(lake.state.files)
        (tmp_path / path).unlink()
        assert lake.missing() == [path]


def test_messages_are_in_the_folders_of_their_hours(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        first_batch(lake)
        assert {file.hour * HOUR_MS for file in lake.state.files.values()} == {
            int(batch.column("store_time")[0].value) // 1000 // HOUR_MS * HOUR_MS
            for batch in (messages(0, 1), messages(3600, 3601))
        }


@pytest.mark.parametrize("path", ["s3a://bucket/lake", "hdfs://host/lake", "s3:/bucket"])
def test_a_lake_needs_a_file_system(path: str) -> None:
    with pytest.raises(SparkJobError, match="no folder of a file system"):
        lake_path(path)


def test_the_path_of_a_lake() -> None:
    assert lake_path("file:///data/lake") == Path("/data/lake")
    assert lake_path("lake") == Path.cwd() / "lake"
