"""Tracer: sends the events of a client to the trace topic without delaying its work.

Owns: the bounded queue of events, and the task and producer that send them (created with the first event).
Must not: wait in `add`. Events without room, or that cannot be sent, are dropped, counted and logged. This
never affects the messages themselves.
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

from ..errors import LedgerMQError, MessageTooLargeError, RefusedError, TopicNotFoundError
from ..event_loop import happens_anew
from ..message import Message
from ..pauses import REPORT_S
from .events import BATCH, TRACE_TOPIC, TraceEvent, TraceSource, encode_batch, take_batch

logger = logging.getLogger(__name__)

#: Maximum of waiting events.
MAX_EVENTS: Final = 10_000
#: How long the first event waits for others, s.
FLUSH_S: Final = 0.5
#: How long close() tries to send what is left, s.
CLOSE_S: Final = 2.0
#: Deadline of a trace message including retries, ms.
TRACE_TIMEOUT_MS: Final = 5_000
#: Pause after a send that found no trace topic, s.
_NO_TOPIC_S: Final = 5.0


class TraceProducer(Protocol):
    """The part of Producer that is needed."""

    async def start(self) -> None: ...

    async def send(self, topic: Message) -> Any: ...

    async def close(self) -> None: ...


def trace_source(client: str, group: str, client_id: str = "") -> TraceSource:
    """Return the source under which a client of this process traces."""
    host, process = socket.gethostname(), os.getpid()
    return TraceSource(client, group, client_id or f"{host}@{process}@{secrets.token_hex(4)}", host, process)


class Tracer:
    """The trace of one client. Bound to the event loop that runs at the first event."""

    def __init__(self, source: TraceSource, make_producer: Callable[[], TraceProducer]) -> None:
        """`make_producer` returns a producer that does not trace."""
        self.sent = 0  # events that were stored
        self.dropped = 0
        self._source = source
        self._make_producer = make_producer
        self._events: deque[TraceEvent] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._defect = ""  # defect that ended the task
        self._reason = ""  # reason of the last loss
        self._reported = 0
        self._report_at = 0.0

    @property
    def room(self) -> int:
        """How many more events would be accepted."""
        return 0 if self._closing or self._defect else MAX_EVENTS - len(self._events)

    def add(self, event: TraceEvent) -> None:
        """Add an event, or drop it without room. Events about the trace topic itself are ignored."""
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
        """Count events that were not created for lack of room."""
        if count > 0:
            full = "there was no room: messages come faster than their traces are stored"
            self._lose(count, self._defect or full)

    async def close(self) -> None:
        """Send what waits, for a limited time, and end."""
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
        """Wait until a batch is complete, or the first event has waited long enough."""
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
        except ValueError as error:  # unencodable text, such as this host's name
            self._lose(len(events), f"{type(error).__name__}: {error}")
        except BaseException:  # also a defect, which `_ended` reports
            self._lose(len(events), "the client was closed")
            raise
        else:
            self.sent += len(events)

    async def _pause(self) -> None:
        """Wait after a send without a trace topic: until the pause is over, or the tracer is closed."""
        self._report()
        until = time.monotonic() + _NO_TOPIC_S
        while not self._closing and (rest := until - time.monotonic()) > 0:
            await happens_anew(self._wake, rest)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a defect of the task, and drop the events that it would have sent."""
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
        """Log the losses since the last line, if a line is due."""
        now = time.monotonic()
        if self.dropped == self._reported or (now < self._report_at and not last):
            return
        logger.warning(
            "traces lost client=%s group=%s events=%d reason=%s",
            self._source.client_id, self._source.group, self.dropped - self._reported, self._reason,
        )  # fmt: skip
        self._reported, self._report_at = self.dropped, now + REPORT_S
