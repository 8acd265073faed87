"""The producer against fake nodes on real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from ledgermq.client import Message, Producer
from ledgermq.client.errors import (
    BufferFullError,
    ClosedError,
    InvalidMessageError,
    MessageTooLargeError,
    NameserversDownError,
    RefusedError,
    SendTimeoutError,
    TopicNotFoundError,
    UsageError,
)
from ledgermq.client.message import MessageQueue, SendReceipt
from ledgermq.proto import route_pb2 as pb

from ..fakes import FakeCluster, FakeGroup
from ..reading import producing


async def test_a_message_is_stored_and_its_receipt_names_the_place() -> None:
    async with producing() as (group, _, producer):
        first = await producer.send("orders", b"one")
        second = await producer.send(Message("orders", b"two", tag="t"))
        assert (first.topic, first.broker_group, first.queue_id, first.queue_offset) == ("orders", "g0", 0, 0)
        assert (second.queue_offset, second.duplicate) == (1, False)
        assert group.stored() == 2


async def test_a_send_chooses_its_queue_by_queues_message_and_argument() -> None:
    """A2.5, as RocketMQ's MessageQueueSelector: before the route is there, and after."""
    seen: list[tuple[str, bytes, int]] = []

    def choose(queues: Sequence[MessageQueue], message: Message, argument: int) -> MessageQueue:
        seen.append((message.tag, message.body, argument))
        return queues[argument % len(queues)]

    async with producing(4) as (_, _, producer):
        early = producer.send_nowait("orders", b"early", selector=choose, argument=7)
        receipts = [await early]
        for order in (7, 2, 7):
            receipts.append(await producer.send("orders", b"x", tag="t", selector=choose, argument=order))
        receipts.append(await producer.send(Message("orders", "y"), selector=choose, argument=1))  # type: ignore[arg-type]
        assert [each.queue_id for each in receipts] == [3, 3, 2, 3, 1]
        assert seen == [("", b"early", 7), *(("t", b"x", each) for each in (7, 2, 7)), ("", b"y", 1)]
        wrong: Any
        for wrong in (lambda queues, message, argument: 0, lambda queues, message, argument: argument[0]):
            with pytest.raises(UsageError, match="selector of a send"):
                await producer.send("orders", b"x", selector=wrong, argument=5)


async def test_sends_at_the_same_time_are_spread_over_the_queues() -> None:
    async with producing(4) as (_, _, producer):
        receipts = await asyncio.gather(*(producer.send("orders", b"x") for _ in range(20)))
        assert set(Counter(each.queue_id for each in receipts)) == {0, 1, 2, 3}
        batch = await producer.send_batch(Message("orders", b"%d" % number) for number in range(12))
        assert set(Counter(each.queue_id for each in batch)) == {0, 1, 2, 3}


async def test_sends_at_the_same_time_share_a_request() -> None:
    async with producing(4) as (_, cluster, producer):
        await producer.send("orders", b"warm")
        receipts = await asyncio.gather(*(producer.send("orders", b"x") for _ in range(500)))
        assert len({(r.queue_id, r.queue_offset) for r in receipts}) == 500
        assert len(cluster.node().requests) <= 4


async def test_receipts_of_a_batch_come_in_the_order_of_its_messages() -> None:
    async with producing() as (_, _, producer):
        receipts = await producer.send_batch(Message("orders", b"%d" % i) for i in range(100))
        assert [r.queue_offset for r in receipts] == list(range(100))


async def test_a_batch_larger_than_what_may_wait_is_sent_in_turns() -> None:
    async with producing(2, max_pending_bytes=20_000) as (group, cluster, producer):
        batch = [Message("orders", b"%04d" % i, tag="t" * (i % 100 == 99)) for i in range(1000)]
        receipts = await producer.send_batch(batch)
        assert len({receipt.message_id for receipt in receipts}) == group.stored() == 1000
        assert len({(receipt.queue_id, receipt.queue_offset) for receipt in receipts}) == 1000
        for queue_id in range(2):
            offsets = [each.queue_offset for each in receipts if each.queue_id == queue_id]
            assert offsets == sorted(offsets), "messages of one queue stay in order"
        assert len(cluster.node().requests) > 5


