"""A consumer goes to the follower that the leader suggests, and comes back."""

from __future__ import annotations

import asyncio

from ledgermq.client.consume.read_source import FetchSource

from ..reading import fill, pulling, read, subscribed


async def test_a_backlog_is_read_from_the_suggested_follower_and_the_rest_from_the_leader() -> None:
    async with pulling(nodes=3, max_buffer_bytes=4000) as (_, cluster, consumer):
        leader, follower = cluster.node("n1"), cluster.node("n2")
        await fill(cluster, [b"%d" % i + bytes(2000) for i in range(20)])
        leader.suggests = "n2"
        await consumer.subscribe("orders")
        assert len(await read(consumer, 12)) == 12
        assert consumer.sources == {"g0": FetchSource("n2", stale=False)}
        leader.suggests, follower.suggests = "", "n1"
        assert [body.rstrip(b"\0") for body in await read(consumer, 8)] == [b"%d" % i for i in range(12, 20)]
        served = follower.fetches
        await fill(cluster, [b"new"])
        assert await read(consumer, 1) == [b"new"]
        assert consumer.sources == {"g0": FetchSource("n1", stale=False)}
        assert follower.fetches == served


async def test_a_follower_that_dies_or_has_no_leader_is_left_for_the_leader() -> None:
    async with pulling(nodes=3, max_buffer_bytes=4000) as (_, cluster, consumer):
        leader = cluster.node("n1")
        await fill(cluster, [b"%d" % i + bytes(2000) for i in range(20)])
        leader.suggests = "n2"
        await consumer.subscribe("orders")
        await read(consumer, 8)
        assert consumer.sources["g0"].node_id == "n2"
        await cluster.node("n2").stop()
        await read(consumer, 8)
        assert consumer.sources["g0"].node_id == "n1"
        cluster.node("n3").stale = True
        leader.suggests = "n3"
        await read(consumer, 4)
        await fill(cluster, [b"new"])
        assert await read(consumer, 1) == [b"new"]
        assert consumer.sources["g0"].node_id == "n1"


async def test_a_silent_old_leader_is_left_when_the_route_names_a_new_one() -> None:
    """It holds the long poll for ever; the watch of the route is quicker than the patience with it."""

    async with subscribed(nodes=3, sent=[b"a"]) as (group, cluster, consumer):
        assert await read(consumer, 1) == [b"a"]
        cluster.node("n1").running.clear()
        waiting = asyncio.create_task(read(consumer, 1))
        group.leader, group.term = "n2", 2
        cluster.register(group)
        await fill(cluster, [b"b"])
        assert await waiting == [b"b"]
        assert consumer.sources["g0"].node_id == "n2"


async def test_data_that_is_served_without_a_leader_is_marked() -> None:
    async with pulling(nodes=3) as (_, cluster, consumer):
        await fill(cluster, [b"a"])
        cluster.node("n2").stale = cluster.node("n3").stale = True
        await cluster.node("n1").stop()
        await consumer.subscribe("orders")
        assert await read(consumer, 1) == [b"a"]
        assert consumer.sources["g0"].stale
