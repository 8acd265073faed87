"""A pull consumer over broker groups that come, go and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ledgermq.client import MessageQueue, PullConsumer
from ledgermq.client.consume import wanted_queues
from ledgermq.client.errors import BrokerUnreachableError, UsageError

from ..fakes import FakeCluster, FakeGroup, FakeNode
from ..reading import fill, read

Q0, Q1 = MessageQueue("orders", "g0", 0), MessageQueue("orders", "g1", 0)


def two_groups() -> tuple[FakeGroup, FakeGroup]:
    return FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {"orders": 1})


async def until(done: Callable[[], bool]) -> None:
    """Wait for what nothing tells of."""
    while not done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def fill_group(group: FakeGroup, bodies: list[bytes]) -> None:
    """Send to one group only."""
    async with FakeCluster(group) as cluster:
        await fill(cluster, bodies)


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_broker_group_that_appears_while_a_consumer_runs_is_read_too(start: str) -> None:
    """From its beginning also with start="latest": all of it was stored after the subscription."""

    old, new = two_groups()
    async with FakeCluster(old) as cluster, PullConsumer(cluster.address, start=start) as consumer:
        await consumer.subscribe("orders")
        new.store_timestamp = wanted_queues._now_ms() + 1
        await fill_group(new, [b"first"])
        await cluster.add(new)
        assert await read(consumer, 1) == [b"first"]
        assert consumer.assignment == (Q0, Q1)


async def test_a_group_that_is_down_holds_up_no_other_and_joins_when_it_is_back() -> None:
    groups = two_groups()
    await fill_group(groups[0], [b"alive"])
    await fill_group(groups[1], [b"back"])
    async with FakeCluster(*groups) as cluster, PullConsumer(cluster.address) as consumer:
        await cluster.lose(groups[1])
        await consumer.subscribe("orders")
        assert (consumer.assignment, consumer.missing) == ((Q0,), (Q1,))
        assert await read(consumer, 1) == [b"alive"]
        await cluster.revive(groups[1])
        assert await read(consumer, 1) == [b"back"]
        assert (consumer.assignment, consumer.missing) == ((Q0, Q1), ())


async def test_of_a_group_that_joins_late_the_latest_is_what_was_stored_since_the_subscription() -> None:
    groups = two_groups()
    await fill_group(groups[1], [b"old"])
    async with FakeCluster(*groups) as cluster, PullConsumer(cluster.address, start="latest") as consumer:
        await cluster.lose(groups[1])
        await consumer.subscribe("orders")
        groups[1].store_timestamp = wanted_queues._now_ms() + 1
        await fill_group(groups[1], [b"since"])
        await cluster.revive(groups[1])
        assert await read(consumer, 1) == [b"since"]


async def test_living_groups_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As during an election: who looks at the assignment after subscribe() must find all of it."""
    monkeypatch.setattr(wanted_queues, "JOIN_PATIENCE_S", 3600.0)
    go_on = asyncio.Event()
    query = FakeNode.QueryOffsets

    async def slowly(node: FakeNode, request: Any, context: Any) -> Any:
        if node.group.name == "g1":
            await go_on.wait()
        return await query(node, request, context)

    monkeypatch.setattr(FakeNode, "QueryOffsets", slowly)
    async with FakeCluster(*two_groups()) as cluster, PullConsumer(cluster.address) as consumer:
        subscribing = asyncio.create_task(consumer.subscribe("orders"))
        await until(lambda: consumer.assignment == (Q0,))
        assert not subscribing.done()
        go_on.set()
        await subscribing
        assert consumer.assignment == (Q0, Q1)


async def test_without_any_group_that_answers_subscribe_fails_and_may_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = two_groups()
    async with FakeCluster(*groups) as cluster, PullConsumer(cluster.address) as consumer:
        for group in groups:
            await cluster.lose(group)
        with monkeypatch.context() as patch, pytest.raises(BrokerUnreachableError):
            patch.setattr(wanted_queues, "CALL_TIMEOUT_S", 0.2)
            await consumer.subscribe("orders")
        assert (consumer.assignment, consumer.missing) == ((), ())
        with pytest.raises(UsageError, match="reads no queue"):
            await consumer.poll()
        for group in groups:
            await cluster.revive(group)
        await consumer.subscribe("orders")
        assert sorted(consumer.assignment) == [Q0, Q1], "in any order: the first to answer joins first"


async def test_a_queue_that_was_given_up_does_not_come_back_by_itself() -> None:
    groups = two_groups()
    third = FakeGroup("g2", {"orders": 1})
    async with FakeCluster(*groups) as cluster, PullConsumer(cluster.address) as consumer:
        await consumer.subscribe("orders")
        consumer.unassign([Q0])
        await cluster.add(third)
        await until(lambda: MessageQueue("orders", "g2", 0) in consumer.assignment)
        assert Q0 not in consumer.assignment
        await consumer.assign([Q0])
        assert Q0 in consumer.assignment
        consumer.unsubscribe("orders")
        assert consumer.assignment == ()


async def test_a_missing_group_that_is_not_wanted_any_more_does_not_join() -> None:
    groups = two_groups()
    async with FakeCluster(*groups) as cluster, PullConsumer(cluster.address) as consumer:
        await cluster.lose(groups[1])
        await consumer.subscribe("orders")
        consumer.unassign([Q1])
        assert consumer.missing == ()
        await cluster.revive(groups[1])
        await until(
            lambda: (
                not consumer._wanted._joining
                or all(task.done() for task in consumer._wanted._joining.values())
            )
        )
        assert consumer.assignment == (Q0,)


async def test_a_queue_that_does_not_exist_is_refused_before_anything_is_read() -> None:
    async with FakeCluster(*two_groups()) as cluster, PullConsumer(cluster.address) as consumer:
        with pytest.raises(UsageError, match="does not exist"):
            await consumer.assign([Q0, MessageQueue("orders", "g0", 9)])
        assert consumer.assignment == ()
