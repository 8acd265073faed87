"""Push consumers that lose contact, against fake nodes: when they start nothing more, and when they go on."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.client import PushOptions
from ledgermq.client.cluster.channels import Channels
from ledgermq.client.cluster.leader_question import who_leads
from ledgermq.client.push import membership_stream as group_membership
from ledgermq.proto import route_pb2 as pb

from ..fakes import FakeCluster, FakeGroup
from ..push_listeners import Seen, consumer_of, consuming, fill, numbers, until, until_committed, until_logged


async def test_a_leader_that_falls_silent_and_was_replaced_is_left() -> None:
    """Without a nameserver that tells: the other nodes are asked."""
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group, nodes=3) as cluster:
        seen = Seen()
        async with consumer_of(cluster, seen) as consumer:
            await consumer.subscribe("orders")
            coordinator = group.coordinator("billing")
            await until(coordinator.changed, lambda: coordinator.beats > 1)
            before = dict(coordinator.owners)
            cluster.node("n1").running.clear()
            group.leader, group.term = "n3", 2
            await fill(cluster, [b"a"])
            await until_committed(group, 1)
            assert coordinator.owners == before
            cluster.node("n1").running.set()
        assert seen.bodies == [b"a"]


async def test_who_was_away_for_too_long_starts_nothing_until_it_knows_what_it_owns() -> None:
    group = FakeGroup(topics={"orders": 1})
    options = PushOptions(batch_size=1, concurrency=1, commit_interval_ms=5, session_timeout_ms=500)
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(4))
        seen = Seen()
        async with consumer_of(cluster, seen, options=options) as consumer:
            seen.gate.clear()
            await consumer.subscribe("orders")
            await seen.until(1)
            node = cluster.node()
            port = int(node.address.rpartition(":")[2])
            await node.stop()
            await until_logged("no contact to the broker group's leader")
            seen.gate.set()
            coordinator = group.coordinators["billing"]
            (member,) = coordinator.members
            coordinator.expire(member)
            # Another consumer was quicker: it went on to 3.
            group.committed["billing", "orders", 0] = 3
            await node.start(port)
            await seen.until(2)
            await until_committed(group, 4)
        assert seen.bodies == [b"0", b"3"]


async def test_who_hears_that_it_was_taken_out_drops_everything_at_once() -> None:
    """The next answer may be long in coming, and others have the queues."""
    group = FakeGroup(topics={"orders": 1})
    seen = Seen()
    seen.gate.clear()
    async with consuming(group, seen, [b"a"]) as (cluster, _):
        await seen.until(1)
        node = cluster.node()
        node.membership_refusals.append(
            pb.Refusal(code=pb.FENCED, message="not heard for its session timeout", retryable=True)
        )
        port = int(node.address.rpartition(":")[2])
        await node.stop()
        await node.start(port)
        await seen.until(2)  # under the next ownership: that of before was given up
        seen.gate.set()
        await until_committed(group, 1)


async def test_who_was_away_for_too_long_waits_for_a_leader_and_not_only_for_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may have been a leader meanwhile, which gave the queues to others."""
    group = FakeGroup(topics={"orders": 1})
    options = PushOptions(batch_size=1, concurrency=1, commit_interval_ms=5, session_timeout_ms=500)
    told: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    async def noted(channels: Channels, addresses: list[str]) -> tuple[int, str]:
        found = await who_leads(channels, addresses)
        told.put_nowait(found)
        return found

    seen = Seen()
    seen.gate.clear()
    async with consuming(group, seen, numbers(4), options=options) as (cluster, _):
        await seen.until(1)
        node = cluster.node()
        port = int(node.address.rpartition(":")[2])
        await node.stop()
        await until_logged("no contact to the broker group's leader")
        seen.gate.set()
        monkeypatch.setattr(group_membership, "who_leads", noted)
        group.leader = ""
        await node.start(port)
        for _ in range(2):  # when it asks again it has taken in the answer
            while await told.get() != (1, ""):
                pass
        assert seen.bodies == [b"0"]
        group.leader = "n1"
        await until_committed(group, 4)
