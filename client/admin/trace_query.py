"""Trace queries: find a message's trace through the brokers' key index, or by reading the trace topic.

Anyone may write to the trace topic, so traces are compared with the stored messages: a message tells its
position and time. A step that contradicts them is left out and counted.
Owns: the search, and grouping of events by message. Must not: print.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..consume.pull_consumer import PullConsumer
from ..errors import CorruptMessageError, LedgerMQError, TopicNotFoundError
from ..message import MessageQueue, MessageView
from ..produce.message_ids import time_of
from ..trace.events import TRACE_TOPIC, TraceEvent, TraceSource, decode_batch
from .admin import Admin
from .message_query import FoundMessages

#: No message for this long, although there should be more: a broker group is down. ms.
_SILENCE_MS: Final = 3_000
#: How long brokers may search for a message or its traces, ms.
_LOOK_MS: Final = 5_000
#: Maximum of trace messages about one id from the index. With more, the topic is read.
_MAX_INDEXED: Final = 1_000
#: A trace is stored a little later than the event it tells of, and clocks differ; ms.
_SLACK_MS: Final = 60_000
#: Default age at which reading begins, ms.
_DEFAULT_MS: Final = 24 * 3600 * 1000


class TracedEvent(NamedTuple):
    """A step with its source."""

    source: TraceSource
    event: TraceEvent


@dataclass(slots=True)
class MessageTrace:
    """Everything found about one message."""

    message_id: str
    steps: list[TracedEvent] = field(default_factory=list)  # ordered by begin
    stored_ms: int = 0  # ms since the epoch; 0: unknown
    queue: MessageQueue | None = None  # where the message is stored
    queue_offset: int = -1
    size: int = -1  # of the body, bytes; -1: no longer stored

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
    """Result of a search. `incomplete`: why there may be more; "": the whole period was searched."""

    traces: list[MessageTrace]
    since_ms: int
    read: int = 0  # trace messages
    incomplete: str = ""
    # messages of the trace topic that are not traces, and steps that contradict what is stored
    skipped: int = 0


@dataclass(slots=True)
class _Found:
    """Collects the wanted events from trace messages."""

    matches: Callable[[TraceEvent], bool]
    traces: dict[str, MessageTrace] = field(default_factory=dict)  # by message id
    read: int = 0
    skipped: int = 0

    def take(self, message: MessageView) -> None:
        """Add the wanted events of one trace message."""
        self.read += 1
        try:
            batch = decode_batch(message.body)
        except CorruptMessageError:
            batch = None
        if batch is None:
            self.skipped += 1
            return
        for event in batch.events:
            if self.matches(event):
                trace = self.traces.setdefault(event.message_id, MessageTrace(event.message_id))
                trace.steps.append(TracedEvent(batch.source, event))


def begin_of(message_id: str, now_ms: int) -> int:
    """Return the default begin: shortly before the id was made, or a day ago if the id does not tell."""
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
    """Return the traces, stored within a period, of the message with an id or of all messages with a key.

    Raises: TopicNotFoundError (no traces are kept), and the errors of reading.
    """
    wanted = message_id.upper()

    def matches(event: TraceEvent) -> bool:
        return event.message_id == wanted if wanted else key in event.keys

    async with PullConsumer(nameservers) as consumer, Admin(nameservers, timeout_ms=_LOOK_MS) as admin:
        report, found = TraceReport([], since_ms), _Found(matches)
        if not (message_id and await _look_up(admin, wanted, since_ms, until_ms, found)):
            found = _Found(matches)
            report.incomplete = await _read(consumer, since_ms, until_ms, found)
            report.incomplete = report.incomplete or _silent(await admin.gone_groups())  # of no route
        report.read, report.skipped = found.read, found.skipped
        stored = _Stored(admin, consumer)
        for trace in found.traces.values():
            trace.steps.sort(key=lambda step: step.event.begin_ms)
            report.skipped += await stored.compare(trace)
    report.traces = [trace for trace in found.traces.values() if trace.steps]
    report.traces.sort(key=lambda trace: trace.steps[0].event.begin_ms)
    return report


async def _look_up(admin: Admin, message_id: str, since_ms: int, until_ms: int | None, found: _Found) -> bool:
    """Take the trace messages with the id among their keys. All that tell about the message have it.

    False: there are none, or the index does not know all of them. Raises: TopicNotFoundError.
    """
    end_ms = 0 if until_ms is None else until_ms + 1
    try:
        answer = await admin.query_messages(
            TRACE_TOPIC, key=message_id, begin_ms=max(since_ms, 1), end_ms=end_ms, limit=_MAX_INDEXED
        )
    except TopicNotFoundError:
        raise
    except LedgerMQError:  # the topic can still be read
        return False
    for message in reversed(answer.messages):
        found.take(message)
    return bool(found.traces) and answer.is_complete and not answer.truncated


async def _read(consumer: PullConsumer, since_ms: int, until_ms: int | None, found: _Found) -> str:
    """Read the trace topic from a time to its current end. Return why that is incomplete; "": complete."""
    await consumer.subscribe(TRACE_TOPIC)
    stretches, silent = await consumer.stretches(TRACE_TOPIC, max(since_ms, 1))
    away = [queue for queue in (*consumer.missing, *consumer.assignment) if queue not in stretches]
    consumer.unassign(away)  # they would be read from the beginning, with unknown end
    missing = {*silent, *(queue.broker_group for queue in away)}
    for queue, (begin, _) in stretches.items():
        consumer.seek(queue, begin)
    left = {queue for queue, (begin, end) in stretches.items() if begin < end}
    while left:
        messages = await consumer.poll(timeout_ms=_SILENCE_MS)
        if not messages:
            missing |= {queue.broker_group for queue in left}
            break
        for message in messages:
            if until_ms is not None and message.store_timestamp > until_ms:
                left.discard(message.queue)
                continue
            found.take(message)
        left = {queue for queue in left if consumer.position(queue) < stretches[queue][1]}
    return _silent(missing)


def _silent(groups: Collection[str]) -> str:
    return f"broker group {', '.join(sorted(groups))} does not answer" if groups else ""


class _Stored:
    """Compares traces with the messages that brokers store."""

    def __init__(self, admin: Admin, consumer: PullConsumer) -> None:
        self._admin = admin
        self._consumer = consumer
        self._begins: dict[str, dict[MessageQueue, int]] = {}  # begins of queues, by topic

    async def compare(self, trace: MessageTrace) -> int:
        """Find the message of a trace, and drop the steps that cannot be true. Return how many."""
        try:
            copies = await self._admin.find_message(trace.message_id)
        except LedgerMQError:  # unknown: the trace is kept as it is
            copies = FoundMessages(truncated=True)
        places = {(message.queue, message.queue_offset): message for message in copies.messages}
        is_whole = copies.is_complete and not copies.truncated
        told = [(step, _place_of(step.event)) for step in trace.steps]
        kept = [
            (step, place)
            for step, place in told
            if place is None or place in places or not (is_whole and await self._was_never_there(*place))
        ]
        trace.steps = [step for step, _ in kept]
        trace.stored_ms = next((step.event.stored_ms for step, _ in kept if step.event.stored_ms), 0)
        named = [place for _, place in kept if place is not None]
        shown = next((place for place in named if place in places), next(iter(places or named), None))
        if shown is not None:
            trace.queue, trace.queue_offset = shown
        if shown in places:
            trace.stored_ms, trace.size = places[shown].store_timestamp, places[shown].record.body_size
        return len(told) - len(kept)

    async def _was_never_there(self, queue: MessageQueue, offset: int) -> bool:
        """Tell whether no message with that id was ever there. It is not there now."""
        begins = await self._begins_of(queue.topic)
        if queue not in begins:  # of a topic or broker group that is gone, or of a queue that never existed
            return any(each.broker_group == queue.broker_group for each in begins)
        return offset >= begins[queue]  # before the begin it may have been deleted

    async def _begins_of(self, topic: str) -> dict[MessageQueue, int]:
        if topic not in self._begins:
            try:
                found = await self._consumer.offsets(topic)
            except LedgerMQError:  # the topic is deleted, or a broker group is down
                found = []
            self._begins[topic] = {queue: begin for queue, _, begin, _ in found}
        return self._begins[topic]


def _place_of(event: TraceEvent) -> tuple[MessageQueue, int] | None:
    if event.queue_offset < 0:
        return None
    return MessageQueue(event.topic, event.broker_group, event.queue_id), event.queue_offset
