"""A push consumer process for tests that kill it.

    python -m tests.integration.push_member NAMESERVER GROUP TOPIC [BATCH]

Prints "QUEUE OFFSET BODY" for every message that its listener has finished. With BATCH, one listener runs at
a time and gets at most BATCH messages, and each batch is committed before the next.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from ledgermq.client import MessageView, PushConsumer, PushOptions


async def _main(nameserver: str, group: str, topic: str, batch: str = "") -> None:
    async def listener(messages: list[MessageView]) -> None:
        lines = (f"{each.queue_id} {each.queue_offset} {each.body.decode()}\n" for each in messages)
        sys.stdout.write("".join(lines))
        sys.stdout.flush()

    options = PushOptions(session_timeout_ms=1000)
    if batch:
        options = replace(options, batch_size=int(batch), concurrency=1, commit_interval_ms=0)
    async with PushConsumer(nameserver, group=group, listener=listener, options=options) as consumer:
        await consumer.subscribe(topic)
        await consumer.run()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
