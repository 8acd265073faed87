"""The pull consumer against fake nodes on real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.client import MessageQueue, PullConsumer
from ledgermq.client.consume import fetch_stream as group_fetcher
from ledgermq.client.errors import ClosedError, MessagesDeletedError, TopicNotFoundError, UsageError
from ledgermq.proto import route_pb2 as pb

from ..fakes import FakeCluster, FakeGroup, FakeNode
from ..reading import fill, pulling, read, subscribed


async def test_every_message_is_read_once_and_in_order_within_its_queue() -> None:
    async with pulling(3, group="g") as (_, cluster, consumer):
        bodies = [b"%d" % i for i in range(50)]
        await fill(cluster, bodies)
        await consumer.subscribe("orders")
        seen: dict[int, list[int]] = {}
        count = 0
        while count < 50:
            for message in await consumer.poll(7, 5000):
                seen.setdefault(message.queue_id, []).append(int(message.body))
                count += 1
        assert sorted(number for each in seen.values() for number in each) == list(range(50))
        assert all(each == sorted(each) for each in seen.values())


async def test_a_committed_offset_is_where_the_next_consumer_starts() -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        await fill(cluster, [b"a", b"b", b"c"])
        async with PullConsumer(cluster.address, group="g") as consumer:
            await consumer.subscribe("orders")
            assert await read(consumer, 2) == [b"a", b"b"]
            await consumer.commit()
            assert await consumer.committed("orders") == {MessageQueue("orders", "g0", 0): 2}
        async with PullConsumer(cluster.address, group="g") as consumer:
            await consumer.subscribe("orders")
            assert await read(consumer, 1) == [b"c"]


async def test_a_new_group_can_start_at_the_end() -> None:
    async with subscribed(group="g", start="latest", sent=[b"old"]) as (_, cluster, consumer):
        await fill(cluster, [b"new"])
        assert await read(consumer, 1) == [b"new"]


async def test_seek_goes_back_and_forth() -> None:
    async with subscribed(sent=[b"a", b"b", b"c"]) as (_, _, consumer):
        (queue,) = consumer.assignment
        assert await read(consumer, 3) == [b"a", b"b", b"c"]
        consumer.seek(queue, 1)
        assert consumer.position(queue) == 1
        assert await read(consumer, 1) == [b"b"]
        await consumer.seek_to_beginning("orders")
        assert await read(consumer, 1) == [b"a"]
        await consumer.seek_to_end("orders")
        assert await consumer.poll(1, 100) == []


async def test_a_waiting_poll_wakes_when_a_message_comes() -> None:
    async with subscribed() as (_, cluster, consumer):
        waiting = asyncio.create_task(consumer.poll(1, 10_000))
        await fill(cluster, [b"late"])
        assert [message.body for message in await waiting] == [b"late"]


async def test_reading_goes_on_at_another_node_when_one_dies() -> None:
    async with subscribed(nodes=3, sent=[b"a"]) as (group, cluster, consumer):
        assert await read(consumer, 1) == [b"a"]
        await cluster.node("n1").stop()
        group.leader, group.term = "n2", 2
        cluster.register(group)
        await fill(cluster, [b"b"])
        assert await read(consumer, 1) == [b"b"]


@pytest.mark.parametrize(("when_deleted", "next_body"), [("earliest", b"d"), ("latest", b"new")])
async def test_deleted_messages_are_counted_and_reading_goes_on_where_its_user_wants(
    when_deleted: str, next_body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with pulling(when_deleted=when_deleted) as (group, cluster, consumer):
        await fill(cluster, [b"a", b"b", b"c", b"d"])
        group.queues[1, 0].begin = 3
        await consumer.assign([MessageQueue("orders", "g0", 0)])
        consumer.seek(consumer.assignment[0], 1)
        while not consumer.deleted_count:  # noqa: ASYNC110 (what its user sees, too)
            await asyncio.sleep(0.01)
        assert consumer.deleted_count == 2
        await fill(cluster, [b"new"])
        assert await read(consumer, 1) == [next_body]
    assert "messages were deleted before they were read" in caplog.text
    assert "count=2 begin=3" in caplog.text


async def test_deleted_messages_can_be_an_error_and_the_next_poll_goes_on() -> None:
    async with pulling(when_deleted="raise") as (group, cluster, consumer):
        await fill(cluster, [b"a", b"b", b"c"])
        await consumer.assign([MessageQueue("orders", "g0", 0)])
        assert await consumer.poll(1, 5000)
        group.queues[1, 0].begin = 2
        consumer.seek(consumer.assignment[0], 0)
        with pytest.raises(MessagesDeletedError, match=r"2 messages of topic .*begins at offset 2") as told:
            while True:
                await consumer.poll(1, 5000)
        assert (told.value.count, told.value.begin) == (2, 2)
        assert await read(consumer, 1) == [b"c"]
        assert consumer.deleted_count == 2


async def test_a_group_that_comes_back_is_told_what_was_deleted_meanwhile() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"a", b"b", b"c"])
        group.committed["g", "orders", 0] = group.queues[1, 0].begin = 2  # as the broker moves it
        group.queues[1, 0].lost = 2
        async with PullConsumer(cluster.address, group="g", when_deleted="raise") as consumer:
            await consumer.subscribe("orders")
            with pytest.raises(MessagesDeletedError):
                await consumer.poll(1, 5000)
            assert await read(consumer, 1) == [b"c"]
        async with PullConsumer(cluster.address, group="g") as consumer:
            await consumer.subscribe("orders")
            assert consumer.deleted_count == 2
            assert await read(consumer, 1) == [b"c"]


async def test_a_node_that_is_behind_is_waited_for_and_the_position_stays() -> None:
    async with subscribed(sent=[b"a"]) as (_, cluster, consumer):
        consumer.seek(consumer.assignment[0], 2)  # as if read on a node that has applied more
        assert await consumer.poll(1, 200) == []
        await fill(cluster, [b"b", b"c"])
        assert await read(consumer, 1) == [b"c"]


async def test_a_small_buffer_reads_everything_too() -> None:
    async with subscribed(2, max_buffer_bytes=4000, sent=[bytes(2000)] * 40) as (_, _, consumer):
        assert len(await read(consumer, 40)) == 40


async def until_full(consumer: PullConsumer) -> None:
    """Wait until the first group's buffer takes no more."""
    (fetcher,) = consumer._reader._fetchers.values()
    while fetcher.buffer.has_room:
        consumer._reader._arrived.clear()
        await consumer._reader._arrived.wait()


