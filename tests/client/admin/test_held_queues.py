"""Holds through the admin client, against fake nodes."""

from __future__ import annotations

import pytest

from ledgermq.client import Admin, MessageQueue, sync
from ledgermq.client.admin.held_queues import Hold, hold_requests, holds_of
from ledgermq.client.errors import BrokerGroupsGoneError, RefusedError, TopicNotFoundError, UsageError
from ledgermq.proto import admin_pb2

from ..fakes import FakeCluster, FakeGroup
from ..served import served

ADVANCED = 1_700_000_000_000


def two_groups() -> FakeCluster:
    return FakeCluster(FakeGroup("g0", {"orders": 2}), FakeGroup("g1", {"orders": 3, "payments": 1}))


def queue(broker_group: str, queue_id: int, topic: str = "orders") -> MessageQueue:
    return MessageQueue(topic, broker_group, queue_id)


def shown(holds: list[Hold]) -> list[tuple[str, str, int, int]]:
    return [(each.name, each.queue.broker_group, each.queue.queue_id, each.offset) for each in holds]


async def test_a_hold_is_set_in_the_broker_groups_of_its_queues_listed_and_released() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        answer = await admin.hold("orders", "lake", {queue("g1", 2): 7, queue("g0", 0): 5, queue("g1", 0): 6})
        assert shown(answer) == [("lake", "g0", 0, 5), ("lake", "g1", 0, 6), ("lake", "g1", 2, 7)]
        assert answer[0] == Hold("lake", queue("g0", 0), 5, ADVANCED, False)
        await admin.hold("orders", "audit", {queue("g1", 0): 1})
        assert {key[:2] for key in cluster.groups[0].holds} == {("orders", "lake")}, "not called for nothing"
        assert shown(await admin.holds("orders")) == [
            ("audit", "g1", 0, 1), ("lake", "g0", 0, 5), ("lake", "g1", 0, 6), ("lake", "g1", 2, 7),
        ]  # fmt: skip
        assert await admin.holds("payments") == []
        assert shown(await admin.hold("orders", "lake", {queue("g0", 0): 3})) == [("lake", "g0", 0, 5)]
        assert await admin.release_hold("orders", "lake")
        assert shown(await admin.holds("orders")) == [("audit", "g1", 0, 1)]
        assert not await admin.release_hold("orders", "lake")


def test_a_hold_that_was_overridden_says_how_many_messages_it_lost() -> None:
    info = admin_pb2.HoldInfo(name="lake", queue_id=1, offset=9, advanced_ms=5, lost=3, expired=True)
    assert holds_of("orders", "g0", [info]) == [Hold("lake", queue("g0", 1), 9, 5, True, 3, True)]


def test_a_hold_belongs_to_one_topic() -> None:
    with pytest.raises(UsageError, match="is no queue of topic orders"):
        hold_requests("orders", "lake", {queue("g0", 0, "payments"): 1})


async def test_unknown_topics_and_broker_groups_are_named() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        with pytest.raises(UsageError, match=r'"g7" does not exist.*g0, g1'):
            await admin.hold("orders", "lake", {queue("g7", 0): 1, queue("g0", 0): 1})
        assert not cluster.groups[0].holds, "nothing was changed"
        for call in (
            admin.hold("order", "lake", {queue("g0", 0, "order"): 1}),
            admin.holds("order"),
            admin.release_hold("order", "lake"),
        ):
            with pytest.raises(TopicNotFoundError, match='"order"'):
                await call


async def test_a_broker_group_that_is_gone_is_not_taken_for_one_that_never_was() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        await cluster.expire(cluster.groups[1])
        with pytest.raises(BrokerGroupsGoneError, match="g1"):
            await admin.hold("orders", "lake", {queue("g0", 0): 1, queue("g1", 0): 1})
        assert not cluster.groups[0].holds, "nothing was changed"
        assert await admin.hold("orders", "lake", {queue("g0", 0): 1}), "what is needed is up"


async def test_a_node_that_knows_no_holds_is_too_old_and_says_so_at_once() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        cluster.groups[0].is_old = True
        with pytest.raises(RefusedError, match="older version, which knows no holds") as refused:
            await admin.hold("orders", "lake", {queue("g0", 0): 1})
        assert not refused.value.retryable


def test_the_synchronous_client_holds_too() -> None:
    with served(two_groups) as running, sync.Admin(running.address) as admin:
        admin.hold("orders", "lake", {queue("g0", 0): 5})
        assert shown(admin.holds("orders")) == [("lake", "g0", 0, 5)]
        assert admin.release_hold("orders", "lake")
