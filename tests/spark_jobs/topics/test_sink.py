"""The sink from a Spark session: batch writes, columns, and mistakes that the driver refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the [spark] extra is not installed")

import pyarrow as pa
from pyspark.errors import PySparkException

from ledgermq.client.message import MessageView
from ledgermq.client.sync import PullConsumer
from ledgermq.spark_jobs import register
from ledgermq.spark_jobs.topics.sink import BatchWriter, write_partition
from ledgermq.spark_jobs.topics.sink_options import SinkOptions
from tests.integration.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("sink"), nodes=1) as running:
        running.wait_leader()
        yield running


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def save(rows: DataFrame, cluster: Cluster, **options: str) -> None:
    writer = rows.write.format("ledgermq").mode("append").option("nameservers", cluster.nameserver)
    writer.options(**options).save()


def messages(cluster: Cluster, topic: str) -> list[MessageView]:
    """Return all messages of a topic."""
    with PullConsumer(cluster.nameserver) as consumer:
        consumer.subscribe(topic)
        consumer.seek_to_beginning(topic)
        wanted = sum(end for _, _, _, end in consumer.offsets(topic))
        found: list[MessageView] = []
        while len(found) < wanted:
            found += consumer.poll(1000, timeout_ms=10_000)
        return found


def test_a_batch_write_stores_all_columns_and_a_repeat_stores_nothing(
    session: SparkSession, cluster: Cluster
) -> None:
    rows = session.range(2000).repartition(3, "id").selectExpr(
        "concat('body ', id) AS body", "concat('key', id % 5) AS key", "IF(id % 2 = 0, 'even', NULL) AS tag",
        "map('id', string(id)) AS properties", "concat('group ', id % 7) AS message_group",
        "IF(id % 10 = 0, 'tens', NULL) AS topic",
    )  # fmt: skip
    for _ in range(2):
        save(rows, cluster, topic="others", writeId="monday")
    tens, others = messages(cluster, "tens"), messages(cluster, "others")
    assert (len(tens), len(others)) == (200, 1800)
    by_body = {each.body.decode(): each for each in tens + others}
    assert len(by_body) == 2000
    for number in range(2000):
        found = by_body[f"body {number}"]
        assert (found.keys, found.tag) == ((f"key{number % 5}",), "" if number % 2 else "even")
        assert found.properties == {"id": str(number)}
        assert found.message_group == f"group {number % 7}"


def test_a_write_without_an_id_is_another_write_each_time(session: SparkSession, cluster: Cluster) -> None:
    rows = session.range(50).selectExpr("CAST(string(id) AS binary) AS body")
    for _ in range(2):
        save(rows, cluster, topic="twice")
    counts = Counter(each.body for each in messages(cluster, "twice"))
    assert counts == Counter({b"%d" % number: 2 for number in range(50)})


def test_the_brokers_learn_that_a_write_without_an_id_has_ended(cluster: Cluster) -> None:
    options = SinkOptions(cluster.nameserver, topic="ends")
    for each, sent in ((options, 0), (replace(options, write_id="w"), 1)):
        writer = BatchWriter(each, ordered=False)
        rows = pa.record_batch({"body": pa.array([b"a"])})
        place: dict[str, Any] = {"job": writer.job, "batch": 0, "partition": 0, "ordered": False}
        writer.commit([write_partition(each, iter([rows]), **place)])
        other = write_partition(each, iter([rows]), **place | {"partition": 1})
        assert [part.sent for part in other.parts] == [sent]


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("string(id) AS value", {"topic": "t"}, 'the rows have no column "body"'),
        ("id AS body", {"topic": "t"}, 'column "body" is of type bigint'),
        ("string(id) AS body", {"topics": "t"}, 'Did you mean "topic"?'),
        ("string(id) AS body", {}, "no topic is given"),
        ("string(null) AS body", {"topic": "t"}, "a row has none (null)"),
    ],
)
def test_mistakes_are_named_in_one_sentence(
    session: SparkSession, cluster: Cluster, columns: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        save(session.range(3).selectExpr(columns), cluster, **options)
    assert text in str(refused.value)


def test_other_rows_under_the_same_id_end_the_write(session: SparkSession, cluster: Cluster) -> None:
    save(session.range(9).coalesce(1).selectExpr("string(id) AS body"), cluster, topic="same", writeId="w")
    with pytest.raises(PySparkException, match="Make it deterministic"):
        save(
            session.range(8).coalesce(1).selectExpr("string(id) AS body"), cluster, topic="same", writeId="w"
        )


def test_a_broker_group_with_an_older_node_is_named_in_one_sentence(
    session: SparkSession, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path, nodes=3)
    cluster.nodes["n3"].arguments[1] = "tests.integration.level_4_node"
    with cluster:
        if cluster.wait_leader() == "n3":
            cluster.terminate("n3")
            cluster.wait_leader(other_than="n3")
            cluster.restart("n3")
        with pytest.raises(PySparkException) as refused:
            save(session.range(9).selectExpr("string(id) AS body"), cluster, topic="levels")
        text = "has nodes of an older version, which does not know how to write batches exactly once"
        assert text in str(refused.value) and "Install this version on every node" in str(refused.value)
        assert not messages(cluster, "levels")


def test_topics_flow_into_topics(session: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    rows = session.range(900).selectExpr("string(id) AS body", "array(concat('key', id % 5)) AS keys")
    save(rows, cluster, topic="source")
    options = {"nameservers": cluster.nameserver, "subscribe": "source"}
    batch = session.read.format("ledgermq").options(**options).load().where("queue < 100")
    save(batch.select("body", "keys"), cluster, topic="by-batch")
    stream = session.readStream.format("ledgermq").options(
        **options, startingOffsets="earliest", maxMessagesPerTrigger="250"
    )
    query = (
        stream.load().select("body", "keys").writeStream.format("ledgermq")
        .options(nameservers=cluster.nameserver, topic="by-stream", checkpointLocation=str(tmp_path))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(120)
    assert query.exception() is None
    for topic in ("by-batch", "by-stream"):
        found = messages(cluster, topic)
        assert sorted(int(each.body) for each in found) == list(range(900))
        assert all(each.keys == (f"key{int(each.body) % 5}",) for each in found)
