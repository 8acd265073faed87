"""A client of Spark Connect: a batch write, a stream from topic to topic, and counts of both.

    python -m tests.integration.spark_connect_job URL NAMESERVER FOLDER

Prints one JSON object. This process has no JVM.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from ledgermq.spark_jobs import register
from ledgermq.spark_jobs.session import open_session
from ledgermq.spark_jobs.topics.stream_progress import StreamProgress

ROWS = 5_000


def main(url: str, nameserver: str, folder: str) -> None:
    spark = open_session("connect", master=url)
    register(spark)
    listener = StreamProgress()
    spark.streams.addListener(listener)
    try:
        counts = write_and_read(spark, nameserver, folder)
    finally:
        spark.streams.removeListener(listener)  # else its thread keeps this process alive
    progress = [each.fields() for each in listener.queries()]
    sys.stdout.write(json.dumps({"counts": counts, "progress": progress}) + "\n")
    spark.stop()


def write_and_read(spark: SparkSession, nameserver: str, folder: str) -> dict[str, list[int]]:
    """Write a topic twice with one id, and copy it by a stream; return (messages, different) of both."""
    rows = spark.range(0, ROWS, numPartitions=2).selectExpr("concat('row ', id) AS body")
    for _ in range(2):  # the second time it stores nothing
        rows.write.format("ledgermq").options(
            nameservers=nameserver, topic="connected", writeId="once"
        ).mode("append").save()  # fmt: skip
    source = spark.readStream.format("ledgermq").options(
        nameservers=nameserver, subscribe="connected", startingOffsets="earliest",
        maxMessagesPerTrigger="2000",
    )  # fmt: skip
    query = (
        source.load()
        .select("body")
        .writeStream.format("ledgermq")
        .option("nameservers", nameserver)
        .option("topic", "copied")
        .option("checkpointLocation", str(Path(folder, "checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    counts = {}
    for topic in ("connected", "copied"):
        frame = spark.read.format("ledgermq").options(nameservers=nameserver, subscribe=topic).load()
        (found,) = frame.selectExpr("count(*) AS messages", "count(distinct body) AS different").collect()
        counts[topic] = [found.messages, found.different]
    return counts


if __name__ == "__main__":
    main(*sys.argv[1:])
