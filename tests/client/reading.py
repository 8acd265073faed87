"""Steps of many tests: a fake cluster with one client, sends to it, reads of a number of bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ledgermq.client import Producer, PullConsumer

from .fakes import FakeCluster, FakeGroup


@asynccontextmanager
async def producing(
    queues: int = 1, *, nodes: int = 1, **options: Any
) -> AsyncIterator[tuple[FakeGroup, FakeCluster, Producer]]:
    """Yield a broker group with the topic "orders", its cluster, and a producer."""
    broker_group = FakeGroup(topics={"orders": queues})
    running = FakeCluster(broker_group, nodes=nodes)
    async with running as cluster, Producer(cluster.address, **options) as producer:
        yield broker_group, cluster, producer


@asynccontextmanager
async def pulling(
    queues: int = 1, *, nodes: int = 1, **options: Any
) -> AsyncIterator[tuple[FakeGroup, FakeCluster, PullConsumer]]:
    """Yield a broker group with the topic "orders", its cluster, and a pull consumer."""
    broker_group = FakeGroup(topics={"orders": queues})
    running = FakeCluster(broker_group, nodes=nodes)
    async with running as cluster, PullConsumer(cluster.address, **options) as consumer:
        yield broker_group, cluster, consumer


@asynccontextmanager
async def subscribed(
    queues: int = 1, *, nodes: int = 1, sent: Sequence[bytes] = (), **options: Any
) -> AsyncIterator[tuple[FakeGroup, FakeCluster, PullConsumer]]:
    """As `pulling`; the consumer has subscribed to "orders" after the bodies `sent` were sent."""
    async with pulling(queues, nodes=nodes, **options) as (broker_group, cluster, consumer):
        await fill(cluster, sent)
        await consumer.subscribe("orders")
        yield broker_group, cluster, consumer


async def fill(cluster: FakeCluster, bodies: Sequence[bytes], topic: str = "orders") -> None:
    """Send each body by itself, so that each is a section of its own."""
    async with Producer(cluster.address) as producer:
        for body in bodies:
            await producer.send(topic, body)


async def read(consumer: PullConsumer, count: int) -> list[bytes]:
    """Return the next `count` bodies."""
    found: list[bytes] = []
    async for message in consumer:
        found.append(message.body)
        if len(found) == count:
            break
    return found