async def test_a_node_that_dies_while_the_buffer_is_full_costs_no_message() -> None:
    """The stream ends while it is not read: the next request notices that."""

    async with subscribed(nodes=3, max_buffer_bytes=4000, sent=[bytes(2000)] * 10) as (
        group,
        cluster,
        consumer,
    ):
        await until_full(consumer)
        await cluster.node("n1").stop()
        group.leader, group.term = "n2", 2
        cluster.register(group)
        assert len(await read(consumer, 10)) == 10


async def test_seeking_with_a_full_buffer_makes_room() -> None:
    async with subscribed(max_buffer_bytes=4000, sent=[b"%d" % i + bytes(2000) for i in range(9)]) as (
        _,
        _,
        consumer,
    ):
        await until_full(consumer)
        consumer.seek(consumer.assignment[0], 8)
        assert [body[:1] for body in await read(consumer, 1)] == [b"8"]


async def test_a_queue_that_is_given_up_makes_room_for_the_others() -> None:
    async with FakeCluster(FakeGroup(topics={"full": 1, "orders": 1})) as cluster:
        await fill(cluster, [bytes(2000)] * 3, "full")
        async with PullConsumer(cluster.address, max_buffer_bytes=4000) as consumer:
            await consumer.subscribe("full")
            await until_full(consumer)
            await consumer.subscribe("orders")
            await fill(cluster, [b"one"])
            consumer.unassign([MessageQueue("full", "g0", 0)])
            assert await read(consumer, 1) == [b"one"]


async def test_wrong_use_is_an_error_that_says_what_to_do() -> None:
    async with (
        FakeCluster(FakeGroup(topics={"orders": 1})) as cluster,
        PullConsumer(cluster.address) as consumer,
    ):
        with pytest.raises(UsageError, match="Call subscribe"):
            await consumer.poll()
        with pytest.raises(TopicNotFoundError):
            await consumer.subscribe("order")
        await consumer.subscribe("orders")
        with pytest.raises(UsageError, match="no consumer group"):
            await consumer.commit()
        with pytest.raises(UsageError, match="not assigned"):
            consumer.seek(MessageQueue("orders", "g0", 9), 0)


@pytest.mark.parametrize("offset", [-5, 1 << 63])
async def test_an_impossible_offset_is_refused_and_reading_goes_on(offset: int) -> None:
    async with subscribed(group="billing", sent=[b"one"]) as (_, _, consumer):
        queue = MessageQueue("orders", "g0", 0)
        with pytest.raises(UsageError, match="no queue offset"):
            consumer.seek(queue, offset)
        with pytest.raises(UsageError, match="no queue offset"):
            await consumer.commit({queue: offset})
        assert await read(consumer, 1) == [b"one"]
        assert consumer.deleted_count == 0


async def test_a_commit_may_name_queues_that_are_not_read_and_none_that_do_not_exist() -> None:
    group = FakeGroup(topics={"orders": 1, "other": 1})
    async with FakeCluster(group) as cluster, PullConsumer(cluster.address, group="billing") as consumer:
        await consumer.subscribe("orders")
        await consumer.commit({MessageQueue("other", "g0", 0): 7})
        assert group.committed["billing", "other", 0] == 7
        with pytest.raises(UsageError, match="does not exist"):
            await consumer.commit({MessageQueue("orders", "g7", 0): 7})
        with pytest.raises(TopicNotFoundError):
            await consumer.commit({MessageQueue("nowhere", "g0", 0): 7})


