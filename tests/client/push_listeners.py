"""Support for tests of the push consumer: messages, listeners that remember, waits for what brokers know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ledgermq.client import Message, MessageView, Producer, PushConsumer, PushOptions

from .fakes import FakeCluster, FakeGroup

QUICK = PushOptions(commit_interval_ms=5, retry_ms=1, longest_retry_ms=4)


async def fill(cluster: FakeCluster, bodies: Sequence[bytes], topic: str = "orders", tag: str = "") -> None:
    async with Producer(cluster.address) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tag=tag))


class Seen:
    """A listener that remembers. `gate` closed: it takes messages in and does not return."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.batches: list[list[bytes]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._changed = asyncio.Event()

    async def __call__(self, messages: list[MessageView]) -> None:
        self.batches.append([message.body for message in messages])
        self.bodies += self.batches[-1]
        self._changed.set()
        await self.gate.wait()

    async def until(self, count: int) -> None:
        while len(self.bodies) < count:
            self._changed.clear()
            await self._changed.wait()


async def until(event: asyncio.Event, what: Callable[[], bool]) -> None:
    """Wait for something that sets an event when it changes."""
    while not what():
        event.clear()
        await event.wait()


async def until_committed(group: FakeGroup, *offsets: int, topic: str = "orders") -> None:
    """Wait until these are the committed offsets of a topic's queues."""
    wanted = {("billing", topic, queue_id): offset for queue_id, offset in enumerate(offsets)}
    await until(group.committed_more, lambda: wanted.items() <= group.committed.items())


def consumer_of(cluster: FakeCluster, listener: Any, **options: Any) -> PushConsumer:
    return PushConsumer(cluster.address, group="billing", listener=listener, **{"options": QUICK, **options})


@asynccontextmanager
async def consuming(
    group: FakeGroup, listener: Any, bodies: Sequence[bytes] = (), *, nodes: int = 1, **options: Any
) -> AsyncIterator[tuple[FakeCluster, PushConsumer]]:
    """Store messages, and give a consumer that is subscribed to their topic."""
    async with FakeCluster(group, nodes=nodes) as cluster:
        if bodies:
            await fill(cluster, bodies)
        async with consumer_of(cluster, listener, **options) as consumer:
            await consumer.subscribe("orders")
            yield cluster, consumer


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def until_logged(text: str) -> None:
    """Wait for a log record of the client."""
    found = asyncio.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                found.set()

    handler = Handler()
    logging.getLogger("ledgermq.client").addHandler(handler)
    try:
        await found.wait()
    finally:
        logging.getLogger("ledgermq.client").removeHandler(handler)
