"""Where messages go when broker groups are slow, fail, or are in another zone: fake nodes, real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ledgermq.client import Message, Producer, SendReceipt
from ledgermq.client.produce import outbox, producer
from ledgermq.client.produce import produce_stream as connection
from ledgermq.client.produce.queue_selection import (
    CustomSelector,
    HashByKey,
    RandomQueue,
    StrictRoundRobin,
    hash_to_index,
)
from ledgermq.proto import route_pb2 as pb

from ..fakes import FakeCluster, FakeGroup, FakeNode
from .test_producer_groups import group_name_for


class Clock:
    """The producer's clock. It stands still until a test moves it, so that calls take no time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ahead_ms = 0
        for module in (connection, outbox, producer):
            patch.setattr(module, "now_ms", lambda: 1_000_000 + self.ahead_ms)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@asynccontextmanager
async def sending_to(count: int = 2, **options: Any) -> AsyncIterator[tuple[FakeCluster, Producer]]:
    """Yield broker groups of two queues each, and a producer with avoidance that has sent to each queue."""
    groups = [FakeGroup(f"g{number}", {"orders": 2}) for number in range(count)]
    usual: dict[str, Any] = {"selector": StrictRoundRobin(), "send_latency_fault_enable": True}
    async with FakeCluster(*groups) as cluster, Producer(cluster.address, **(usual | options)) as sender:
        await sender.send_batch(Message("orders", b"warm") for _ in range(2 * count))
        yield cluster, sender


async def places(sender: Producer, count: int = 8, **labels: Any) -> Counter[str]:
    """Send so many messages, one after the other; return how many went to each group."""
    return Counter([(await sender.send("orders", b"x", **labels)).broker_group for _ in range(count)])


async def held_message(cluster: FakeCluster, sender: Producer, group: str) -> asyncio.Future[SendReceipt]:
    """Let the group's node keep its answers to itself, and have one message wait for them."""
    node = cluster.node("n1", group)
    node.may_answer.clear()
    node.asked.clear()
    future = sender.send_nowait("orders", b"slow", message_group=group_name_for(2 * int(group[1]), 4))
    await node.asked.wait()
    return future


async def make_slow(cluster: FakeCluster, sender: Producer, clock: Clock, group: str = "g0") -> None:
    """One call to the group takes 600 ms."""
    future = await held_message(cluster, sender, group)
    clock.ahead_ms += 600
    cluster.node("n1", group).may_answer.set()
    await future


async def test_a_slow_group_is_avoided_for_three_seconds_and_then_used_again(clock: Clock) -> None:
    async with sending_to() as (cluster, sender):
        assert await places(sender) == {"g0": 4, "g1": 4}
        await make_slow(cluster, sender, clock)
        assert await places(sender) == {"g1": 8}
        clock.ahead_ms += 2_000
        assert await places(sender) == {"g1": 8}
        clock.ahead_ms += 1_000
        assert (await places(sender))["g0"]


async def test_a_group_that_does_not_answer_is_avoided_before_its_answer_comes(clock: Clock) -> None:
    async with sending_to() as (cluster, sender):
        future = await held_message(cluster, sender, "g0")
        clock.ahead_ms += 500
        assert await places(sender) == {"g1": 8}
        cluster.node("n1", "g0").may_answer.set()
        assert (await future).broker_group == "g0"


async def test_without_the_switch_slow_groups_are_used_like_any_other(clock: Clock) -> None:
    async with sending_to(send_latency_fault_enable=False) as (cluster, sender):
        assert sender._connections["g0"].calls is None
        await make_slow(cluster, sender, clock)
        assert await places(sender) == {"g0": 4, "g1": 4}


async def test_the_table_says_what_is_slow_and_for_how_long(clock: Clock) -> None:
    async with sending_to(latency_fault_table=[(601, 5_000), (100_000, 100_000)]) as (cluster, sender):
        future = await held_message(cluster, sender, "g0")
        clock.ahead_ms += 610
        cluster.node("n1", "g0").may_answer.set()
        await future
        clock.ahead_ms += 4_000
        assert await places(sender) == {"g1": 8}


async def test_a_failed_call_keeps_its_message_in_the_group_and_sends_the_others_elsewhere(
    clock: Clock,
) -> None:
    async with sending_to() as (cluster, sender):
        cluster.node("n1", "g0").drop_answers = 1
        receipts = [await sender.send("orders", b"x") for _ in range(8)]
        (unsure,) = [each for each in receipts if each.broker_group == "g0"]
        assert unsure.duplicate, "the same group recognised what it had"
        assert [group.stored() for group in cluster.groups] == [3, 9]
        clock.ahead_ms += 3_000
        assert (await places(sender))["g0"]


