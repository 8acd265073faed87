"""Keep the messages of one customer in order, while customers go side by side.

A message group is hashed to one queue. A FIFO consumer group gets the next batch of a queue only when the one
before is done.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections import defaultdict

from ledgermq.client import Admin, Producer, SimpleConsumer

CUSTOMERS = [f"customer-{number}" for number in range(5)]
STEPS = ["ordered", "paid", "packed", "sent"]


async def main(nameserver: str) -> None:
    topic = group = f"deliveries-{uuid.uuid4().hex[:8]}"
    async with Admin(nameserver) as admin:
        await admin.create_topic(topic, queues=4, message_type="fifo")
        await admin.create_group(group, fifo=True)

    async with Producer(nameserver) as producer:
        for step in STEPS:
            for customer in CUSTOMERS:
                await producer.send(topic, step, message_group=customer)

    seen: dict[str, list[str]] = defaultdict(list)
    async with SimpleConsumer(nameserver, group=group) as consumer:
        await consumer.subscribe(topic)
        while sum(map(len, seen.values())) < len(CUSTOMERS) * len(STEPS):
            for message in await consumer.receive(timeout_ms=10_000):
                seen[message.message_group].append(message.body.decode())
                await consumer.ack(message)
    for customer in CUSTOMERS:
        print(f"{customer}: {' -> '.join(seen[customer])}")
        assert seen[customer] == STEPS


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
