"""A push consumer as a process of its own, for tests that kill it.

    python -m tests.integration.push_member NAMESERVER GROUP TOPIC

Prints "QUEUE OFFSET BODY" for every message when its listener is done with it.
"""

from __future__ import annotations

import asyncio
import sys

from ledgermq.client import MessageView, PushConsumer, PushOptions


async def _main(nameserver: str, group: str, topic: str) -> None:
    async def listener(messages: list[MessageView]) -> None:
        lines = (f"{each.queue_id} {each.queue_offset} {each.body.decode()}\n" for each in messages)
        sys.stdout.write("".join(lines))
        sys.stdout.flush()

    options = PushOptions(session_timeout_ms=1000)
    async with PushConsumer(nameserver, group=group, listener=listener, options=options) as consumer:
        await consumer.subscribe(topic)
        await consumer.run()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