async def test_a_send_that_is_cancelled_leaves_the_others_alone() -> None:
    async with producing() as (group, _, producer):
        await producer.send("orders", b"warm")
        tasks = [asyncio.create_task(producer.send("orders", b"x")) for _ in range(20)]
        await asyncio.sleep(0)
        tasks[7].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results.pop(7), asyncio.CancelledError)
        assert all(isinstance(result, SendReceipt) for result in results)
        assert group.stored() == 21, "it was on its way"


async def test_messages_of_one_group_stay_in_one_queue_in_order() -> None:
    async with producing(8) as (_, _, producer):
        receipts = [await producer.send("orders", b"%d" % i, message_group="customer-1") for i in range(10)]
        assert len({r.queue_id for r in receipts}) == 1
        assert [r.queue_offset for r in receipts] == list(range(10))


async def test_a_lost_answer_does_not_store_the_message_twice() -> None:
    async with producing() as (group, cluster, producer):
        cluster.node().drop_answers = 1
        receipt = await producer.send("orders", b"once")
        assert receipt.duplicate
        assert group.stored() == 1


async def test_the_hint_of_a_follower_leads_to_the_leader() -> None:
    async with producing(nodes=3) as (group, cluster, producer):
        await producer.send("orders", b"one")
        group.leader, group.term = "n3", 2  # the nameserver does not know yet
        await producer.send("orders", b"two")
        assert group.stored() == 2
        assert cluster.node("n3").requests


async def test_a_killed_leader_costs_no_message() -> None:
    async with producing(4, nodes=3) as (group, cluster, producer):
        await producer.send("orders", b"warm")
        sends = [asyncio.create_task(producer.send("orders", b"%d" % i)) for i in range(200)]
        await cluster.node("n1").stop()
        group.leader, group.term = "n2", 2
        cluster.register(group)
        await asyncio.gather(*sends)
        assert group.stored() == 201


async def test_a_refusal_that_passes_is_waited_out() -> None:
    async with producing() as (_, cluster, producer):
        for code in (pb.TOO_MANY_REQUESTS, pb.OUTCOME_UNKNOWN, pb.NO_QUORUM):
            cluster.node().refusals.append(pb.Refusal(code=code, retryable=True, retry_after_ms=1))
        assert (await producer.send("orders", b"x")).queue_offset == 0


async def test_a_final_refusal_is_raised_and_the_next_message_goes_on() -> None:
    async with producing() as (_, cluster, producer):
        cluster.node().refusals.append(pb.Refusal(code=pb.INVALID_ARGUMENT, message="no"))
        with pytest.raises(RefusedError, match="no"):
            await producer.send("orders", b"x")
        assert (await producer.send("orders", b"y")).queue_offset == 0


async def test_a_full_group_gives_its_messages_to_another_one() -> None:
    full, free = FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {"orders": 1})
    async with FakeCluster(full, free) as cluster, Producer(cluster.address) as producer:
        refusal = pb.Refusal(code=pb.DISK_FULL, message="full", retryable=True, retry_after_ms=5_000)
        cluster.node("n1", "g0").refusals.extend([refusal] * 10)
        receipts = [await producer.send("orders", b"%d" % i) for i in range(4)]
        assert {r.broker_group for r in receipts} == {"g1"}


async def test_a_topic_that_was_created_again_is_found() -> None:
    async with producing() as (group, cluster, producer):
        await producer.send("orders", b"old")
        del group.queues[1, 0]
        group.create_topic("orders", 1)
        cluster.register(group)
        assert (await producer.send("orders", b"new")).queue_offset == 0


async def test_without_a_leader_the_deadline_ends_the_send() -> None:
    async with producing(timeout_ms=300) as (_, cluster, producer):
        await cluster.node().stop()
        with pytest.raises(SendTimeoutError, match="not acknowledged within 300 ms"):
            await producer.send("orders", b"x")


async def test_an_unknown_topic_is_an_error_with_a_suggestion() -> None:
    async with producing() as (_, _, producer):
        with pytest.raises(TopicNotFoundError, match='Did you mean "orders"'):
            await producer.send("order", b"x")


