"""The synchronous producer without waiting: futures, callbacks, one-way messages, their bound and end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import pytest

from ledgermq.client import Message, MessageQueue, SendReceipt
from ledgermq.client import Producer as AsyncProducer
from ledgermq.client.errors import (
    BufferFullError,
    ClosedError,
    InvalidMessageError,
    RefusedError,
    TopicNotFoundError,
    UsageError,
)
from ledgermq.client.sync import Producer
from ledgermq.client.sync.handover import Handover
from ledgermq.proto import route_pb2 as pb

from ..fakes import FakeCluster, FakeGroup
from ..produce.test_producer_sizes import stored
from ..served import Served, served

PATIENCE_S = 120


@pytest.fixture
def cluster() -> Iterator[Served[FakeCluster]]:
    with served(lambda: FakeCluster(FakeGroup(topics={"orders": 1, "bills": 1}))) as running:
        yield running


def bodies(cluster: Served[FakeCluster]) -> list[bytes]:
    return [body for body, _ in cluster.call(stored, cluster.cluster.groups[0])]


def hold(cluster: Served[FakeCluster]) -> None:
    cluster.call(cluster.cluster.node().may_answer.clear)


def let_go(cluster: Served[FakeCluster]) -> None:
    cluster.call(cluster.cluster.node().may_answer.set)


@contextmanager
def halted(producer: Producer) -> Iterator[None]:
    """Let the producer's loop do nothing meanwhile."""
    stands, go_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        go_on.wait(PATIENCE_S)

    producer._thread.post(stand)
    stands.wait(PATIENCE_S)
    try:
        yield
    finally:
        go_on.set()


def test_every_way_to_send_takes_a_selector(cluster: Served[FakeCluster]) -> None:
    seen: list[object] = []

    def choose(queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
        seen.append(argument)
        return queues[0]

    with Producer(cluster.address) as producer:
        producer.send("orders", b"x", selector=choose, argument=1)
        producer.send_async("orders", b"x", selector=choose, argument=2).result(30)
        assert producer.send_oneway("orders", b"x", selector=choose, argument=3)
    assert seen == [1, 2, 3]


def test_a_future_has_the_receipt_and_messages_of_one_thread_are_in_order(
    cluster: Served[FakeCluster],
) -> None:
    with Producer(cluster.address) as producer:
        with halted(producer):
            futures = [producer.send_async("orders", b"%03d" % number) for number in range(500)]
        producer.send("orders", b"500")
        receipts = [future.result(PATIENCE_S) for future in futures]
        assert [receipt.queue_offset for receipt in receipts] == list(range(500))
        assert len(cluster.cluster.node().requests) < 10, "they share requests"
    assert bodies(cluster) == [b"%03d" % number for number in range(501)]


def test_everything_that_send_takes_is_taken(cluster: Served[FakeCluster]) -> None:
    with Producer(cluster.address) as producer:
        done = wait(
            [
                producer.send_async("orders", "text"),
                producer.send_async(Message("orders", b"message", keys=["k"])),
                producer.send_async("orders", b"labels", tag="t", properties={"p": "q"}, message_group="m"),
            ],
            PATIENCE_S,
        )
        assert not done.not_done
    assert bodies(cluster) == [b"text", b"message", b"labels"]


def test_a_callback_is_called_and_may_send_more(cluster: Served[FakeCluster]) -> None:
    second: Future[Future[SendReceipt]] = Future()
    with Producer(cluster.address) as producer:
        first = producer.send_async("orders", b"one")
        first.add_done_callback(lambda _: second.set_result(producer.send_async("orders", b"two")))
        assert second.result(PATIENCE_S).result(PATIENCE_S).queue_offset == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send("orders", b"x"),
        lambda producer: producer.send_batch([Message("orders", b"x")]),
        Producer.ready,
        Producer.close,
    ],
    ids=["send", "send_batch", "ready", "close"],
)
def test_a_callback_that_would_wait_for_itself_is_told(
    call: Callable[[Producer], Any], cluster: Served[FakeCluster]
) -> None:
    with Producer(cluster.address) as producer:
        told: Future[str] = Future()

        def callback(_: object) -> None:
            with pytest.raises(UsageError) as caught:
                call(producer)
            told.set_result(str(caught.value))

        with halted(producer):
            producer.send_async("orders", b"one").add_done_callback(callback)
        assert "Use send_async()" in told.result(PATIENCE_S)
        assert producer.send("orders", b"two").queue_offset == 1


def test_errors_come_with_the_future_and_wrong_calls_at_once(cluster: Served[FakeCluster]) -> None:
    with Producer(cluster.address) as producer:
        with pytest.raises(InvalidMessageError):
            producer.send_async("orders", b"")
        with pytest.raises(InvalidMessageError):
            producer.send_oneway("orders", b"x", tag="a|b")
        cluster.cluster.node().refusals.append(pb.Refusal(code=pb.INVALID_ARGUMENT, message="not like this"))
        with pytest.raises(RefusedError, match="not like this"):
            producer.send_async("orders", b"x").result(PATIENCE_S)
        with pytest.raises(TopicNotFoundError):
            producer.send_async("nowhere", b"x").result(PATIENCE_S)
        assert producer.send_async("orders", b"y").result(PATIENCE_S).queue_offset == 0


