"""Measure the Spark source and sink, and Spark's Kafka connector beside them in the same session.

    python -m bench.spark [--messages 2000000] [--sizes 128 1024] [--runs 3] [--cores 2] [--json FILE]
                          [--kafka RELEASE --jars build/bench-jars]

Three nodes of each system on this machine. For each size the same rows are written into a topic of each
(the sink, from a Parquet file), and read from it into `noop` (the source), in turns. The first run of each
way warms up and is not counted. Nodes, JVM and workers share the machine's cores. Prints medians of the rest.

`--kafka RELEASE`: of Spark's connector, e.g. 4.2.0; Maven resolves it. Kafka acknowledges what every in-sync
replica has in its page cache, LedgerMQ what a majority has flushed; its sink stores each row once, Kafka's at
least once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.spark_jobs import register
from ledgermq.spark_jobs.session import open_session

from ..peers.java import JarsError
from .figures import SparkFigure, in_turns
from .sides import KafkaSide, LedgerMQSide, connector_jars, ways_to_read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Rows of the sink at most: it writes them in each run.
_MOST_WRITTEN: Final = 400_000
_PIECE: Final = 100_000
_SETTINGS: Final = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.driver.extraJavaOptions": "-XX:-UsePerfData",
    "spark.log.level": "ERROR",
}


def write_rows(path: Path, size: int, count: int, files: int) -> None:
    """Write incompressible bodies, in as many Parquet files as tasks will read them."""
    path.mkdir()
    schema = pa.schema([("body", pa.binary())])
    for number in range(files):
        with pq.ParquetWriter(path / f"{number}.parquet", schema, compression="none") as writer:
            left = count // files + (number < count % files)
            while left > 0:
                many = min(left, _PIECE)
                raw = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(size), many, [None, pa.py_buffer(os.urandom(size * many))]
                )
                writer.write_table(pa.table({"body": raw.cast(pa.binary())}, schema=schema))
                left -= many


def measure(spark: SparkSession, sides: Sequence[Any], size: int, options: argparse.Namespace, folder: Path
            ) -> list[SparkFigure]:  # fmt: skip
    """Write and read bodies of one size."""
    count = max(options.messages * 128 // max(size, 128), 1)
    written = min(count, _MOST_WRITTEN)
    write_rows(folder / "written", size, written, options.cores)
    rows = spark.read.parquet(str(folder / "written"))
    writes: dict[tuple[str, str], Callable[[], None]] = {}
    for side in sides:
        side.create(f"sink{size}")
        writes[side.name, "sink"] = partial(side.write, rows, f"sink{size}")
    figures = in_turns(writes, size, written, options.runs)
    write_rows(folder / "read", size, count, options.cores)
    rows = spark.read.parquet(str(folder / "read"))
    reads: dict[tuple[str, str], Callable[[], None]] = {}
    for side in sides:
        side.create(f"source{size}")
        side.write(rows, f"source{size}")
        reads |= ways_to_read(spark, side, f"source{size}")
    return figures + in_turns(reads, size, count, options.runs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000, help="of 128 bytes; fewer of larger ones")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kafka", metavar="RELEASE", default="", help="of Spark's connector")
    parser.add_argument("--jars", type=Path, default=Path("build/bench-jars"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    figures: list[SparkFigure] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = dict(_SETTINGS)
        sides: list[LedgerMQSide | KafkaSide] = []
        try:
            sides.append(LedgerMQSide(folder / "ledgermq"))
            if options.kafka:
                jars = connector_jars(options.jars, options.kafka)
                settings["spark.jars"] = ",".join(map(str, jars))
                sides.append(KafkaSide(options.jars, folder / "kafka"))
            spark = open_session("bench", local=options.cores, log=folder / "spark.log", settings=settings)
            try:
                register(spark)
                for size in options.sizes:
                    (folder / str(size)).mkdir()
                    for figure in measure(spark, sides, size, options, folder / str(size)):
                        print(figure.line, flush=True)
                        figures.append(figure)
            finally:
                spark.stop()
        except JarsError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        finally:
            for side in sides:
                side.close()
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