async def test_close_ends_a_commit_that_waits_with_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with CancelledError: the task that commits was not cancelled."""

    asked = asyncio.Event()

    async def silent(node: FakeNode, request: Any, context: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(FakeNode, "CommitOffsets", silent)
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        consumer = PullConsumer(cluster.address, group="billing")
        await consumer.subscribe("orders")
        committing = asyncio.create_task(consumer.commit())
        await asked.wait()
        await consumer.close()
        with pytest.raises(ClosedError):
            await committing


async def test_a_queue_that_is_given_up_while_its_topic_is_created_again_stays_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with subscribed() as (group, cluster, consumer):
        looked = asyncio.Event()
        refresh = consumer._reader.refresh

        async def give_up_meanwhile(topics: set[str]) -> None:
            await refresh(topics)
            consumer.unassign([MessageQueue("orders", "g0", 0)])
            asyncio.get_running_loop().call_soon(looked.set)

        monkeypatch.setattr(consumer._reader, "refresh", give_up_meanwhile)
        group.create_topic("orders", 1)
        cluster.register(group)
        consumer.seek(MessageQueue("orders", "g0", 0), 0)
        group.queues.pop((1, 0))  # the old incarnation is gone: the next fetch hears of it
        await looked.wait()
        assert consumer.assignment == ()


async def test_all_queues_of_a_topic_that_was_created_again_cost_one_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with subscribed(40) as (group, cluster, consumer):
        reader = consumer._reader
        asked: list[set[str]] = []
        refresh = reader.refresh

        async def counted(topics: set[str]) -> None:
            asked.append(topics)
            await refresh(topics)

        monkeypatch.setattr(reader, "refresh", counted)
        fetcher = reader._fetchers["g0"]
        await fetcher.close()  # what it hears by itself must not come between
        group.queues.clear()
        group.create_topic("orders", 40)
        cluster.register(group)
        gone = pb.Refusal(code=pb.STALE_ROUTE, message="gone", retryable=True)
        await reader.on_refused(fetcher, [(assigned, gone) for assigned in reader._assigned.values()])
        assert asked == [{"orders"}]
        assert {assigned.topic_id for assigned in reader._assigned.values()} == {2}


@pytest.mark.parametrize("count", [0, -1, 1.5, None])
async def test_no_messages_are_not_waited_for(count: Any) -> None:
    with pytest.raises(UsageError, match="max_buffer_bytes is"):
        PullConsumer("127.0.0.1:1", max_buffer_bytes=count)
    async with subscribed(sent=[b"a"]) as (_, _, consumer):
        with pytest.raises(UsageError, match="max_messages is"):
            await consumer.poll(count)
        wrong: Any
        for wrong in (1.5, "0", None, -1):
            with pytest.raises(UsageError, match="is no queue offset"):
                consumer.seek(MessageQueue("orders", "g0", 0), wrong)
        wrong = 1.5
        with pytest.raises(UsageError, match="is no time"):
            await consumer.seek_to_time("orders", wrong)


async def test_a_topic_that_is_gone_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_fetcher, "PARKED_S", 1000.0)
    group = FakeGroup(topics={"orders": 1, "gone": 2})
    async with FakeCluster(group) as cluster, PullConsumer(cluster.address) as consumer:
        await consumer.subscribe("orders")
        await consumer.subscribe("gone")
        asked: list[set[str]] = []
        refresh = consumer._reader.refresh

        async def counted(topics: set[str]) -> None:
            asked.append(topics)
            await refresh(topics)

        monkeypatch.setattr(consumer._reader, "refresh", counted)
        group.queues.pop((2, 0))
        group.queues.pop((2, 1))
        for number in range(5):  # each by a question of its own
            await fill(cluster, [b"%d" % number])
            assert await read(consumer, 1) == [b"%d" % number]
        assert asked == [{"gone"}]


async def test_a_queue_that_was_refused_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_fetcher, "PARKED_S", 0.0)
    async with subscribed() as (group, cluster, consumer):
        asked = asyncio.Event()
        refresh = consumer._reader.refresh

        async def noted(topics: set[str]) -> None:
            await refresh(topics)
            asked.set()

        monkeypatch.setattr(consumer._reader, "refresh", noted)
        queue = group.queues.pop((1, 0))
        consumer.seek(MessageQueue("orders", "g0", 0), 0)  # asks at once
        await asked.wait()
        group.queues[1, 0] = queue
        await fill(cluster, [b"a"])
        assert await read(consumer, 1) == [b"a"]
