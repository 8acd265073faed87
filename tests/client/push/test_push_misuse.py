"""Listeners of the push consumer that do what they should not: nothing is lost by that, and nothing stands
still in silence.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from ledgermq.client import MessageView, PushConsumer, PushOptions, QueueLimits, RetryLater
from ledgermq.client.errors import UsageError

from ..fakes import FakeCluster, FakeGroup
from ..push_listeners import Seen, consumer_of, consuming, fill, numbers, until_committed


class Odd(BaseException):
    """What test frameworks and other event loops raise."""


def later(**wrong: Any) -> RetryLater:
    return RetryLater(**wrong)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_listener_may_empty_its_list_and_what_it_failed_at_comes_again(orderly: bool) -> None:
    group = FakeGroup(topics={"orders": 1})
    done: list[bytes] = []
    failed: list[bytes] = []

    async def listener(messages: list[MessageView]) -> None:
        while messages:
            body = messages.pop(0).body
            if body == b"2" and not failed:
                failed.append(body)
                raise RuntimeError("not now")
            done.append(body)

    async with consuming(group, listener, numbers(5), orderly=orderly):
        await until_committed(group, 5)
    assert set(done) == set(numbers(5))


async def test_a_listener_that_empties_its_list_gets_more() -> None:
    group = FakeGroup(topics={"orders": 1})
    options = PushOptions(batch_size=2, commit_interval_ms=5, limits=QueueLimits(messages=4))

    async def listener(messages: list[MessageView]) -> None:
        messages.clear()

    async with consuming(group, listener, numbers(40), options=options) as (cluster, consumer):
        await until_committed(group, 40)
        await fill(cluster, numbers(10))
        await until_committed(group, 50)
        assert consumer.statistics().queues[0].unfinished == 0


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda messages: later(messages=messages[0]), "messages of RetryLater is of type MessageView"),
        (lambda messages: later(messages=5), "messages of RetryLater is of type int"),
        (lambda messages: later(messages=[[]]), "wants messages again that it was not given"),
        (lambda messages: later(delay_ms="5"), "delay_ms of RetryLater is '5'"),
        (lambda messages: later(delay_ms=math.nan), "delay_ms of RetryLater is nan"),
        (lambda messages: later(delay_ms=math.inf), "delay_ms of RetryLater is inf"),
        (lambda messages: later(delay_ms=-1), "delay_ms of RetryLater is -1"),
        (lambda messages: RetryLater, "the listener returned <class"),
        (lambda messages: True, "the listener returned True"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_told_and_its_messages_come_again(
    answer: Any, says: str, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    group = FakeGroup(topics={"orders": 1})
    seen: list[bytes] = []

    async def listener(messages: list[MessageView]) -> Any:
        seen.extend(message.body for message in messages)
        return answer(messages) if len(seen) == 3 else None

    async with consuming(group, listener, numbers(3), orderly=orderly):
        await until_committed(group, 3)
    assert seen == numbers(3) * 2
    assert says in caplog.text


async def test_whatever_a_listener_raises_its_messages_come_again() -> None:
    group = FakeGroup(topics={"orders": 1})
    calls = 0

    async def listener(messages: list[MessageView]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Odd

    async with consuming(group, listener, [b"a"]):
        await until_committed(group, 1)
    assert calls == 2


async def test_an_ordinary_function_ends_the_consumer_at_its_first_call_and_nothing_is_committed() -> None:
    group = FakeGroup(topics={"orders": 1})
    calls: list[int] = []

    def listener(messages: list[MessageView]) -> None:
        calls.append(len(messages))

    options = PushOptions(retry_ms=0, commit_interval_ms=5, max_attempts=2)
    async with consuming(group, listener, [b"a"], options=options) as (_, consumer):
        with pytest.raises(UsageError, match="Write async def"):
            await consumer.run()
    assert (calls, group.commits) == ([1], [])


async def test_a_hook_that_is_an_ordinary_function_ends_the_consumer_too() -> None:
    group = FakeGroup(topics={"orders": 1})
    handed: list[MessageView] = []

    async def listener(messages: list[MessageView]) -> None:
        raise RuntimeError("never")

    def hook(message: MessageView, error: Exception | None) -> None:
        handed.append(message)

    options = PushOptions(retry_ms=0, commit_interval_ms=5, max_attempts=1)
    async with consuming(group, listener, [b"a"], options=options, on_exhausted=hook) as (_, consumer):
        with pytest.raises(UsageError, match="Write async def"):
            await consumer.run()
    assert (len(handed), group.commits) == (1, [])


def test_pauses_double_also_when_the_first_one_is_none() -> None:
    """Else what always fails would be tried as fast as the machine can."""
    none = PushOptions(retry_ms=0, longest_retry_ms=50)
    assert [none.pause_ms(attempt) for attempt in (1, 2, 3, 4, 9, 99)] == [0, 1, 3, 7, 50, 50]
    some = PushOptions(retry_ms=10, longest_retry_ms=50)
    assert [some.pause_ms(attempt) for attempt in (1, 2, 3, 4, 99)] == [10, 20, 40, 50, 50]


@pytest.mark.parametrize("by", ["itself", "a task of it"])
@pytest.mark.parametrize("commit_interval_ms", [0, 60_000])
async def test_a_listener_may_close_its_consumer_and_counts_as_finished(
    by: str, commit_interval_ms: int
) -> None:
    group = FakeGroup(topics={"orders": 1})

    async def listener(messages: list[MessageView]) -> None:
        closing = consumer.close()
        await (closing if by == "itself" else asyncio.create_task(closing))

    options = PushOptions(commit_interval_ms=commit_interval_ms)
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(3))
        async with consumer_of(cluster, listener, options=options) as consumer:
            await consumer.subscribe("orders")
            await consumer.run()
        assert group.committed["billing", "orders", 0] == 3
        assert group.coordinators["billing"].members == {}


async def test_who_waits_for_the_end_may_give_up_and_wait_again() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"a"])
        seen = Seen()
        seen.gate.clear()
        consumer = consumer_of(cluster, seen)
        await consumer.subscribe("orders")
        await seen.until(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await consumer.close()
        seen.gate.set()
        await consumer.close()
        assert group.committed["billing", "orders", 0] == 1
        assert group.coordinators["billing"].members == {}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"listener": None}, "listener is None"),
        ({"on_exhausted": "skip"}, "on_exhausted is 'skip'"),
        ({"start": None}, "start is None"),
        ({"start": 1767225600000}, "as text"),
        ({"start": "9" * 19}, "start is '9999999999999999999'"),
    ],
)
async def test_arguments_of_the_wrong_kind_are_refused_before_anything_is_tried(
    wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        PushConsumer("127.0.0.1:1", group="billing", **{"listener": Seen(), **wrong})
