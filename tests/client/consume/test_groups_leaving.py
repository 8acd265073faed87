"""Clients of a cluster from which a broker group goes: it is drained, removed, or only falls silent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from ledgermq.client import Message, MessageQueue, Producer, PullConsumer, SimpleConsumer
from ledgermq.client.cluster.channels import Channels
from ledgermq.client.cluster.topic_route import BrokerGroup, Node
from ledgermq.client.consume import fetch_stream as group_fetcher
from ledgermq.client.consume.fetch_buffer import FetchBuffer
from ledgermq.client.consume.fetch_stream import BrokerGroupFetcher
from ledgermq.client.consume.intake import AssignedQueue, Refused
from ledgermq.client.errors import BrokerGroupDrainingError, BrokerUnreachableError, LedgerMQError
from ledgermq.client.message import LeasedMessage
from ledgermq.client.produce.queue_selection import StrictRoundRobin, queue_of_group
from ledgermq.proto import route_pb2 as pb

from ..fakes import FakeCluster, FakeGroup
from ..push_listeners import Seen, consumer_of
from ..push_listeners import until as until_set
from ..reading import fill, read


def two_groups() -> tuple[FakeGroup, FakeGroup]:
    return FakeGroup("g0", {"orders": 2}), FakeGroup("g1", {"orders": 2})


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.005)


async def leave(
    cluster: FakeCluster,
    group: FakeGroup,
    *,
    drained: Callable[[], bool],
    gone: Callable[[], bool],
    between: Callable[[], None] = lambda: None,
) -> None:
    """Drain a broker group and remove it, each until the client knows; `between` is done after the drain."""
    cluster.set_mode(group, pb.MODE_DRAINING)
    await until(drained)
    between()
    cluster.set_mode(group, pb.MODE_REMOVED)
    await until(gone)


async def fall_silent(cluster: FakeCluster, client: Any) -> None:
    """Let no nameserver hear g0 any more, and the client hear of that."""
    heard = asyncio.Event()
    client._routes.on_change(lambda route: heard.set())
    cluster.nameserver.table.unregister("local", "g0", "n1")
    cluster.nameserver._changes.tell()
    await heard.wait()


def group_name_for(queue: int, count: int) -> str:
    return next(name for name in map(str, range(1000)) if queue_of_group(name, count) == queue)


# --- producers ----------------------------------------------------------------------------------------------
async def test_what_a_drained_group_refuses_goes_to_the_others_at_once_and_none_is_lost() -> None:
    """The producer has not heard of the drain: the refusal itself moves its messages."""

    groups = two_groups()
    async with (
        FakeCluster(*groups) as cluster,
        Producer(cluster.address, selector=StrictRoundRobin()) as producer,
    ):
        await producer.send_batch(Message("orders", b"warm") for _ in range(4))
        groups[0].mode = pb.MODE_DRAINING
        receipts = await producer.send_batch(Message("orders", b"%d" % i) for i in range(40))
        assert {receipt.broker_group for receipt in receipts} == {"g1"}
        assert [group.stored() for group in groups] == [2, 42]


async def test_a_route_that_tells_of_a_drain_keeps_messages_away_until_the_group_is_taken_back() -> None:
    groups = two_groups()
    async with (
        FakeCluster(*groups) as cluster,
        Producer(cluster.address, selector=StrictRoundRobin()) as producer,
    ):
        await producer.send_batch(Message("orders", b"warm") for _ in range(4))
        asked = len(cluster.node("n1", "g0").requests)
        cluster.set_mode(groups[0], pb.MODE_DRAINING)
        await until(lambda: len(producer._outbox.topics["orders"].parts) == 1)
        receipts = await producer.send_batch(Message("orders", b"x") for _ in range(20))
        assert {receipt.broker_group for receipt in receipts} == {"g1"}
        assert len(cluster.node("n1", "g0").requests) == asked
        cluster.set_mode(groups[0], pb.MODE_ACTIVE)
        await until(lambda: len(producer._outbox.topics["orders"].parts) == 2)
        receipts = await producer.send_batch(Message("orders", b"y") for _ in range(20))
        assert Counter(receipt.broker_group for receipt in receipts) == {"g0": 10, "g1": 10}


async def test_a_retry_whose_first_copy_is_stored_is_answered_by_the_drained_group() -> None:
    groups = two_groups()
    async with FakeCluster(*groups) as cluster, Producer(cluster.address) as producer:
        await producer.prepare("orders")
        for group in groups:
            cluster.node("n1", group.name).drop_answers = 1
        sending = asyncio.ensure_future(producer.send("orders", b"once"))
        await until(lambda: sum(group.stored() for group in groups) == 1)
        holder = next(group for group in groups if group.stored())
        cluster.set_mode(holder, pb.MODE_DRAINING)
        receipt = await sending
        assert (receipt.broker_group, receipt.duplicate) == (holder.name, True)
        assert sum(group.stored() for group in groups) == 1


async def test_a_message_of_a_message_group_is_refused_while_draining_and_then_has_a_new_queue() -> None:
    """Its caller hears of it: it must not change its queue unseen, past what he sent behind it."""

    groups = two_groups()
    async with FakeCluster(*groups) as cluster, Producer(cluster.address) as producer:
        name = group_name_for(0, 4)
        assert (await producer.send("orders", b"1", message_group=name)).broker_group == "g0"
        groups[0].mode = pb.MODE_DRAINING
        with pytest.raises(BrokerGroupDrainingError) as refused:
            await producer.send("orders", b"2", message_group=name)
        assert refused.value.retryable
        cluster.register(groups[0])
        await until(lambda: len(producer._outbox.topics["orders"].ordered.parts) == 1)
        receipt = await producer.send("orders", b"2", message_group=name)
        assert (receipt.broker_group, receipt.queue_id) == ("g1", queue_of_group(name, 2))
        cluster.set_mode(groups[0], pb.MODE_REMOVED)
        await until(lambda: "g0" not in producer._connections)
        again = await producer.send("orders", b"3", message_group=name)
        assert (again.queue_id, again.queue_offset) == (receipt.queue_id, 1), (
            "a removal moves no message group"
        )


async def test_a_producer_closes_its_connection_to_a_removed_group_and_keeps_that_to_a_silent_one() -> None:
    groups = *two_groups(), FakeGroup("g2", {"orders": 2})
    async with (
        FakeCluster(*groups) as cluster,
        Producer(cluster.address, selector=StrictRoundRobin()) as producer,
    ):
        await producer.send_batch(Message("orders", b"warm") for _ in range(6))
        cluster.nameserver.table.unregister("local", "g1", "n1")
        await leave(
            cluster,
            groups[0],
            drained=lambda: producer._connections["g0"].group.draining,
            gone=lambda: "g0" not in producer._connections,
        )
        assert producer._connections.keys() == {"g1", "g2"}
        assert (await producer.send("orders", b"on")).broker_group == "g2"


# --- consumers ----------------------------------------------------------------------------------------------
async def test_a_push_consumer_leaves_a_removed_group_and_consumes_the_others_on() -> None:
    groups = two_groups()
    async with FakeCluster(*groups) as cluster:
        seen = Seen()
        async with consumer_of(cluster, seen) as consumer:
            await consumer.subscribe("orders")
            await fill(cluster, [b"a", b"b", b"c", b"d"])
            await seen.until(4)

            def consumes_both() -> None:
                assert {each.queue.broker_group for each in consumer.statistics().queues} == {"g0", "g1"}
                group: Any = consumer._groups["g0"]
                group._on_contact(False)  # its leader was not heard before it went

            await leave(
                cluster,
                groups[0],
                drained=lambda: consumer._groups["g0"].group.draining,
                between=consumes_both,
                gone=lambda: "g0" not in consumer._groups,
            )
            await until_set(
                groups[0].coordinators["billing"].changed,
                lambda: not groups[0].coordinators["billing"].members,
            )
            await fill(cluster, [b"e"])
            await seen.until(5)
            assert {each.queue.broker_group for each in consumer.statistics().queues} == {"g1"}
            cluster.set_mode(groups[0], pb.MODE_ACTIVE)  # taken back
            await until(lambda: len(consumer.statistics().queues) == 4)
            await fill(cluster, [b"f"] * 4)
            await seen.until(9)
        assert sum(offset for each in groups for offset in each.committed.values()) == 9


async def test_a_push_consumer_keeps_a_group_that_only_falls_silent() -> None:
    groups = two_groups()
    async with FakeCluster(*groups) as cluster:
        seen = Seen()
        async with consumer_of(cluster, seen) as consumer:
            await consumer.subscribe("orders")
            await until(lambda: len(consumer.statistics().queues) == 4)
            await fall_silent(cluster, consumer)  # the consumer itself hears it
            async with FakeCluster(groups[0]) as other:
                await fill(other, [b"x"])
            await seen.until(1)
            cluster.register(groups[0])


async def test_a_pull_consumer_leaves_a_removed_group_and_reads_it_again_when_it_is_taken_back() -> None:
    groups = two_groups()
    async with FakeCluster(*groups) as cluster, PullConsumer(cluster.address, group="billing") as consumer:
        await consumer.subscribe("orders")
        await fill(cluster, [b"a", b"b"])
        await read(consumer, 2)
        await consumer.commit()
        fetcher = consumer._reader._fetchers["g0"]

        def reads_both() -> None:
            assert len(consumer.assignment) == 4

        await leave(
            cluster,
            groups[0],
            drained=lambda: fetcher.group.draining,
            between=reads_both,
            gone=lambda: consumer._reader._fetchers.keys() == {"g1"},
        )
        assert {queue.broker_group for queue in consumer.assignment} == {"g1"}
        await until(fetcher._task.done)
        await fill(cluster, [b"c"])
        assert await read(consumer, 1) == [b"c"]
        cluster.set_mode(groups[0], pb.MODE_ACTIVE)
        await until(lambda: len(consumer.assignment) == 4)
        assert consumer.missing == ()


async def test_a_simple_consumer_that_acknowledges_into_a_silent_group_is_told_that_it_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not that the topic does not exist, because no route names the group any more."""
    monkeypatch.setattr("ledgermq.client.consume.simple_consumer._CALL_TIMEOUT_S", 0.3)
    groups = two_groups()
    async with FakeCluster(*groups) as cluster, SimpleConsumer(cluster.address, group="billing") as consumer:
        await consumer.subscribe("orders")
        await cluster.node("n1", "g0").stop()
        await fall_silent(cluster, consumer)
        leased: Any = LeasedElsewhere.__new__(LeasedElsewhere)
        with pytest.raises(BrokerUnreachableError):
            await consumer.ack(leased)


