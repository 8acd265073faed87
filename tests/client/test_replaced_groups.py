"""A broker group that is created anew, or whose name another one got, while clients have the old routes.

Topic ids begin at 1 in every group: what is meant for "orders" of the one would be "payments" of the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client import Message, MessageQueue, Producer, PullConsumer, PushConsumer, PushOptions
from ledgermq.client.cluster.topic_route import TopicRoute
from ledgermq.client.errors import OtherBrokerGroupError, OutcomeUnknownError, TopicNotFoundError, UsageError
from ledgermq.client.message import SendReceipt
from ledgermq.client.produce.queue_selection import queue_of_group

from .fake_messaging import MessagingCluster
from .fakes import FakeCluster, FakeGroup, FakeNode
from .push_listeners import QUICK, Seen, fill, until_committed, until_logged
from .reading import read

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


def is_in(route: TopicRoute | None, group: FakeGroup) -> bool:
    """Tell whether a route names this broker group."""
    part = None if route is None else route.part(group.name)
    return part is not None and part.group.group_id == group.group_id


async def until(done: Callable[[], bool]) -> None:
    """Wait for what nothing tells of."""
    while not done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def replaced(cluster: FakeCluster, old: FakeGroup, new: FakeGroup, producer: Producer) -> None:
    """Put another broker group in the place of one: the producer has lost its stream, no route tells why."""
    connection = producer._connections["g0"]
    await cluster.replace(old, new)
    await until(lambda: not connection.connected)


@pytest.mark.parametrize("is_told", [True, False])
async def test_what_waits_for_the_former_group_fails_and_new_messages_go_to_their_topics_in_the_new_one(
    is_told: bool,
) -> None:
    """`is_told`: the new route is there before a message; else a node says that it is another group's."""

    old, new = groups("payments", "orders")
    async with FakeCluster(old) as cluster, Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer:
        await asyncio.gather(*(producer.send(topic, b"before") for topic in ("orders", "payments")))
        await replaced(cluster, old, new, producer)
        node = cluster.nodes["g0", "n1"]
        # None is sent a second time, so none is in flight when the route comes
        node.stranger_pause_ms = DEADLINE_MS
        messages = [
            Message("orders", b"after"),
            Message("payments", b"after"),
            Message("orders", b"after", message_group="in order"),
        ]
        former = producer._connections["g0"]
        if not is_told:
            waiting = [producer.send_nowait(each) for each in messages]
            await until(lambda: former.window.paused_until > 0)  # the refusal has come
            assert former.window.in_flight == 0
            cluster.register(new)
            for each in waiting:
                with pytest.raises(
                    OtherBrokerGroupError, match=r"certainly not stored\. Send it again"
                ) as failed:
                    await each
                assert (failed.value.broker_group, failed.value.group_id) == ("g0", 7)
                assert failed.value.retryable
            assert producer._outbox._bytes == 0
        else:
            cluster.register(new)
            await until(lambda: producer._connections["g0"] is not former)
        await asyncio.gather(*map(producer.send, messages))
        assert (held(new, "orders"), held(new, "payments")) == (2, 1)
        assert producer._connections["g0"] is not former


async def test_a_message_that_the_former_group_may_have_stored_has_an_unknown_outcome() -> None:
    old, new = groups("orders")
    async with FakeCluster(old) as cluster, Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer:
        sent = await without_answer(cluster.nodes["g0", "n1"], producer)
        waits = producer.send_nowait("orders", b"waits")
        await cluster.replace(old, new)
        cluster.nodes["g0", "n1"].may_answer.set()
        cluster.register(new)
        with pytest.raises(OutcomeUnknownError, match=r'broker group "g0" \(id 0{15}7\) was replaced'):
            await sent
        with pytest.raises((OtherBrokerGroupError, OutcomeUnknownError), match="was replaced"):
            await waits
        assert held(new, "orders") == 0
        assert producer._outbox._bytes == 0
        assert (await producer.send("orders", b"again")).queue_offset == 0


async def test_a_topic_that_the_new_group_does_not_have_does_not_exist() -> None:
    old, new = groups("payments")
    async with FakeCluster(old) as cluster, Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer:
        await producer.send("orders", b"before")
        await producer.send("payments", b"before")
        former = producer._connections["g0"]
        await replaced(cluster, old, new, producer)
        cluster.register(new)
        await until(lambda: producer._connections["g0"] is not former)
        with pytest.raises(TopicNotFoundError):
            await producer.send("orders", b"after")
        await producer.send("payments", b"after")
        assert held(new, "payments") == 1


