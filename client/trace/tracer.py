"""Sends what a client has to say about messages to the trace topic, beside its work and never in its way.

Owns: the events that wait, bounded, and the task and the producer that send them; both are made with the first event.
Must not: wait for anything in `add`. What finds no room, or cannot be sent, is dropped, counted and logged; the messages
themselves are not touched by that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ..cluster.waiting import happens_anew
from ..errors import LedgerMQError, MessageTooLargeError, RefusedError, TopicNotFoundError
from ..message import Message
from ..pauses import REPORT_S
from .events import BATCH, TRACE_TOPIC, TraceEvent, TraceSource, encode_batch, take_batch

logger = logging.getLogger(__name__)

#: Events that wait, at most.
MAX_EVENTS: Final = 10_000
#: The first event waits so long for others.
FLUSH_S: Final = 0.5
#: What is still there when the client is closed gets so long.
CLOSE_S: Final = 2.0
#: Deadline of a trace message with its retries.
TRACE_TIMEOUT_MS: Final = 5_000
#: Without a trace topic nothing is tried for so long.
_NO_TOPIC_S: Final = 5.0


class TraceProducer(Protocol):
    """What is needed of a Producer."""

    async def start(self) -> None: ...

    async def send(self, topic: Message) -> Any: ...

    async def close(self) -> None: ...


def trace_source(client: str, group: str, client_id: str = "") -> TraceSource:
    """Return how a client of this process names itself."""
    host, process = socket.gethostname(), os.getpid()
    return TraceSource(client, group, client_id or f"{host}@{process}@{secrets.token_hex(4)}", host, process)


class Tracer:
    """The trace of one client. Bound to the loop that runs at the first event."""

    def __init__(self, source: TraceSource, make_producer: Callable[[], TraceProducer]) -> None:
        """`make_producer` gives one that does not trace."""
        self.sent = 0  # events that are stored
        self.dropped = 0
        self._source = source
        self._make_producer = make_producer
        self._events: deque[TraceEvent] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._defect = ""  # that ended the task
        self._reason = ""  # of the last loss
        self._reported = 0
        self._report_at = 0.0

    @property
    def room(self) -> int:
        """Events that would still be taken."""
        return 0 if self._closing or self._defect else MAX_EVENTS - len(self._events)

    def add(self, event: TraceEvent) -> None:
        """Take an event, or drop it when there is no room. What happens in the trace topic itself leaves no trace."""
        if event.topic == TRACE_TOPIC:
            return
        if self.room <= 0:
            self.drop(1)
            return
        self._events.append(event)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="ledgermq-trace")
            self._task.add_done_callback(self._ended)
        if len(self._events) in (1, BATCH):
            self._wake.set()

    def drop(self, count: int) -> None:
        """Count events that were not even made, because there is no room."""
        if count > 0:
            full = "there was no room: messages come faster than their traces are stored"
            self._lose(count, self._defect or full)

    async def close(self) -> None:
        """Send what waits, for a moment, and end."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._lose_waiting("the client was closed")
        self._report(last=True)

    # --- sending --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        producer = self._make_producer()
        try:
            await producer.start()
            while not (self._closing and not self._events):
                await self._gather()
                if self._events:
                    events, keys = take_batch(self._events)
                    await self._send(producer, events, keys)
                self._report()
        finally:
            await producer.close()

    async def _gather(self) -> None:
        """Wait until there is a batch, or the first event has waited long enough."""
        if self._closing or len(self._events) >= BATCH:
            return
        await happens_anew(self._wake, FLUSH_S if self._events else None)

    async def _send(self, producer: TraceProducer, events: list[TraceEvent], keys: Sequence[str]) -> None:
        """Send one trace message. It is retried like any other; what cannot be sent is lost."""
        try:
            body = encode_batch(self._source, events)
            await producer.send(Message(TRACE_TOPIC, body, keys=keys))
        except MessageTooLargeError as error:
            if len(events) == 1:
                self._lose(1, str(error))
                return
            for half in (deque(events[: len(events) // 2]), deque(events[len(events) // 2 :])):
                while half:
                    await self._send(producer, *take_batch(half))
        except (TopicNotFoundError, RefusedError) as error:
            self._lose(len(events), f"{error}. Do the brokers keep traces (trace_topic = true)?")
            await self._pause()
        except LedgerMQError as error:
            self._lose(len(events), str(error))
        except ValueError as error:  # a text that cannot be encoded, for example the name of this machine
            self._lose(len(events), f"{type(error).__name__}: {error}")
        except BaseException:  # or a defect, which `_ended` names
            self._lose(len(events), "the client was closed")
            raise
        else:
            self.sent += len(events)

    async def _pause(self) -> None:
        """Nobody keeps traces now: try again after a while, or at the end."""
        self._report()
        until = time.monotonic() + _NO_TOPIC_S
        while not self._closing and (rest := until - time.monotonic()) > 0:
            await happens_anew(self._wake, rest)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nobody awaits the task: a defect is told here, and nothing waits any more for what it would have sent."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._defect = f"tracing has ended by a defect of LedgerMQ, {type(error).__name__}: {error}"
        self._reason = self._defect
        logger.error("traces end client=%s", self._source.client_id, exc_info=error)
        self._lose_waiting(self._defect)
        self._report(last=True)

    # --- losses ---------------------------------------------------------------------------------------------

    def _lose(self, count: int, reason: str) -> None:
        self.dropped += count
        self._reason = reason

    def _lose_waiting(self, reason: str) -> None:
        if self._events:
            self._lose(len(self._events), reason)
            self._events.clear()

    def _report(self, *, last: bool = False) -> None:
        """Log what was lost since the last line, if a line is due."""
        now = time.monotonic()
        if self.dropped == self._reported or (now < self._report_at and not last):
            return
        logger.warning(
            "traces lost client=%s group=%s events=%d reason=%s",
            self._source.client_id, self._source.group, self.dropped - self._reported, self._reason,
        )  # fmt: skip
        self._reported, self._report_at = self.dropped, now + REPORT_S
