"""Listeners of the push consumer: what fails, what is wanted again, order, limits, the end."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections import Counter

import pytest

from ledgermq.client import MessageView, PushOptions, QueueLimits, RetryLater
from ledgermq.client.errors import ClosedError
from ledgermq.proto.admin_pb2 import ConsumerGroupInfo

from ..fakes import FakeCluster, FakeGroup
from ..push_listeners import Seen, consumer_of, consuming, fill, numbers, until_committed


async def test_what_a_listener_fails_at_is_tried_again_alone_and_skipped_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = FakeGroup(topics={"orders": 1})
    attempts: Counter[bytes] = Counter()

    async def listener(messages: list[MessageView]) -> None:
        attempts.update(message.body for message in messages)
        if any(message.body == b"2" for message in messages):
            raise RuntimeError("no such order")

    options = PushOptions(commit_interval_ms=5, retry_ms=1, longest_retry_ms=2, max_attempts=3)
    async with consuming(group, listener, numbers(5), options=options) as (_, consumer):
        await until_committed(group, 5)
        assert consumer.statistics().skipped == 1
    assert attempts[b"2"] == 3
    assert all(attempts[body] in (1, 2) for body in (b"0", b"1", b"3", b"4"))
    assert "message is skipped after 3 attempts" in caplog.text
    assert "no such order" in caplog.text


async def test_the_group_says_how_often_a_message_is_tried() -> None:
    group = FakeGroup(topics={"orders": 1})
    group.groups["billing"] = ConsumerGroupInfo(name="billing", max_attempts=2)
    attempts = 0

    async def listener(messages: list[MessageView]) -> None:
        nonlocal attempts
        attempts += 1
        raise RuntimeError("never")

    async with consuming(group, listener, [b"a"]):
        await until_committed(group, 1)
    assert attempts == 2


async def test_the_hook_gets_what_failed_for_the_last_time_until_it_takes_it() -> None:
    group = FakeGroup(topics={"orders": 1})
    handed: list[tuple[bytes, str]] = []
    calls = 0

    async def listener(messages: list[MessageView]) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("bad")

    async def hook(message: MessageView, error: Exception | None) -> None:
        handed.append((message.body, repr(error)))
        if len(handed) == 1:
            raise OSError("the other place is full")

    options = PushOptions(commit_interval_ms=5, retry_ms=1, longest_retry_ms=2, max_attempts=1)
    async with consuming(group, listener, [b"a"], options=options, on_exhausted=hook):
        await until_committed(group, 1)
    assert (calls, handed[0]) == (1, (b"a", "ValueError('bad')"))
    assert len(handed) == 2


async def test_a_listener_can_name_what_it_wants_again() -> None:
    group = FakeGroup(topics={"orders": 1})
    seen: list[list[bytes]] = []

    async def listener(messages: list[MessageView]) -> RetryLater | None:
        seen.append([message.body for message in messages])
        odd = [message for message in messages if int(message.body) % 2]
        return RetryLater(odd, delay_ms=1) if len(messages) > 1 else None

    async with consuming(group, listener, numbers(6)) as (_, consumer):
        await until_committed(group, 6)
        assert (consumer.statistics().consumed, consumer.statistics().failed) == (
            6,
            sum(map(len, seen)) - 6,
        )
    assert {body for batch in seen for body in batch} == set(numbers(6))
    assert all(int(batch[0]) % 2 for batch in seen if len(batch) == 1 and seen.index(batch) > 3)


async def test_in_order_one_batch_of_a_queue_is_out_and_what_failed_comes_before_what_follows() -> None:
    group = FakeGroup(topics={"orders": 3})
    out: Counter[int] = Counter()
    done: dict[int, list[int]] = {0: [], 1: [], 2: []}
    failures: Counter[int] = Counter()

    async def listener(messages: list[MessageView]) -> RetryLater | None:
        queue = messages[0].queue_id
        out[queue] += 1
        assert out[queue] == 1, "two batches of one queue"
        await asyncio.sleep(0)
        out[queue] -= 1
        for message in messages:
            number = int(message.body)
            failures[number] += 1
            if number % 7 == 0 and failures[number] == 1:
                return RetryLater([message])
            if number % 11 == 0 and failures[number] == 1:
                raise RuntimeError("not now")
            if number not in done[queue]:
                done[queue].append(number)
        return None

    async with consuming(group, listener, numbers(60), orderly=True):
        await until_committed(group, 20, 20, 20)
    assert all(numbers == sorted(numbers) and len(numbers) == 20 for numbers in done.values())


async def test_in_order_a_message_is_tried_until_it_succeeds() -> None:
    group = FakeGroup(topics={"orders": 1})
    group.groups["billing"] = ConsumerGroupInfo(name="billing", max_attempts=2)
    attempts = 0

    async def listener(messages: list[MessageView]) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 5:
            raise RuntimeError("not yet")

    async with consuming(group, listener, [b"a"], orderly=True) as (_, consumer):
        await until_committed(group, 1)
        assert (attempts, consumer.statistics().skipped) == (5, 0)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_that_cannot_be_read_stops_no_queue(
    orderly: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, too, where what fails is tried for ever: this one can never succeed."""
    monkeypatch.setattr(gzip, "compress", lambda *_, **__: zlib.compress(bytes(5_000_000)))
    group, bodies, calls = FakeGroup(topics={"orders": 1}), list[bytes](), 0

    async def listener(messages: list[MessageView]) -> None:
        nonlocal calls
        calls += 1
        for message in messages:
            bodies.append(message.body)

    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"a", b"b" * 5_000, b"c"])
        async with consumer_of(cluster, listener, orderly=orderly) as consumer:
            await consumer.subscribe("orders")
            await until_committed(group, 3)
            assert consumer.statistics().skipped == 1
    assert set(bodies) == {b"a", b"c"}
    assert calls <= 4, "of all, then of each"
    assert "message is skipped" in caplog.text
    assert "offset 1" in caplog.text and "more than 4,194,304 bytes" in caplog.text


