"""The traffic of the demo: send with many messages in flight, and read everything back.

Owns: the loops around `Producer` and the consumer. Must not: kill anything, print, judge.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable

from .demo_ledger import SendBook, body_of
from .errors import LedgerMQError
from .message import SendReceipt
from .producer import Producer

WINDOW = 4096  # messages in flight
BODY_SIZE = 256
_YIELD_EVERY = 128
_SEND_TIMEOUT_MS = 30_000


class Sender:
    """Sends numbered messages until told to stop. Every outcome goes into the book."""

    def __init__(self, nameserver: str, topic: str, book: SendBook) -> None:
        self.topic = topic
        self.book = book
        self._producer = Producer(nameserver, timeout_ms=_SEND_TIMEOUT_MS)
        self._room = asyncio.Event()

    async def run(self, go_on: Callable[[], bool]) -> None:
        """Send while `go_on()`; return when everything is acknowledged or has failed."""
        async with self._producer as producer:
            await producer.prepare(self.topic)
            while go_on():
                for _ in range(_YIELD_EVERY):
                    if self.book.in_flight >= WINDOW:
                        self._room.clear()
                        await self._room.wait()
                        break
                    self._send(producer)
                await asyncio.sleep(0)
            await producer.flush()

    def _send(self, producer: Producer) -> None:
        number = self.book.on_sent(time.monotonic())
        try:
            future = producer.send_nowait(self.topic, body_of(number, BODY_SIZE))
        except LedgerMQError as error:
            self.book.on_failed(number, str(error))
            return
        future.add_done_callback(functools.partial(self._on_done, number))

    def _on_done(self, number: int, future: asyncio.Future[SendReceipt]) -> None:
        if future.cancelled():
            self.book.on_failed(number, "cancelled")
        elif (error := future.exception()) is not None:
            self.book.on_failed(number, str(error))
        else:
            receipt = future.result()
            now = time.monotonic()
            self.book.on_acknowledged(number, receipt.queue_id, receipt.queue_offset, receipt.duplicate, now)
        self._room.set()
