"""Traced deliveries: what traces tell of messages that reached consumers, as Arrow rows. Runs on executors.

Owns: which trace events are a delivery, a redelivery, the end of a consumption. The decoder is that of
`ledgermq message trace`; anyone may write to the trace topic, so whoever takes these rows compares them with
the stored messages. Must not: know Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import pyarrow as pa

from ledgermq.client.trace.events import TraceBatch, TraceEvent, decode_batch

#: Columns of the rows, as Spark and as Arrow call their types. A row is about one event; one without a topic
#: counts trace messages that cannot be read.
COLUMNS: Final = (
    "topic string, queue_group string, queue int, offset bigint, message_id string, consumer_group string, "
    "done_ms bigint, redelivered bigint, given_up bigint, unreadable bigint"
)
_TYPES: Final = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
SCHEMA: Final = pa.schema(
    [(name, _TYPES[kind]) for name, kind in (column.split() for column in COLUMNS.split(", "))]
)
#: Trace messages are made into rows together; each has at most 100 events.
_BODIES: Final = 200


def delivery_batches(topics: Collection[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the deliveries of messages of `topics` that trace messages tell of, from their column `body`."""
    for batch in batches:
        bodies = batch.column("body")
        for at in range(0, len(bodies), _BODIES):
            rows: list[tuple[Any, ...]] = []
            unreadable = 0
            for body in bodies[at : at + _BODIES].to_pylist():
                found = decode_batch(body) if body is not None else None
                unreadable += found is None
                rows += _rows(found, topics) if found is not None else ()
            if unreadable:
                rows.append((*[None] * (len(SCHEMA) - 1), unreadable))
            columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
            yield pa.RecordBatch.from_arrays(
                [pa.array(list(column), each.type) for column, each in zip(columns, SCHEMA, strict=True)],
                schema=SCHEMA,
            )


def _rows(batch: TraceBatch, topics: Collection[str]) -> Iterator[tuple[Any, ...]]:
    source = batch.source
    for event in batch.events:
        if event.topic not in topics or event.kind == "send" or event.queue_offset < 0:
            continue
        yield (
            event.topic, event.broker_group, event.queue_id, event.queue_offset, event.message_id,
            source.group, _done_ms(source.client, event), int(_is_redelivery(source.client, event)),
            int(event.kind == "consume" and event.result == "skipped"), 0,
        )  # fmt: skip


def _done_ms(client: str, event: TraceEvent) -> int | None:
    """Return when a message was consumed. A pull consumer tells only that the program has it."""
    if event.kind == "consume":
        return event.begin_ms + event.cost_ms if event.result == "consumed" else None
    return event.begin_ms if client == "pull" else None


def _is_redelivery(client: str, event: TraceEvent) -> bool:
    """Tell whether an event is a delivery after the first. A push consumer traces calls of its listener, the
    others what they handed out.
    """
    if client == "push":
        return event.attempt > 1 and event.kind == "consume" and event.result in ("consumed", "failed")
    return event.attempt > 1 and event.kind == "receive"