async def test_a_slow_listener_holds_no_more_than_the_limits() -> None:
    group = FakeGroup(topics={"orders": 1, "quick": 1})
    limits = QueueLimits(messages=10)
    options = PushOptions(batch_size=4, concurrency=2, commit_interval_ms=5, limits=limits)
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(40))
        await fill(cluster, numbers(3), "quick")
        seen = Seen()
        async with consumer_of(cluster, seen, options=options) as consumer:
            seen.gate.clear()
            await consumer.subscribe("orders")
            await seen.until(8)
            (queue,) = consumer.statistics().queues
            assert queue.unfinished == 40, "one answer may bring more than the limit"
            assert consumer.statistics().queues[0].running == 2
            seen.gate.set()
            await until_committed(group, 40)
            await consumer.subscribe("quick")
            await until_committed(group, 3, topic="quick")
            await fill(cluster, numbers(30))
            await until_committed(group, 70)


async def test_closing_lets_the_listener_finish_and_stores_it() -> None:
    group = FakeGroup(topics={"orders": 1})
    options = PushOptions(commit_interval_ms=60_000)
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(3))
        seen = Seen()
        consumer = consumer_of(cluster, seen, options=options)
        seen.gate.clear()
        await consumer.subscribe("orders")
        await seen.until(3)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        seen.gate.set()
        await closing
        assert group.committed["billing", "orders", 0] == 3
        assert group.coordinators["billing"].members == {}
        with pytest.raises(ClosedError):
            await consumer.subscribe("orders")
        await consumer.run()
        await consumer.close()


async def test_with_no_interval_a_batch_is_committed_before_the_next_takes_its_place() -> None:
    group = FakeGroup(topics={"orders": 1})
    committed: list[int] = []

    async def listener(messages: list[MessageView]) -> None:
        committed.append(group.committed["billing", "orders", 0])

    options = PushOptions(batch_size=2, concurrency=1, commit_interval_ms=0)
    async with consuming(group, listener, numbers(6), options=options):
        await until_committed(group, 6)
    assert committed == [0, 2, 4]