async def test_no_nameserver_is_an_error_that_names_it() -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(NameserversDownError, match=r"1 of 1 nameservers does not answer \(127.0.0.1:1\)"):
            await producer.send("orders", b"x")


async def test_bad_messages_are_refused_and_nothing_is_sent() -> None:
    async with producing() as (group, _, producer):
        with pytest.raises(InvalidMessageError):
            await producer.send("orders", b"")
        with pytest.raises(MessageTooLargeError):
            await producer.send("orders", bytes(5 * 1024 * 1024))
        await producer.send("orders", b"good")
        assert group.stored() == 1


async def test_what_waits_is_bounded() -> None:
    async with producing(max_pending_bytes=10_000) as (_, _, producer):
        await producer.prepare("orders")
        futures = [producer.send_nowait("orders", bytes(4000)) for _ in range(3)]
        with pytest.raises(BufferFullError):
            producer.send_nowait("orders", b"x")
        await producer.ready()
        futures.append(producer.send_nowait("orders", b"x"))
        await asyncio.gather(*futures)


async def test_closing_waits_for_what_is_open() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        async with Producer(cluster.address) as producer:
            await producer.prepare("orders")
            future = producer.send_nowait("orders", b"x")
        assert future.result().queue_offset == 0
        with pytest.raises(ClosedError):
            producer.send_nowait("orders", b"y")


async def test_cached_routes_go_on_working_while_the_nameserver_is_down() -> None:
    async with producing() as (group, cluster, producer):
        await producer.send("orders", b"one")
        await cluster.nameserver.stop(0)
        await producer.send("orders", b"two")
        assert group.stored() == 2


async def test_sends_that_begin_together_wait_for_room_instead_of_failing() -> None:
    """None of them sees the buffer full before the first route is there."""

    async with producing(max_pending_bytes=10_000) as (group, _, producer):
        await asyncio.gather(*(producer.send("orders", bytes(4000)) for _ in range(20)))
        assert group.stored() == 20


async def test_a_bad_message_in_a_batch_is_the_error_and_the_others_are_sent() -> None:
    async with producing() as (group, _, producer):
        batch = [
            Message("orders", b"a"),
            Message("orders", bytes((4 << 20) + 1)),
            Message("nowhere", b"x"),
            Message("nowhere", b"y"),
            Message("orders", b"c"),
        ]
        with pytest.raises(MessageTooLargeError):
            await producer.send_batch(batch)
        assert group.stored() == 2
        with pytest.raises(TopicNotFoundError):
            await producer.send_batch(batch[2:])
        assert group.stored() == 3


async def send_for_ever(producer: Producer, going: asyncio.Event) -> None:
    while True:
        await producer.send("orders", b"x")
        going.set()


async def test_flush_waits_for_what_was_sent_before_it_and_not_for_what_comes_after() -> None:
    async with producing() as (_, _, producer):
        going = asyncio.Event()
        sending = asyncio.create_task(send_for_ever(producer, going))
        await going.wait()
        earlier = producer.send_nowait("orders", b"y")
        await producer.flush()
        assert earlier.done() and not sending.done()
        sending.cancel()


async def test_close_ends_a_task_that_goes_on_sending() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        producer = Producer(cluster.address)
        going = asyncio.Event()
        sending = asyncio.create_task(send_for_ever(producer, going))
        await going.wait()
        await producer.close()
        with pytest.raises(ClosedError):
            await sending


async def test_text_that_is_no_utf8_is_refused_like_any_bad_message() -> None:
    """Python makes such text of command line arguments and file names that are not UTF-8."""

    half = "\udcff"
    labels: tuple[dict[str, Any], ...] = (
        {"tag": half}, {"keys": [half]}, {"properties": {"a": half}}, {"message_group": half},
    )  # fmt: skip
    async with producing() as (group, _, producer):
        for each in labels:
            with pytest.raises(InvalidMessageError, match="UTF-8"):
                await producer.send("orders", b"x", **each)
        with pytest.raises(InvalidMessageError, match="UTF-8"):
            await producer.send("orders", half)
        assert group.stored() == 0