class LeasedElsewhere(LeasedMessage):
    """As much of a message of g0 as an acknowledgement needs."""

    topic = "orders"
    queue = MessageQueue("orders", "g0", 0)
    message_id = receipt_handle = "x"


# --- searching ----------------------------------------------------------------------------------------------
class Fetcher(BrokerGroupFetcher[AssignedQueue]):
    """Reads one queue of a broker group in which no node answers; counts its requests for the route."""

    def __init__(self, group: BrokerGroup, channels: Channels) -> None:
        self.refreshed = 0
        buffer = FetchBuffer()
        buffer.assign(AssignedQueue(MessageQueue("orders", "g0", 0), 1, 0, 0))
        super().__init__(group, channels, buffer, 10_000)

    async def refresh(self) -> None:
        self.refreshed += 1

    def arrived(self) -> None:
        raise AssertionError("no node answers")

    def fail(self, error: LedgerMQError) -> None:
        raise error

    async def on_refused(self, refused: list[Refused[AssignedQueue]]) -> None:
        raise AssertionError(refused)


async def test_a_fetcher_of_a_dead_group_asks_for_its_route_rarely_and_wakes_when_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_fetcher, "ROUTE_AGAIN_S", 3600.0)
    channels = Channels()
    nodes = (Node("n1", "127.0.0.1:1", "", alive=True),)
    fetcher = Fetcher(BrokerGroup("local", "g0", 1, "n1", nodes, writable=True), channels)
    tried = 0
    failed = fetcher._failed

    def count(address: str) -> None:
        nonlocal tried
        tried += 1
        failed(address)

    monkeypatch.setattr(fetcher, "_failed", count)
    await until(lambda: tried > 4)
    assert fetcher.refreshed == 1
    fetcher._read.tracker._rounds = 1000  # it has been dead for long: the pauses are as long as they get
    await until(lambda: fetcher._read.tracker._rounds > 1000)
    before = tried
    fetcher.update(BrokerGroup("local", "g0", 2, "", nodes, writable=True))
    await until(lambda: tried > before)
    await fetcher.close()
    await channels.close()


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_drained_taken_back_and_left_unanswered_each_message_is_stored_once(
    seed: int,
) -> None:
    """Also those of message groups, which their callers send again when a drained group refuses them."""
    choose = Random(seed)
    groups = (FakeGroup("g0", {"orders": 2}), FakeGroup("g1", {"orders": 1}), FakeGroup("g2", {"orders": 3}))
    async with FakeCluster(*groups) as cluster, Producer(cluster.address, timeout_ms=20_000) as producer:
        places: list[tuple[str, int, int]] = []

        async def send(number: int) -> None:
            message_group = choose.choice(("", "", "a", "b"))
            while True:
                try:
                    receipt = await producer.send("orders", b"%d" % number, message_group=message_group)
                except BrokerGroupDrainingError:
                    await asyncio.sleep(0)
                    continue
                places.append((receipt.broker_group, receipt.queue_id, receipt.queue_offset))
                return

        async def disturb() -> None:
            for _ in range(30):
                group = choose.choice(groups)
                if choose.random() < 0.4:
                    cluster.node("n1", group.name).drop_answers = 1
                else:
                    drained = sum(each.mode == pb.MODE_DRAINING for each in groups)
                    wanted = pb.MODE_ACTIVE if drained == 2 or choose.random() < 0.5 else pb.MODE_DRAINING
                    known = choose.random() < 0.7  # else producers hear of it by refusals alone
                    (cluster.set_mode if known else _set_unseen)(group, wanted)
                await asyncio.sleep(0.002)
            for group in groups:
                cluster.set_mode(group, pb.MODE_ACTIVE)

        disturbing = asyncio.create_task(disturb())
        number = 0
        while not disturbing.done() or number < 200:
            await asyncio.gather(*(send(number + each) for each in range(8)))
            number += 8
        await disturbing
        assert len(set(places)) == len(places) == number
        assert sum(group.stored() for group in groups) == number, "none twice"


def _set_unseen(group: FakeGroup, mode: pb.BrokerGroupMode) -> None:
    group.mode = mode
