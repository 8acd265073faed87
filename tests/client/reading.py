"""What tests of pull consumers do again and again: send to a fake cluster, read a number of bodies."""

from __future__ import annotations

from ledgermq.client import Producer, PullConsumer

from .fakes import FakeCluster


async def fill(cluster: FakeCluster, bodies: list[bytes], topic: str = "orders") -> None:
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
