"""Send ten orders, receive them under a lease, give one back, acknowledge all."""

from __future__ import annotations

import asyncio
import sys
import uuid

from ledgermq.client import Admin, Producer, SimpleConsumer


async def main(nameserver: str) -> None:
    group = f"billing-{uuid.uuid4().hex[:8]}"
    async with Admin(nameserver) as admin:
        await admin.create_topic("orders", if_not_exists=True)
        await admin.create_group(group, start="latest")

    async with SimpleConsumer(nameserver, group=group, invisible_ms=30_000) as consumer:
        await consumer.subscribe("orders", "paid || refunded")  # messages with another tag are passed over
        await consumer.receive(timeout_ms=0)  # "latest" is fixed by the first question

        async with Producer(nameserver) as producer:
            for number in range(10):
                receipt = await producer.send("orders", f"order {number}", tag="paid", keys=[str(number)])
                print(f"order {number}: queue {receipt.queue_id}, offset {receipt.queue_offset}")
            await producer.send("orders", "nobody asks for this one", tag="draft")

        done: set[str] = set()
        given_back = False
        while len(done) < 10:
            for message in await consumer.receive(timeout_ms=10_000):
                if not given_back:
                    given_back = True
                    await consumer.change_invisible(message, 0)  # somebody may have it now, perhaps we again
                    continue
                await consumer.ack(message)
                done.add(message.body.decode())
                print(f"{message.body.decode()} done, attempt {message.delivery_attempt}")
    assert done == {f"order {number}" for number in range(10)}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
