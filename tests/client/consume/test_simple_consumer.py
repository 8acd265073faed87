"""The simple consumer against a fake messaging port on real sockets."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.client import SimpleConsumer
from ledgermq.client.errors import (
    ClosedError,
    ConsumerGroupNotFoundError,
    InvalidHandleError,
    RefusedError,
    TopicNotFoundError,
    UsageError,
)
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import route_pb2 as pb

from ..fake_messaging import MessagingCluster, status
from ..fakes import FakeGroup


def orders(nodes: int = 1) -> MessagingCluster:
    return MessagingCluster(FakeGroup(topics={"orders": 1}), nodes=nodes)


async def subscribed(cluster: MessagingCluster, expression: str = "*") -> SimpleConsumer:
    consumer = SimpleConsumer(cluster.address, group="billing")
    await consumer.subscribe("orders", expression)
    return consumer


async def test_messages_are_received_and_acknowledged_one_after_the_other() -> None:
    """Each acknowledgement begins in the moment in which the one before is told: none may be forgotten."""

    async with orders() as cluster, await subscribed(cluster) as consumer:
        cluster.messages.add(b"a", b"b", b"c")
        for message in await consumer.receive():
            await consumer.ack(message)
        assert cluster.messages.acked == [b"a", b"b", b"c"]


async def test_a_filter_that_would_match_no_tag_is_refused_and_lists_of_tags_are_not() -> None:
    async with orders() as cluster, SimpleConsumer(cluster.address, group="billing") as consumer:
        for expression in ("a && b", "a | b", "a ||| b", "||"):
            with pytest.raises(UsageError, match="is not a tag filter"):
                await consumer.subscribe("orders", expression)
        for expression in ("*", "", "a", "a||b", "R&D || sales figures", "a ||"):
            await consumer.subscribe("orders", expression)


async def test_acknowledgements_that_are_made_while_one_is_out_go_together() -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        cluster.messages.add(*(b"%d" % i for i in range(10)))
        await asyncio.gather(*(consumer.ack(message) for message in await consumer.receive()))
        assert cluster.messaging[0].ack_sizes == [10]
        assert len(cluster.messages.acked) == 10


async def test_a_lease_that_is_over_fails_only_its_own_acknowledgement() -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        cluster.messages.add(b"a", b"b")
        messages = await consumer.receive()
        cluster.messages.leased.pop(messages[0].receipt_handle)
        outcomes = await asyncio.gather(*map(consumer.ack, messages), return_exceptions=True)
        assert isinstance(outcomes[0], InvalidHandleError)
        assert "Acknowledge sooner" in str(outcomes[0])
        assert outcomes[1] is None


async def test_a_refusal_of_a_whole_request_fails_every_acknowledgement_in_it() -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        cluster.messages.add(b"a", b"b")
        cluster.messaging[0].ack_refusals.append(status(v2.INTERNAL_ERROR, "broken"))
        outcomes = await asyncio.gather(*map(consumer.ack, await consumer.receive()), return_exceptions=True)
        assert [str(each) for each in outcomes] == ["broken.", "broken."]
        assert all(isinstance(each, RefusedError) for each in outcomes)


async def test_closing_waits_for_acknowledgements_that_are_out() -> None:
    async with orders() as cluster:
        consumer = await subscribed(cluster)
        cluster.messages.add(b"a")
        cluster.messaging[0].hold_acks = asyncio.Event()
        ack = asyncio.create_task(consumer.ack((await consumer.receive())[0]))
        await cluster.messaging[0].acking.wait()
        closing = asyncio.create_task(consumer.close())
        cluster.messaging[0].hold_acks.set()
        await closing
        await ack
        assert cluster.messages.acked == [b"a"]


async def test_a_message_that_was_given_back_comes_again() -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        cluster.messages.add(b"a")
        await consumer.change_invisible((await consumer.receive())[0], 0)
        assert [message.body for message in await consumer.receive()] == [b"a"]


async def test_a_longer_lease_has_a_new_handle_that_acknowledges() -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        cluster.messages.add(b"a")
        (message,) = await consumer.receive()
        await consumer.change_invisible(message, 60_000)
        assert message.receipt_handle == "new-h0"
        await consumer.ack(message)
        assert cluster.messages.acked == [b"a"]


async def test_what_came_before_a_stream_broke_is_kept() -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        cluster.messages.add(b"a", b"b", b"c")
        cluster.messaging[0].break_after = 2
        assert [message.body for message in await consumer.receive()] == [b"a", b"b"]
        assert [message.body for message in await consumer.receive()] == [b"c"]


async def test_another_node_is_asked_when_one_is_dead() -> None:
    async with orders(nodes=3) as cluster, await subscribed(cluster) as consumer:
        await cluster.messaging[0].stop()
        cluster.messages.add(b"a")
        (message,) = await consumer.receive()
        await consumer.ack(message)
        assert cluster.messages.acked == [b"a"]


async def test_a_node_that_is_busy_is_left_for_the_next_one() -> None:
    async with orders(nodes=3) as cluster, await subscribed(cluster) as consumer:
        cluster.messaging[0].refusals.append(status(v2.TOO_MANY_REQUESTS, "busy"))
        cluster.messages.add(b"a")
        assert [message.body for message in await consumer.receive()] == [b"a"]


async def test_nothing_comes_within_the_time_is_an_empty_list() -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        assert await consumer.receive(timeout_ms=0) == []
        assert await consumer.receive(timeout_ms=10) == []


async def test_what_a_broker_has_to_say_is_logged_with_messages_and_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        for code, text in ((v2.MESSAGE_NOT_FOUND, "filter differently"), (v2.OK, "were deleted")):
            cluster.messaging[0].refusals.append(status(code, text))
            assert await consumer.receive(timeout_ms=0) == []
            assert f"group=billing: {text}" in caplog.text
        caplog.clear()
        cluster.messaging[0].refusals.append(status(v2.MESSAGE_NOT_FOUND, "no new message"))
        assert await consumer.receive(timeout_ms=0) == []
    assert not caplog.records


async def test_nothing_is_waited_for_before_every_source_has_said_that_it_has_nothing() -> None:
    """Else messages of one broker group, or topic, wait for the long polls of the others."""

    group = FakeGroup(topics={"orders": 1, "news": 1})
    async with MessagingCluster(group, nodes=1) as cluster, await subscribed(cluster) as consumer:
        await consumer.subscribe("news")
        cluster.messages.add(b"a", b"b", b"c")
        for _ in range(3):
            assert len(await consumer.receive(1)) == 1
        waiting = asyncio.ensure_future(consumer.receive(timeout_ms=60_000))
        receives = cluster.messaging[0].receives
        while len(receives) < 6:  # noqa: ASYNC110 - a fake has no event for it
            await asyncio.sleep(0.001)
        polls = [each.long_polling_timeout.ToMilliseconds() for each in receives]
        assert polls[:5] == [0] * 5
        assert polls[5] > 0
        waiting.cancel()


async def test_the_request_carries_filter_lease_and_size() -> None:
    async with orders() as cluster, await subscribed(cluster, "a || b") as consumer:
        cluster.messages.add(b"a", b"b")
        assert len(await consumer.receive(1, invisible_ms=1500)) == 1
        (request,) = cluster.messaging[0].receives
        assert request.filter_expression.expression == "a || b"
        assert request.invisible_duration.ToMilliseconds() == 1500
        assert request.batch_size == 1
        assert request.group.name == "billing"


async def test_the_loop_over_a_consumer_ends_when_it_is_closed() -> None:
    async with orders() as cluster:
        consumer = await subscribed(cluster)
        seen: list[bytes] = []
        first = asyncio.Event()

        async def read() -> None:
            async for message in consumer:
                seen.append(message.body)
                first.set()

        reader = asyncio.create_task(read())
        cluster.messages.add(b"a")
        await first.wait()
        await consumer.close()
        await reader
        assert seen == [b"a"]


async def test_closing_ends_a_receive_that_waits() -> None:
    async with orders() as cluster:
        consumer = await subscribed(cluster)
        waiting = asyncio.create_task(consumer.receive())
        await cluster.messaging[0].asked.wait()
        await consumer.close()
        with pytest.raises(ClosedError):
            await waiting


async def test_a_cancelled_receive_stays_cancelled() -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        waiting = asyncio.create_task(consumer.receive())
        await cluster.messaging[0].asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_an_unknown_group_is_an_error_with_the_command_that_creates_it() -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        cluster.messages.groups = set()
        with pytest.raises(ConsumerGroupNotFoundError, match="ledgermq group create billing"):
            await consumer.receive()


async def test_a_topic_that_cannot_be_read_is_an_error_that_says_so() -> None:
    async with MessagingCluster(FakeGroup(topics={"orders": 1})) as cluster:
        cluster.groups[0].permission = pb.WRITE
        cluster.register(cluster.groups[0])
        async with await subscribed(cluster) as consumer:
            with pytest.raises(UsageError, match="no queue that can be read"):
                await consumer.receive()


async def test_wrong_use_is_an_error_that_says_what_to_do() -> None:
    async with orders() as cluster:
        consumer = SimpleConsumer(cluster.address, group="billing")
        with pytest.raises(UsageError, match="Call subscribe"):
            await consumer.receive()
        with pytest.raises(TopicNotFoundError, match='Did you mean "orders"'):
            await consumer.subscribe("order")
        await consumer.subscribe("orders")
        cluster.messages.add(b"a")
        (message,) = await consumer.receive()
        await consumer.close()
        for call in (consumer.receive(), consumer.ack(message), consumer.change_invisible(message, 1)):
            with pytest.raises(ClosedError):
                await call


async def test_a_record_that_names_another_topic_is_acknowledged_to_that_of_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with orders() as cluster, await subscribed(cluster) as consumer:
        lease = cluster.messages.lease
        monkeypatch.setattr(cluster.messages, "lease", lambda topic: lease("elsewhere"))
        cluster.messages.add(b"a")
        (message,) = await consumer.receive()
        assert message.topic == "orders"
        await consumer.ack(message)
        assert cluster.messages.acked == [b"a"]
