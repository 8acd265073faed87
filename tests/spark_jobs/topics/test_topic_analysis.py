"""The analysis of topics on real Spark, of a real broker group with traces."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ledgermq.client import Admin, Message, MessageView, Producer, PushConsumer, PushOptions, SimpleConsumer
from ledgermq.client.sync import Admin as SyncAdmin
from ledgermq.client.trace.events import TRACE_TOPIC, TraceEvent, TraceSource, encode_batch
from tests.integration.cluster import Cluster, wait_until
from tests.integration.history import run_client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

#: The messages of the topic `shop`: a third without a tag; each tenth has two keys more, each third none.
TAGS = ("new", "paid", "")
MESSAGES = [
    Message(
        "shop",
        b"x" * (100 + number % 7),
        tag=TAGS[number % 3],
        keys=[] if number % 3 == 2 else [f"k{number % 40}"] + (["a", "b"] if number % 10 == 0 else []),
    )
    for number in range(600)
]


@dataclass(frozen=True, slots=True)
class Traced:
    """A cluster whose topic `shop` was consumed: twice each by `books`, and once for ever by `billing`."""

    cluster: Cluster
    stored_ms: list[int]  # of the messages, sorted


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("analysis")
    with Cluster(folder, nodes=1, settings={"trace-topic": "true"}) as cluster:
        cluster.wait_leader()
        stored = run_client(fill(cluster.nameserver))
        wait_until(lambda: is_parked(cluster.nameserver), "the message is parked")
        yield Traced(cluster, stored)


async def fill(nameserver: str) -> list[int]:
    async with Admin(nameserver) as admin:
        await admin.create_topic("shop", 2)
        await admin.create_topic("dark", 1)
        await admin.create_group("billing", max_attempts=1)
    async with Producer(nameserver) as producer:
        for at in range(0, len(MESSAGES), 200):  # at different times
            await producer.send_batch(MESSAGES[at : at + 200])
        await producer.send(Message("dark", b"never consumed"))
        # Anyone may write traces: neither this message nor this text is real.
        lie = TraceEvent("consume", "01AB", "shop", 1, "consumed", 1, "g0", 0, 3)
        await producer.send(Message(TRACE_TOPIC, encode_batch(TraceSource("push", "x", "c", "h", 1), [lie])))
        await producer.send(Message(TRACE_TOPIC, b"no trace"))
    stored = await consume(nameserver)
    await park_one(nameserver)
    return sorted(stored)


async def consume(nameserver: str) -> list[int]:
    """Let a push consumer fail once with each message; return when they were stored."""
    seen: set[str] = set()
    done: dict[str, int] = {}
    all_done = asyncio.Event()

    async def listener(messages: list[MessageView]) -> None:
        fresh = {message.message_id for message in messages} - seen
        seen.update(fresh)
        if fresh:
            raise ValueError("not yet")
        done.update({message.message_id: message.store_timestamp for message in messages})
        if len(done) == len(MESSAGES):
            all_done.set()

    options = PushOptions(retry_ms=20)
    async with PushConsumer(
        nameserver, group="books", listener=listener, options=options, trace=True
    ) as consumer:
        await consumer.subscribe("shop")
        await all_done.wait()
    return list(done.values())


async def park_one(nameserver: str) -> None:
    async with SimpleConsumer(nameserver, group="billing", invisible_ms=60_000) as consumer:
        await consumer.subscribe("shop", "paid")
        (message,) = await consumer.receive(1, timeout_ms=20_000)
        await consumer.change_invisible(message, 0)


def is_parked(nameserver: str) -> bool:
    with SyncAdmin(nameserver) as admin:
        return any(each.parked_count for _, each in admin.deliveries("billing"))


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    from ledgermq.spark_jobs import register

    register(spark)
    return spark


def test_every_figure_is_what_was_sent_and_consumed(session: SparkSession, shop: Traced) -> None:
    import pyarrow as pa

    from ledgermq.spark_jobs.topics.topic_analysis import AnalysisRequest, Analyst, look_at

    look = look_at(AnalysisRequest(shop.cluster.nameserver, ("shop", "dark"), 0, 0, 2))
    assert look.has_trace_topic and len(look.parked.places) == 1
    with Analyst(session, look) as analyst:
        found, dark = analyst.topics()
        hours = pa.Table.from_batches(list(analyst.hour_batches())).to_pylist()
        assert analyst.unreadable_traces == 1
    totals = found.totals
    assert (found.name, totals.messages, totals.parked) == ("shop", 600, 1)
    assert totals.size == sum(len(message.body) for message in MESSAGES)
    assert totals.distinct_keys == len({key for message in MESSAGES for key in message.keys})
    assert (
        totals.queueing is not None
        and 0 <= totals.queueing.p50 <= totals.queueing.p99 <= totals.queueing.most
    )
    assert (totals.traced, totals.redeliveries, totals.given_up) == (600, 600, 0)
    assert totals.end_to_end is not None and totals.queueing.p50 < totals.end_to_end.p50
    # Tags: the two with most messages of three, by name where they have as many.
    assert found.tag_count == 3 and len(found.tags) == 2
    assert {tag for tag, _ in found.tags} <= {"new", "paid", None}
    assert all(each.messages == each.traced == 200 for _, each in found.tags)
    # What nobody consumed with a trace is not known.
    assert (dark.totals.messages, dark.totals.traced, dark.totals.end_to_end) == (1, None, None)
    assert dark.tags[0][0] is None
    by_tag: Counter[tuple[str, str | None]] = Counter()
    for row in hours:
        by_tag[row["topic"], row["tag"]] += row["messages"]
        assert row["hour"].minute == row["hour"].second == 0
    assert by_tag == {("shop", "new"): 200, ("shop", "paid"): 200, ("shop", None): 200, ("dark", None): 1}
    assert sum(row["parked"] for row in hours if row["tag"] == "paid") == 1
    assert sum(row["bytes"] for row in hours if row["topic"] == "shop") == totals.size
    assert {row["redeliveries"] for row in hours if row["topic"] == "dark"} == {None}
    assert sum(figures.messages for _, figures in found.hours) == 600


def test_times_limit_what_is_counted(session: SparkSession, shop: Traced) -> None:
    from ledgermq.spark_jobs.topics.topic_analysis import AnalysisRequest, Analyst, look_at

    middle = shop.stored_ms[300]
    expected = sum(at < middle for at in shop.stored_ms)
    counted = []
    for from_ms, to_ms in ((0, middle), (middle, 0), (shop.stored_ms[-1] + 1, 0)):
        look = look_at(AnalysisRequest(shop.cluster.nameserver, ("shop",), from_ms, to_ms, 9))
        with Analyst(session, look) as analyst:
            (found,) = analyst.topics()
            counted.append((found.totals.messages, found.totals.traced or 0))
    assert counted == [(expected, expected), (600 - expected, 600 - expected), (0, 0)]


def test_the_command_writes_a_report(shop: Traced, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ledgermq.client.cli", "spark", "analyze", "shop"]
    options = ["-n", shop.cluster.nameserver, "--out", str(tmp_path / "report"), "--local", "1", "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["messages"] == 600 and found == json.loads((tmp_path / "report" / "report.json").read_text())
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "hours.parquet", "report.html", "report.json",
    ]  # fmt: skip
    page = (tmp_path / "report" / "report.html").read_text()
    assert "redeliveries in 600 traced consumptions" in page
