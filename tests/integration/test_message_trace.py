"""Message traces on three real nodes: sent, stored, failed, consumed; also across the leader's death."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ledgermq.client import Admin, MessageView, Producer, PushConsumer, PushOptions
from ledgermq.client.admin.trace_query import TraceReport, find_traces
from ledgermq.client.trace.events import TRACE_TOPIC

from .cluster import Cluster, wait_until
from .history import on_client_loop, run_client


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("trace"), nodes=3, settings={"trace-topic": "true"}) as running:
        running.wait_leader()
        yield running


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> None:
    cluster.start_all()
    cluster.wait_leader()


async def trace_of(cluster: Cluster, message_id: str) -> TraceReport:
    return await find_traces(cluster.nameserver_addresses, since_ms=1, until_ms=None, message_id=message_id)


class FailingOnce:
    """A listener that fails at the first attempt of each message."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.done: set[bytes] = set()
        self.changed = asyncio.Event()

    async def __call__(self, messages: list[MessageView]) -> None:
        fresh = {message.body for message in messages} - self.seen
        self.seen |= fresh
        if fresh:
            raise ValueError("not yet")
        self.done.update(message.body for message in messages)
        self.changed.set()

    async def until(self, bodies: set[bytes]) -> None:
        while not bodies <= self.done:
            self.changed.clear()
            await self.changed.wait()


def consumer_of(cluster: Cluster, group: str, listener: FailingOnce) -> PushConsumer:
    options = PushOptions(session_timeout_ms=1000, retry_ms=20)
    return PushConsumer(
        cluster.nameserver_addresses, group=group, listener=listener, options=options, trace=True
    )


def test_a_trace_shows_each_step_of_a_message(cluster: Cluster) -> None:
    message_id = ""

    async def scenario() -> None:
        nonlocal message_id
        addresses = cluster.nameserver_addresses
        async with Admin(addresses) as admin:
            await admin.create_topic("steps", 2)
        async with Producer(addresses, group="checkout", trace=True) as producer:
            receipt = await producer.send("steps", b"hello", tag="new", keys=["order-7"])
            message_id = receipt.message_id
        listener = FailingOnce()
        async with consumer_of(cluster, "steps-readers", listener) as consumer:
            await consumer.subscribe("steps")
            await listener.until({b"hello"})
        (found,) = (await trace_of(cluster, message_id)).traces
        assert [(each.event.kind, each.event.result, each.event.attempt) for each in found.steps] == [
            ("send", "stored", 0), ("consume", "failed", 1), ("consume", "consumed", 2),
        ]  # fmt: skip
        assert [each.source.group for each in found.steps] == ["checkout", "steps-readers", "steps-readers"]
        assert (found.queue, found.queue_offset) == ((receipt.topic, "g0", receipt.queue_id), 0)
        sent = found.steps[0].event
        assert found.stored_ms == found.steps[1].event.stored_ms
        assert abs(found.stored_ms - sent.begin_ms) < 60_000
        assert "ValueError: not yet" in found.steps[1].event.error

    run_client(scenario())
    question = ["message", "trace", "--key", "order-7", "--json", "-n", cluster.nameserver]
    printed = subprocess.run(
        [sys.executable, "-m", "ledgermq.client.cli", *question], capture_output=True, text=True, check=True
    )
    (shown,) = json.loads(printed.stdout)["traces"]
    assert shown["message_id"] == message_id
    assert [step["result"] for step in shown["steps"]] == ["stored", "failed", "consumed"]


@on_client_loop
async def test_users_cannot_make_the_trace_topic_and_everybody_sees_it(cluster: Cluster) -> None:
    async with Admin(cluster.nameserver_addresses) as admin:
        assert TRACE_TOPIC in {each.name for each in await admin.topics()}


@on_client_loop
async def test_traces_go_on_through_the_death_of_the_leader(cluster: Cluster) -> None:
    """Every message that was acknowledged and consumed has its whole trace, under every leader."""
    addresses = cluster.nameserver_addresses
    async with Admin(addresses) as admin:
        await admin.create_topic("killed", 2)
    listener = FailingOnce()
    bodies = [b"%d" % number for number in range(60)]
    async with (
        consumer_of(cluster, "killed-readers", listener) as consumer,
        Producer(addresses, timeout_ms=30_000, trace=True) as producer,
    ):
        await consumer.subscribe("killed")
        receipts = [await producer.send("killed", body) for body in bodies[:20]]
        leader = await asyncio.to_thread(cluster.wait_leader)
        await asyncio.to_thread(cluster.kill, leader)
        receipts += [await producer.send("killed", body) for body in bodies[20:]]
        await listener.until(set(bodies))
    for receipt in receipts:
        (found,) = (await trace_of(cluster, receipt.message_id)).traces
        results = [each.event.result for each in found.steps]
        assert results[0] in ("stored", "duplicate")
        assert "failed" in results
        assert results[-1] == "consumed"
        assert found.stored_ms


def test_a_cluster_that_was_started_without_traces_gets_the_topic_when_it_is_set_up(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("later")
    with Cluster(folder, nodes=1) as cluster:
        cluster.wait_leader()
        process = cluster.nodes["n1"]
        assert _has_trace_topic(cluster) is False
        cluster.terminate("n1")
        process.arguments += ["--trace-topic", "true"]
        cluster.restart("n1")
        wait_until(lambda: _has_trace_topic(cluster), "the trace topic is there")


def _has_trace_topic(cluster: Cluster) -> bool:
    async def ask() -> bool:
        async with Admin(cluster.nameserver_addresses) as admin:
            return TRACE_TOPIC in {each.name for each in await admin.topics()}

    return asyncio.run(ask())