async def test_an_answer_that_comes_late_with_the_former_group_stops_no_topic() -> None:
    old, new = groups("payments", "orders")
    async with FakeCluster(old) as cluster, Producer(cluster.address, timeout_ms=20_000) as producer:
        await asyncio.gather(*(producer.send(topic, b"before") for topic in ("orders", "payments")))
        late = producer._routes.cached("orders")
        assert late is not None
        await cluster.replace(old, new)
        cluster.register(new)

        def led_by(group_id: int) -> bool:
            routes = map(producer._routes.cached, ("orders", "payments"))
            return all(
                route and route.parts and route.parts[0].group.group_id == group_id for route in routes
            )

        await until(lambda: led_by(8))
        await asyncio.gather(*(producer.send(topic, b"after") for topic in ("orders", "payments")))
        producer._routes._keep(late)
        await until(lambda: led_by(8))
        await asyncio.gather(*(producer.send(topic, b"after") for topic in ("orders", "payments")))
        assert (held(new, "orders"), held(new, "payments")) == (2, 2)


@pytest.mark.parametrize("creates_topics", [False, True])
async def test_a_topic_that_is_gone_everywhere_fails_at_once_or_is_created_anew(creates_topics: bool) -> None:
    """No other topic shows the new broker group: only refusals do, and must lead to the nameserver."""

    old, new = groups("payments")
    async with (
        MessagingCluster(old) as cluster,
        Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer,
    ):
        await producer.send("orders", b"before")
        await replaced(cluster, old, new, producer)
        # None is sent a second time, so none is in flight when the route comes
        cluster.nodes["g0", "n1"].stranger_pause_ms = DEADLINE_MS
        cluster.groups = (new,)
        cluster.messaging[0].creates_topics = cluster if creates_topics else None
        cluster.register(new)
        with pytest.raises(OtherBrokerGroupError if creates_topics else TopicNotFoundError):
            await producer.send("orders", b"after")
        if creates_topics:
            await producer.send("orders", b"again")
            assert held(new, "orders") == 1


async def test_a_message_group_in_another_broker_group_stays_in_its_queue() -> None:
    """It must not overtake itself while the queues of the new broker group are not known yet."""

    old, new = groups("payments", "orders")
    other = FakeGroup("g1", {"orders": 2})
    name = next(name for name in map(str, range(1000)) if queue_of_group(name, 3) == 2)
    async with (
        FakeCluster(old, other) as cluster,
        Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer,
    ):
        await producer.send("payments", b"before")
        first = await producer.send("orders", b"1", message_group=name)
        former = producer._connections["g0"]
        await cluster.replace(old, new)
        cluster.register(new)
        await until(lambda: producer._connections["g0"] is not former)
        second = await producer.send("orders", b"2", message_group=name)
        assert [(each.broker_group, each.queue_id) for each in (first, second)] == [("g1", 1)] * 2


async def test_a_group_that_was_recovered_goes_on_as_the_same() -> None:
    """It knows what was stored before, so a message without an answer is sent again, and recognised."""

    group, _ = groups()
    async with FakeCluster(group) as cluster, Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer:
        sent = await without_answer(cluster.nodes["g0", "n1"], producer)
        await cluster.replace(group, group)
        group.group_id, group.former_group_ids = 9, (7,)
        cluster.nodes["g0", "n1"].may_answer.set()
        cluster.register(group)
        receipt = await sent
        assert (receipt.queue_offset, receipt.duplicate, held(group, "orders")) == (1, True, 2)


QUEUE = MessageQueue("orders", "g0", 0)


@asynccontextmanager
async def one_that_was_replaced(
    *topics: str, consumer_group: str = ""
) -> AsyncIterator[tuple[FakeCluster, FakeGroup, PullConsumer]]:
    """A consumer of "orders" that stands at 2 in a broker group which is replaced.

    In the new one "payments" has the id that "orders" had.
    """
    old, new = groups(*topics)
    async with FakeCluster(old) as cluster, PullConsumer(cluster.address, group=consumer_group) as consumer:
        await fill(cluster, [b"a", b"b"])
        await consumer.subscribe("orders")
        assert await read(consumer, 2) == [b"a", b"b"]
        if "orders" not in topics:
            await consumer.subscribe("payments")  # by which it is known that the broker group is another one
        await cluster.replace(old, new)
        cluster.register(new)
        await fill(cluster, [b"not ours"] * 3, "payments")
        if "orders" in topics:
            await fill(cluster, [b"c", b"d"])
        with pytest.raises(OtherBrokerGroupError, match=r"orders/g0/0 \(2\)|orders.*\(2\)") as failed:
            await consumer.poll()
        assert (failed.value.group_id, failed.value.retryable) == (7, False)
        yield cluster, new, consumer


