"""Finds the trace of a message: reads the trace topic over a stretch of time, and the message itself, which knows when it was stored.

Owns: the reading, and what belongs together. Must not: print.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .errors import CorruptMessageError, LedgerMQError, UsageError
from .message import MessageQueue, MessageView
from .message_ids import time_of
from .pull_consumer import PullConsumer
from .trace_events import TRACE_TOPIC, TraceEvent, TraceSource, decode_batch

#: Nothing came for so long although more should be there: a broker group is away.
_SILENCE_MS: Final = 3_000
#: A trace is stored a little after what it tells of; clocks differ.
_SLACK_MS: Final = 60_000
#: Where reading begins when nobody says.
_DEFAULT_MS: Final = 24 * 3600 * 1000


class TracedEvent(NamedTuple):
    """A step, and who took it."""

    source: TraceSource
    event: TraceEvent


@dataclass(slots=True)
class MessageTrace:
    """Everything that was found of one message. `stored_ms` 0: nobody knows."""

    message_id: str
    steps: list[TracedEvent] = field(default_factory=list)  # by their beginning
    stored_ms: int = 0
    queue: MessageQueue | None = None  # where it stands
    queue_offset: int = -1
    size: int = -1  # of the body, bytes; -1: the message is not there any more

    @property
    def topic(self) -> str:
        return self.steps[0].event.topic

    @property
    def tag(self) -> str:
        return next((each.event.tag for each in self.steps if each.event.tag), "")

    @property
    def keys(self) -> tuple[str, ...]:
        return next((each.event.keys for each in self.steps if each.event.keys), ())


@dataclass(slots=True)
class TraceReport:
    """What a search found. `incomplete`: why there may be more, "" = all of the stretch was read."""

    traces: list[MessageTrace]
    since_ms: int
    read: int  # trace messages
    incomplete: str = ""


def begin_of(message_id: str, now_ms: int) -> int:
    """Return where to begin when nobody says: shortly before the id was made, or a day ago when it does not say."""
    made = time_of(message_id)
    return made - _SLACK_MS if made and made <= now_ms + _SLACK_MS else now_ms - _DEFAULT_MS


async def find_traces(
    nameservers: str | Sequence[str],
    *,
    since_ms: int,
    until_ms: int | None,
    message_id: str = "",
    key: str = "",
) -> TraceReport:
    """Return the traces of the message of that id, or of all messages with that key, of traces stored in a stretch of time.

    Raises: TopicNotFoundError (nobody keeps traces), and what reading raises.
    """
    wanted = message_id.upper()

    def matches(event: TraceEvent) -> bool:
        return event.message_id == wanted if wanted else key in event.keys

    async with PullConsumer(nameservers) as consumer:
        found, report = await _read(consumer, wanted or key, matches, since_ms, until_ms)
        for trace in found.values():
            trace.steps.sort(key=lambda step: step.event.begin_ms)
            await _look_at_message(consumer, trace)
    report.traces = sorted(found.values(), key=lambda trace: trace.steps[0].event.begin_ms)
    return report


async def _read(
    consumer: PullConsumer,
    wanted: str,
    matches: Callable[[TraceEvent], bool],
    since_ms: int,
    until_ms: int | None,
) -> tuple[dict[str, MessageTrace], TraceReport]:
    """Read the trace topic from a time on, to where it ends now."""
    found: dict[str, MessageTrace] = {}
    report = TraceReport([], since_ms, 0)
    await consumer.subscribe(TRACE_TOPIC)
    ends = {queue: end for queue, _, _, end in await consumer.offsets(TRACE_TOPIC)}
    await consumer.seek_to_time(TRACE_TOPIC, max(since_ms, 1))
    left = {queue for queue in consumer.assignment if consumer.position(queue) < ends.get(queue, 0)}
    while left:
        messages = await consumer.poll(timeout_ms=_SILENCE_MS)
        if not messages:
            report.incomplete = (
                f"broker group {', '.join(sorted({q.broker_group for q in left}))} does not answer"
            )
            break
        for message in messages:
            if until_ms is not None and message.store_timestamp > until_ms:
                left.discard(message.queue)
                continue
            report.read += 1
            _take(message, wanted, matches, found)
        left = {queue for queue in left if consumer.position(queue) < ends[queue]}
    if consumer.missing:
        report.incomplete = (
            f"broker group {', '.join(sorted({q.broker_group for q in consumer.missing}))} does not answer"
        )
    return found, report


def _take(
    message: MessageView, wanted: str, matches: Callable[[TraceEvent], bool], found: dict[str, MessageTrace]
) -> None:
    """Add what one trace message says of what is wanted."""
    try:
        batch = decode_batch(message.body)
    except CorruptMessageError:
        return
    if batch is None:
        return
    for event in batch.events:
        if matches(event):
            trace = found.setdefault(event.message_id, MessageTrace(event.message_id))
            trace.steps.append(TracedEvent(batch.source, event))


async def _look_at_message(consumer: PullConsumer, trace: MessageTrace) -> None:
    """Find out where the message stands and when it was stored; a consumer's trace says so, too."""
    placed = next((each.event for each in trace.steps if each.event.queue_offset >= 0), None)
    trace.stored_ms = next((each.event.stored_ms for each in trace.steps if each.event.stored_ms), 0)
    if placed is None:
        return
    queue = MessageQueue(placed.topic, placed.broker_group, placed.queue_id)
    trace.queue, trace.queue_offset = queue, placed.queue_offset
    consumer.unassign(consumer.assignment)
    try:
        await consumer.assign([queue])
        consumer.seek(queue, placed.queue_offset)
        messages = await consumer.poll(1, _SILENCE_MS)
    except LedgerMQError:  # deleted with its topic, or its group is away: the trace stands without it
        return
    if messages and messages[0].queue_offset == placed.queue_offset:
        trace.stored_ms = messages[0].store_timestamp
        trace.size = messages[0].record.body_size


def check_question(message_id: str, key: str) -> None:
    """Raises: UsageError."""
    if bool(message_id) == bool(key):
        raise UsageError(
            "give the id of a message, or --key", "", "For example: ledgermq message trace --key order-7"
        )
