"""A streaming job that writes lines of files into a topic; some tasks fail half way. For test_spark_sink.py.

    python -m tests.integration.spark_sink_job NAMESERVER FOLDER SEED

FOLDER/input holds the files, one for each batch; FOLDER/checkpoint is made. It ends when all are written.
Rows come in another order with every attempt, as they may behind a shuffle.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from ledgermq.spark_jobs import register

_CHUNK = 200
_FAILING = 0.12  # share of first attempts that end half way


def another_order(seed: int) -> Any:
    """Return the function of mapInArrow that mixes the rows of a partition, and may fail behind some."""

    def mixed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(list(batches), pa.schema([("body", pa.string())]))
        order = list(range(table.num_rows))
        random.shuffle(order)
        context = TaskContext.get()
        assert context is not None
        chosen = random.Random(f"{seed}/{context.taskAttemptId()}")
        fails = chosen.random() < _FAILING and context.attemptNumber() == 0
        stop = chosen.randrange(max(table.num_rows, 1))
        for start in range(0, table.num_rows, _CHUNK):
            if fails and start >= stop:
                if chosen.random() < 0.5:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("a task fails half way")
            yield from table.take(order[start : start + _CHUNK]).to_batches()

    return mixed


def main(nameserver: str, folder: Path, seed: int) -> None:
    session = (
        SparkSession.builder.master("local[2,8]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(_CHUNK))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(session)
    lines = session.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "input"))
    rows = lines.withColumnRenamed("value", "body").repartition(3, "body")
    query = (
        rows.mapInArrow(another_order(seed), "body string")
        .writeStream.format("ledgermq")
        .option("nameservers", nameserver)
        .option("topic", "rows")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
