"""`format("ledgermq")` on real Spark, against real broker groups."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ledgermq.client import Message, MessageView
from ledgermq.client.sync import Admin, BrokerGroupAdmin, Producer, PullConsumer
from ledgermq.spark_jobs import register
from tests.integration.cluster import Cluster, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("topics"), nodes=3) as cluster:
        yield cluster


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def topic(cluster: Cluster, name: str, messages: int, *, queues: int = 4, first: int = 0) -> None:
    """Create a topic, if there is none, and send numbered messages with three tags."""
    with Admin(cluster.nameserver) as admin:
        admin.create_topic(name, queues=queues, if_not_exists=True)
    with Producer(cluster.nameserver) as producer:
        producer.send_batch(
            Message(name, str(n).encode(), tag=f"t{n % 3}", keys=[f"k{n}"], properties={"n": str(n)})
            for n in range(first, first + messages)
        )


def read(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    return spark.read.format("ledgermq").options(nameservers=cluster.nameserver, **options).load()


def stream(
    spark: SparkSession,
    cluster: Cluster,
    folder: Path,
    options: dict[str, str],
    until: Callable[[Any], bool] | None = None,
) -> list[dict[str, Any]]:
    """Run a stream into Parquet until all is read, or `until(query)`; return its progress."""
    frame = spark.readStream.format("ledgermq").options(**options, nameservers=cluster.nameserver).load()
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer = (
        writer.trigger(availableNow=True)
        if until is None
        else writer.trigger(processingTime="100 milliseconds")
    )
    query = writer.start()
    try:
        if until is None:
            query.awaitTermination(120)
        else:
            wait_until(lambda: query.exception() or until(query), "the stream is that far")
        if (error := query.exception()) is not None:
            raise error
        return [json.loads(each.json) for each in query.recentProgress]
    finally:
        query.stop()


def written(spark: SparkSession, folder: Path) -> list[int]:
    """Return the numbers in the sink, sorted, repeated ones as often as they are there."""
    rows = spark.read.parquet(str(folder / "out")).select("body").collect()
    return sorted(int(bytes(row.body)) for row in rows)


def failure(action: Callable[[], object]) -> str:
    """Return the text of the error of Spark."""
    with pytest.raises(Exception, match="SparkJobError") as caught:
        action()
    return str(caught.value)


def test_a_batch_has_every_message_with_all_columns(session: SparkSession, running: Cluster) -> None:
    topic(running, "batch", 1000)
    rows = read(session, running, subscribe="batch").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(1000))
    with PullConsumer(running.nameserver) as consumer:
        consumer.subscribe("batch")
        expected: dict[tuple[int, int], MessageView] = {}
        while len(expected) < 1000:
            for message in consumer.poll(512, timeout_ms=5_000):
                expected[message.queue.queue_id, message.queue_offset] = message
    for row in rows:
        message = expected[row.queue, row.offset]
        assert (row.topic, row.queue_group, row.message_id, row.tag, row["keys"], row.properties) == (
            "batch", "g0", message.message_id, message.tag, list(message.keys), message.properties,
        )  # fmt: skip
        assert row.message_group is None
        assert round(row.store_time.timestamp() * 1000) == message.store_timestamp
        assert round(row.born_time.timestamp() * 1000) == message.born_timestamp


def test_columns_schema_tags_and_pushed_filters(session: SparkSession, running: Cluster) -> None:
    topic(running, "filters", 600)
    every = read(session, running, subscribe="filters", minPartitions="8")
    assert every.rdd.getNumPartitions() == 8
    assert every.where("queue = 1 AND offset >= 3 AND offset < 5").rdd.getNumPartitions() <= 2
    assert every.where("queue = 1 AND offset >= 3 AND offset < 5").count() == 2
    assert every.where("queue IN (0, 2)").count() + every.where("queue IN (1, 3)").count() == 600
    assert every.where("store_time > now() - INTERVAL 1 HOUR").count() == 600
    assert every.where("store_time > now() + INTERVAL 1 HOUR").count() == 0
    later = every.where("store_time > timestamp'2100-01-01'")
    assert (later.count(), later.rdd.getNumPartitions()) == (0, 1)  # nothing is read
    assert read(session, running, subscribe="filters", tags="t0 || t1").count() == 400
    narrow = read(session, running, subscribe="filters", columns="offset,tag")
    assert (narrow.columns, narrow.count()) == (["offset", "tag"], 600)
    own = session.read.format("ledgermq").schema("tag string, body binary")
    assert own.options(nameservers=running.nameserver, subscribe="filters").load().count() == 600
    offsets = json.dumps({"filters": {"g0": {"0": -1, "1": -1, "2": -1}}})
    one = read(session, running, subscribe="filters", startingOffsets=offsets)
    assert [row.queue for row in one.select("queue").distinct().collect()] == [3]


def test_errors_say_what_is_wrong_in_one_sentence(session: SparkSession, running: Cluster) -> None:
    topic(running, "orders", 1)
    text = failure(lambda: read(session, running, subscribe="ordres").count())
    assert 'topic "ordres" does not exist' in text
    assert 'Did you mean "orders"?' in text
    text = failure(lambda: read(session, running, subscribe="orders", startingOffset="latest").count())
    assert 'Did you mean "startingOffsets"?' in text
    assert len(text.splitlines()) < 10
    options = {"nameservers": running.nameserver, "subscribe": "orders"}
    wrong = session.read.format("ledgermq").schema("body string").options(**options)
    assert 'column "body" of a topic is binary, not string' in failure(lambda: wrong.load().count())
    text = failure(lambda: read(session, running, subscribePattern="nothing.*").count())
    assert "no topic matches" in text


def test_available_now_keeps_to_the_limit_and_restarts_where_it_was(
    session: SparkSession, running: Cluster, tmp_path: Path
) -> None:
    topic(running, "limited", 1000)
    options = {"subscribe": "limited", "startingOffsets": "earliest", "maxMessagesPerTrigger": "300",
               "groupId": "lake"}  # fmt: skip
    progress = stream(session, running, tmp_path, options)
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [300, 300, 300, 100]
    topic(running, "limited", 200, first=1000)
    # A batch that was planned and perhaps written, but not noted as done, is read again: the same messages.
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()
    stream(session, running, tmp_path, options)
    assert written(session, tmp_path) == list(range(1200))
    with PullConsumer(running.nameserver, group="lake") as consumer:
        committed = consumer.committed("limited")
    assert sum(committed.values()) >= 1000


def test_a_stream_goes_on_when_the_leader_is_killed(session: SparkSession, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", nodes=3) as cluster:
        topic(cluster, "live", 2000)
        killed: list[str] = []

        def far_enough(query: Any) -> bool:
            rows = sum(each["numInputRows"] for each in query.recentProgress)
            if rows >= 500 and not killed:
                killed.append(cluster.kill_leader())
                topic(cluster, "live", 500, first=2000)
            return bool(rows >= 2500)

        options = {"subscribe": "live", "startingOffsets": "earliest", "maxMessagesPerTrigger": "250"}
        stream(session, cluster, tmp_path, options, far_enough)
        assert killed
        assert set(written(session, tmp_path)) == set(range(2500))
        assert len(written(session, tmp_path)) == 2500
        assert read(session, cluster, subscribe="live").count() == 2500


def test_a_new_broker_group_and_a_new_topic_are_read_from_their_first_offset(
    session: SparkSession, tmp_path: Path
) -> None:
    with Cluster(tmp_path / "cluster", nodes=1) as cluster:
        topic(cluster, "grows", 100, queues=1)
        options = {"subscribePattern": "grows.*", "startingOffsets": "latest"}
        stream(session, cluster, tmp_path, options)
        name = cluster.add_group(1)
        with BrokerGroupAdmin(cluster.nameserver) as admin:
            admin.add_group(name)
        with PullConsumer(cluster.nameserver) as consumer:
            wait_until(lambda: len(consumer.queues("grows")) == 2, "both broker groups have the topic", 30)
        topic(cluster, "grows", 100, first=100)
        topic(cluster, "grows2", 100, first=200)
        stream(session, cluster, tmp_path, options)
        assert written(session, tmp_path) == list(range(100, 300))
        groups = session.read.parquet(str(tmp_path / "out")).select("queue_group").distinct().collect()
        assert {row.queue_group for row in groups} == {"g0", name}


def test_a_topic_that_was_created_again_is_noticed(
    session: SparkSession, running: Cluster, tmp_path: Path
) -> None:
    topic(running, "again", 50)
    options = {"subscribe": "again", "startingOffsets": "earliest"}
    stream(session, running, tmp_path, options)
    with Admin(running.nameserver) as admin:
        before = admin.describe_topic("again")[0].topic_id
        admin.delete_topic("again")
        topic(running, "again", 70, first=50)
        assert admin.describe_topic("again")[0].topic_id != before
    text = failure(lambda: stream(session, running, tmp_path, options))
    assert 'topic "again" was deleted and created again' in text
    stream(session, running, tmp_path, options | {"failOnDataLoss": "false"})
    assert written(session, tmp_path) == list(range(120))


def test_offsets_that_retention_took(session: SparkSession, tmp_path: Path) -> None:
    settings = {"segment-size": "1MiB", "max-message-bytes": "128KiB", "max-store-bytes": "6MiB"}
    with Cluster(tmp_path / "cluster", nodes=3, settings=settings) as cluster:
        topic(cluster, "short", 10, queues=1)
        options = {"subscribe": "short", "startingOffsets": "earliest"}
        stream(session, cluster, tmp_path, options)
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:

            def begin() -> int:
                return admin.describe_topic("short")[1][0][1].begin_offset

            sent = 0
            end = time.monotonic() + 60
            while begin() <= 10 and time.monotonic() < end:
                producer.send(Message("short", os.urandom(100_000)))
                sent += 1
            assert begin() > 10
        text = failure(lambda: stream(session, cluster, tmp_path, options))
        assert "were deleted by retention before they were read" in text
        stream(session, cluster, tmp_path, options | {"failOnDataLoss": "false"})
        offsets = session.read.parquet(str(tmp_path / "out")).select("offset").collect()
        found = sorted(row.offset for row in offsets)
        assert found[:10] == list(range(10))
        assert found[-1] == 10 + sent - 1
        assert len(found) == len(set(found)) < 10 + sent
