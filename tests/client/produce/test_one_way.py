"""One-way messages, and messages whose topic has no route yet, against fake nodes on real sockets."""

from __future__ import annotations

import asyncio
import logging
import random
from concurrent.futures import Future
from typing import Any

import pytest

from ledgermq.client import Message, Producer
from ledgermq.client.errors import (
    BufferFullError,
    ClosedError,
    InvalidMessageError,
    InvalidNameError,
    MessageTooLargeError,
    NameserversDownError,
    TopicNotFoundError,
)
from ledgermq.client.message import SendReceipt
from ledgermq.client.pauses import REPORT_S
from ledgermq.client.produce.one_way import OneWay
from ledgermq.proto import route_pb2 as pb

from ..fakes import FakeCluster, FakeGroup
from ..reading import producing
from .test_producer_sizes import stored


async def test_a_one_way_message_is_stored_without_waiting_for_route_or_answer() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        async with Producer(cluster.address) as producer:
            assert producer.send_oneway("orders", b"0") is True
            assert producer.send_oneway(Message("orders", b"1", tag="t"))
            assert producer.send_oneway("orders", "2", keys=["k"])
            await producer.flush()
            assert producer.send_oneway("orders", b"3")
        assert [body for body, _ in stored(group)] == [b"0", b"1", b"2", b"3"]
        assert producer.statistics() == ("", 4, 0, 4, 0, 0)


async def test_what_has_no_room_is_dropped_and_counted() -> None:
    async with producing(group="shop", max_pending_bytes=10_000) as (group, _, producer):
        await producer.prepare("orders")
        taken = [producer.send_oneway("orders", bytes(4000)) for _ in range(5)]
        assert taken == [True, True, True, False, False]
        await producer.flush()
        assert producer.send_oneway("orders", b"x")
        await producer.flush()
        assert producer.statistics() == ("shop", 4, 0, 4, 0, 2)
        assert group.stored() == 4


async def test_what_a_broker_refuses_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        async with Producer(cluster.address, group="shop") as producer:
            cluster.node().refusals.append(pb.Refusal(code=pb.INVALID_ARGUMENT, message="not like this"))
            assert producer.send_oneway("orders", b"x")
            assert producer.send_oneway("nowhere", b"x")
            await producer.flush()
            counts = producer.statistics()
        assert (counts.failed, counts.one_way_failed, counts.one_way_stored) == (2, 2, 0)
    lost = [
        record.getMessage() for record in caplog.records if record.name == "ledgermq.client.produce.one_way"
    ]
    assert sum(int(line.partition("failed=")[2].split()[0]) for line in lost) == 2
    assert all("group=shop" in line for line in lost)
    assert "does not exist" in lost[-1] or "not like this" in lost[-1]


async def test_a_wrong_call_is_an_error_at_once() -> None:
    wrong: tuple[tuple[Any, dict[str, Any]], ...] = (
        (b"", {}), (None, {}), (b"x", {"tag": "a|b"}), (b"x", {"keys": "ab"}),
    )  # fmt: skip
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        producer = Producer(cluster.address)
        for prepared in (False, True):
            for body, labels in wrong:
                with pytest.raises(InvalidMessageError):
                    producer.send_oneway("orders", body, **labels)
            with pytest.raises(MessageTooLargeError):
                producer.send_oneway("orders", bytes((4 << 20) + 1))
            if not prepared:
                await producer.prepare("orders")
        with pytest.raises(InvalidNameError):
            producer.send_oneway("no name", b"x")
        await producer.close()
        with pytest.raises(ClosedError):
            producer.send_oneway("orders", b"x")
        assert producer.statistics() == ("", 0, 0, 0, 0, 0)
        assert group.stored() == 0


# --- the log line -------------------------------------------------------------------------------------------


def outcome(error: Exception | None) -> Future[SendReceipt]:
    future: Future[SendReceipt] = Future()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(SendReceipt("id", "orders", "g0", 0, 0))
    return future


def no_room() -> Future[SendReceipt]:
    raise BufferFullError(1, 1)


