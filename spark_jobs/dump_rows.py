"""Arrow batches from one slice of a log: a row per entry, a row per message, or the rows of the scan.

Owns: the schemas (Spark wants exactly these types) and the columns. Runs on executors. Unsigned numbers
become signed longs, because Spark has no others; checksums are longs too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ledgermq.proto.entry import HEADER_SIZE, EntryKind
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.record import (
    SECTION_HEADER_SIZE,
    SectionHeader,
    SectionKind,
    record_headers,
    record_positions,
    walk_sections,
)

from .dump_folder import Slice
from .entry_table import EntryTable
from .scan import load_slice, scan_slice
from .section_checks import section_rows

SCHEMAS: Final = {
    "entries": (
        "node string, index long, term long, kind string, section_count int, offset long, stored_offset long,"
        " size long, payload_size long, timestamp timestamp, crc long, prev_crc long, crc_ok boolean"
    ),
    "messages": (
        "node string, topic_id long, queue_id int, queue_offset long, index long, offset long, size int, "
        "flags int, born_timestamp timestamp, store_timestamp timestamp, tag_hash long, message_id binary, "
        "body_size int, body binary"
    ),
    "scan": (
        "row string, node string, path string, slice long, offset long, block long, entries long, size "
        "long, lane_a long, lane_b long, first_index long, last_index long, topic_id long, queue_id int, "
        "base long, next long, index long, after_damage boolean, json string"
    ),
}
_KIND_NAMES: Final = {int(kind): kind.name.lower() for kind in EntryKind}
#: Rows in one Arrow batch.
_BATCH_ROWS: Final = 64 << 10
Ranges = Sequence[tuple[int, int]] | None


def read_rows(
    part: Slice, rows: str, schema: pa.Schema, *, with_body: bool = True, ranges: Ranges = None
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one slice. Raises: OSError."""
    if rows == "scan":
        yield from _scan_batches(part, schema)
    elif rows == "entries":
        yield from _entry_batches(load_slice(part), part, schema, ranges)
    else:
        yield from _message_batches(load_slice(part), part, schema, with_body=with_body)


def _scan_batches(part: Slice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    batch: list[dict[str, Any]] = []
    for row in scan_slice(part):
        batch.append(row)
        if len(batch) == _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(batch, schema=schema)
            batch = []
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema=schema)


def _entry_batches(
    table: EntryTable, part: Slice, schema: pa.Schema, ranges: Ranges
) -> Iterator[pa.RecordBatch]:
    chosen = np.ones(len(table), np.bool_)
    if ranges is not None:
        chosen[:] = False
        for lo, hi in ranges:
            chosen |= (table.positions >= lo) & (table.positions < hi)
    rows = np.flatnonzero(chosen)
    for start in range(0, len(rows), _BATCH_ROWS):
        yield _entry_batch(table, rows[start : start + _BATCH_ROWS], part, schema)


def _entry_batch(
    table: EntryTable, rows: npt.NDArray[np.int64], part: Slice, schema: pa.Schema
) -> pa.RecordBatch:
    headers = table.headers[rows]

    def longs(name: str) -> npt.NDArray[np.int64]:
        return headers[name].astype(np.int64)

    columns = {
        "node": _constant(part.node, len(rows)),
        "index": longs("index"),
        "term": longs("term"),
        "kind": pa.array([_KIND_NAMES[kind] for kind in headers["kind"].tolist()]),
        "section_count": headers["section_count"].astype(np.int32),
        "offset": table.positions[rows],
        "stored_offset": longs("physical_offset"),
        "size": longs("size"),
        "payload_size": longs("payload_size"),
        "timestamp": _timestamps(longs("timestamp")),
        "crc": longs("crc"),
        "prev_crc": longs("prev_crc"),
        "crc_ok": pa.array(table.intact[rows]),
    }
    return _batch(columns, schema)


def _message_batches(
    table: EntryTable, part: Slice, schema: pa.Schema, *, with_body: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the records of committed, intact entries. An entry with unreadable sections has none."""
    for row in section_rows(table, part.commit_index):
        payload = table.payload(row)
        try:
            sections = list(walk_sections(payload, int(table.headers["section_count"][row])))
            for position, section in sections:
                if section.kind is SectionKind.RECORDS:
                    yield _section_batch(
                        table, row, payload, position, section, part, schema, with_body=with_body
                    )
        except LayoutError:
            continue  # the verification job reports it


def _section_batch(
    table: EntryTable,
    row: int,
    payload: memoryview,
    position: int,
    section: SectionHeader,
    part: Slice,
    schema: pa.Schema,
    *,
    with_body: bool,
) -> pa.RecordBatch:
    body_at = position + SECTION_HEADER_SIZE
    body = payload[body_at : body_at + section.size]
    positions = record_positions(body, section.count)
    headers = record_headers(body, positions)
    count = section.count
    first = section.base_queue_offset
    offsets = np.arange(first, first + count, dtype=np.int64) if first >= 0 else np.full(count, -1, np.int64)
    stored = np.full(count, int(table.headers["timestamp"][row]), np.int64)
    columns = {
        "node": _constant(part.node, count),
        "topic_id": np.full(count, section.topic_id, np.int64),
        "queue_id": np.full(count, section.queue_id, np.int32),
        "queue_offset": offsets,
        "index": np.full(count, int(table.headers["index"][row]), np.int64),
        "offset": positions + (int(table.positions[row]) + HEADER_SIZE + body_at),
        "size": headers["size"].astype(np.int32),
        "flags": headers["flags"].astype(np.int32),
        "born_timestamp": _timestamps(headers["born_timestamp"]),
        "store_timestamp": _timestamps(stored),
        "tag_hash": np.ascontiguousarray(headers["tag_hash"]),
        "message_id": pa.array([raw.tobytes() for raw in headers["message_id"]], pa.binary()),
        "body_size": headers["body_size"].astype(np.int32),
        "body": _bodies(body, positions, headers) if with_body else pa.nulls(count, pa.binary()),
    }
    return _batch(columns, schema)


def _bodies(body: memoryview, positions: npt.NDArray[np.int64], headers: npt.NDArray[np.void]) -> pa.Array:
    """Join the message bodies into one Arrow array: one buffer, one copy."""
    starts = positions + headers["body_offset"].astype(np.int64)
    sizes = headers["body_size"].astype(np.int64)
    spans = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    joined = b"".join([body[start:end] for start, end in spans])
    ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(positions), [None, pa.py_buffer(ends), pa.py_buffer(joined)]
    )


def _constant(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _timestamps(milliseconds: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(milliseconds.astype(np.int64) * 1000, pa.timestamp("us", "UTC"))


def _batch(columns: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    to_array: Callable[[Any], pa.Array] = pa.array
    arrays = [
        value if isinstance(value, pa.Array) else to_array(value)
        for value in (columns[field.name] for field in schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
