"""A push consumer process for histories: by a seed, its listener fails, is slow, and asks for messages again.

    python -m tests.integration.moody_member NAMESERVER GROUP TOPIC SEED MODE

MODE: concurrent or orderly. Prints "NANOSECONDS QUEUE OFFSET BODY" for every message that its listener has
finished, before the consumer learns of it. SIGTERM closes it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from random import Random

from ledgermq.client import MessageView, PushConsumer, PushOptions, RetryLater


def _say(messages: Iterable[MessageView]) -> None:
    now = time.monotonic_ns()  # one clock for all processes of a machine
    lines = (f"{now} {each.queue_id} {each.queue_offset} {each.body.decode()}\n" for each in messages)
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


async def _main(nameserver: str, group: str, topic: str, seed: int, orderly: bool) -> None:
    random = Random(seed)

    async def listener(messages: list[MessageView]) -> RetryLater | None:
        mood = random.random()
        await asyncio.sleep(0.6 if mood < 0.02 else random.choice((0, 0, 0.01)))
        if mood < 0.1:
            raise RuntimeError("not now")
        if mood < 0.2:
            place = random.randrange(len(messages))
            if orderly:  # what follows comes again, too
                _say(messages[:place])
                return RetryLater([messages[place]])
            again = messages.pop(place)
            _say(messages)
            return RetryLater([again])
        _say(messages)
        return None

    options = PushOptions(
        batch_size=random.choice((1, 5, 32)),
        concurrency=random.choice((1, 4)),
        max_attempts=1 << 30,
        retry_ms=random.choice((0, 20)),
        longest_retry_ms=100,
        commit_interval_ms=random.choice((0, 10, 100)),
        session_timeout_ms=1000,
        release_ms=random.choice((50, 400)),
    )
    consumer = PushConsumer(nameserver, group=group, listener=listener, orderly=orderly, options=options)
    async with consumer:
        closing: list[asyncio.Task[None]] = []
        close = lambda: closing.append(asyncio.create_task(consumer.close()))  # noqa: E731
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, close)
        await consumer.subscribe(topic)
        await consumer.run()


if __name__ == "__main__":
    nameserver, group, topic, seed, mode = sys.argv[1:]
    asyncio.run(_main(nameserver, group, topic, int(seed), mode == "orderly"))
