"""Handover: passes messages from any thread to a producer on its loop.

Owns: messages that were handed over and have no outcome yet, the bound on their bytes, one wake-up of the
loop for many messages.
Must not: block the loop, call back while it holds its lock.
Invariant: every returned future completes, with the producer's result or with ClosedError (`abandon`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from ..errors import BufferFullError, ClosedError, LedgerMQError
from ..message import Message, SendReceipt
from ..produce.early_message import keep
from ..produce.producer import Producer
from ..produce.queue_selection import Selection

Receipt = Future[SendReceipt]
#: Schedules a function on the loop of the producer. Raises: ClosedError.
Post = Callable[[Callable[[], None]], None]


class Handover:
    """Call `put`, `wait_for_room` and `abandon` from other threads, the rest on the loop."""

    def __init__(self, producer: Producer, post: Post, max_bytes: int) -> None:
        self._producer = producer
        self._post = post
        self._max_bytes = max_bytes
        self._changed = threading.Condition()  # guards the following fields
        self._bytes = 0
        self._open: dict[Receipt, int] = {}  # messages without an outcome: bytes by future
        self._waiting: deque[tuple[Message, Selection | None, Receipt]] = deque()
        self._closed = False
        self._moving: asyncio.Task[None] | None = None  # on the loop only

    def put(self, message: Message, selection: Selection | None = None) -> Receipt:
        """Hand over a message. Raises: BufferFullError, ClosedError, UsageError."""
        message, size = keep(message)
        future: Receipt = Future()
        with self._changed:
            if self._closed:
                raise ClosedError("producer")
            if self._bytes >= self._max_bytes:
                raise BufferFullError(
                    self._bytes,
                    self._max_bytes,
                    "Call producer.ready() before the next send_async(), or use send()",
                )
            if not self._waiting:
                self._post(self._wake)
            self._waiting.append((message, selection, future))
            self._open[future] = size
            self._bytes += size
        return future

    def wait_for_room(self) -> None:
        """Wait until `put` accepts a message. Raises: ClosedError."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bytes < self._max_bytes)
            if self._closed:
                raise ClosedError("producer")

    def abandon(self) -> None:
        """Fail what has no outcome: the loop is gone."""
        with self._changed:
            self._closed = True
            left = list(self._open)
            self._open.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for future in left:
            if future.running() or future.set_running_or_notify_cancel():
                future.set_exception(ClosedError("producer"))

    # --- on the loop ----------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until the producer has everything that was handed over."""
        while self._moving is not None:
            await self._moving

    def _wake(self) -> None:
        if self._moving is None:
            self._moving = asyncio.create_task(self._move(), name="ledgermq-handover")

    async def _move(self) -> None:
        """Pass waiting messages to the producer, in order."""
        try:
            while True:
                with self._changed:
                    batch = list(self._waiting)
                    self._waiting.clear()
                if not batch:
                    return
                for message, selection, future in batch:
                    if future.set_running_or_notify_cancel():
                        await self._give(message, selection, future)
                    else:
                        self._end(future)  # cancelled by its caller
        finally:
            self._moving = None

    async def _give(self, message: Message, selection: Selection | None, future: Receipt) -> None:
        try:
            await self._producer.ready()  # the producer may be full
            selector, argument = selection or (None, None)
            sent = self._producer.send_nowait(message, selector=selector, argument=argument)
        except LedgerMQError as error:
            if self._end(future):
                future.set_exception(error)
            return
        sent.add_done_callback(partial(self._pass_on, future))

    def _pass_on(self, future: Receipt, sent: asyncio.Future[SendReceipt]) -> None:
        if not self._end(future):
            return
        if sent.cancelled():
            future.set_exception(ClosedError("producer"))
        elif (error := sent.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(sent.result())

    def _end(self, future: Receipt) -> bool:
        """Free the room of a message. Return whether its future is still open."""
        with self._changed:
            size = self._open.pop(future, None)
            if size is None:
                return False
            was_full = self._bytes >= self._max_bytes
            self._bytes -= size
            if was_full:
                self._changed.notify_all()
        return True
