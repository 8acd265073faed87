"""The admin client against fake nodes: one call, all broker groups, one answer."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.client import Admin, MessageQueue, PullConsumer
from ledgermq.client.errors import (
    AlreadyExistsError,
    BrokerUnreachableError,
    ConsumerGroupNotFoundError,
    InvalidNameError,
    NameserversDownError,
    NoBrokersError,
    RouteError,
    TopicNotFoundError,
    UsageError,
)

from ..fakes import FakeCluster, FakeGroup


def two_groups() -> FakeCluster:
    return FakeCluster(FakeGroup("g0", {"orders": 2}), FakeGroup("g1", {"orders": 3, "payments": 1}))


async def test_a_topic_is_created_in_every_group_and_its_queues_are_counted_together() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        assert await admin.create_topic("new", 4) == 8
        assert all("new" in group.topics for group in cluster.groups)
        with pytest.raises(AlreadyExistsError):
            await admin.create_topic("new", 4)
        assert await admin.create_topic("new", 4, if_not_exists=True) == 8


async def test_a_change_whose_answer_was_lost_is_not_called_impossible() -> None:
    async with FakeCluster(FakeGroup()) as cluster, Admin(cluster.address) as admin:
        cluster.node().drop_answers = 1
        assert await admin.create_topic("new", 4) == 4
        with pytest.raises(AlreadyExistsError):
            await admin.create_topic("new", 4)
        cluster.node().drop_answers = 1
        await admin.delete_topic("new")
        with pytest.raises(TopicNotFoundError):
            await admin.delete_topic("new")


async def test_a_node_that_is_down_makes_no_change_perhaps_done() -> None:
    async with (
        FakeCluster(FakeGroup(topics={"orders": 2}), nodes=2) as cluster,
        Admin(cluster.address) as admin,
    ):
        await cluster.node().stop()
        with pytest.raises(AlreadyExistsError):
            await admin.create_topic("orders", 2)
        with pytest.raises(TopicNotFoundError):
            await admin.delete_topic("order")


async def test_a_created_topic_is_known_to_the_nameserver_when_the_call_returns() -> None:
    group = FakeGroup()
    async with FakeCluster(group) as cluster, Admin(cluster.address) as admin:
        loop = asyncio.get_running_loop()

        def later(each: FakeGroup) -> None:
            loop.call_later(0.01, cluster.register, each)

        cluster.node().register = later
        await admin.create_topic("new", 1)
        async with PullConsumer(cluster.address) as consumer:
            await consumer.subscribe("new")


async def test_topics_of_several_groups_are_listed_once_and_sorted() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        assert [(t.name, t.queue_count) for t in await admin.topics()] == [("orders", 5), ("payments", 1)]


async def test_a_topic_is_described_with_the_queues_of_every_group_that_has_it() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        info, queues = await admin.describe_topic("payments")
        assert (info.name, [queue for queue, _ in queues]) == (
            "payments", [MessageQueue("payments", "g1", 0)],
        )  # fmt: skip
        assert len((await admin.describe_topic("orders"))[1]) == 5


async def test_a_topic_that_nobody_has_is_an_error_with_similar_names() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        await admin.delete_topic("payments")
        for call in (admin.delete_topic("order"), admin.describe_topic("order")):
            with pytest.raises(TopicNotFoundError, match='Did you mean "orders"'):
                await call


async def test_a_consumer_group_lives_from_create_to_delete() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        await admin.create_group("billing", start="latest", fifo=True, max_attempts=3)
        (info,) = await admin.consumer_groups()
        assert (info.name, info.start_position, info.fifo, info.max_attempts) == (
            "billing", "latest", True, 3,
        )  # fmt: skip
        with pytest.raises(AlreadyExistsError):
            await admin.create_group("billing")
        await admin.reset_offsets("billing", "orders", "latest")
        described, progress = await admin.describe_group("billing", "orders")
        assert described.name == "billing"
        assert [where for where, _ in progress] == ["g0"] * 2 + ["g1"] * 3
        await admin.delete_group("billing")
        for call in (
            admin.delete_group("billng"),
            admin.describe_group("billng"),
            admin.reset_offsets("billng", "orders", "earliest"),
        ):
            with pytest.raises(ConsumerGroupNotFoundError, match="ledgermq group create billng"):
                await call


async def test_leadership_is_handed_over_in_the_group_that_was_named() -> None:
    async with FakeCluster(FakeGroup(), nodes=3) as cluster, Admin(cluster.address) as admin:
        assert await admin.transfer_leadership("g0", "n3") == "n3"
        with pytest.raises(UsageError, match="Known: g0"):
            await admin.transfer_leadership("g7")


async def test_cleaning_asks_every_group() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        found = await admin.clean(dry_run=True, older_than_ms=5)
        assert [(name, answer.bytes) for name, answer in found] == [("g0", 1 << 20), ("g1", 1 << 20)]
        request = cluster.node("n1", "g1").cleaned
        assert request is not None
        assert (request.dry_run, request.older_than_ms) == (True, 5)


async def test_a_node_is_asked_for_its_status_by_route_or_address() -> None:
    async with FakeCluster(FakeGroup(), nodes=3) as cluster, Admin(cluster.address) as admin:
        (group,) = await admin.groups()
        assert (await admin.status(group.nodes[1])).node_id == "n2"
        assert (await admin.status(cluster.node("n1").address)).role == "leader"
        await cluster.node("n3").stop()
        with pytest.raises(BrokerUnreachableError, match="ledgermq cluster status"):
            await admin.status(cluster.node("n3").address)


async def test_a_call_goes_to_another_node_when_the_leader_is_dead() -> None:
    async with (
        FakeCluster(FakeGroup(topics={"a": 1}), nodes=3) as cluster,
        Admin(cluster.address) as admin,
    ):
        await cluster.node("n1").stop()
        assert [info.name for info in await admin.topics()] == ["a"]


async def test_a_group_that_does_not_answer_is_an_error_when_the_time_is_over() -> None:
    async with FakeCluster(FakeGroup()) as cluster, Admin(cluster.address, timeout_ms=200) as admin:
        await cluster.node("n1").stop()
        with pytest.raises(BrokerUnreachableError, match="ledgermq cluster status"):
            await admin.topics()


async def test_a_group_without_an_address_for_this_network_is_an_error_that_says_so() -> None:
    async with FakeCluster(FakeGroup()) as cluster, Admin(cluster.address, timeout_ms=100) as admin:
        cluster.node("n1").address = ""
        cluster.register(cluster.groups[0])
        with pytest.raises(RouteError, match='group "g0" has no node with an address for this network'):
            await admin.topics()


async def test_wrong_arguments_never_leave_the_client() -> None:
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(InvalidNameError):
            await admin.create_topic("a b")
        with pytest.raises(UsageError, match="One of normal"):
            await admin.create_topic("a", message_type="odd")
        with pytest.raises(UsageError, match="earliest"):
            await admin.reset_offsets("g", "t", "soon")
        with pytest.raises(NameserversDownError):
            await admin.topics()
    async with FakeCluster() as cluster, Admin(cluster.address) as admin:
        with pytest.raises(NoBrokersError):
            await admin.create_group("g")
