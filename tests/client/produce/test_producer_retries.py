"""Retries of messages that are not stored at once, and the spread of messages: fake nodes on real sockets.

An unknown outcome stays with its broker group, a definite refusal goes to another one, one deadline bounds
all of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ledgermq.client import Message, Producer
from ledgermq.client.errors import SendTimeoutError
from ledgermq.client.produce.queue_selection import (
    CustomSelector,
    QueueSelector,
    StickyRoundRobin,
    StrictRoundRobin,
)
from ledgermq.proto import route_pb2 as pb

from ..fakes import FakeCluster, FakeGroup
from ..reading import producing
from .test_producer_avoidance import Clock
from .test_producer_groups import group_name_for, two_groups


def refusal(code: pb.RefusalCode, retry_after_ms: int = 1) -> pb.Refusal:
    return pb.Refusal(code=code, message="not now", retryable=True, retry_after_ms=retry_after_ms)


async def until(happened: Callable[[], object], clock: Clock) -> None:
    """Let time pass, a little, until something has happened."""
    while not happened():
        clock.ahead_ms += 1
        await asyncio.sleep(0.001)


@asynccontextmanager
async def first_to_g0(**options: Any) -> AsyncIterator[tuple[FakeCluster, Producer]]:
    """Yield two groups, and a producer that sends to the first while it takes messages."""
    selector = CustomSelector(lambda queues, key: 0)
    async with two_groups() as cluster, Producer(cluster.address, selector=selector, **options) as producer:
        yield cluster, producer


@pytest.mark.parametrize("selector", [StickyRoundRobin, StrictRoundRobin, None])
@pytest.mark.parametrize("groups", [1, 2])
async def test_twenty_messages_over_four_queues_are_five_each(
    groups: int, selector: Callable[[], QueueSelector] | None
) -> None:
    parts = [FakeGroup(f"g{number}", {"orders": 4 // groups}) for number in range(groups)]
    chosen = selector() if selector else None  # None: what a producer does unless it is told otherwise
    async with FakeCluster(*parts) as cluster, Producer(cluster.address, selector=chosen) as producer:
        receipts = [await producer.send("orders", b"%d" % number) for number in range(20)]
        places = Counter((each.broker_group, each.queue_id) for each in receipts)
        assert list(places.values()) == [5, 5, 5, 5]


async def test_twenty_messages_at_once_are_five_each_where_the_strict_round_is_asked_for() -> None:
    async with producing(4, selector=StrictRoundRobin()) as (group, _, producer):
        await producer.send_batch(Message("orders", b"%d" % number) for number in range(20))
        assert [queue.end for queue in group.queues.values()] == [5, 5, 5, 5]


@pytest.mark.parametrize("code", [pb.NO_QUORUM, pb.DISK_FULL, pb.TOO_MANY_REQUESTS, pb.SHUTTING_DOWN])
async def test_what_a_group_definitely_refused_goes_to_another_group_and_is_stored_once(
    code: pb.RefusalCode,
) -> None:
    async with first_to_g0() as (cluster, producer):
        cluster.node("n1", "g0").refusals.append(refusal(code))
        receipt = await producer.send("orders", b"x")
        assert (receipt.broker_group, receipt.duplicate) == ("g1", False)
        assert [group.stored() for group in cluster.groups] == [0, 1]


async def test_an_unknown_outcome_is_asked_for_again_where_it_is() -> None:
    async with first_to_g0() as (cluster, producer):
        cluster.node("n1", "g0").refusals.extend([refusal(pb.OUTCOME_UNKNOWN)] * 3)
        assert (await producer.send("orders", b"x")).broker_group == "g0"
        assert len(cluster.node("n1", "g0").requests) == 4
        assert not cluster.node("n1", "g1").requests


@pytest.mark.parametrize("code", [pb.NO_QUORUM, pb.DISK_FULL, pb.TOO_MANY_REQUESTS, pb.SHUTTING_DOWN])
async def test_a_refusal_after_an_unknown_outcome_moves_nothing(
    code: pb.RefusalCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copy may be stored; the refusal says nothing of it."""

    clock = Clock(monkeypatch)
    async with first_to_g0() as (cluster, producer):
        node = cluster.node("n1", "g0")
        node.refusals.extend([refusal(pb.OUTCOME_UNKNOWN), *[refusal(code)] * 10_000])
        sending = asyncio.create_task(producer.send("orders", b"x"))
        await until(lambda: len(node.requests) > 3, clock)
        clock.ahead_ms += 10_000
        with pytest.raises(SendTimeoutError, match="it may or may not be stored") as caught:
            await sending
        assert caught.value.sent and caught.value.retryable
        assert not cluster.node("n1", "g1").requests


async def test_an_ordered_message_waits_for_the_group_that_refuses_it() -> None:
    async with first_to_g0() as (cluster, producer):
        cluster.node("n1", "g0").refusals.extend([refusal(pb.DISK_FULL)] * 3)
        receipt = await producer.send("orders", b"x", message_group=group_name_for(0, 4))
        assert receipt.broker_group == "g0"
        assert not cluster.node("n1", "g1").requests


async def test_refused_by_every_group_a_message_fails_at_its_deadline_and_is_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    async with first_to_g0() as (cluster, producer):
        for group in cluster.groups:
            cluster.node("n1", group.name).refusals.append(refusal(pb.TOO_MANY_REQUESTS, 60_000))
        sending = asyncio.create_task(producer.send("orders", b"x"))
        connections = producer._connections
        await until(lambda: len(connections) == 2, clock)
        await until(lambda: all(each.window.paused_until for each in connections.values()), clock)
        clock.ahead_ms += 10_000
        with pytest.raises(SendTimeoutError, match=r"it is not stored\. not now") as caught:
            await sending
        assert not caught.value.sent
        assert [len(cluster.node("n1", group.name).requests) for group in cluster.groups] == [1, 1]


async def test_a_message_that_moved_keeps_the_deadline_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    async with first_to_g0() as (cluster, producer):
        await producer.prepare("orders")
        first, second = (cluster.node("n1", name) for name in ("g0", "g1"))
        first.may_answer.clear()
        first.refusals.append(refusal(pb.DISK_FULL))
        second.may_answer.clear()
        future = producer.send_nowait("orders", b"x")
        (section,) = producer._outbox._open
        deadline = section.deadline
        await first.asked.wait()
        clock.ahead_ms += 1_900
        first.may_answer.set()
        await second.asked.wait()
        assert section.deadline == deadline and not future.done()
        clock.ahead_ms += 10_000 - 1_900
        with pytest.raises(SendTimeoutError, match="it may or may not be stored"):
            await future
