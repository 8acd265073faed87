"""The data source of dumps, without a session."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the [spark] extra is not installed")

from pyspark.sql.types import LongType, StructField, StructType

from ledgermq.spark_jobs.dump_source import DumpReader
from ledgermq.spark_jobs.errors import SparkJobError

from .dump_maker import make_dumps, segment_of


def test_an_executor_that_does_not_see_the_dumps_says_what_a_cluster_needs(tmp_path: Path) -> None:
    make_dumps(tmp_path, nodes=("n1",))
    reader = DumpReader({"path": str(tmp_path)}, StructType([StructField("index", LongType(), False)]))
    part = reader.partitions()[0]
    path, _ = segment_of(tmp_path / "n1", 0)
    path.unlink()
    with pytest.raises(SparkJobError, match=f"{path} is not there on .*a folder that all executors see"):
        list(reader.read(part))
