"""Messages on their way from any thread to a producer on its loop.

Owns: what was handed over and has no outcome yet, its bound in bytes, one wake-up of the loop for many messages.
Must not: block the loop; call back while it holds its lock.
Invariant: every future that was given out ends: with the producer's answer, or with ClosedError (`abandon`).
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
#: Runs a function on the loop of the producer, soon. Raises: ClosedError.
Post = Callable[[Callable[[], None]], None]


class Handover:
    """`put`, `wait_for_room` and `abandon` are for other threads, the rest belongs to the loop."""

    def __init__(self, producer: Producer, post: Post, max_bytes: int) -> None:
        self._producer = producer
        self._post = post
        self._max_bytes = max_bytes
        self._changed = threading.Condition()  # guards what follows
        self._bytes = 0
        self._open: dict[Receipt, int] = {}  # bytes by future
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
        """Wait until `put` takes a message. Raises: ClosedError."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bytes < self._max_bytes)
            if self._closed:
                raise ClosedError("producer")

    def abandon(self) -> None:
        """The loop is gone: what has no outcome yet never gets one."""
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
        """Give the producer what waits, in order."""
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
                        self._end(future)  # its caller has cancelled it
        finally:
            self._moving = None

    async def _give(self, message: Message, selection: Selection | None, future: Receipt) -> None:
        try:
            await self._producer.ready()  # others send, too
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
        """Make room; return whether the future is still to be answered."""
        with self._changed:
            size = self._open.pop(future, None)
            if size is None:
                return False
            was_full = self._bytes >= self._max_bytes
            self._bytes -= size
            if was_full:
                self._changed.notify_all()
        return True
