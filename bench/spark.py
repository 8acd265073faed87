"""Measure the Spark source: messages/s and MB/s of format("ledgermq") from a live broker group into `noop`.

    python -m bench.spark [--messages 2000000] [--sizes 128 1024] [--runs 3] [--cores 2] [--json FILE]

Starts three nodes on this machine, fills a topic of four queues for each size, and reads it in turns: a batch
with all columns, one with offset and body, and a stream (availableNow). The first run of each warms up and is
not counted. Broker nodes, JVM and workers share the machine's cores. Prints the medians of the other runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledgermq.client import Message
from ledgermq.client.sync import Admin, Producer
from ledgermq.spark_jobs import register
from ledgermq.spark_jobs.session import open_session
from tests.integration.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES: Final = 4
_BATCH: Final = 20_000
_SETTINGS: Final = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.driver.extraJavaOptions": "-XX:-UsePerfData",
    "spark.log.level": "ERROR",
}


@dataclass(frozen=True, slots=True)
class SourceFigure:
    """One way to read all messages of one size; medians of the runs."""

    size: int  # bytes of a body
    way: str
    messages: int
    seconds: float
    runs: tuple[float, ...]  # s each

    @property
    def line(self) -> str:
        rate = self.messages / self.seconds
        speed = f"{rate:>12,.0f} messages/s  {rate * self.size / 1e6:>7,.0f} MB/s"
        return f"{self.size:>6} B  {self.way:<22} {speed}  ({self.seconds:.2f} s)"


def fill(cluster: Cluster, topic: str, size: int, count: int) -> None:
    """Send `count` messages of incompressible bodies."""
    with Admin(cluster.nameserver) as admin:
        admin.create_topic(topic, queues=QUEUES)
    bodies = [os.urandom(size) for _ in range(64)]
    with Producer(cluster.nameserver) as producer:
        for start in range(0, count, _BATCH):
            many = min(_BATCH, count - start)
            producer.send_batch([Message(topic, bodies[n % 64], tag="new") for n in range(many)])


def _ways(spark: SparkSession, nameserver: str, topic: str) -> dict[str, Callable[[], None]]:
    given = {"nameservers": nameserver, "subscribe": topic, "startingOffsets": "earliest"}

    def batch(columns: str) -> DataFrame:
        options = given | ({"columns": columns} if columns else {})
        return spark.read.format("ledgermq").options(**options).load()

    def stream() -> None:
        frame = spark.readStream.format("ledgermq").options(**given).load()
        with tempfile.TemporaryDirectory() as folder:
            writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            if (error := query.exception()) is not None:
                raise error

    return {
        "batch, all columns": lambda: batch("").write.format("noop").mode("overwrite").save(),
        "batch, offset and body": (
            lambda: batch("offset,body").write.format("noop").mode("overwrite").save()
        ),
        "stream, all columns": stream,
    }


def measure(spark: SparkSession, nameserver: str, size: int, count: int, runs: int) -> list[SourceFigure]:
    """Read one topic in every way, in turns."""
    ways = _ways(spark, nameserver, f"bench{size}")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            if run:
                seconds[name].append(time.perf_counter() - begun)
    return [
        SourceFigure(size, name, count, statistics.median(found), tuple(found))
        for name, found in seconds.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000, help="of 128 bytes; fewer of larger ones")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    figures: list[SourceFigure] = []
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder, "nodes"), nodes=3) as cluster:
        counts = {size: max(options.messages * 128 // max(size, 128), 1) for size in options.sizes}
        for size, count in counts.items():
            fill(cluster, f"bench{size}", size, count)
        spark = open_session("bench", local=options.cores, log=Path(folder, "spark.log"), settings=_SETTINGS)
        try:
            register(spark)
            for size, count in counts.items():
                for figure in measure(spark, cluster.nameserver, size, count, options.runs):
                    print(figure.line, flush=True)
                    figures.append(figure)
        finally:
            spark.stop()
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
