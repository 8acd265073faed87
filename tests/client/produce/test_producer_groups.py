"""The producer over several broker groups, of which one dies, against fake nodes on real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from ledgermq.client import Message, Producer
from ledgermq.client.errors import SendTimeoutError
from ledgermq.client.produce.queue_selection import (
    QueueSelector,
    StickyRoundRobin,
    StrictRoundRobin,
    queue_of_group,
)
from ledgermq.nameserver.service import now_ms

from ..fakes import FakeCluster, FakeGroup


def two_groups(queues: int = 2) -> FakeCluster:
    return FakeCluster(FakeGroup("g0", {"orders": queues}), FakeGroup("g1", {"orders": queues}))


def group_name_for(queue: int, count: int) -> str:
    """Return a message group that belongs to that queue of so many."""
    return next(name for name in map(str, range(1000)) if queue_of_group(name, count) == queue)


async def kill(cluster: FakeCluster, producer: Producer, group: str) -> None:
    """Kill the node, and wait until the producer knows: earlier sends have an unknown outcome."""
    connection = producer._connections[group]
    connection.last_error = ""
    await cluster.node("n1", group).stop()
    while not connection.last_error:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.001)


@asynccontextmanager
async def producer_of_two_groups() -> AsyncIterator[tuple[FakeCluster, Producer]]:
    """Yield two groups, and a producer that takes their queues in turn."""
    async with two_groups() as cluster, Producer(cluster.address, selector=StrictRoundRobin()) as producer:
        yield cluster, producer


async def start_again_after_messages_elsewhere(cluster: FakeCluster, producer: Producer) -> None:
    """Kill the node of g0, send ten messages, and start the node, without news of it."""
    await producer.send_batch(Message("orders", b"warm") for _ in range(4))
    node = cluster.node("n1", "g0")
    await kill(cluster, producer, "g0")
    await producer.send_batch(Message("orders", b"away") for _ in range(10))
    await node.start(int(node.address.rpartition(":")[2]))


async def forget(cluster: FakeCluster, group: str) -> None:
    """Kill the group's node, and let the nameserver forget it."""
    await cluster.node("n1", group).stop()
    cluster.nameserver.table.unregister("local", group, "n1")
    cluster.nameserver._changes.tell()


async def test_messages_are_spread_over_the_queues_of_all_groups() -> None:
    async with producer_of_two_groups() as (cluster, producer):
        receipts = await producer.send_batch(Message("orders", b"%d" % i) for i in range(20))
        used = {(receipt.broker_group, receipt.queue_id) for receipt in receipts}
        assert used == {("g0", 0), ("g0", 1), ("g1", 0), ("g1", 1)}
        assert [group.stored() for group in cluster.groups] == [10, 10]


async def test_with_a_dead_group_messages_go_to_the_other_and_none_is_lost() -> None:
    async with producer_of_two_groups() as (cluster, producer):
        await producer.send_batch(Message("orders", b"warm") for _ in range(4))
        await kill(cluster, producer, "g0")
        receipts = await producer.send_batch(Message("orders", b"%d" % i) for i in range(100))
        assert {receipt.broker_group for receipt in receipts} == {"g1"}
        assert [group.stored() for group in cluster.groups] == [2, 102]


@pytest.mark.parametrize("selector", [StickyRoundRobin, StrictRoundRobin])
async def test_the_messages_of_a_dead_group_are_spread_over_all_queues_of_the_other(
    selector: Callable[[], QueueSelector],
) -> None:
    async with two_groups() as cluster, Producer(cluster.address, selector=selector()) as producer:
        await producer.send("orders", b"warm", message_group=group_name_for(0, 4))
        await kill(cluster, producer, "g0")
        producer._connections["g0"].window.avoid_until = now_ms() + 3_600_000
        receipts = [await producer.send("orders", b"x") for _ in range(20)]
        assert Counter(each[1:4] for each in receipts) == {("orders", "g1", 0): 10, ("orders", "g1", 1): 10}


async def test_a_group_that_comes_back_is_used_again() -> None:
    async with producer_of_two_groups() as (cluster, producer):
        await start_again_after_messages_elsewhere(cluster, producer)
        cluster.groups[0].term += 1
        cluster.register(cluster.groups[0])
        while (await producer.send("orders", b"back")).broker_group != "g0":
            assert cluster.groups[1].stored() < 10_000


async def test_a_broker_group_that_is_not_announced_again_is_tried_again() -> None:
    async with producer_of_two_groups() as (cluster, producer):
        began = now_ms()
        await start_again_after_messages_elsewhere(cluster, producer)
        window = producer._connections["g0"].window
        assert window.avoid_until > began
        while (await producer.send("orders", b"back")).broker_group != "g0":
            assert window.avoid_until > 0


async def test_a_message_whose_outcome_is_unknown_does_not_change_its_group() -> None:
    async with two_groups(1) as cluster, Producer(cluster.address, timeout_ms=3000) as producer:
        for group in cluster.groups:
            cluster.node("n1", group.name).drop_answers = 1000
        with pytest.raises(SendTimeoutError, match="may or may not be stored"):
            await producer.send("orders", b"x")
        assert sorted(group.stored() for group in cluster.groups) == [0, 1]


async def test_ordered_messages_wait_for_their_group_and_the_others_keep_theirs() -> None:
    async with two_groups() as cluster, Producer(cluster.address) as producer:
        in_g0, in_g1 = group_name_for(0, 4), group_name_for(3, 4)
        for name, place in ((in_g0, ("g0", 0)), (in_g1, ("g1", 1))):
            receipt = await producer.send("orders", b"first", message_group=name)
            assert (receipt.broker_group, receipt.queue_id) == place
        heard = asyncio.Event()
        producer._routes.on_change(lambda route: heard.set())
        await forget(cluster, "g0")
        await heard.wait()
        assert [part.group.name for part in producer._outbox.topics["orders"].parts] == ["g1"]
        receipt = await producer.send("orders", b"second", message_group=in_g1)
        assert (receipt.broker_group, receipt.queue_id, receipt.queue_offset) == ("g1", 1, 1)
        usual, producer.timeout_ms = producer.timeout_ms, 1000
        with pytest.raises(SendTimeoutError):
            await producer.send("orders", b"second", message_group=in_g0)
        producer.timeout_ms = usual
        assert (await producer.send("orders", b"any")).broker_group == "g1"
