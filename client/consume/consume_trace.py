"""Consume trace: events about messages handed to the program, and about their results.

Created only when tracing is on. Must not: keep messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ..errors import InvalidHandleError, LedgerMQError
from ..message import LeasedMessage, MessageView
from ..produce.producer import Producer
from ..trace.events import MAX_ERROR, TRACE_TOPIC, TraceEvent
from ..trace.tracer import TRACE_TIMEOUT_MS, Tracer, trace_source


def now_ms() -> int:
    """Return the time used in traces, ms since the epoch."""
    return time.time_ns() // 1_000_000


def consume_trace(
    client: str, consumer_group: str, client_id: str, nameservers: str | Sequence[str], cluster: str
) -> ConsumeTrace:
    """Create the trace of a consumer."""
    return ConsumeTrace(
        Tracer(
            trace_source(client, consumer_group, client_id),
            lambda: Producer(nameservers, cluster=cluster, timeout_ms=TRACE_TIMEOUT_MS),
        )
    )


class ConsumeTrace:
    """Turns the actions of a consumer into trace events."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    async def close(self) -> None:
        """Send the events that wait."""
        await self.tracer.close()

    def received(self, messages: Iterable[LeasedMessage | MessageView]) -> None:
        """The program received these messages."""
        now, attempt = now_ms(), 0
        for message in messages:
            if isinstance(message, LeasedMessage):
                message.received_ms, attempt = now, message.delivery_attempt
            self._add("receive", message, now, "delivered", attempt=attempt)

    def listened(
        self,
        messages: Sequence[MessageView],
        failed: Sequence[MessageView],
        error: Exception | None,
        attempt: int,
        begin_ms: int,
    ) -> None:
        """A listener returned, or failed, for a batch."""
        cost = now_ms() - begin_ms
        again = {id(message) for message in failed}
        for message in messages:
            if id(message) in again:
                self._add("consume", message, begin_ms, "failed", cost, attempt, _text(error))
            else:
                self._add("consume", message, begin_ms, "consumed", cost, attempt)

    def skipped(self, messages: Iterable[MessageView], error: Exception | None, attempt: int) -> None:
        """These messages are skipped after their last attempt."""
        for message in messages:
            self._add("consume", message, now_ms(), "skipped", attempt=attempt, error=_text(error))

    def ended(self, message: LeasedMessage, result: str, error: LedgerMQError | None = None) -> None:
        """A lease was acknowledged or given back, or the broker refused that."""
        if error is not None:
            result = "late" if isinstance(error, InvalidHandleError) else "failed"
        now = now_ms()
        begin = message.received_ms or now
        attempt = message.delivery_attempt
        self._add("consume", message, begin, result, now - begin, attempt, _text(error))

    def _add(
        self,
        kind: str,
        message: LeasedMessage | MessageView,
        begin_ms: int,
        result: str,
        cost_ms: int = 0,
        attempt: int = 0,
        error: str = "",
    ) -> None:
        if message.topic == TRACE_TOPIC:  # tracing the trace topic would never end
            return
        if self.tracer.room <= 0:
            self.tracer.drop(1)
            return
        try:
            tag, keys = message.tag, message.keys
        except LedgerMQError:  # unreadable: trace at least its id and position
            tag, keys = "", ()
        self.tracer.add(
            TraceEvent(
                kind,
                message.message_id,
                message.topic,
                begin_ms,
                result,
                max(cost_ms, 0),
                message.queue.broker_group,
                message.queue_id,
                message.queue_offset,
                tag,
                keys,
                message.store_timestamp,
                attempt,
                error,
            )
        )


def _text(error: Exception | None) -> str:
    if error is None:
        return ""
    try:
        text = str(error)[:MAX_ERROR]
    except Exception:  # noqa: BLE001 (it is the user's own class)
        text = "(it has no text)"
    return f"{type(error).__name__}: {text}".encode("utf-8", "replace").decode()
