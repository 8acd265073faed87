"""A broker group that is made anew under its name, or whose name another one got, while clients have the old routes.

Topic ids begin at 1 in every group: what is meant for "orders" of the one would be "payments" of the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgermq.client import Message, MessageQueue, Producer, PullConsumer, PushConsumer, PushOptions
from ledgermq.client.errors import OutcomeUnknownError, TopicNotFoundError
from ledgermq.client.message import SendReceipt

from .fake_messaging import MessagingCluster
from .fakes import FakeCluster, FakeGroup, FakeNode
from .push_listeners import QUICK, Seen, fill, until_committed, until_logged
from .reading import read, run

DEADLINE_MS = 600_000


def groups(*topics: str) -> tuple[FakeGroup, FakeGroup]:
    """Return a group with "orders" and "payments", and another one with these, in this order."""
    old = FakeGroup(topics={"orders": 1, "payments": 1})
    new = FakeGroup(topics=dict.fromkeys(topics, 1))
    old.group_id, new.group_id = 7, 8
    return old, new


def held(group: FakeGroup, topic: str) -> int:
    """Return how many messages a topic has."""
    topic_id, queues = group.topics[topic]
    return sum(group.queues[topic_id, queue_id].end for queue_id in range(queues))


async def without_answer(node: FakeNode, producer: Producer) -> asyncio.Future[SendReceipt]:
    """Send a message to "orders" that the node stores, and does not answer."""
    await producer.send("orders", b"before")
    node.asked.clear()
    node.may_answer.clear()
    sent = producer.send_nowait("orders", b"perhaps")
    await node.asked.wait()
    return sent


async def until(done: Callable[[], bool]) -> None:
    """Wait for what nothing tells of."""
    while not done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_told", [True, False])
def test_messages_go_to_their_topics_in_the_new_group_not_to_those_that_have_their_ids(
    is_told: bool,
) -> None:
    """`is_told`: the new route is there before a message; else a node says that it is another group's."""

    async def scenario() -> None:
        old, new = groups("payments", "orders")
        async with FakeCluster(old) as cluster, Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer:
            await asyncio.gather(*(producer.send(topic, b"before") for topic in ("orders", "payments")))
            await cluster.replace(old, new)
            connection = producer._connections["g0"]
            await until(lambda: not connection.connected)
            node = cluster.nodes["g0", "n1"]
            node.stranger_pause_ms = (
                DEADLINE_MS  # none is sent a second time, so none is in flight when the route comes
            )
            if is_told:
                cluster.register(new)
                await until(lambda: connection.group.group_id == 8)
            waiting = [
                asyncio.ensure_future(producer.send(Message(topic, b"after", message_group=group)))
                for topic, group in (("orders", ""), ("payments", ""), ("orders", "in order"))
            ]
            if not is_told:
                await until(lambda: connection.window.paused_until > 0)  # the refusal has come
                assert connection.window.in_flight == 0
                cluster.register(new)
            await asyncio.gather(*waiting)
            assert (held(new, "orders"), held(new, "payments")) == (2, 1)

    run(scenario())


def test_a_message_that_the_group_before_may_have_stored_is_not_stored_again() -> None:
    async def scenario() -> None:
        old, new = groups("orders")
        async with FakeCluster(old) as cluster, Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer:
            sent = await without_answer(cluster.nodes["g0", "n1"], producer)
            waits = producer.send_nowait("orders", b"waits")
            await cluster.replace(old, new)
            cluster.nodes["g0", "n1"].may_answer.set()
            cluster.register(new)
            with pytest.raises(OutcomeUnknownError, match='broker group "g0" was replaced'):
                await sent
            await waits
            assert held(new, "orders") == 1
            assert producer._outbox._bytes == 0

    run(scenario())


def test_a_topic_that_the_new_group_has_not_fails_at_once() -> None:
    async def scenario() -> None:
        old, new = groups("payments")
        async with FakeCluster(old) as cluster, Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer:
            await producer.send("orders", b"before")
            await producer.send("payments", b"before")
            await cluster.replace(old, new)
            await until(lambda: not producer._connections["g0"].connected)
            waits = producer.send_nowait("orders", b"after")
            cluster.register(new)
            with pytest.raises(TopicNotFoundError):
                await waits
            await producer.send("payments", b"after")
            assert held(new, "payments") == 1

    run(scenario())


