"""What producers and consumers say of themselves, broker group by broker group."""

from __future__ import annotations

import asyncio

from ledgermq.client import Message, MessageQueue, Producer, PullConsumer, SimpleConsumer
from ledgermq.client import sync as blocking
from ledgermq.client.consume.statistics import LeaseStatistics
from ledgermq.client.errors import InvalidHandleError
from ledgermq.client.produce.queue_selection import StrictRoundRobin
from ledgermq.proto import route_pb2 as pb

from .fake_messaging import MessagingCluster
from .fakes import FakeCluster, FakeGroup
from .reading import fill, read
from .served import served


def two_groups() -> tuple[FakeGroup, FakeGroup]:
    return FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {"orders": 1})


async def test_a_producer_counts_by_broker_group_what_was_stored_moved_repeated_and_waits() -> None:
    groups = two_groups()
    async with (
        FakeCluster(*groups) as cluster,
        Producer(cluster.address, selector=StrictRoundRobin()) as producer,
    ):
        assert producer.group_statistics() == {}
        await producer.send_batch(Message("orders", b"x") for _ in range(4))
        found = producer.group_statistics()
        assert {name: each.stored for name, each in found.items()} == {"g0": 2, "g1": 2}
        assert all(each.connected and not each.avoided and not each.draining for each in found.values())
        assert found["g0"].leader_id == "n1"
        assert found["g0"].latency_ms is None
        groups[0].mode = pb.MODE_DRAINING
        await producer.send_batch(Message("orders", b"y") for _ in range(4))
        found = producer.group_statistics()
        assert (found["g0"].stored, found["g0"].moved, found["g1"].stored) == (2, 2, 6)
        cluster.node("n1", "g1").drop_answers = 1
        await producer.send("orders", b"z")
        found = producer.group_statistics()
        assert (found["g1"].stored, found["g1"].repeated, found["g1"].waiting) == (7, 1, 0)
        assert "does not answer" in found["g1"].last_error
        cluster.node("n1", "g1").may_answer.clear()
        waiting = producer.send_nowait("orders", b"last")
        assert producer.group_statistics()["g1"].waiting == 1
        cluster.node("n1", "g1").may_answer.set()
        await waiting
        assert (
            sum(each.stored for each in producer.group_statistics().values()) == producer.statistics().stored
        )


async def test_a_producer_that_avoids_tells_the_latency_and_what_it_avoids() -> None:
    """One broker group: with two, a slow moment of the machine would choose which gets the messages."""
    async with (
        FakeCluster(FakeGroup("g0", {"orders": 1})) as cluster,
        Producer(
            cluster.address, send_latency_fault_enable=True, latency_fault_table=[(60_000, 60_000)]
        ) as producer,
    ):
        await producer.send("orders", b"x")
        found = producer.group_statistics()["g0"]
        assert found.latency_ms is not None
        assert not found.avoided
        cluster.node("n1", "g0").drop_answers = 1
        await producer.send("orders", b"y")
        assert producer.group_statistics()["g0"].avoided


def test_the_synchronous_producer_counts_alike() -> None:
    group = FakeGroup("g0", {"orders": 1})
    with served(lambda: FakeCluster(group)) as cluster, blocking.Producer(cluster.address) as producer:
        producer.send("orders", b"x")
        assert producer.group_statistics()["g0"].stored == 1


async def test_a_pull_consumer_tells_positions_ends_and_what_it_holds() -> None:
    groups = two_groups()
    async with FakeCluster(*groups) as cluster, PullConsumer(cluster.address) as consumer:
        await fill(cluster, [b"a", b"b", b"c", b"d"])
        await consumer.subscribe("orders")
        first, second = MessageQueue("orders", "g0", 0), MessageQueue("orders", "g1", 0)
        consumer.pause([second])
        await read(consumer, 1)
        found = consumer.statistics()
        assert (found.delivered, found.deleted, found.missing) == (1, 0, ())
        assert "g0" in found.sources
        queues = {each.queue: each for each in found.queues}
        reading = queues[first]
        assert (reading.position, reading.end_offset, reading.fetched, reading.paused) == (1, 2, 1, False)
        assert queues[second].paused
        assert found.lag == 1
        consumer.resume([second])
        await read(consumer, 3)
        assert (consumer.statistics().delivered, consumer.statistics().lag) == (4, 0)


async def test_leases_are_counted_by_what_became_of_them() -> None:
    async with (
        MessagingCluster(FakeGroup(topics={"orders": 1})) as cluster,
        SimpleConsumer(cluster.address, group="billing") as consumer,
    ):
        await consumer.subscribe("orders")
        cluster.messages.add(b"a", b"b")
        first, second = await consumer.receive()
        cluster.messages.add(b"c")
        cluster.messages.delivery_attempt = 2
        (third,) = await consumer.receive()
        cluster.messages.leased.pop(second.receipt_handle)
        cluster.messaging[0].hold_acks = asyncio.Event()
        acks = [asyncio.create_task(consumer.ack(each)) for each in (first, second)]
        await cluster.messaging[0].acking.wait()
        acks.append(asyncio.create_task(consumer.ack(third)))
        await asyncio.sleep(0)
        assert consumer.statistics() == {"g0": LeaseStatistics(3, 1, 0, 0, 1)}
        cluster.messaging[0].hold_acks.set()
        outcomes = await asyncio.gather(*acks, return_exceptions=True)
        assert [type(each) for each in outcomes] == [type(None), InvalidHandleError, type(None)]
        assert consumer.statistics() == {"g0": LeaseStatistics(3, 1, 2, 1, 0)}