def test_many_losses_are_one_line_and_the_next_comes_later(caplog: pytest.LogCaptureFixture) -> None:
    one_way = OneWay("shop")
    one_way.report(0)
    assert one_way.send(lambda: outcome(None))
    one_way.report(0)
    assert not caplog.records, "nothing is lost"
    for _ in range(1000):
        assert one_way.send(lambda: outcome(ValueError("no luck")))
    assert not one_way.send(no_room)
    one_way.report(5)
    assert not one_way.send(no_room)
    one_way.report(5 + int(1000 * REPORT_S) - 1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "failed=1000 reason=no luck dropped=1 " in caplog.text
    caplog.clear()
    one_way.report(5 + int(1000 * REPORT_S))
    assert "failed=0 reason= dropped=1 " in caplog.text
    assert one_way.send(lambda: outcome(ValueError("again")))
    one_way.report(5 + int(1000 * REPORT_S) + 1, last=True)
    assert "failed=1 reason=again dropped=0 " in caplog.text
    assert (one_way.stored, one_way.failed, one_way.dropped) == (1, 1001, 2)


# --- before the route ---------------------------------------------------------------------------------------


async def test_messages_that_are_queued_before_the_route_go_first_and_in_order() -> None:
    async with producing() as (group, _, producer):
        futures = [producer.send_nowait("orders", b"%d" % number) for number in range(3)]
        later = asyncio.create_task(producer.send("orders", b"4"))
        futures.append(producer.send_nowait("orders", b"3", tag="t", message_group="m"))
        assert [(await future).queue_offset for future in futures] == [0, 1, 2, 3]
        assert (await later).queue_offset == 4
        assert [body for body, _ in stored(group)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_waits_for_its_route_counts_for_the_bound() -> None:
    async with producing(max_pending_bytes=10_000) as (_, _, producer):
        futures = [producer.send_nowait("orders", bytes(4000)) for _ in range(3)]
        with pytest.raises(BufferFullError):
            producer.send_nowait("bills", b"x")
        await producer.ready()
        futures.append(producer.send_nowait("orders", b"x"))
        await asyncio.gather(*futures)
        await producer.flush()
        assert producer._outbox._bytes == 0


async def test_who_waited_for_the_route_had_his_room_whatever_took_the_rest() -> None:
    async with (
        FakeCluster(FakeGroup(topics={"orders": 1, "bills": 1})) as cluster,
        Producer(cluster.address, max_pending_bytes=10_000) as producer,
    ):
        await producer.prepare("bills")
        cluster.node().may_answer.clear()
        early = [producer.send_nowait("orders", b"%d" % number) for number in range(3)]
        producer.send_nowait("bills", random.Random(1).randbytes(20_000))
        await producer.prepare("orders")
        cluster.node().may_answer.set()
        assert [(await future).queue_offset for future in early] == [0, 1, 2]


async def test_labels_count_for_the_bound_like_bodies() -> None:
    async with producing(max_pending_bytes=10_000) as (_, _, producer):
        future = producer.send_nowait("orders", b"x", properties={"p": "x" * 10_000})
        with pytest.raises(BufferFullError):
            producer.send_nowait("orders", b"x")
        await future


async def test_a_message_is_sent_as_it_was_when_it_was_queued() -> None:
    async with producing() as (group, _, producer):
        body: Any = bytearray(b"before")
        future = producer.send_nowait("orders", body)
        body[:] = b"behind"
        await future
        assert stored(group) == [(b"before", False)]


async def test_without_a_route_every_waiting_message_fails_and_a_later_one_asks_again() -> None:
    async with producing() as (group, cluster, producer):
        futures = [producer.send_nowait("order", b"x") for _ in range(3)]
        for future in futures:
            with pytest.raises(TopicNotFoundError, match='Did you mean "orders"'):
                await future
        assert producer._outbox.is_empty and producer._outbox._bytes == 0
        group.create_topic("order", 1)
        cluster.register(group)
        assert (await producer.send_nowait("order", b"x")).queue_offset == 0


async def test_no_nameserver_fails_what_waits_for_a_route() -> None:
    async with Producer("127.0.0.1:1") as producer:
        future = producer.send_nowait("orders", b"x")
        await producer.flush()
        with pytest.raises(NameserversDownError):
            await future


async def test_closing_waits_for_what_waits_for_its_route() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        producer = Producer(cluster.address)
        future = producer.send_nowait("orders", b"x")
        gone = producer.send_nowait("orders", b"y")
        gone.cancel()
        await producer.close()
        assert future.result().queue_offset == 0
        assert group.stored() == 2, "it was on its way"