async def test_a_refusal_by_the_group_counts_as_a_failed_call(clock: Clock) -> None:
    async with sending_to() as (cluster, sender):
        refusal = pb.Refusal(code=pb.TOO_MANY_REQUESTS, retryable=True, retry_after_ms=1)
        cluster.node("n1", "g0").refusals.append(refusal)
        assert await places(sender) == {"g1": 8}
        clock.ahead_ms += 2_000  # long after the pause that it asked for
        assert await places(sender) == {"g1": 8}
        clock.ahead_ms += 1_000
        assert (await places(sender))["g0"]


async def test_a_group_without_a_leader_has_failed(clock: Clock) -> None:
    async with sending_to() as (cluster, sender):
        node = cluster.node("n1", "g0")
        cluster.groups[0].leader = ""
        assert await places(sender) == {"g1": 8}
        clock.ahead_ms += 2_999
        asked = len(node.requests)
        assert await places(sender) == {"g1": 8}
        assert len(node.requests) == asked
        cluster.groups[0].leader = "n1"
        clock.ahead_ms += 1
        assert (await places(sender))["g0"]


async def test_with_all_groups_avoided_messages_still_go(clock: Clock) -> None:
    async with sending_to() as (cluster, sender):
        await make_slow(cluster, sender, clock, "g0")
        assert await places(sender, 1) == {"g1": 1}
        cluster.node("n1", "g1").drop_answers = 1
        assert (await sender.send("orders", b"x")).duplicate
        assert await places(sender) == {"g0": 8}, "the slow one answers, the other one failed"
        cluster.node("n1", "g0").drop_answers = 1
        assert sum((await places(sender)).values()) == 8


async def test_message_groups_stay_in_their_queue_in_order(clock: Clock) -> None:
    async with sending_to() as (cluster, sender):
        await make_slow(cluster, sender, clock)
        name = group_name_for(1, 4)
        receipts = [await sender.send("orders", b"%d" % i, message_group=name) for i in range(5)]
        assert {(each.broker_group, each.queue_id) for each in receipts} == {("g0", 1)}
        offsets = [each.queue_offset for each in receipts]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize(
    ("selector", "labels"),
    [
        (HashByKey, {"keys": [next(str(i) for i in range(99) if hash_to_index(str(i), 4) == 0)]}),
        (lambda: CustomSelector(lambda queues, key: 0), {}),
        (lambda: lambda queues, key: len(queues), {}),
    ],
)
async def test_a_queue_that_was_chosen_for_a_reason_stays(
    selector: Callable[[], Any], labels: dict[str, Any], clock: Clock
) -> None:
    async with sending_to(selector=selector()) as (cluster, sender):
        await make_slow(cluster, sender, clock)
        assert await places(sender, **labels) == {"g0": 8}


@pytest.mark.parametrize("selector", [None, HashByKey(), RandomQueue(lambda below: below - 1)])
async def test_every_selector_that_has_no_reason_avoids_the_slow(selector: Any, clock: Clock) -> None:
    async with sending_to(selector=selector) as (cluster, sender):
        await make_slow(cluster, sender, clock, "g1")
        assert await places(sender) == {"g0": 8}


async def test_another_leader_is_not_blamed_for_the_one_before(clock: Clock) -> None:
    async with sending_to() as (cluster, sender):
        await make_slow(cluster, sender, clock)
        assert await places(sender, 4) == {"g1": 4}
        group = cluster.groups[0]
        heir = await FakeNode("n2", group).start()
        cluster.nodes["g0", "n2"] = heir
        heir.peers = cluster.node("n1", "g0").peers
        heir.peers["n2"] = heir
        group.leader, group.term = "n2", 2
        heard = asyncio.Event()
        sender._routes.on_change(lambda route: heard.set())
        cluster.register(group)
        await heard.wait()
        assert await places(sender) == {"g0": 4, "g1": 4}


async def test_of_the_rest_the_quickest_are_taken(clock: Clock) -> None:
    async with sending_to(3) as (cluster, sender):
        future = await held_message(cluster, sender, "g1")
        clock.ahead_ms += 300
        cluster.node("n1", "g1").may_answer.set()
        await future  # the mean of its calls is 75 ms now; none is avoided
        assert (await places(sender))["g1"] == 0


