"""The synchronous pull consumer against a fake cluster in another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ledgermq.client import MessageQueue
from ledgermq.client.consume.read_source import FetchSource
from ledgermq.client.errors import ClosedError, InvalidNameError, TopicNotFoundError, UsageError
from ledgermq.client.sync import PullConsumer

from ..fakes import FakeCluster, FakeGroup
from ..reading import fill
from ..served import Served, served

QUEUE = MessageQueue("orders", "g0", 0)


@pytest.fixture
def cluster() -> Iterator[Served[FakeCluster]]:
    with served(lambda: FakeCluster(FakeGroup(topics={"orders": 1}))) as running:
        running.run(fill(running.cluster, [b"a", b"b", b"c"]))
        yield running


def test_it_reads_commits_and_goes_on_there(cluster: Served[FakeCluster]) -> None:
    with PullConsumer(cluster.address, group="billing") as consumer:
        consumer.subscribe("orders")
        assert (consumer.queues("orders"), consumer.assignment, consumer.missing) == ((QUEUE,), (QUEUE,), ())
        first = next(iter(consumer))
        assert first.body == b"a"
        consumer.commit()
        assert consumer.committed("orders") == {QUEUE: 1}
        assert consumer.offsets("orders") == [(QUEUE, 1, 0, 3)]
        assert consumer.sources == {"g0": FetchSource("n1", stale=False)}
        assert consumer.deleted_count == 0
    with PullConsumer(cluster.address, group="billing") as consumer:
        consumer.assign([QUEUE])
        assert consumer.lag("orders") == {QUEUE: 2}
        assert [message.body for message in consumer.poll(1)] == [b"b"]
        consumer.commit({QUEUE: 0}, reset=True)
        assert consumer.committed("orders") == {QUEUE: 0}


def test_it_moves_pauses_and_gives_up_queues(cluster: Served[FakeCluster]) -> None:
    with PullConsumer(cluster.address) as consumer:
        consumer.subscribe("orders")
        consumer.seek_to_end("orders")
        assert consumer.position(QUEUE) == 3
        consumer.seek_to_beginning("orders")
        assert consumer.position(QUEUE) == 0
        consumer.seek_to_time("orders", 99)
        assert consumer.position(QUEUE) == 3
        consumer.seek(QUEUE, 2)
        consumer.pause([QUEUE])
        assert (consumer.paused, consumer.poll(1, 50)) == ((QUEUE,), [])
        consumer.resume([QUEUE])
        assert [message.body for message in consumer.poll(1)] == [b"c"]
        consumer.unassign([QUEUE])
        consumer.unsubscribe("orders")
        assert consumer.assignment == ()
        with pytest.raises(UsageError, match="not assigned"):
            consumer.seek(QUEUE, 0)


def test_a_poll_that_waits_ends_when_another_thread_closes_the_consumer(cluster: Served[FakeCluster]) -> None:
    consumer = PullConsumer(cluster.address)
    consumer.subscribe("orders")
    begun, bodies = threading.Event(), []

    def read() -> None:
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 3:
                begun.set()

    reading = threading.Thread(target=read)
    reading.start()
    assert begun.wait(20)
    consumer.close()
    reading.join(20)
    assert not reading.is_alive()
    assert bodies == [b"a", b"b", b"c"]
    with pytest.raises(ClosedError):
        consumer.poll(1)


def test_what_is_wrong_is_said_at_once(cluster: Served[FakeCluster]) -> None:
    with pytest.raises(InvalidNameError):
        PullConsumer(cluster.address, group="no good")
    with PullConsumer(cluster.address) as consumer, pytest.raises(TopicNotFoundError):
        consumer.subscribe("nowhere")