def test_a_topic_that_the_new_group_has_not_fails_as_soon_as_that_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At first it has no leader, so nobody can say."""
    caplog.set_level(logging.INFO, "ledgermq.client.produce.reroute")

    async def scenario() -> None:
        old, new = groups("payments")
        new.leader = ""
        async with FakeCluster(old) as cluster, Producer(cluster.address, timeout_ms=20_000) as producer:
            await asyncio.gather(*(producer.send(topic, b"before") for topic in ("orders", "payments")))
            await cluster.replace(old, new)
            cluster.register(new)
            await until(lambda: "route not refreshed topic=orders" in caplog.text)
            waits = [producer.send_nowait(topic, b"after") for topic in ("orders", "payments")]
            new.leader, new.term = "n1", 2
            cluster.register(new)
            with pytest.raises(TopicNotFoundError):
                await waits[0]
            await waits[1]

    run(scenario())


def test_an_answer_that_comes_late_with_the_group_before_stops_no_topic() -> None:
    async def scenario() -> None:
        old, new = groups("payments", "orders")
        async with FakeCluster(old) as cluster, Producer(cluster.address, timeout_ms=20_000) as producer:
            await asyncio.gather(*(producer.send(topic, b"before") for topic in ("orders", "payments")))
            late = producer._routes.cached("orders")
            assert late is not None
            await cluster.replace(old, new)
            cluster.register(new)
            connection = producer._connections["g0"]
            await until(lambda: connection.group.group_id == 8)
            producer._routes._keep(late)
            assert connection.group.group_id == 7
            await until(lambda: connection.group.group_id == 8)
            await asyncio.gather(*(producer.send(topic, b"after") for topic in ("orders", "payments")))
            assert (held(new, "orders"), held(new, "payments")) == (1, 1)

    run(scenario())


@pytest.mark.parametrize("creates_topics", [False, True])
def test_a_topic_that_nobody_has_any_more_fails_at_once_or_is_made_anew(creates_topics: bool) -> None:
    """No other topic of the producer shows the new group: only the refusals do, and they must lead to the nameserver."""

    async def scenario() -> None:
        old, new = groups("payments")
        async with (
            MessagingCluster(old) as cluster,
            Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer,
        ):
            await producer.send("orders", b"before")
            await cluster.replace(old, new)
            await until(lambda: not producer._connections["g0"].connected)
            cluster.groups = (new,)
            cluster.messaging[0].creates_topics = cluster if creates_topics else None
            cluster.register(new)
            if creates_topics:
                await producer.send("orders", b"after")
                assert held(new, "orders") == 1
            else:
                with pytest.raises(TopicNotFoundError):
                    await producer.send("orders", b"after")

    run(scenario())


def test_a_group_that_was_recovered_goes_on_as_the_same() -> None:
    """It knows what was stored before, so a message without an answer is sent again, and recognised."""

    async def scenario() -> None:
        group, _ = groups()
        async with (
            FakeCluster(group) as cluster,
            Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer,
        ):
            sent = await without_answer(cluster.nodes["g0", "n1"], producer)
            await cluster.replace(group, group)
            group.group_id, group.former_group_ids = 9, (7,)
            cluster.nodes["g0", "n1"].may_answer.set()
            cluster.register(group)
            receipt = await sent
            assert (receipt.queue_offset, receipt.duplicate, held(group, "orders")) == (1, True, 2)

    run(scenario())


@pytest.mark.parametrize("is_told", [True, False])
def test_a_pull_consumer_reads_its_topics_in_the_new_group_from_their_beginning(is_told: bool) -> None:
    async def scenario() -> None:
        old, new = groups("payments", "orders")
        async with FakeCluster(old) as cluster, PullConsumer(cluster.address) as consumer:
            await fill(cluster, [b"a", b"b"])
            await consumer.subscribe("orders")
            assert await read(consumer, 2) == [b"a", b"b"]
            await cluster.replace(old, new)
            if not is_told:
                node = cluster.nodes["g0", "n1"]
                seen = len(node.meant)
                await until(lambda: 7 in node.meant[seen:])
            cluster.register(new)
            await fill(cluster, [b"not ours"] * 3, "payments")
            await fill(cluster, [b"c", b"d"])
            assert await read(consumer, 2) == [b"c", b"d"]
            assert consumer.position(MessageQueue("orders", "g0", 0)) == 2

    run(scenario())


def test_a_queue_that_was_paused_goes_on_in_the_new_group() -> None:
    async def scenario() -> None:
        old, new = groups("payments", "orders")
        queue = MessageQueue("orders", "g0", 0)
        async with FakeCluster(old) as cluster, PullConsumer(cluster.address) as consumer:
            await fill(cluster, [b"a"])
            await consumer.subscribe("orders")
            assert await read(consumer, 1) == [b"a"]
            consumer.pause([queue])
            await cluster.replace(old, new)
            cluster.register(new)
            await fill(cluster, [b"not ours"] * 3, "payments")
            await fill(cluster, [b"b"])
            await until(lambda: consumer.position(queue) == 0)
            consumer.resume([queue])
            assert await read(consumer, 1) == [b"b"]

    run(scenario())


def test_a_queue_that_was_begun_before_its_group_said_an_id_is_read_in_the_new_group() -> None:
    """The consumer has run since before the brokers were upgraded."""

    async def scenario() -> None:
        old, new = groups("payments", "orders")
        old.group_id = 0
        async with FakeCluster(old) as cluster, PullConsumer(cluster.address) as consumer:
            await fill(cluster, [b"a"])
            await consumer.subscribe("orders")
            assert await read(consumer, 1) == [b"a"]
            old.group_id = 7
            cluster.register(old)
            reader = consumer._reader
            await until(lambda: reader._fetchers["g0"].group.group_id == 7)
            await cluster.replace(old, new)
            cluster.register(new)
            await fill(cluster, [b"not ours"] * 3, "payments")
            await fill(cluster, [b"b"])
            assert await read(consumer, 1) == [b"b"]

    run(scenario())


@pytest.mark.parametrize("has_topic", [False, True])
def test_a_commit_leaves_out_what_was_read_in_the_group_before(has_topic: bool) -> None:
    """Of a topic that the new group has not, or of which that is not known here yet: the offset is one of the group before."""

    async def scenario() -> None:
        old, new = groups("payments")
        async with FakeCluster(old) as cluster, PullConsumer(cluster.address, group="billing") as consumer:
            await fill(cluster, [b"a"])
            await consumer.subscribe("orders")
            await consumer.subscribe("payments")
            assert await read(consumer, 1) == [b"a"]
            await cluster.replace(old, new)
            cluster.register(new)
            await fill(cluster, [b"b", b"c"], "payments")
            assert await read(consumer, 2) == [b"b", b"c"]
            if has_topic:
                new.create_topic("orders", 1)
            await consumer.commit()
            assert new.committed == {("billing", "payments", 0): 2}

    run(scenario())


def test_a_push_consumer_joins_the_new_group_and_commits_nothing_of_the_one_before() -> None:
    async def scenario() -> None:
        old, new = groups("payments", "orders")
        seen = Seen()
        async with (
            FakeCluster(old) as cluster,
            PushConsumer(cluster.address, group="billing", listener=seen, options=QUICK) as consumer,
        ):
            await fill(cluster, [b"a", b"b"])
            await consumer.subscribe("orders")
            await seen.until(2)
            await until_committed(old, 2)
            seen.gate.clear()
            await fill(cluster, [b"in hand"])
            await seen.until(3)
            await cluster.replace(old, new)
            cluster.register(new)
            seen.gate.set()
            await fill(cluster, [b"not ours"] * 3, "payments")
            await fill(cluster, [b"c"])
            await seen.until(4)
            assert seen.bodies == [b"a", b"b", b"in hand", b"c"]
            await until_committed(new, 1)
            assert [each[2] for each in new.commits] == [1]

    run(scenario())


def test_a_push_consumer_that_lost_contact_to_the_group_before_goes_on_in_the_new_one() -> None:
    """Its pause ends with the group before. The new one's queues may have all that there is in them by then."""

    async def scenario() -> None:
        old, new = groups("orders")
        seen = Seen()
        options = PushOptions(commit_interval_ms=5, session_timeout_ms=500)
        async with (
            FakeCluster(old) as cluster,
            PushConsumer(cluster.address, group="billing", listener=seen, options=options) as consumer,
        ):
            await fill(cluster, [b"a"])
            await consumer.subscribe("orders")
            await until_committed(old, 1)
            await cluster.nodes["g0", "n1"].stop()
            await until_logged("no contact to the group's leader")
            await cluster.replace(old, new)
            cluster.register(new)
            await fill(cluster, [b"b"])
            await seen.until(2)
            await until_committed(new, 1)

    run(scenario())


def test_a_broadcast_consumer_begins_anew_in_the_new_group_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        old, new = groups("orders", "payments")  # the same ids: only the group tells
        newest = FakeGroup(topics={"orders": 1})
        newest.group_id = 9
        path = tmp_path / "offsets.json"
        async with FakeCluster(old) as cluster:
            seen = Seen()
            async with PushConsumer(
                cluster.address, group="caches", listener=seen, broadcast_file=path, options=QUICK
            ) as consumer:
                await fill(cluster, [b"a", b"b"])
                await consumer.subscribe("orders")
                await seen.until(2)
                await cluster.replace(old, new)
                cluster.register(new)
                await fill(cluster, [b"c", b"d", b"e"])
                await seen.until(5)
            assert seen.bodies[2:] == [b"c", b"d", b"e"]
            await cluster.replace(new, newest)
            cluster.register(newest)
            await fill(cluster, [b"f", b"g"])
            seen = Seen()
            async with PushConsumer(
                cluster.address, group="caches", listener=seen, broadcast_file=path, options=QUICK
            ) as consumer:
                await consumer.subscribe("orders")
                await seen.until(2)
            assert seen.bodies == [b"f", b"g"]

    run(scenario())
