"""Every asyncio client has a synchronous twin with the same methods and parameters."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ledgermq import client
from ledgermq.client import PushOptions, sync
from ledgermq.client.errors import ClosedError, UsageError
from ledgermq.client.message import MessageView
from ledgermq.proto import route_pb2 as pb

from ..fake_messaging import MessagingCluster
from ..fakes import FakeCluster, FakeGroup
from ..served import Served, served

TWINS = ("Admin", "BrokerGroupAdmin", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer")
#: What a twin does not have, and why.
OTHERWISE = {
    "Producer": {
        "start": "the constructor does it",
        "prepare": "send_async needs no route",
        "produce": "for a future that no task waits for, send_async has add_done_callback",
        "send_nowait": "send_async is that, from any thread",
    },
    "PullConsumer": {"stretches": "a step of the search for traces"},
}


def public(kind: type) -> dict[str, Any]:
    return {name: each for name, each in inspect.getmembers_static(kind) if not name.startswith("_")}


def words(function: Any) -> list[tuple[str, Any]]:
    return [(each.name, each.default) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_has_every_method_with_the_same_words(name: str) -> None:
    original, twin = public(getattr(client, name)), public(getattr(sync, name))
    left_out = OTHERWISE.get(name, {})
    assert not left_out.keys() & twin.keys()
    for word, each in original.items():
        if word in left_out:
            continue
        assert word in twin, f"sync.{name} has no {word}"
        if inspect.isfunction(each):
            assert words(each) == words(twin[word]), f"{name}.{word}"
            assert not inspect.iscoroutinefunction(twin[word])


def test_there_is_a_twin_of_every_client() -> None:
    clients = {
        name for name in client.__all__ if hasattr(getattr(client, name), "close") and name != "LedgerMQError"
    }
    assert clients == set(TWINS)


@pytest.fixture
def cluster() -> Iterator[Served[MessagingCluster]]:
    with served(lambda: MessagingCluster(FakeGroup(topics={"orders": 1}))) as running:
        yield running


def test_a_simple_consumer_receives_acknowledges_and_moves_leases(cluster: Served[MessagingCluster]) -> None:
    cluster.call(cluster.cluster.messages.add, b"a", b"b", b"c")
    with sync.SimpleConsumer(cluster.address, group="billing") as consumer:
        with pytest.raises(UsageError, match="subscribe"):
            consumer.receive()
        consumer.subscribe("orders", "*")
        first, second = consumer.receive(2, invisible_ms=20_000)
        consumer.ack(first)
        handle = second.receipt_handle
        consumer.change_invisible(second, 60_000)
        assert second.receipt_handle != handle, "a longer lease has a new handle"
        consumer.ack(second)
        third = next(iter(consumer))
        consumer.change_invisible(third, 0)
        (again,) = consumer.receive(timeout_ms=1_000)
        assert (first.body, second.body, again.body) == (b"a", b"b", b"c")
        assert consumer.statistics()["g0"].received == 4
    assert cluster.cluster.messages.acked == [b"a", b"b"]
    assert list(consumer) == []
    with pytest.raises(ClosedError):
        consumer.receive()


def test_a_flush_waits_for_what_was_handed_over(cluster: Served[MessagingCluster]) -> None:
    with sync.Producer(cluster.address) as producer:
        producer.flush()
        producer.timeout_ms += 20_000
        assert producer.timeout_ms == 30_000
        futures = [producer.send_async("orders", b"%d" % number) for number in range(50)]
        producer.flush()
        assert all(future.done() for future in futures)
    with pytest.raises(ClosedError):
        producer.flush()


def test_a_push_consumer_does_not_wait_longer_for_listeners_than_it_is_told(
    cluster: Served[MessagingCluster],
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def listener(messages: list[MessageView]) -> None:
        entered.set()
        leave.wait(30)

    with sync.Producer(cluster.address) as producer:
        producer.send("orders", b"stuck")
    consumer = sync.PushConsumer(
        cluster.address, group="billing", listener=listener, options=PushOptions(commit_interval_ms=5)
    )
    try:
        consumer.subscribe("orders")
        assert entered.wait(20)
        consumer.close(timeout_ms=1)
        assert not leave.is_set()
        assert cluster.cluster.groups[0].committed["billing", "orders", 0] == 0, "its message comes again"
    finally:
        leave.set()


def test_broker_groups_are_added_drained_taken_back_and_removed() -> None:
    old, new = FakeGroup("g0", {"orders": 2}), FakeGroup("g1")
    with served(lambda: FakeCluster(old, new)) as running, sync.BrokerGroupAdmin(running.address) as admin:
        assert [group.name for group in admin.groups()] == ["g0", "g1"]
        assert [info.name for info in admin.add_group("g1", dry_run=True).topics.missing] == ["orders"]
        admin.add_group("g1", source="g0")
        assert new.topics["orders"][1] == 2
        admin.drain("g0")
        assert old.mode == pb.MODE_DRAINING
        assert not admin.left(admin.group("g0")).waiting
        admin.undrain("g0", allow_reordering=True)
        assert old.mode == pb.MODE_ACTIVE
        assert admin.lag().rows == admin.progress() == []
        admin.drain("g1")
        admin.remove_group("g1")
        assert new.mode == pb.MODE_REMOVED
