"""Where a pull consumer stands: pause and resume, seeks, lag, commits that have to wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.client import MessageQueue, PullConsumer
from ledgermq.client.consume import fetch_stream
from ledgermq.client.errors import BrokerUnreachableError, RefusedError, UsageError
from ledgermq.client.pauses import REFUSED_PAUSE_S

from ..fakes import FakeCluster, FakeGroup
from ..reading import fill, pulling, read, subscribed

QUEUE = MessageQueue("orders", "g0", 0)


async def test_a_paused_queue_keeps_its_position_and_its_messages_come_after_resume() -> None:
    async with (
        FakeCluster(FakeGroup(topics={"orders": 1, "other": 1})) as cluster,
        PullConsumer(cluster.address) as consumer,
    ):
        await fill(cluster, [b"a", b"b", b"c"])
        await consumer.subscribe("orders")
        assert await read(consumer, 1) == [b"a"]
        consumer.pause([QUEUE])
        assert (consumer.paused, consumer.position(QUEUE)) == ((QUEUE,), 1)
        await fill(cluster, [b"x"], "other")
        await consumer.subscribe("other")
        assert await read(consumer, 1) == [b"x"]
        assert await consumer.poll(1, 100) == []
        consumer.resume([QUEUE])
        assert consumer.paused == ()
        assert await read(consumer, 2) == [b"b", b"c"]


async def test_a_paused_queue_can_be_moved_and_given_up() -> None:
    async with subscribed(sent=[b"a", b"b", b"c"]) as (_, _, consumer):
        consumer.pause([QUEUE])
        consumer.seek(QUEUE, 2)
        assert await consumer.poll(1, 100) == []
        consumer.resume([QUEUE])
        assert await read(consumer, 1) == [b"c"]
        consumer.pause([QUEUE])
        consumer.unassign([QUEUE])
        assert (consumer.paused, consumer.assignment) == ((), ())
        await consumer.assign([QUEUE])
        assert await read(consumer, 1) == [b"a"]
        with pytest.raises(UsageError, match="not assigned"):
            consumer.pause([MessageQueue("orders", "g0", 7)])


async def test_a_seek_right_after_assign_never_hangs() -> None:
    """The stream is cancelled while it is being opened: a write to it would wait for ever."""

    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        await fill(cluster, [b"a", b"b", b"c"])
        for turns in range(8):
            async with PullConsumer(cluster.address) as consumer:
                await consumer.assign([QUEUE])
                for _ in range(turns):
                    await asyncio.sleep(0)
                consumer.seek(QUEUE, 2)
                assert await read(consumer, 1) == [b"c"]


@pytest.mark.parametrize(("time", "body"), [(1, b"at 1"), (2, b"at 5"), (5, b"at 5"), (6, b"new")])
async def test_seek_to_time_goes_to_the_first_message_stored_then_or_later(time: int, body: bytes) -> None:
    async with pulling() as (group, cluster, consumer):
        await fill(cluster, [b"at 1"])
        group.store_timestamp = 5
        await fill(cluster, [b"at 5"])
        await consumer.subscribe("orders")
        await consumer.seek_to_time("orders", time)
        group.store_timestamp = 7
        await fill(cluster, [b"new"])
        assert await read(consumer, 1) == [body]
        with pytest.raises(UsageError, match="no time"):
            await consumer.seek_to_time("orders", 0)


async def test_brokers_that_find_no_offset_by_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with subscribed() as (group, _, consumer):
        monkeypatch.setattr(type(group.queues[1, 0]), "at_time", lambda queue, timestamp: None)
        with pytest.raises(RefusedError, match='"g0" is of a version'):
            await consumer.seek_to_time("orders", 5)


async def test_lag_counts_what_lies_between_the_position_and_the_end() -> None:
    async with subscribed(sent=[b"a", b"b", b"c"]) as (_, _, consumer):
        assert await consumer.lag("orders") == {QUEUE: 3}
        await read(consumer, 2)
        assert await consumer.lag("orders") == {QUEUE: 1}
        await consumer.seek_to_end("orders")
        assert await consumer.lag("orders") == {QUEUE: 0}


async def test_a_commit_without_a_group_that_answers_waits_as_long_as_told_and_can_be_repeated() -> None:
    async with subscribed(group="billing", sent=[b"a"]) as (group, cluster, consumer):
        await read(consumer, 1)
        await cluster.lose(group)
        with pytest.raises(BrokerUnreachableError, match="does not answer"):
            await consumer.commit(timeout_ms=200)
        waiting = asyncio.create_task(consumer.commit(timeout_ms=20_000))
        await cluster.revive(group)
        await waiting
        assert group.committed["billing", "orders", 0] == 1


@pytest.mark.usefixtures("few_rounds")
async def test_a_commit_to_a_group_that_no_route_names_any_more_is_an_error_of_that_group() -> None:
    groups = [FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {"orders": 1})]
    async with FakeCluster(*groups) as cluster, PullConsumer(cluster.address, group="b") as consumer:
        await consumer.subscribe("orders")
        await cluster.lose(groups[1])
        cluster.nameserver.table.unregister("local", "g1", "n1")
        await consumer._routes.get("orders", refresh=True)
        with pytest.raises(BrokerUnreachableError):
            await consumer.commit()
        assert groups[0].committed["b", "orders", 0] == 0, "the living group has stored its offset"


async def test_a_seek_beyond_the_end_is_told_once_and_invents_no_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = FakeGroup(topics={"orders": 2})
    other = MessageQueue("orders", "g0", 1)
    async with FakeCluster(group) as cluster, PullConsumer(cluster.address, group="billing") as consumer:
        await consumer.subscribe("orders")
        await fill(cluster, [b"a", b"b", b"c", b"d"])
        await read(consumer, 4)
        consumer.seek(QUEUE, 10**9)
        end = group.queues[1, 0].end
        assert next(each for each in consumer.statistics().queues if each.queue == QUEUE).end_offset == end
        while not consumer._reader.beyond:
            await consumer.poll(1, 20)
        await consumer.poll(1, 20)
        assert next(each for each in consumer.statistics().queues if each.queue == QUEUE).end_offset == end
        with pytest.raises(UsageError, match=f"beyond its end, which is {end}"):
            await consumer.commit()
        assert group.committed["billing", "orders", 1] == consumer.position(other)
        consumer.seek(QUEUE, end)
        await consumer.commit()
        assert group.committed["billing", "orders", 0] == end
    assert sum("seek beyond the end" in each.getMessage() for each in caplog.records) == 1


async def test_a_queue_that_stands_beyond_its_end_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_stream, "REFUSED_PAUSE_S", 1000.0)
    group = FakeGroup(topics={"orders": 1, "ahead": 1})
    async with FakeCluster(group) as cluster, PullConsumer(cluster.address) as consumer:
        await consumer.subscribe("orders")
        await consumer.subscribe("ahead")
        consumer.seek(MessageQueue("ahead", "g0", 0), 1)
        for number in range(5):  # each by a question of its own
            await fill(cluster, [b"%d" % number])
            assert await read(consumer, 1) == [b"%d" % number]
        assert consumer._reader.beyond == {MessageQueue("ahead", "g0", 0): 0}
        consumer.seek(MessageQueue("ahead", "g0", 0), 0)  # asks at once
        await fill(cluster, [b"a"], "ahead")
        assert await read(consumer, 1) == [b"a"]


async def test_a_queue_that_stands_beyond_its_end_goes_on_when_it_has_grown_so_far() -> None:
    """The question that waits for the other queue ends for it, and its stream is not given up."""

    group = FakeGroup(topics={"orders": 1, "ahead": 1})
    async with FakeCluster(group) as cluster, PullConsumer(cluster.address) as consumer:
        await consumer.subscribe("orders")
        await consumer.subscribe("ahead")
        consumer.seek(MessageQueue("ahead", "g0", 0), 1)
        node = cluster.node()
        while not (consumer._reader.beyond and node.max_wait_ms <= 1000 * REFUSED_PAUSE_S):
            await consumer.poll(1, 20)
        streams = node.streams
        await fill(cluster, [b"a", b"b"], "ahead")
        assert await read(consumer, 1) == [b"b"]
        assert node.streams == streams


async def test_wrong_arguments_are_usage_errors_and_the_consumer_goes_on() -> None:
    async with pulling(group="billing") as (_, cluster, consumer):
        wrong: Any = "t"
        await consumer.subscribe("orders")
        await fill(cluster, [b"a", b"b"])
        assert await read(consumer, 1) == [b"a"]
        with pytest.raises(UsageError, match="no queue offset"):
            consumer.seek(QUEUE, True)
        with pytest.raises(UsageError, match="'t' is no queue"):
            await consumer.assign([wrong])
        with pytest.raises(UsageError, match="'t' is no queue"):
            await consumer.commit({wrong: 1})
        with pytest.raises(UsageError, match="timeout_ms is 't'"):
            await consumer.poll(1, wrong)
        for timeout_ms in (0, -5):
            with pytest.raises(UsageError, match=f"timeout_ms is {timeout_ms}"):
                await consumer.commit(timeout_ms=timeout_ms)
        plain: Any = tuple(QUEUE)
        consumer.seek(plain, 1)
        assert await read(consumer, 1) == [b"b"]