def test_a_topic_that_is_not_found_holds_up_no_other(cluster: Served[FakeCluster]) -> None:
    with Producer(cluster.address) as producer:
        lost = [producer.send_async(f"nowhere{number}", b"x") for number in range(20)]
        assert producer.send_async("orders", b"x").result(PATIENCE_S).queue_offset == 0
        assert len(wait(lost, PATIENCE_S).done) == 20


def test_what_is_under_way_is_bounded_and_there_is_room_again(cluster: Served[FakeCluster]) -> None:
    with Producer(cluster.address, max_pending_bytes=10_000) as producer:
        hold(cluster)
        futures = [producer.send_async("orders", bytes(4000)) for _ in range(3)]
        with pytest.raises(BufferFullError, match=r"Call producer\.ready\(\)") as caught:
            producer.send_async("orders", b"x")
        assert caught.value.retryable
        assert producer.send_oneway("orders", b"x") is False
        waiting = threading.Thread(target=producer.ready)
        waiting.start()
        let_go(cluster)
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        futures.append(producer.send_async("orders", b"x"))
        assert producer.send_oneway("orders", b"y")
        assert len(wait(futures, PATIENCE_S).done) == 4
    assert producer.statistics() == ("", 5, 0, 1, 0, 1)


def test_a_cancelled_future_is_not_sent_unless_it_is_on_its_way(cluster: Served[FakeCluster]) -> None:
    with Producer(cluster.address) as producer:
        with halted(producer):
            futures = [producer.send_async("orders", b"%d" % number) for number in range(3)]
            assert futures[1].cancel()
        futures[0].result(PATIENCE_S)
        futures[2].result(PATIENCE_S)
        assert not futures[0].cancel()
        assert producer._handover._bytes == 0
    assert bodies(cluster) == [b"0", b"2"]


def test_closing_waits_for_what_was_handed_over(cluster: Served[FakeCluster]) -> None:
    producer = Producer(cluster.address)
    futures = [producer.send_async(topic, b"x") for topic in ("orders", "bills") * 100]
    assert all(producer.send_oneway("orders", b"x") for _ in range(100))
    producer.close()
    producer.close()
    assert all(future.result(0).queue_offset >= 0 for future in futures)
    assert producer.statistics()[1:] == (300, 0, 100, 0, 0)
    for call in (producer.send_async, producer.send_oneway):
        with pytest.raises(ClosedError):
            call("orders", b"x")
    with pytest.raises(ClosedError):
        producer.ready()


def test_what_waits_for_the_room_that_others_took_is_sent_even_while_the_producer_closes(
    cluster: Served[FakeCluster],
) -> None:
    producer = Producer(cluster.address, max_pending_bytes=10_000)
    hold(cluster)
    large = random.Random(1).randbytes(20_000)
    other = threading.Thread(target=producer.send, args=("orders", large))
    other.start()
    cluster.run(cluster.cluster.node().asked.wait())
    future = producer.send_async("orders", b"x")
    closing = threading.Thread(target=producer.close)
    closing.start()
    while not producer._producer._closed and not producer._closed:
        threading.Event().wait(0.001)
    let_go(cluster)
    closing.join(PATIENCE_S)
    other.join(PATIENCE_S)
    assert future.result(0).queue_offset == 1


def test_many_threads_hand_over_and_nothing_is_lost_or_out_of_order(cluster: Served[FakeCluster]) -> None:
    with Producer(cluster.address, max_pending_bytes=20_000) as producer:

        def send(name: int) -> None:
            for number in range(200):
                while True:
                    producer.ready()
                    try:
                        producer.send_async("orders", b"%d %d" % (name, number))
                    except BufferFullError:
                        continue  # another thread was quicker
                    break

        threads = [threading.Thread(target=send, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    seen = [tuple(map(int, body.split())) for body in bodies(cluster)]
    assert len(seen) == 1200
    for name in range(6):
        assert [number for each, number in seen if each == name] == list(range(200))


async def test_what_has_no_outcome_when_the_loop_is_gone_fails_as_closed() -> None:
    """Ctrl-C during close() leaves such futures."""

    producer = AsyncProducer("127.0.0.1:1")
    posted: list[Callable[[], None]] = []
    moving = Handover(producer, posted.append, 1000)
    futures = [moving.put(Message("orders", b"x")) for _ in range(3)]
    assert len(posted) == 1, "one wake-up for all of them"
    futures[0].cancel()
    with pytest.raises(BufferFullError):
        for _ in range(9):
            moving.put(Message("orders", b"x"))
    moving.abandon()
    moving.abandon()
    for future in futures[1:]:
        with pytest.raises(ClosedError):
            future.result(0)
    with pytest.raises(ClosedError):
        moving.put(Message("orders", b"x"))
    with pytest.raises(ClosedError):
        moving.wait_for_room()
    posted[0]()
    await moving.flush()
    await producer.close()