async def test_a_position_in_a_broker_group_that_was_replaced_is_an_error_until_another_one_is_chosen() -> (
    None
):
    async with one_that_was_replaced("payments", "orders") as (_, _, consumer):
        for _ in range(2):
            with pytest.raises(OtherBrokerGroupError, match="was replaced by another one of its name"):
                await consumer.poll(timeout_ms=1)
        with pytest.raises(OtherBrokerGroupError):
            consumer.position(QUEUE)
        assert consumer.assignment == (QUEUE,)
        consumer.seek(QUEUE, 1)
        assert await read(consumer, 1) == [b"d"]
        assert consumer.position(QUEUE) == 2


async def test_a_queue_of_a_broker_group_that_was_replaced_is_begun_anew_when_its_user_says_so() -> None:
    async with one_that_was_replaced("payments", "orders") as (_, _, consumer):
        await consumer.subscribe("orders")
        assert await read(consumer, 2) == [b"c", b"d"]
        await consumer.seek_to_beginning("orders")
        assert await read(consumer, 2) == [b"c", b"d"]


async def test_all_queues_of_a_replaced_broker_group_are_sought_or_left_at_once() -> None:
    async with one_that_was_replaced("payments", "orders") as (_, _, consumer):
        await consumer.seek_to_beginning("orders")
        assert await read(consumer, 2) == [b"c", b"d"]
    async with one_that_was_replaced("payments", "orders") as (_, _, consumer):
        consumer.unsubscribe("orders")
        with pytest.raises(UsageError, match="reads no queue"):
            await consumer.poll()


async def test_a_queue_that_the_new_broker_group_does_not_have_cannot_be_sought() -> None:
    async with one_that_was_replaced("payments") as (_, _, consumer):
        with pytest.raises(TopicNotFoundError):
            consumer.seek(QUEUE, 0)
        consumer.unassign([QUEUE])
        await consumer.subscribe("payments")
        assert await read(consumer, 3) == [b"not ours"] * 3


async def test_a_position_is_kept_while_a_lagging_nameserver_names_a_former_broker_group() -> None:
    group = FakeGroup(topics={"orders": 2})
    group.group_id = 7
    async with FakeCluster(group) as cluster, PullConsumer(cluster.address) as consumer:
        await fill(cluster, [b"a", b"b"])
        await consumer.subscribe("orders")
        assert sorted(await read(consumer, 2)) == [b"a", b"b"]
        positions = consumer._reader.positions
        consumer.pause([QUEUE])
        route = consumer._routes.cached("orders")
        assert route is not None
        for group_id in (6, 0):
            former = replace(route.parts[0].group, group_id=group_id)
            consumer._routes._keep(replace(route, parts=(replace(route.parts[0], group=former),)))
            with pytest.raises(OtherBrokerGroupError, match="was replaced by another one of its name"):
                consumer._reader.take(1)
        await consumer._routes.get("orders", refresh=True)
        assert consumer._reader.positions == positions
        assert consumer.paused == (QUEUE,)
        consumer.resume([QUEUE])
        await fill(cluster, [b"c", b"d"])
        assert sorted(await read(consumer, 2)) == [b"c", b"d"]


async def test_a_broker_group_that_said_no_id_at_first_is_known_to_be_replaced() -> None:
    """The consumer has run since before the brokers were upgraded."""

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
        with pytest.raises(OtherBrokerGroupError):
            await consumer.poll()


@pytest.mark.parametrize("explicitly", [False, True])
async def test_an_offset_of_the_former_broker_group_is_not_committed_in_the_new_one(explicitly: bool) -> None:
    async with one_that_was_replaced("payments", "orders", consumer_group="billing") as (_, new, consumer):
        await consumer.subscribe("payments")
        paid = MessageQueue("payments", "g0", 0)
        consumer.seek(paid, 2)
        with pytest.raises(OtherBrokerGroupError):
            await consumer.commit({QUEUE: 2, paid: 2} if explicitly else None)
        assert new.committed == ({} if explicitly else {("billing", "payments", 0): 2})


async def test_a_push_consumer_joins_the_new_group_and_commits_nothing_of_the_one_before() -> None:
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


