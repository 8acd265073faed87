"""The synchronous push consumer: what its listeners raise, and who may close it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ledgermq.client.errors import UsageError
from ledgermq.client.message import MessageView
from ledgermq.client.push.options import PushOptions
from ledgermq.client.sync import PushConsumer

from ..fakes import FakeCluster, FakeGroup
from ..push_listeners import QUICK, fill, numbers, until_committed
from ..served import Served, served

_PATIENCE_S = 120


@pytest.fixture
def cluster() -> Iterator[Served[FakeCluster]]:
    with served(lambda: FakeCluster(FakeGroup(topics={"orders": 1}))) as running:
        running.run(fill(running.cluster, numbers(3)))
        yield running


def finished(function: Callable[[], object]) -> Exception | None:
    """Call in a thread what may wait for ever; return what it raised."""
    raised: list[Exception | None] = []

    def work() -> None:
        try:
            function()
            raised.append(None)
        except Exception as error:  # noqa: BLE001
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    assert raised, "it does not return"
    return raised[0]


def committed(cluster: Served[FakeCluster]) -> int:
    return cluster.cluster.groups[0].committed.get(("billing", "orders", 0), 0)


def test_a_listener_that_exits_ends_the_consumer_with_an_error(cluster: Served[FakeCluster]) -> None:
    def listener(messages: list[MessageView]) -> None:
        sys.exit(3)

    consumer = PushConsumer(cluster.address, group="billing", listener=listener, options=QUICK)
    consumer.subscribe("orders")
    error = finished(consumer.run)
    assert isinstance(error, UsageError)
    assert "Call the consumer's close()" in str(error)
    assert finished(consumer.close) is None
    assert committed(cluster) == 0


def test_a_listener_may_raise_what_no_future_takes(cluster: Served[FakeCluster]) -> None:
    calls: list[int] = []

    def listener(messages: list[MessageView]) -> None:
        calls.append(len(messages))
        if len(calls) == 1:
            next(iter(()))

    with PushConsumer(cluster.address, group="billing", listener=listener, options=QUICK) as consumer:
        consumer.subscribe("orders")
        cluster.run(until_committed(cluster.cluster.groups[0], 3))
    assert calls == [3, 1, 1, 1]


def test_a_listener_may_close_its_consumer_and_counts_as_finished(cluster: Served[FakeCluster]) -> None:
    def listener(messages: list[MessageView]) -> None:
        consumer.close()

    options = PushOptions(commit_interval_ms=60_000)
    with PushConsumer(cluster.address, group="billing", listener=listener, options=options) as consumer:
        consumer.subscribe("orders")
        assert finished(consumer.run) is None
    assert committed(cluster) == 3
    assert cluster.cluster.groups[0].coordinators["billing"].members == {}


def test_a_listener_may_close_its_consumer_before_the_program_waits_for_it(
    cluster: Served[FakeCluster],
) -> None:
    closing = threading.Event()

    def listener(messages: list[MessageView]) -> None:
        consumer.close()
        closing.set()

    with PushConsumer(cluster.address, group="billing", listener=listener) as consumer:
        consumer.subscribe("orders")
        assert closing.wait(_PATIENCE_S)
        assert finished(consumer.run) is None
    assert committed(cluster) == 3


class Awaited:
    async def __call__(self, *arguments: Any) -> None:
        raise AssertionError("it is not awaited")


#: What a type checker would not take for an ordinary function.
AWAITED: Any = Awaited()


def test_a_result_that_cannot_be_awaited_ends_the_consumer(cluster: Served[FakeCluster]) -> None:
    consumer = PushConsumer(cluster.address, group="billing", listener=AWAITED, options=QUICK)
    consumer.subscribe("orders")
    error = finished(consumer.run)
    assert isinstance(error, UsageError)
    assert "which is not awaited" in str(error)
    consumer.close()
    assert committed(cluster) == 0


def test_a_hook_that_is_not_awaited_loses_no_message(cluster: Served[FakeCluster]) -> None:
    def listener(messages: list[MessageView]) -> None:
        raise RuntimeError("never")

    options = PushOptions(max_attempts=1, commit_interval_ms=5)
    consumer = PushConsumer(
        cluster.address, group="billing", listener=listener, on_exhausted=AWAITED, options=options
    )
    consumer.subscribe("orders")
    assert isinstance(finished(consumer.run), UsageError)
    consumer.close()
    assert committed(cluster) == 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"listener": Awaited().__call__}, "is a coroutine function"),
        ({"listener": print, "on_exhausted": Awaited().__call__}, "is a coroutine function"),
        ({"listener": None}, "listener is None"),
        ({"listener": print, "on_exhausted": 5}, "on_exhausted is 5"),
        ({"listener": print, "options": 5}, "options is 5"),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_no_thread(wrong: dict[str, Any], says: str) -> None:
    before = threading.enumerate()  # a listener of an earlier test may still end
    with pytest.raises(UsageError, match=says):
        PushConsumer("127.0.0.1:1", group="billing", **wrong)
    begun = [each for each in threading.enumerate() if each not in before]
    assert not [each for each in begun if each.name.startswith("ledgermq-listener")]
