"""The synchronous producer and consumer against a fake cluster in another thread."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from ledgermq.client import Message
from ledgermq.client.errors import (
    BrokerUnreachableError,
    ClosedError,
    InvalidHandleError,
    InvalidNameError,
    NameserversDownError,
    TopicNotFoundError,
    UsageError,
)
from ledgermq.client.message import LeasedMessage, MessageView
from ledgermq.client.push.options import PushOptions, RetryLater
from ledgermq.client.sync import Consumer, Producer, PushConsumer

from ..fake_messaging import MessagingCluster
from ..fakes import FakeGroup
from ..served import Served, served

#: A child of fork() has the objects of its parent and none of their threads.
FORK = """
import os, sys
from ledgermq.client.errors import ClosedError
from ledgermq.client.sync import Producer

producer = Producer("127.0.0.1:1")
child = os.fork()
if child == 0:
    try:
        producer.send("orders", b"x")
    except ClosedError:
        sys.exit(7)  # the way that closes what is open
    sys.exit(8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
producer.close()
"""

#: Exit handlers run in reverse: the first one here is the last to run.
EXIT = """
import atexit, sys

from ledgermq.client.sync import Producer

atexit.register(lambda: print(producer.send("orders", b"the last one").queue_offset))
producer = Producer(sys.argv[1])
print(producer.send("orders", b"one").queue_offset)
"""


@pytest.fixture
def cluster() -> Iterator[Served[MessagingCluster]]:
    with served(lambda: MessagingCluster(FakeGroup(topics={"orders": 1}))) as running:
        yield running


def consumer_of(cluster: Served[MessagingCluster], timeout_ms: int | None = 20) -> Consumer:
    return Consumer(cluster.address, group="billing", topic="orders", timeout_ms=timeout_ms)


def add(cluster: Served[MessagingCluster], *bodies: bytes) -> None:
    cluster.call(cluster.cluster.messages.add, *bodies)


def output_of(program: str, *arguments: str) -> str:
    """Run a program in a process of its own, and return what it prints."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_send_returns_the_receipt(cluster: Served[MessagingCluster]) -> None:
    with Producer(cluster.address) as producer:
        assert producer.send("orders", b"one").queue_offset == 0
        receipts = producer.send_batch(Message("orders", b"%d" % i) for i in range(3))
        assert [receipt.queue_offset for receipt in receipts] == [1, 2, 3]
    producer.close()
    with pytest.raises(ClosedError):
        producer.send("orders", b"late")


def test_an_iterable_of_any_length_is_stored_and_reported(cluster: Served[MessagingCluster]) -> None:
    offsets: list[int] = []
    with Producer(cluster.address) as producer:
        stored = producer.produce_many(
            (b"%d" % number for number in range(5000)),
            topic="orders",
            on_stored=lambda first, receipts: offsets.extend(each.queue_offset for each in receipts),
        )
        assert stored == 5000 and offsets == list(range(5000))
        with pytest.raises(UsageError, match="bodies together with a topic"):
            producer.produce_many([b"x"])
    with pytest.raises(ClosedError):
        producer.produce_many([b"late"], topic="orders")


def test_many_threads_send_with_one_producer(cluster: Served[MessagingCluster]) -> None:
    with Producer(cluster.address) as producer:
        threads = [
            threading.Thread(target=producer.send, args=("orders", b"%d" % number)) for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cluster.call(cluster.cluster.groups[0].stored) == 8


def test_a_loop_receives_and_acknowledges(cluster: Served[MessagingCluster]) -> None:
    add(cluster, b"a", b"b", b"c")
    seen = []
    with consumer_of(cluster) as consumer:
        for message in consumer:
            seen.append((message.body, message.queue_offset))
            message.ack()
    assert seen == [(b"a", 0), (b"b", 1), (b"c", 2)]
    assert sorted(cluster.cluster.messages.acked) == [b"a", b"b", b"c"]


def test_a_second_loop_goes_on_where_the_first_was_left(cluster: Served[MessagingCluster]) -> None:
    add(cluster, b"a", b"b", b"c")
    with consumer_of(cluster, timeout_ms=None) as consumer:
        for message in consumer:
            assert message.body == b"a"
            break
        assert next(iter(consumer)).body == b"b"
        assert [message.body for message in consumer.receive()] == [b"c"]


def test_what_was_fetched_and_not_looked_at_is_given_back(cluster: Served[MessagingCluster]) -> None:
    add(cluster, b"a", b"b", b"c")
    with consumer_of(cluster) as consumer:
        next(iter(consumer)).ack()
    assert sorted(cluster.cluster.messages.waiting) == [b"b", b"c"]


def test_a_message_that_is_given_back_comes_again(cluster: Served[MessagingCluster]) -> None:
    add(cluster, b"a")
    with consumer_of(cluster, timeout_ms=None) as consumer:
        (message,) = consumer.receive()
        message.nack()
        (again,) = consumer.receive()
        assert again.body == b"a"


def test_the_group_is_created_when_it_does_not_exist(cluster: Served[MessagingCluster]) -> None:
    created = cluster.cluster.groups[0].groups
    cluster.cluster.messages.groups = created
    add(cluster, b"a")
    with consumer_of(cluster) as consumer:
        assert [message.body for message in consumer] == [b"a"]
    assert created["billing"].start_position == "earliest"


def test_a_failed_acknowledgement_is_raised_by_the_next_step(cluster: Served[MessagingCluster]) -> None:
    add(cluster, b"a")
    with consumer_of(cluster) as consumer:
        (message,) = consumer.receive()
        cluster.call(cluster.cluster.messages.leased.clear)
        message.ack()
        with pytest.raises(InvalidHandleError):
            list(consumer)


def test_an_acknowledgement_that_no_node_takes_ends_no_loop(
    cluster: Served[MessagingCluster], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker group is down: the message comes again, and those of other groups are there."""

    add(cluster, b"a", b"b")
    with caplog.at_level(logging.WARNING), consumer_of(cluster) as consumer:
        acknowledge = consumer._twin.ack

        async def ack(message: LeasedMessage) -> None:
            if message.body == b"a":
                raise BrokerUnreachableError("127.0.0.1:1", "it does not answer")
            await acknowledge(message)

        monkeypatch.setattr(consumer._twin, "ack", ack)
        for message in consumer:
            message.ack()
        assert "an acknowledgement failed, its message comes again" in caplog.text
        assert cluster.cluster.messages.acked == [b"b"]


def test_a_failed_last_acknowledgement_is_logged(
    cluster: Served[MessagingCluster], caplog: pytest.LogCaptureFixture
) -> None:
    add(cluster, b"a")
    with caplog.at_level(logging.WARNING), consumer_of(cluster) as consumer:
        (message,) = consumer.receive()
        cluster.call(cluster.cluster.messages.leased.clear)
        message.ack()
    assert "an acknowledgement failed" in caplog.text


def test_closing_ends_a_loop_that_waits_in_another_thread(cluster: Served[MessagingCluster]) -> None:
    consumer = consumer_of(cluster, timeout_ms=None)
    seen: list[object] = []
    reader = threading.Thread(target=lambda: seen.extend(consumer))
    reader.start()
    cluster.run(cluster.cluster.messaging[0].asked.wait())
    consumer.close()
    reader.join(20)
    assert not reader.is_alive()
    assert seen == []


def test_a_closed_consumer_says_so(cluster: Served[MessagingCluster]) -> None:
    add(cluster, b"a")
    consumer = consumer_of(cluster)
    (message,) = consumer.receive()
    consumer.close()
    consumer.close()
    assert list(consumer) == []
    for call in (consumer.receive, message.ack, message.nack):
        with pytest.raises(ClosedError):
            call()


def test_what_cannot_start_leaves_no_thread(cluster: Served[MessagingCluster]) -> None:
    before = threading.active_count()
    with pytest.raises(TopicNotFoundError):
        Consumer(cluster.address, group="billing", topic="nothing")
    with pytest.raises(InvalidNameError):
        Consumer(cluster.address, group="a b", topic="orders")
    with pytest.raises(NameserversDownError):
        Consumer("127.0.0.1:1", group="billing", topic="orders")
    for build in (lambda: Producer("nowhere"), lambda: Consumer("nowhere", group="g", topic="orders")):
        with pytest.raises(ValueError, match="host:port"):
            build()
    assert threading.active_count() == before


def test_a_push_consumer_calls_its_listener_from_threads_until_it_is_closed(
    cluster: Served[MessagingCluster],
) -> None:
    with Producer(cluster.address) as producer:
        producer.send_batch(Message("orders", b"%d" % number) for number in range(20))
    seen: list[bytes] = []
    threads: set[str] = set()
    ended = threading.Event()
    given_up: list[bytes] = []

    def listener(messages: list[MessageView]) -> RetryLater | None:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        bad = [message for message in messages if message.body == b"7"]
        seen.extend(message.body for message in messages if message.body != b"7")
        return RetryLater(bad) if bad else None

    def on_exhausted(message: MessageView, error: Exception | None) -> None:
        given_up.append(message.body)

    def wait() -> None:
        consumer.run()
        ended.set()

    consumer = PushConsumer(
        cluster.address,
        group="billing",
        listener=listener,
        on_exhausted=on_exhausted,
        options=PushOptions(max_attempts=2, retry_ms=1, longest_retry_ms=1, commit_interval_ms=5),
    )
    consumer.subscribe("orders")
    waiting = threading.Thread(target=wait)
    waiting.start()
    group = cluster.cluster.groups[0]

    async def all_committed() -> None:
        while group.committed.get(("billing", "orders", 0)) != 20:
            group.committed_more.clear()
            await group.committed_more.wait()

    cluster.run(all_committed())
    assert (consumer.statistics().skipped, sum(consumer.lag().values())) == (1, 0)
    consumer.close()
    waiting.join(20)
    assert ended.is_set()
    assert sorted(seen) == sorted(b"%d" % number for number in range(20) if number != 7)
    assert (given_up, threads) == ([b"7"], {"ledgermq-listener"})
    for call in (consumer.run, consumer.statistics, consumer.lag):
        with pytest.raises(ClosedError):
            call()


def test_a_child_of_fork_is_told_and_ends() -> None:
    assert output_of(FORK) == "7\n"


def test_an_exit_handler_that_an_application_registered_before_its_first_client_can_use_it(
    cluster: Served[MessagingCluster],
) -> None:
    assert output_of(EXIT, cluster.address) == "0\n1\n"
