"""What becomes of messages to a topic that is deleted while a producer runs: fake nodes on real sockets.

No send here ends by its deadline: that is longer than a test may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledgermq.client import Message, Producer
from ledgermq.client.errors import TopicNotFoundError
from ledgermq.client.produce.queue_selection import CustomSelector

from ..fake_messaging import MessagingCluster
from ..fakes import FakeCluster, FakeGroup

DEADLINE_MS = 600_000


def delete(group: FakeGroup, topic: str) -> None:
    """Delete a topic; the nameserver is not told."""
    topic_id, queues = group.topics.pop(topic)
    for queue_id in range(queues):
        del group.queues[topic_id, queue_id]


@asynccontextmanager
async def sending(group: FakeGroup) -> AsyncIterator[tuple[FakeCluster, Producer]]:
    """A producer of the group's cluster that has sent one message to "orders"."""
    async with FakeCluster(group) as cluster, Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer:
        await producer.send("orders", b"before")
        yield cluster, producer


async def test_a_send_to_a_deleted_topic_fails_at_once_and_goes_on_when_it_is_there_again() -> None:
    group = FakeGroup(topics={"orders": 2, "payments": 1})
    async with sending(group) as (cluster, producer):
        await producer.send("payments", b"before")
        delete(group, "orders")
        cluster.register(group)
        waiting = [producer.send_nowait("orders", b"%d" % number) for number in range(10)]
        waiting.append(producer.send_nowait(Message("orders", b"in order", message_group="g")))
        results = await asyncio.gather(*waiting, return_exceptions=True)
        for each in results:
            assert isinstance(each, TopicNotFoundError), each
            assert 'topic "orders" does not exist in cluster "local"' in str(each)
            assert "ledgermq topic create orders" in str(each)
        with pytest.raises(TopicNotFoundError):
            await producer.send("orders", b"one more")
        assert producer.statistics().failed == 11
        assert producer._outbox._bytes == 0
        await producer.send("payments", b"others go on")
        group.create_topic("orders", 2)
        cluster.register(group)
        assert (await producer.send("orders", b"again")).queue_offset == 0


async def test_while_the_nameserver_still_lists_the_topic_messages_wait_for_what_it_learns() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with sending(group) as (cluster, producer):
        delete(group, "orders")
        sent, node = producer.send_nowait("orders", b"x"), cluster.node()
        while len(node.requests) < 4:
            node.asked.clear()
            await node.asked.wait()
        assert not sent.done()
        cluster.register(group)
        with pytest.raises(TopicNotFoundError):
            await sent


async def test_what_is_in_flight_is_answered_first() -> None:
    """It may be stored, as long as no answer says that it is not."""

    group = FakeGroup(topics={"orders": 1})
    async with sending(group) as (cluster, producer):
        node = cluster.node()
        node.may_answer.clear()
        node.asked.clear()
        stored = producer.send_nowait("orders", b"stored, and not answered")
        await node.asked.wait()
        delete(group, "orders")
        cluster.register(group)
        await producer._refresh("orders", producer._connections["g0"])
        assert not stored.done()
        node.may_answer.set()
        assert (await stored).queue_offset == 1


async def test_where_brokers_create_topics_the_messages_go_to_the_new_one() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with (
        MessagingCluster(group) as cluster,
        Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer,
    ):
        cluster.messaging[0].creates_topics = cluster
        await producer.send("orders", b"before")
        delete(group, "orders")
        cluster.register(group)
        receipts = await producer.send_batch(Message("orders", b"%d" % number) for number in range(3))
        assert sorted(each.queue_offset for each in receipts)[0] == 0
        assert group.stored() == 3


async def test_a_topic_that_only_one_group_lost_goes_on_in_the_other() -> None:
    first, second = FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {"orders": 1})
    to_first = CustomSelector(lambda queues, key: 0)
    async with (
        FakeCluster(first, second) as cluster,
        Producer(cluster.address, timeout_ms=DEADLINE_MS, selector=to_first) as producer,
    ):
        assert (await producer.send("orders", b"before")).broker_group == "g0"
        delete(first, "orders")
        cluster.register(first)
        assert (await producer.send("orders", b"after")).broker_group == "g1"
