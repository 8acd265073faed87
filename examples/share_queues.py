"""Consume with two push consumers of one group: each queue has one of them, and queues move when one leaves.

Who leaves finishes what it has, commits it and says so; the other goes on behind it.
"""

from __future__ import annotations

import asyncio
import sys
import uuid

from ledgermq.client import Admin, MessageView, Producer, PushConsumer

COUNT = 200


async def main(nameserver: str) -> None:
    topic = group = f"parcels-{uuid.uuid4().hex[:8]}"
    seen: dict[str, set[bytes]] = {"first": set(), "second": set()}
    more = asyncio.Event()

    def consumer(name: str) -> PushConsumer:
        async def deliver(messages: list[MessageView]) -> None:
            seen[name].update(message.body for message in messages)
            more.set()

        return PushConsumer(nameserver, group=group, listener=deliver)

    async def until(count: int) -> None:
        while len(seen["first"] | seen["second"]) < count:
            more.clear()
            await more.wait()

    async with Admin(nameserver) as admin:
        await admin.create_topic(topic, queues=8)
    async with Producer(nameserver) as producer, consumer("second") as second:
        async with consumer("first") as first:
            await first.subscribe(topic)
            await second.subscribe(topic)
            for number in range(COUNT):
                await producer.send(topic, f"parcel {number}")
            await until(COUNT)
            print(
                f"first has {len(first.statistics().queues)} queues, second {len(second.statistics().queues)}"
            )
        for number in range(COUNT, 2 * COUNT):
            await producer.send(topic, f"parcel {number}")
        await until(2 * COUNT)
        print(
            f"{len(seen['first'])} parcels by the first, {len(seen['second'])} by the second, none is missing"
        )
        assert len(second.statistics().queues) == 8


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
