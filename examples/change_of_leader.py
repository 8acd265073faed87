"""Hand the lead of a broker group over while a producer sends. Nothing is lost, nothing is stored twice."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid

from ledgermq.client import Admin, Producer, PullConsumer

HAND_OVERS = 3


async def main(nameserver: str) -> None:
    topic = f"payments-{uuid.uuid4().hex[:8]}"
    async with Admin(nameserver) as admin, Producer(nameserver) as producer:
        await admin.create_topic(topic, queues=4)
        (group, *_) = await admin.groups()
        sent, longest, is_over = 0, 0.0, asyncio.Event()

        async def send() -> None:
            nonlocal sent, longest
            while not is_over.is_set():
                begin = time.perf_counter()
                await producer.send(topic, b"%d" % sent)  # finds the new leader by itself
                longest = max(longest, time.perf_counter() - begin)
                sent += 1

        sender = asyncio.create_task(send())
        for _ in range(HAND_OVERS):
            await asyncio.sleep(0.3)
            print(f"{await admin.transfer_leadership(group.name)} leads now")
        await asyncio.sleep(0.3)
        is_over.set()
        await sender

    async with PullConsumer(nameserver, group=f"{topic}-count") as consumer:
        await consumer.subscribe(topic)
        found: list[bytes] = []
        while len(found) < sent:
            found += [message.body for message in await consumer.poll()]
        found += [message.body for message in await consumer.poll(timeout_ms=500)]  # would be too many
    print(f"sent {sent}, found {len(found)}, longest wait {1000 * longest:.0f} ms")
    assert sorted(found) == sorted(b"%d" % number for number in range(sent))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
