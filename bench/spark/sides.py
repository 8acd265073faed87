"""The systems whose topics Spark reads and writes: three nodes of each on this machine."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ledgermq.client.sync import Admin
from tests.integration.cluster import Cluster

from ..peers import java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES: Final = 4
#: Of a Spark release that has it; the one of another release works as well.
CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:{}"
#: What the connector needs beside what Spark brings.
_ITS_OWN: Final = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")


class Side(Protocol):
    """A system under the same session."""

    name: str

    def create(self, topic: str) -> None:
        """Create a topic of `QUEUES` queues."""

    def read_options(self, topic: str) -> Mapping[str, str]: ...

    def write(self, rows: DataFrame, topic: str) -> None:
        """Write a column `body`; returns when all rows are stored."""

    def close(self) -> None: ...


class LedgerMQSide:
    name = "LedgerMQ"
    format = "ledgermq"

    def __init__(self, folder: Path) -> None:
        self._cluster = Cluster(folder, nodes=3)
        self._cluster.start_all()

    def create(self, topic: str) -> None:
        with Admin(self._cluster.nameserver) as admin:
            admin.create_topic(topic, queues=QUEUES)

    def read_options(self, topic: str) -> Mapping[str, str]:
        return {"nameservers": self._cluster.nameserver, "subscribe": topic}

    def write(self, rows: DataFrame, topic: str) -> None:
        options = {"nameservers": self._cluster.nameserver, "topic": topic}
        rows.write.format(self.format).options(**options).mode("append").save()

    def close(self) -> None:
        self._cluster.stop_all()


class KafkaSide:
    """Kafka with three KRaft nodes, and Spark's connector; a record's value is the body."""

    name = "Kafka"
    format = "kafka"

    def __init__(self, jars: Path, folder: Path) -> None:
        from ..peers import kafka_client
        from ..peers.kafka import Kafka
        from ..peers.kafka_node import SERVERS

        self._system, self._client, self._servers = Kafka(jars), kafka_client, SERVERS
        if lacks := self._system.prepare():
            raise java.JarsError(lacks)
        asyncio.run(self._system.start(folder))

    def create(self, topic: str) -> None:
        self._client.create_topic(topic, QUEUES)

    def read_options(self, topic: str) -> Mapping[str, str]:
        return {"kafka.bootstrap.servers": self._servers, "subscribe": topic}

    def write(self, rows: DataFrame, topic: str) -> None:
        options = {"kafka.bootstrap.servers": self._servers, "topic": topic, "kafka.acks": "all"}
        rows.selectExpr("body AS value").write.format(self.format).options(**options).mode("append").save()

    def close(self) -> None:
        asyncio.run(self._system.stop())


def connector_jars(jars: Path, release: str) -> list[Path]:
    """Return the jars of Spark's Kafka connector. Raises: JarsError."""
    folder = java.resolve(jars, f"spark-kafka-{release}", [CONNECTOR.format(release)])
    return [each for each in sorted(folder.glob("*.jar")) if each.name.startswith(_ITS_OWN)]


def ways_to_read(spark: SparkSession, side: Any, topic: str) -> dict[tuple[str, str], Callable[[], None]]:
    """Return the ways in which a topic is read from its begin into `noop`."""
    given = {**side.read_options(topic), "startingOffsets": "earliest"}

    def batch(columns: str = "") -> None:
        options = given | ({"columns": columns} if columns else {})
        frame = spark.read.format(side.format).options(**options).load()
        frame.write.format("noop").mode("overwrite").save()

    def stream() -> None:
        frame = spark.readStream.format(side.format).options(**given).load()
        with tempfile.TemporaryDirectory() as folder:
            writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            if (error := query.exception()) is not None:
                raise error

    ways: dict[str, Callable[[], None]] = {"batch, all columns": batch, "stream, all columns": stream}
    if side.format == "ledgermq":
        ways["batch, offset and body"] = lambda: batch("offset,body")
    return {(side.name, way): call for way, call in ways.items()}