# --- zones --------------------------------------------------------------------------------------------------


def standing(*zones: Iterable[str]) -> FakeCluster:
    """Return a cluster of groups, each with the zones of its nodes; n1 leads."""
    groups = [FakeGroup(f"g{number}", {"orders": 2}) for number in range(len(zones))]
    for group, each in zip(groups, zones, strict=True):
        group.zones = {f"n{number + 1}": zone for number, zone in enumerate(each)}
    return FakeCluster(*groups, nodes=max(len(list(each)) for each in zones))


async def test_groups_that_are_led_from_the_zone_come_first() -> None:
    async with standing(["west"], ["east"], ["east"]) as cluster:
        async with Producer(cluster.address, zone="east", selector=StrictRoundRobin()) as sender:
            assert await places(sender) == {"g1": 4, "g2": 4}
        async with Producer(cluster.address, selector=StrictRoundRobin()) as sender:
            assert await places(sender, 12) == {"g0": 4, "g1": 4, "g2": 4}


async def test_without_a_leader_in_the_zone_all_are_used() -> None:
    """As with nodes of a version that says nothing of zones."""

    for first, second, zone in (("west", "west", "east"), ("", "", "east"), ("", "west", "")):
        async with (
            standing([first], [second]) as cluster,
            Producer(cluster.address, zone=zone, selector=StrictRoundRobin()) as sender,
        ):
            assert await places(sender) == {"g0": 4, "g1": 4}


async def test_messages_follow_the_leader_into_and_out_of_the_zone() -> None:
    async with (
        standing(["west", "east"], ["west", "west"]) as cluster,
        Producer(cluster.address, zone="east", selector=StrictRoundRobin()) as sender,
    ):
        assert await places(sender) == {"g0": 4, "g1": 4}
        heard = asyncio.Event()
        sender._routes.on_change(lambda route: heard.set())
        for leader, expected in (("n2", {"g0": 8}), ("n1", {"g0": 4, "g1": 4})):
            heard.clear()
            cluster.groups[0].leader, cluster.groups[0].term = leader, cluster.groups[0].term + 1
            cluster.register(cluster.groups[0])
            await heard.wait()
            assert await places(sender) == expected


async def test_a_near_group_that_takes_nothing_gives_its_messages_to_the_others(clock: Clock) -> None:
    async with (
        standing(["east"], ["east"], ["west"]) as cluster,
        Producer(cluster.address, zone="east", selector=StrictRoundRobin()) as sender,
    ):
        full = pb.Refusal(code=pb.DISK_FULL, message="full", retryable=True, retry_after_ms=60_000)
        cluster.node("n1", "g0").refusals.extend([full] * 10)
        assert await places(sender) == {"g1": 8}
        cluster.node("n1", "g1").refusals.extend([full] * 10)
        assert await places(sender) == {"g2": 8}
        clock.ahead_ms += 60_000
        for name in ("g0", "g1"):
            cluster.node("n1", name).refusals.clear()
        assert await places(sender) == {"g0": 4, "g1": 4}


async def test_what_a_near_group_refuses_goes_to_another_near_one(clock: Clock) -> None:
    first = CustomSelector(lambda queues, key: 0)
    async with (
        standing(["east"], ["west"], ["east"]) as cluster,
        Producer(cluster.address, zone="east", selector=first) as sender,
    ):
        for _ in range(10):
            full = pb.Refusal(code=pb.DISK_FULL, message="full", retryable=True, retry_after_ms=1)
            cluster.node("n1", "g0").refusals.append(full)
            assert await places(sender, 1) == {"g2": 1}
            clock.ahead_ms += 1


async def test_the_zone_does_not_move_message_groups() -> None:
    async with standing(["west"], ["east"]) as cluster, Producer(cluster.address, zone="east") as sender:
        assert await places(sender, message_group=group_name_for(1, 4)) == {"g0": 8}


async def test_a_slow_near_group_is_avoided_like_any_other(clock: Clock) -> None:
    async with standing(["east"], ["west"]) as cluster:
        options: dict[str, Any] = {"zone": "east", "send_latency_fault_enable": True}
        async with Producer(cluster.address, **options) as sender:
            assert await places(sender) == {"g0": 8}
            await make_slow(cluster, sender, clock)
            assert await places(sender) == {"g1": 8}
