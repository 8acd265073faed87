"""Consumers of real brokers: leases, redelivery, filters, offsets, order, also with a dead leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import grpc
import pytest

from ledgermq.client import Admin, LeasedMessage, Producer, PullConsumer, SimpleConsumer
from ledgermq.client.errors import InvalidHandleError, UsageError
from ledgermq.client.sync import Consumer
from ledgermq.proto import admin_pb2, rocketmq_v2_pb2_grpc
from ledgermq.proto import rocketmq_v2_pb2 as v2

from .cluster import Cluster
from .history import on_client_loop, run_client

LONG_MS = 60_000  # a lease that no test outlives
#: One that is waited for: what a leader leased and took with it comes again when it ends.
LOST_MS = 10_000
SHORT_MS = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("consumption")
    with Cluster(
        folder,
        nodes=3,
        settings={"min-invisible-ms": "50", "segment-size": "8MiB", "max-message-bytes": "1MiB"},
    ) as running:
        yield running


@pytest.fixture
def nameserver(cluster: Cluster) -> str:
    return cluster.nameserver


def fail_over(cluster: Cluster) -> str:
    """kill -9 the leader; return its name when another one leads."""
    leader = cluster.kill_leader()
    cluster.wait_leader(other_than=leader)
    return leader


@asynccontextmanager
async def consumer_of(
    nameserver: str,
    topic: str,
    group: str,
    expression: str = "*",
    *,
    fifo: bool = False,
    invisible_ms: int = LONG_MS,
) -> AsyncIterator[SimpleConsumer]:
    """A consumer of a consumer group that begins at the first message."""
    async with Admin(nameserver) as admin:
        await admin.create_group(group, fifo=fifo, if_not_exists=True)
    async with SimpleConsumer(nameserver, group=group, invisible_ms=invisible_ms) as consumer:
        await consumer.subscribe(topic, expression)
        yield consumer


async def create_topic(nameserver: str, topic: str, queues: int = 2, message_type: str = "normal") -> None:
    async with Admin(nameserver) as admin:
        await admin.create_topic(topic, queues, message_type=message_type)


async def send(nameserver: str, topic: str, bodies: Sequence[str], tag: str = "") -> None:
    async with Producer(nameserver) as producer:
        await asyncio.gather(*(producer.send(topic, body, tag=tag) for body in bodies))


def bodies_of(messages: Sequence[LeasedMessage]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


def numbered(prefix: str, count: int) -> list[str]:
    return sorted(f"{prefix}-{number:03}" for number in range(count))


async def receive(consumer: SimpleConsumer, count: int, invisible_ms: int = LONG_MS) -> list[LeasedMessage]:
    """Receive exactly `count` messages, with leases of `invisible_ms`."""
    found: list[LeasedMessage] = []
    while len(found) < count:
        found += await consumer.receive(count - len(found), invisible_ms=invisible_ms)
    return found


async def acknowledge(consumer: SimpleConsumer, messages: Sequence[LeasedMessage]) -> None:
    await asyncio.gather(*(consumer.ack(message) for message in messages))


async def assert_consumed(nameserver: str, group: str, topic: str, count: int) -> None:
    """Everything is acknowledged: no lease is open, and nothing is left to deliver."""
    async with Admin(nameserver) as admin:
        _, progress = await admin.describe_group(group, topic)
    assert sum(each.leased for _, each in progress) == 0
    assert sum(each.committed_offset for _, each in progress) == count
    assert all(each.committed_offset == each.end_offset for _, each in progress)


# --- leases -----------------------------------------------------------------------------------------------


@on_client_loop
async def test_only_what_is_not_acknowledged_comes_again_after_the_invisible_time(nameserver: str) -> None:
    topic, group = "leases", "leases-readers"
    await create_topic(nameserver, topic)
    await send(nameserver, topic, numbered("m", 20))
    async with consumer_of(nameserver, topic, group) as consumer:
        done = await receive(consumer, 10)
        await acknowledge(consumer, done)
        left = await receive(consumer, 10, SHORT_MS)
        assert bodies_of([*done, *left]) == numbered("m", 20)
        again = await receive(consumer, 10)  # waits for the end of the leases
        assert bodies_of(again) == bodies_of(left)
        assert {message.delivery_attempt for message in again} == {2}
        with pytest.raises(InvalidHandleError):
            await consumer.ack(left[0])  # its lease has ended, and there is a new one
        await acknowledge(consumer, again)
        await assert_consumed(nameserver, group, topic, 20)


def test_a_message_that_is_given_back_comes_at_once_or_after_its_delay(nameserver: str) -> None:
    run_client(create_topic(nameserver, "nacks", 1))
    run_client(send(nameserver, "nacks", ["only"]))
    with Consumer(nameserver, group="nack-readers", topic="nacks", invisible_ms=LONG_MS) as consumer:
        for attempt, delay_ms in enumerate((0, 0, SHORT_MS), 1):
            (message,) = consumer.receive(1)
            assert message.delivery_attempt == attempt
            message.nack(delay_ms)
        (message,) = consumer.receive(1)
        message.ack()
    run_client(assert_consumed(nameserver, "nack-readers", "nacks", 1))


@on_client_loop
async def test_a_lease_that_is_prolonged_stays_with_its_consumer(nameserver: str) -> None:
    topic, group = "prolonged", "prolonged-readers"
    await create_topic(nameserver, topic, 1)
    await send(nameserver, topic, ["only"])
    async with consumer_of(nameserver, topic, group) as consumer:
        (message,) = await receive(consumer, 1, 3000)
        first_handle = message.receipt_handle
        await consumer.change_invisible(message, LONG_MS)
        assert await consumer.receive(1, timeout_ms=3500) == [], "the first lease would be over"
        new_handle, message.receipt_handle = message.receipt_handle, first_handle
        with pytest.raises(InvalidHandleError):
            await consumer.ack(message)
        message.receipt_handle = new_handle
        await consumer.ack(message)
        await assert_consumed(nameserver, group, topic, 1)


# --- consumer groups and filters --------------------------------------------------------------------------


@on_client_loop
async def test_filters_deliver_their_tags_and_pass_over_the_others(nameserver: str) -> None:
    topic = "tags"
    await create_topic(nameserver, topic)
    for tag in ("a", "b", "c"):
        await send(nameserver, topic, numbered(tag, 10), tag=tag)
    await send(nameserver, topic, numbered("none", 10))
    for group, expression, wanted in (
        ("tags-ab", "a || b", numbered("a", 10) + numbered("b", 10)),
        ("tags-c", "c", numbered("c", 10)),
        (
            "tags-all",
            "*",
            sorted(numbered("a", 10) + numbered("b", 10) + numbered("c", 10) + numbered("none", 10)),
        ),
    ):
        async with consumer_of(nameserver, topic, group, expression) as consumer:
            messages = await receive(consumer, len(wanted))
            assert bodies_of(messages) == wanted
            assert await consumer.receive(timeout_ms=0) == []
            await acknowledge(consumer, messages)


@on_client_loop
async def test_consumers_of_a_group_share_and_groups_do_not(nameserver: str) -> None:
    topic = "shared"
    await create_topic(nameserver, topic, 3)
    await send(nameserver, topic, numbered("m", 60))
    for group in ("shared-one", "shared-two"):
        received: list[LeasedMessage] = []

        async def share(consumer: SimpleConsumer, into: list[LeasedMessage] = received) -> None:
            while messages := await consumer.receive(4, timeout_ms=0):
                into += messages
                await acknowledge(consumer, messages)

        async with (
            consumer_of(nameserver, topic, group) as first,
            consumer_of(nameserver, topic, group) as second,
        ):
            await asyncio.gather(share(first), share(second))
        assert bodies_of(received) == numbered("m", 60)
        await assert_consumed(nameserver, group, topic, 60)


@on_client_loop
async def test_a_waiting_receive_and_a_waiting_poll_get_the_next_message_of_another_producer(
    nameserver: str,
) -> None:
    topic = "waiting"
    await create_topic(nameserver, topic, 1)
    async with (
        consumer_of(nameserver, topic, "waiting-readers") as leasing,
        PullConsumer(nameserver) as pulling,
    ):
        await pulling.subscribe(topic)
        for number in range(5):
            received = asyncio.create_task(leasing.receive(1))
            polled = asyncio.create_task(pulling.poll(1))
            done, _ = await asyncio.wait([received, polled], timeout=0.2)
            assert not done, "there is no message yet"
            await send(nameserver, topic, [f"wake up {number}"])
            (message,) = await received
            assert [each.body for each in await polled] == [message.body] == [f"wake up {number}".encode()]
            await leasing.ack(message)


@on_client_loop
async def test_a_group_is_reset_to_the_first_message_the_last_and_a_time(nameserver: str) -> None:
    topic, group = "reset", "reset-readers"
    await create_topic(nameserver, topic, 2)
    await send(nameserver, topic, numbered("old", 20))
    await asyncio.sleep(0.01)  # log time has steps of 1 ms
    await send(nameserver, topic, numbered("young", 20))
    async with consumer_of(nameserver, topic, group) as consumer, Admin(nameserver) as admin:
        messages = await receive(consumer, 40)
        await acknowledge(consumer, messages[:10])  # the other leases are open when the group is reset
        border = min(each.store_timestamp for each in messages if each.body.startswith(b"young"))
        for to, wanted in (
            ("earliest", numbered("old", 20) + numbered("young", 20)),
            (str(border), numbered("young", 20)),
            ("latest", []),
        ):
            await admin.reset_offsets(group, topic, to)
            again = await receive(consumer, len(wanted))
            assert bodies_of(again) == wanted, f"after a reset to {to}"
            assert await consumer.receive(timeout_ms=0) == []
        await assert_consumed(nameserver, group, topic, 40)
        await send(nameserver, topic, ["after"])
        assert bodies_of(await receive(consumer, 1)) == ["after"]


# --- failover ---------------------------------------------------------------------------------------------


@on_client_loop
async def test_offsets_and_leases_outlive_the_leader(cluster: Cluster, nameserver: str) -> None:
    topic, group = "leases-failover", "leases-failover-readers"
    await create_topic(nameserver, topic)
    await send(nameserver, topic, numbered("m", 40))
    async with consumer_of(nameserver, topic, group) as consumer:
        done = await receive(consumer, 10)
        await acknowledge(consumer, done)
        kept = await receive(consumer, 10)
        dropped = await receive(consumer, 10, 1000)
        killed = await asyncio.to_thread(fail_over, cluster)
        rest = await receive(consumer, 20)
        assert bodies_of([*done, *kept, *rest]) == numbered("m", 40), "acknowledged or leased came again"
        attempts = {message.body: message.delivery_attempt for message in rest}
        assert [attempts[message.body] for message in dropped] == [2] * 10
        await acknowledge(consumer, kept)  # handles of the dead leader
        await acknowledge(consumer, rest)
        await assert_consumed(nameserver, group, topic, 40)
        await asyncio.to_thread(cluster.restart, killed)
        await assert_consumed(nameserver, group, topic, 40)


@on_client_loop
async def test_a_pull_consumer_reads_on_and_another_resumes_through_a_failover(
    cluster: Cluster, nameserver: str
) -> None:
    async def read(consumer: PullConsumer, count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            found += [message.body.decode() for message in await consumer.poll(count - len(found))]
        return found

    topic, group = "pulled", "pulled-readers"
    await create_topic(nameserver, topic, 3)
    await send(nameserver, topic, numbered("m", 90))
    async with PullConsumer(nameserver, group=group) as consumer:
        await consumer.subscribe(topic)
        first = await read(consumer, 30)
        await consumer.commit()
        second = await read(consumer, 10)
        killed = await asyncio.to_thread(fail_over, cluster)
        third = await read(consumer, 50)
        assert sorted(first + second + third) == numbered("m", 90), "a gap or a repetition"
        await send(nameserver, topic, ["new"])
        assert await read(consumer, 1) == ["new"]
    async with PullConsumer(nameserver, group=group) as resumed:
        await resumed.subscribe(topic)
        assert sorted(await read(resumed, 61)) == sorted([*second, *third, "new"])
        await resumed.commit()
        await resumed.seek_to_beginning(topic)
        assert sorted(await read(resumed, 91)) == [*numbered("m", 90), "new"]
        # Messages that were sent together share a queue: take one that has enough of them.
        queue = max(resumed.assignment, key=resumed.position)
        resumed.seek(queue, 3)
        (message,) = await resumed.poll(1)
        assert (message.queue, message.queue_offset) == (queue, 3)
    await asyncio.to_thread(cluster.restart, killed)


@on_client_loop
async def test_message_groups_keep_their_order_through_a_failover(cluster: Cluster, nameserver: str) -> None:
    groups, count = 5, 60

    async def produce(topic: str) -> None:
        async with Producer(nameserver, timeout_ms=30_000) as producer:

            async def one(name: str) -> None:
                for number in range(count):
                    await producer.send(topic, f"{name}-{number:03}", message_group=name)

            await asyncio.gather(*(one(f"g{number}") for number in range(groups)))

    async def consume(consumer: SimpleConsumer, acknowledged: list[str], halfway: asyncio.Event) -> None:
        while len(acknowledged) < groups * count:
            for message in await consumer.receive(8):
                await consumer.ack(message)
                acknowledged.append(message.body.decode())
            if len(acknowledged) > groups * count // 4:
                halfway.set()

    topic = "ordered"
    await create_topic(nameserver, topic, 3, "fifo")
    acknowledged: list[str] = []
    halfway = asyncio.Event()
    reading = consumer_of(nameserver, topic, "ordered-readers", fifo=True, invisible_ms=LOST_MS)
    async with reading as consumer:
        consuming = asyncio.create_task(consume(consumer, acknowledged, halfway))
        producing = asyncio.create_task(produce(topic))
        await halfway.wait()
        killed = await asyncio.to_thread(fail_over, cluster)
        await producing
        await consuming
    for number in range(groups):
        of_group = [body for body in acknowledged if body.startswith(f"g{number}-")]
        assert of_group == numbered(f"g{number}", count)
    await asyncio.to_thread(cluster.restart, killed)


# --- parking ----------------------------------------------------------------------------------------------


async def deliveries_of(nameserver: str, group: str) -> admin_pb2.GetDeliveriesResponse:
    async with Admin(nameserver) as admin:
        ((_, told),) = await admin.deliveries(group)
    return told


def test_a_poison_message_is_parked_in_sight_and_comes_again_when_it_is_released(
    cluster: Cluster, nameserver: str
) -> None:
    topic, group = "poison", "poison-readers"

    async def fail() -> str:
        async with Admin(nameserver) as admin:
            await admin.create_topic(topic, 1)
            await admin.create_group(group, max_attempts=2)
        await send(nameserver, topic, ["poison"])
        async with SimpleConsumer(nameserver, group=group, invisible_ms=LONG_MS) as consumer:
            await consumer.subscribe(topic)
            (first,) = await receive(consumer, 1)
            (holder,) = (await deliveries_of(nameserver, group)).holders
            assert (holder.client_id, holder.leases) == (consumer._client_id, 1)
            assert holder.oldest_ms and not holder.by_session
            await consumer.change_invisible(first, 0)
            (second,) = await receive(consumer, 1)
            assert second.delivery_attempt == 2
            await consumer.change_invisible(second, 0)
            await send(nameserver, topic, ["good"])
            (good,) = await receive(consumer, 1)
            assert good.body == b"good"
            await consumer.ack(good)
            await assert_consumed(nameserver, group, topic, 2)
        return second.message_id

    async def release(message_id: str) -> None:
        told = await deliveries_of(nameserver, group)
        (parked,) = told.parked
        assert (parked.message_id, parked.topic, parked.attempts) == (message_id, topic, 2)
        assert (parked.queue_offset, told.parked_count, len(told.holders)) == (0, 1, 0)
        async with Admin(nameserver) as admin:
            with pytest.raises(UsageError, match="no parked message"):
                await admin.release_parked(group, message_id="other")
            assert await admin.release_parked(group, topic, message_id=message_id) == 1
            assert await admin.release_parked(group) == 0
        async with SimpleConsumer(nameserver, group=group, invisible_ms=LONG_MS) as consumer:
            await consumer.subscribe(topic)
            (again,) = await receive(consumer, 1)
            assert (again.message_id, again.delivery_attempt) == (message_id, 1)
            await consumer.ack(again)
        await assert_consumed(nameserver, group, topic, 2)

    poison = run_client(fail())
    killed = fail_over(cluster)
    run_client(release(poison))
    cluster.restart(killed)


@on_client_loop
async def test_an_ordered_message_that_its_consumer_gives_up_is_parked_and_its_queue_goes_on(
    cluster: Cluster, nameserver: str
) -> None:
    topic, group = "given-up", "given-up-readers"
    async with Admin(nameserver) as admin:
        await admin.create_topic(topic, 1, message_type="fifo")
        await admin.create_group(group, fifo=True)
    async with Producer(nameserver) as producer:
        for body in ("bad", "good"):
            await producer.send(topic, body, message_group="g")
    async with SimpleConsumer(nameserver, group=group, invisible_ms=LONG_MS) as consumer:
        await consumer.subscribe(topic)
        (bad,) = await receive(consumer, 1)
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=bad.receipt_handle, message_id=bad.message_id,
            delivery_attempt=17, max_delivery_attempts=17,
        )  # fmt: skip
        request.group.name, request.topic.name = group, topic
        for _ in range(2):  # clients repeat it until it succeeds
            assert forward(cluster, request) == v2.OK
        (good,) = await receive(consumer, 1)
        assert good.body == b"good"
        await consumer.ack(good)
        assert forward(cluster, request) == v2.OK
        request.receipt_handle = "nonsense"
        assert forward(cluster, request) == v2.INVALID_RECEIPT_HANDLE
    (parked,) = (await deliveries_of(nameserver, group)).parked
    assert (parked.message_id, parked.attempts) == (bad.message_id, 17)
    assert parked.reason == admin_pb2.PARK_FORWARDED
    await assert_consumed(nameserver, group, topic, 2)


def forward(cluster: Cluster, request: v2.ForwardMessageToDeadLetterQueueRequest) -> int:
    """Call a follower, as an official client would."""
    leader = cluster.wait_leader()
    node = cluster.others(leader)[0]
    with grpc.insecure_channel(cluster.address(node, "messaging")) as channel:
        stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(channel)
        metadata = (("x-mq-client-id", "official"),)
        return int(stub.ForwardMessageToDeadLetterQueue(request, metadata=metadata, timeout=10).status.code)
