"""The folder of an analysis: nothing foreign is touched, nothing half-written stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
import pyarrow.parquet as pq  # noqa: E402

from ledgermq.spark_jobs.errors import SparkJobError  # noqa: E402
from ledgermq.spark_jobs.topics.analysis_folder import (  # noqa: E402
    FILES,
    analysis_folder,
    write_hours,
    write_report,
)

from .analysis_maker import analysis  # noqa: E402

SCHEMA = pa.schema([("topic", pa.string()), ("messages", pa.int64())])


def write(out: Path, *counts: int) -> None:
    batches = [pa.RecordBatch.from_pylist([{"topic": "orders", "messages": each}], SCHEMA) for each in counts]
    with analysis_folder(out):
        write_hours(out, SCHEMA, batches)
        write_report(out, analysis())


def names(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def test_an_older_analysis_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "new" / "report"
    write(out, 1, 2)
    assert names(out) == sorted(FILES)
    assert pq.read_table(out / "hours.parquet")["messages"].to_pylist() == [1, 2]
    write(out)
    assert pq.read_table(out / "hours.parquet").num_rows == 0
    assert json.loads((out / "report.json").read_text())["format"] == "ledgermq-analysis"


@pytest.mark.parametrize("name", ["thesis.txt", "findings.parquet", "commitlog"])
def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(SparkJobError, match=f"{name}, which no analysis wrote. Nothing was changed"):
        write(tmp_path, 1)
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("text", ["", "[]", '{"format": "ledgermq-check"}', "[" * 100_000])
def test_a_report_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(SparkJobError, match="which no analysis wrote"):
        write(tmp_path, 1)
    assert (tmp_path / "report.html").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises(SparkJobError, match="Name another folder with --out"):
            write(out, 1)


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    def fail(out: Path) -> None:
        with analysis_folder(out):
            write_hours(out, SCHEMA, [])
            raise SparkJobError("no")

    with pytest.raises(SparkJobError, match=r"^no$"):
        fail(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    write(tmp_path / "old", 7)
    with pytest.raises(SparkJobError, match=r"^no$"):
        fail(tmp_path / "old")
    assert names(tmp_path / "old") == sorted(FILES)
    assert pq.read_table(tmp_path / "old" / "hours.parquet")["messages"].to_pylist() == [7]
