"""Load of the demo: send with many messages in flight, and read everything back.

Owns: the loops around `Producer` and the consumer. Must not: kill nodes, print, judge.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable

from ..consume.pull_consumer import PullConsumer
from ..errors import LedgerMQError
from ..message import SendReceipt
from ..produce.producer import Producer
from .ledger import ReceiveBook, SendBook, body_of

WINDOW = 4096  # messages in flight
BODY_SIZE = 256
_YIELD_EVERY = 128
_SLOW_PAUSE = 0.025  # s after each _YIELD_EVERY messages: about 5,000 messages per second
_SEND_TIMEOUT_MS = 30_000
_POLL_MS = 500
_PATIENCE_SECONDS = 30.0
_COMMIT_EVERY = 10_000  # messages; a crash redelivers those handled since the last commit


class Sender:
    """Sends numbered messages until told to stop. Every result goes into the book."""

    def __init__(self, nameserver: str, topic: str, book: SendBook) -> None:
        self.topic = topic
        self.book = book
        self._producer = Producer(nameserver, timeout_ms=_SEND_TIMEOUT_MS)
        self._room = asyncio.Event()

    async def run(self, go_on: Callable[[], bool], planned: int) -> None:
        """Send while `go_on()`, slower beyond `planned`. Return when all are acknowledged or have failed."""
        async with self._producer as producer:
            await producer.prepare(self.topic)
            while go_on():
                for _ in range(_YIELD_EVERY):
                    if self.book.in_flight >= WINDOW:
                        self._room.clear()
                        await self._room.wait()
                        break
                    self._send(producer)
                await asyncio.sleep(0 if len(self.book.sent_at) < planned else _SLOW_PAUSE)
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
            self.book.message_ids[number] = receipt.message_id
        self._room.set()


class Receiver:
    """Reads a topic with two consumers of one consumer group. The first dies half-way without a commit."""

    def __init__(self, nameserver: str, group: str, topic: str, book: ReceiveBook) -> None:
        self.nameserver = nameserver
        self.group = group
        self.topic = topic
        self.book = book
        self.expected = 0

    async def run(self, on_progress: Callable[[int, int], None]) -> None:
        """Read everything that is stored now. Raises: LedgerMQError (none arrive though some are missing)."""
        async with PullConsumer(self.nameserver, group=self.group) as consumer:
            await consumer.subscribe(self.topic)
            ends = await consumer.offsets(self.topic)
            self.expected = sum(end - begin for _, _, begin, end in ends)
            await self._read(consumer, self.expected // 2, on_progress)
        async with PullConsumer(self.nameserver, group=self.group) as consumer:
            await consumer.subscribe(self.topic)
            await self._read(consumer, self.expected, on_progress)
            await consumer.commit()

    async def _read(
        self, consumer: PullConsumer, until: int, on_progress: Callable[[int, int], None]
    ) -> None:
        """Read until `until` stored messages were seen; commit occasionally."""
        quiet_since = time.monotonic()
        uncommitted = 0
        while self.book.stored < until:
            messages = await consumer.poll(timeout_ms=_POLL_MS)
            for message in messages:
                self.book.on_message(message.queue_id, message.queue_offset, message.body)
            if messages:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _PATIENCE_SECONDS:
                raise LedgerMQError(
                    f"{self.book.stored:,} of {self.expected:,} stored messages were delivered, "
                    f"then nothing for {_PATIENCE_SECONDS:g} s"
                )
            uncommitted += len(messages)
            # The last ones stay uncommitted, as after a crash
            if uncommitted >= _COMMIT_EVERY and self.book.stored < until:
                await consumer.commit()
                uncommitted = 0
            on_progress(self.book.stored, self.expected)
