"""A job for spark-submit on a cluster: the sink with a slow task that is run twice, then the source.

    spark-submit --py-files ledgermq-spark.zip --archives env.tar.gz#env JOB NAMESERVER FOLDER

Executors leave FOLDER/attempt-N for each attempt at partition 0, and the driver FOLDER/result.json. The first
attempt at partition 0 stops half way until there is a second one, then both write. Imports nothing of the
tests: the driver runs in an environment that has only libraries.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from ledgermq.spark_jobs import register

ROWS = 12_000
PARTITIONS = 4
_BATCH = 100
_PATIENCE_S = 120.0


def slow_first_attempt(folder: str) -> Any:
    """Return the function of mapInArrow whose first attempt at partition 0 waits for a second one."""

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        if context.partitionId() == 0:
            Path(folder, f"attempt-{attempt}").touch()
        rows = 0
        for batch in batches:
            yield batch
            rows += batch.num_rows
            if context.partitionId() == 0 and attempt == 0 and rows == ROWS // PARTITIONS // 2:
                end = time.monotonic() + _PATIENCE_S
                while not Path(folder, "attempt-1").exists() and time.monotonic() < end:
                    time.sleep(0.02)

    return passed


def where_it_runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield for each task the Python that runs it, and where our code comes from."""
    import ledgermq.spark_jobs

    for _ in batches:
        pass
    found = {"python": sys.executable, "code": str(ledgermq.spark_jobs.__file__)}
    yield pa.RecordBatch.from_pylist([found])


def main(nameserver: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    rows = spark.range(0, ROWS, numPartitions=PARTITIONS).selectExpr(
        "concat('row ', id, ' ', repeat('x', 1000)) AS body"
    )
    (
        rows.mapInArrow(slow_first_attempt(folder), "body string")
        .write.format("ledgermq")
        .option("nameservers", nameserver)
        .option("topic", "rows")
        .mode("append")
        .save()
    )
    topic = spark.read.format("ledgermq").options(
        nameservers=nameserver, subscribe="rows", minPartitions="4"
    ).load()  # fmt: skip
    (counts,) = topic.selectExpr("count(*) AS messages", "count(distinct body) AS different").collect()
    places = topic.select("queue").mapInArrow(where_it_runs, "python string, code string")
    result = {**counts.asDict(), "places": [row.asDict() for row in places.distinct().collect()]}
    Path(folder, "result.json").write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
