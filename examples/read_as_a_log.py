"""Read queues by offset, as one reads a log: commit where you are, begin again wherever you like."""

from __future__ import annotations

import asyncio
import sys
import uuid

from ledgermq.client import Admin, Message, Producer, PullConsumer


async def read(consumer: PullConsumer, count: int) -> list[bytes]:
    """Return the bodies of so many messages."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        bodies += [message.body for message in await consumer.poll(count - len(bodies))]
    return bodies


async def main(nameserver: str) -> None:
    topic = f"readings-{uuid.uuid4().hex[:8]}"
    async with Admin(nameserver) as admin:
        await admin.create_topic(topic, queues=2)
    async with Producer(nameserver) as producer:
        await producer.send_batch(Message(topic, b"%d" % number) for number in range(1000))

    async with PullConsumer(nameserver, group=f"{topic}-reader") as consumer:
        await consumer.subscribe(topic)
        first = await read(consumer, 600)
        await consumer.commit()  # replicated; what is read later and not committed is read again
        print(f"read {len(first)}, committed {sum((await consumer.committed(topic)).values())}")

    async with PullConsumer(nameserver, group=f"{topic}-reader") as consumer:
        await consumer.subscribe(topic)  # goes on behind what was committed
        rest = await read(consumer, 400)
        print(f"read {len(rest)} more")
        await consumer.seek_to_beginning(topic)
        again = await read(consumer, 1000)
        print(f"read all {len(again)} again")
    assert sorted(first + rest) == sorted(again) == sorted(b"%d" % number for number in range(1000))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
