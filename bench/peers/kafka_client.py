"""Kafka's client: confluent-kafka, whose core is the C library librdkafka.

A producer here is idempotent with `acks=all`, as Kafka's own Java producer by default, and does not compress.
One awaitable per message lingers 0 ms, because a sender with few messages in flight would wait for the
lingering; the leanest client lingers 5 ms (librdkafka's default), which makes its batches larger.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from .kafka_node import LARGEST_MESSAGE, SERVERS
from .measure import clock

_SERVERS = {"bootstrap.servers": SERVERS, "log_level": 0}
_PRODUCER = {
    **_SERVERS,
    "acks": "all",
    "enable.idempotence": True,
    "message.max.bytes": LARGEST_MESSAGE,
    "delivery.timeout.ms": 60_000,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 1 << 18,
}
_PIECE = 500  # messages handed over by one call of the leanest client


def wait_for_nodes(count: int, seconds: float) -> None:
    """Wait until the cluster has so many brokers. Raises: TimeoutError."""
    admin, end = AdminClient(_SERVERS), clock() + seconds
    while clock() < end:
        try:
            if len(admin.list_topics(timeout=2).brokers) >= count:
                return
        except KafkaException:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"Kafka does not have {count} brokers after {seconds:.0f} s")


def create_topic(name: str, partitions: int) -> list[int]:
    """Create a topic with three replicas, and wait until they are in sync. Returns the leaders."""
    admin = AdminClient(_SERVERS)  # it gives up its requests when nothing refers to it
    admin.create_topics([NewTopic(name, partitions, 3)])[name].result()
    return wait_in_sync(name, 3, 30)


def wait_in_sync(topic: str, replicas: int, seconds: float) -> list[int]:
    """Wait until each partition has a leader and so many replicas in sync. Returns the partitions' leaders.

    The brokers learn of a topic one after the other. Raises: TimeoutError.
    """
    admin, end = AdminClient(_SERVERS), clock() + seconds
    while clock() < end:
        partitions = list(admin.list_topics(topic, timeout=10).topics[topic].partitions.values())
        if partitions and all(each.leader > 0 and len(each.isrs) == replicas for each in partitions):
            return [each.leader for each in partitions]
        time.sleep(0.1)
    raise TimeoutError(f"the replicas of {topic} are not in sync after {seconds:.0f} s")


def _delete_topic(name: str) -> None:
    admin = AdminClient(_SERVERS)
    admin.delete_topics([name])[name].result()


class _Producer:
    """A producer whose delivery reports are polled in a thread and handed to the event loop."""

    def __init__(self) -> None:
        self._producer = Producer({**_PRODUCER, "linger.ms": 0})
        self._loop = asyncio.get_running_loop()
        self._reports: deque[tuple[asyncio.Future[None], Any]] = deque()
        self._scheduled = self._ended = False
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    async def send(self, topic: str, body: bytes) -> None:
        done = self._loop.create_future()
        self._producer.produce(topic, body, on_delivery=partial(self._report, done))
        await done

    def _poll(self) -> None:
        while not self._ended:
            self._producer.poll(0.1)

    def _report(self, done: asyncio.Future[None], error: Any, _: Any) -> None:
        self._reports.append((done, error))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._scheduled = False  # first: a report from here on schedules again
        while self._reports:
            done, error = self._reports.popleft()
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(KafkaException(error))

    async def close(self) -> None:
        self._producer.purge()
        await asyncio.to_thread(self._producer.flush, 10)
        self._ended = True
        await asyncio.to_thread(self._thread.join)


class KafkaSession:
    #: Messages in flight in W3, as many as ours.
    window = 4000
    #: The same of the leanest client; and as many as librdkafka needs for full batches.
    pipeline_windows = (4000, 60_000)

    def __init__(self, topic: str, producers: int = 1) -> None:
        self._topic = topic
        self._producers = [_Producer() for _ in range(producers)]
        self._turns = itertools.cycle(self._producers)
        self._listening: list[threading.Thread] = []
        self._ended = threading.Event()

    async def send(self, body: bytes) -> None:
        await next(self._turns).send(self._topic, body)

    async def pipeline(self, body: bytes, window: int, seconds: float) -> int:
        return await asyncio.to_thread(self._pipeline, body, window, clock() + seconds)

    def _pipeline(self, body: bytes, window: int, end: float, most: int = 1 << 62) -> int:
        """Produce with `window` messages in flight in one thread. Returns the number of acknowledgements."""
        producer = Producer({**_PRODUCER, "linger.ms": 5})
        sent = acknowledged = 0
        failed: list[Any] = []

        def report(error: Any, _: Any) -> None:
            nonlocal acknowledged
            acknowledged += 1
            if error is not None:
                failed.append(error)

        while sent < most and clock() < end:
            room = min(_PIECE, window - (sent - acknowledged), most - sent)
            if room > 0:
                producer.produce_batch(
                    self._topic, [{"value": body} for _ in range(room)], on_delivery=report
                )
                sent += room
            producer.poll(0 if room > 0 else 0.1)
        producer.flush(60)
        if failed:
            raise KafkaException(failed[0])
        return acknowledged

    async def preload(self, body: bytes, count: int) -> int:
        return await asyncio.to_thread(self._pipeline, body, self.pipeline_windows[-1], clock() + 120, count)

    async def drain(self, count: int) -> int:
        return await asyncio.to_thread(self._drain, count)

    def _consumer(self, group: str) -> Consumer:
        config = {
            **_SERVERS,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
        consumer = Consumer(config)
        consumer.subscribe([self._topic])
        return consumer

    def _drain(self, count: int) -> int:
        """Read in calls of up to 4,000 messages and commit after each of them, as our client does."""
        consumer, got = self._consumer(f"drain-{self._topic}"), 0
        try:
            while got < count:
                messages = consumer.consume(4000, timeout=5 if got else 30)
                if not messages:
                    break
                got += sum(message.error() is None and bool(message.value()) for message in messages)
                consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return got

    async def listen(self, on_body: Callable[[bytes], None]) -> None:
        assigned = threading.Event()

        def consume() -> None:
            consumer = self._consumer(f"listen-{self._topic}")
            consumer.subscribe([self._topic], on_assign=lambda *_: assigned.set())
            last_commit = clock()
            while not self._ended.is_set():
                message = consumer.poll(0.1)
                if message is None or message.error():
                    continue
                on_body(message.value())
                if clock() - last_commit > 1:
                    consumer.commit(asynchronous=True)
                    last_commit = clock()
            consumer.close()

        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        self._listening.append(thread)
        if not await asyncio.to_thread(assigned.wait, 30):
            raise TimeoutError("Kafka assigns no partition to the consumer")

    async def close(self) -> None:
        self._ended.set()
        for thread in self._listening:
            await asyncio.to_thread(thread.join)
        for producer in self._producers:
            await producer.close()
        await asyncio.to_thread(_delete_topic, self._topic)