async def test_a_push_consumer_that_lost_contact_to_the_group_before_goes_on_in_the_new_one() -> None:
    """Its pause ends with the former broker group. The queues of the new one may be full by then."""

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
        await until_logged("no contact to the broker group's leader")
        await cluster.replace(old, new)
        cluster.register(new)
        await fill(cluster, [b"b"])
        await seen.until(2)
        await until_committed(new, 1)


async def test_a_broadcast_consumer_begins_anew_in_the_new_group_also_after_a_restart(tmp_path: Path) -> None:
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


async def test_a_topic_that_the_new_group_gets_later_is_consumed_there() -> None:
    """Its route is asked for when the other topic's tells of the new broker group, and is not there yet."""

    old, new = groups("orders")
    seen = Seen()
    async with (
        FakeCluster(old) as cluster,
        PushConsumer(cluster.address, group="billing", listener=seen, options=QUICK) as consumer,
    ):
        for topic in ("orders", "payments"):
            await fill(cluster, [b"before"], topic)
            await consumer.subscribe(topic)
        await seen.until(2)
        await cluster.replace(old, new)
        cluster.register(new)
        routes = consumer._routes
        await until(lambda: is_in(routes.cached("orders"), new) and not routes._fetching)
        new.create_topic("payments", 1)
        cluster.register(new)
        await fill(cluster, [b"after"], "payments")
        await seen.until(3)
        assert seen.bodies[2] == b"after"


async def test_an_end_that_was_asked_of_the_former_group_is_no_position_in_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = groups("orders")
    slow = FakeGroup("h0", {"orders": 1})
    async with FakeCluster(old, slow) as cluster, PullConsumer(cluster.address) as consumer:
        await fill(cluster, [b"%d" % number for number in range(20)])
        await consumer.subscribe("orders")
        assert len(await read(consumer, 20)) == 20
        query, known = consumer._offsets.query, asyncio.Event()
        answered = set()

        async def late(topic: str, name: str, *, timestamp: int = 0) -> Any:
            found = await query(topic, name, timestamp=timestamp)
            answered.add(name)
            if name == "h0":
                await known.wait()
            return found

        monkeypatch.setattr(consumer._offsets, "query", late)
        seeking = asyncio.ensure_future(consumer.seek_to_end("orders"))
        await until(lambda: len(answered) == 2)
        await cluster.replace(old, new)
        cluster.register(new)
        await until(lambda: is_in(consumer._routes.cached("orders"), new))
        known.set()
        await seeking
        assert consumer.position(QUEUE) == new.queues[1, 0].end == 0


async def test_parts_that_are_kept_for_the_next_send_follow_the_routes_meanwhile() -> None:
    """A topic without sends waits for no queue of a broker group that is drained and removed meanwhile."""

    old, new = groups("payments", "orders")
    other = FakeGroup("g1", {"orders": 2, "payments": 2})
    async with (
        FakeCluster(old, other) as cluster,
        Producer(cluster.address, timeout_ms=DEADLINE_MS) as producer,
    ):
        await asyncio.gather(*(producer.send(topic, b"before") for topic in ("orders", "payments")))
        known = producer._routes.cached("payments")
        assert known is not None
        part = known.part("g1")
        assert part is not None
        await cluster.replace(old, new)
        cluster.register(new)
        await until(lambda: is_in(producer._routes.cached("payments"), new))
        route = producer._routes.cached("payments")
        assert route is not None
        first = next(each for each in route.parts if each.group.name == "g0")
        producer._outbox.forget("payments")  # as after the replacement, until its next send
        producer._kept_parts["payments"] = [part]
        drained = replace(part, writable=False, group=replace(part.group, draining=True))
        producer._routes._keep(replace(route, parts=(first, drained)))
        assert producer._kept_parts["payments"] == [first]


async def test_a_part_that_is_kept_of_a_broker_group_that_was_replaced_since_is_dropped() -> None:
    """Its lanes would join the connection to the new broker group of its name."""

    group, other = FakeGroup("g0", {"orders": 1, "payments": 1}), FakeGroup("g1", {"orders": 2})
    group.group_id, other.group_id = 7, 8
    async with FakeCluster(group, other) as cluster, Producer(cluster.address) as producer:
        await producer.send("orders", b"before")
        route = producer._routes.cached("orders")
        assert route is not None
        mine, others = route.parts
        former = replace(others, group=replace(others.group, group_id=6))
        producer._kept_parts["payments"] = [former, mine]
        await producer.send("payments", b"after")
        assert producer._outbox.topics["payments"].ordered.parts == [
            replace(mine, topic_id=group.topics["payments"][0])
        ]
        assert producer._connections["g1"].group.group_id == 8
