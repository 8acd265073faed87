"""Send fast. Messages that wait while requests are out travel together: no timer, no batch size."""

from __future__ import annotations

import asyncio
import sys
import time

from ledgermq.client import Admin, Message, Producer

COUNT = 20_000
BODY = bytes(1024)


async def main(nameserver: str) -> None:
    async with Admin(nameserver) as admin:
        await admin.create_topic("measurements", queues=8, if_not_exists=True)
    async with Producer(nameserver) as producer:
        await producer.prepare("measurements")

        begin = time.perf_counter()
        await asyncio.gather(*(producer.send("measurements", BODY) for _ in range(COUNT)))
        print(f"an awaitable each:      {COUNT / (time.perf_counter() - begin):9,.0f} messages/s")

        begin = time.perf_counter()
        futures = []
        for _ in range(COUNT):
            await producer.ready()  # waits while too many bytes are on their way
            futures.append(producer.send_nowait("measurements", BODY))
        receipts = await asyncio.gather(*futures)
        print(f"queued without waiting: {COUNT / (time.perf_counter() - begin):9,.0f} messages/s")
        assert len({(receipt.queue_id, receipt.queue_offset) for receipt in receipts}) == COUNT

        begin = time.perf_counter()
        batch = await producer.send_batch(Message("measurements", BODY) for _ in range(COUNT))
        print(f"one batch:              {COUNT / (time.perf_counter() - begin):9,.0f} messages/s")
        assert len(batch) == COUNT

        begin = time.perf_counter()
        bodies = (BODY for _ in range(COUNT))  # may be endless: it is read as fast as messages are stored
        stored = await producer.produce_many(bodies, topic="measurements")
        print(f"from an iterable:       {COUNT / (time.perf_counter() - begin):9,.0f} messages/s")
        assert stored == COUNT


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
