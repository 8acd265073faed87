"""Message columns: the records of many sections as one Arrow batch. Pure.

Owns: the schema of `format("ledgermq")`, and the columns; numpy and Arrow over whole answers. Only what a
producer wrote as protobuf (keys, properties, message groups, ids in a foreign form) and compressed bodies
are decoded message by message, and only in the rows that have them.
Must not: do I/O, know Spark.

The bytes come from producers through brokers: checksums are right, and the contents may still be anything.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ledgermq.client.errors import CorruptMessageError
from ledgermq.client.message import MessageQueue, MessageView
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.record import (
    RECORD_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    RecordFlags,
    SectionHeader,
    are_alike,
    check_runs,
    record_headers,
    record_positions,
)

#: Columns of a topic in their order, with the types as Spark prints them.
COLUMNS: Final[Mapping[str, str]] = {
    "topic": "string",
    "queue_group": "string",
    "queue": "int",
    "offset": "bigint",
    "message_id": "string",
    "keys": "array<string>",
    "tag": "string",
    "properties": "map<string,string>",
    "body": "binary",
    "born_time": "timestamp",
    "store_time": "timestamp",
    "message_group": "string",
}
#: Times that Spark can show, ms since the epoch: the years 1 to 9999. Producers may send any number.
_TIMES: Final = (-62_135_596_800_000, 253_402_300_799_999)
#: Rows in a batch with compressed bodies: each may unpack to 4 MiB.
_PACKED_ROWS: Final = 64
_ID_SIZE: Final = 34
_ONE_BYTE_LENGTH: Final = 128  # from this on, a protobuf length takes more than one byte
_TOPIC_FIELD: Final = 0x0A  # tag of field 1, length-delimited

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class RecordTable:
    """Records of consecutive sections of one queue. The arrays run in parallel, one element per record."""

    queue: MessageQueue
    data: bytes  # the sections, joined
    positions: Int64s  # of the records, in `data`
    offsets: Int64s  # queue offsets, ascending
    stored: Int64s  # ms since the epoch
    headers: npt.NDArray[np.void]  # RECORD_DTYPE

    def __len__(self) -> int:
        return len(self.positions)

    def chosen(self, rows: npt.NDArray[np.bool_]) -> RecordTable:
        """Return the records for which `rows` is true."""
        if bool(rows.all()):
            return self
        return RecordTable(
            self.queue, self.data, self.positions[rows], self.offsets[rows], self.stored[rows],
            self.headers[rows],
        )  # fmt: skip

    def view(self, row: int) -> MessageView:
        """Return one message, which decodes its parts on access."""
        return MessageView(
            self.data, int(self.positions[row]), self.queue, int(self.offsets[row]), int(self.stored[row])
        )


def record_table(
    queue: MessageQueue,
    sections: Sequence[bytes],
    headers: Sequence[SectionHeader],
    store_timestamps: Sequence[int],
) -> RecordTable:
    """Find the records of verified sections. Raises: CorruptMessageError (sizes do not fit)."""
    data = b"".join(sections)
    counts = np.array([each.count for each in headers], np.int64)
    bases = np.array([each.base_queue_offset for each in headers], np.int64)
    sizes = np.array([each.size for each in headers], np.int64)
    starts = np.cumsum(sizes + SECTION_HEADER_SIZE) - (sizes + SECTION_HEADER_SIZE)
    try:
        positions, found = _records(data, starts, sizes, counts)
    except LayoutError as error:
        raise CorruptMessageError(queue.topic, queue.queue_id, str(error)) from error
    within = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets = np.repeat(bases, counts) + within
    return RecordTable(
        queue, data, positions, offsets, np.repeat(np.array(store_timestamps, np.int64), counts), found
    )


def _records(
    data: bytes, starts: Int64s, sizes: Int64s, counts: Int64s
) -> tuple[Int64s, npt.NDArray[np.void]]:
    """Return positions and headers of all records in `data`, checked as `record_positions` does.

    Raises: CorruptError.
    """
    found = _scanned(data, starts, sizes, counts)
    if found is not None:
        return found, check_runs(data, found)
    # A body holds what looks like a record, or a section is damaged: walk each by its sizes.
    parts = [
        record_positions(memoryview(data)[start : start + size], count) + start
        for start, size, count in zip(
            (starts + SECTION_HEADER_SIZE).tolist(), sizes.tolist(), counts.tolist(), strict=True
        )
    ]
    found = np.concatenate([*parts, np.empty(0, np.int64)])
    return found, record_headers(data, found)


def _scanned(data: bytes, starts: Int64s, sizes: Int64s, counts: Int64s) -> Int64s | None:
    """Find records without a loop: each holds its distance from the section's start. None: not certain."""
    if not len(starts) or int(counts.min()) < 1 or int(sizes.min()) < RECORD_HEADER_SIZE:
        return None
    words = np.frombuffer(data, "<u8")
    firsts = (starts + SECTION_HEADER_SIZE) >> 3
    each = (words[firsts] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    if bool((each * counts == sizes).all()):  # equally long records within each section
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(firsts, counts) + within * np.repeat(each >> 3, counts)
    else:
        totals = (sizes + SECTION_HEADER_SIZE) >> 3
        distances = (np.arange(len(words)) << 3) - np.repeat(starts, totals)
        hits = (words >> np.uint64(32)).view(np.int64) == distances
        hits &= distances >= SECTION_HEADER_SIZE
        places = np.flatnonzero(hits)
    if len(places) != int(counts.sum()):
        return None
    at = places << 3
    lengths = (words[places] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    begins = np.repeat(starts, counts)
    ends = np.append(at[1:], 0)
    lasts = np.cumsum(counts) - 1
    ends[lasts] = starts + SECTION_HEADER_SIZE + sizes
    fits = (at + lengths == ends) & ((words[places] >> np.uint64(32)).view(np.int64) == at - begins)
    fits &= (lengths >= RECORD_HEADER_SIZE) & (lengths & 7 == 0)
    return at if bool(fits.all()) and bool((places[lasts - counts + 1] == firsts).all()) else None


# --- columns ------------------------------------------------------------------------------------------------


def message_batch(table: RecordTable, schema: pa.Schema, *, lenient: bool = False) -> pa.RecordBatch:
    """Return the records as a batch of this schema: some of COLUMNS, with Arrow's types for them.

    `lenient`: a part that cannot be decoded becomes null (or empty). Raises: CorruptMessageError.
    """
    columns = _Columns(table, lenient)
    arrays = []
    for field in schema:
        made = getattr(columns, field.name)()
        arrays.append(made if made.type == field.type else made.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Columns:
    """A method for each of COLUMNS."""

    def __init__(self, table: RecordTable, lenient: bool) -> None:
        self._table = table
        self._lenient = lenient
        self._count = len(table)
        self._flags = table.headers["flags"]
        self._views: dict[int, MessageView] = {}

    def _read(self, row: int, part: Callable[[MessageView], Any], otherwise: Any) -> Any:
        """Decode a part of one message. Raises: CorruptMessageError, unless lenient."""
        view = self._views.get(row)
        if view is None:
            view = self._views[row] = self._table.view(row)
        try:
            return part(view)
        except CorruptMessageError:
            if self._lenient:
                return otherwise
            raise

    def topic(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._table.queue.topic), self._count)

    def queue_group(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._table.queue.broker_group), self._count)

    def queue(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._table.queue.queue_id, pa.int32()), self._count)

    def offset(self) -> pa.Array:
        return pa.array(self._table.offsets)

    def born_time(self) -> pa.Array:
        return _times(self._table.headers["born_timestamp"])

    def store_time(self) -> pa.Array:
        return _times(self._table.stored)

    def message_id(self) -> pa.Array:
        digits = hexlify(self._table.headers["message_id"].tobytes()).upper()
        text = np.empty((self._count, _ID_SIZE), np.uint8)
        text[:, :2] = (ord("0"), ord("1"))
        text[:, 2:] = np.frombuffer(digits, np.uint8).reshape(-1, 32)
        ends = np.arange(self._count + 1, dtype=np.int32) * _ID_SIZE
        ids = pa.Array.from_buffers(
            pa.string(), self._count, [None, pa.py_buffer(ends), pa.py_buffer(text.tobytes())]
        )
        foreign = np.flatnonzero((self._flags & RecordFlags.V1_ID) == 0)
        if len(foreign) == 0:
            return ids
        texts = ids.to_pylist()
        for row in foreign.tolist():
            texts[row] = self._read(row, lambda view: view.message_id, None)
        return pa.array(texts, pa.string())

    def tag(self) -> pa.Array:
        """Equal hashes are equal tags, as for the brokers' filters: each is decoded once."""
        hashes, firsts, which = np.unique(
            self._table.headers["tag_hash"], return_index=True, return_inverse=True
        )
        tags = [
            self._read(row, lambda view: view.tag, None) or None if tag_hash else None
            for tag_hash, row in zip(hashes.tolist(), firsts.tolist(), strict=True)
        ]
        return pa.array(tags, pa.string()).take(pa.array(which.reshape(-1)))

    def message_group(self) -> pa.Array:
        texts: list[str | None] = [None] * self._count
        rows = np.flatnonzero(self._flags & RecordFlags.FIFO)
        if len(rows) == 0:
            return pa.nulls(self._count, pa.string())
        for row in rows.tolist():
            texts[row] = self._read(row, lambda view: view.message_group, None)
        return pa.array(texts, pa.string())

    def keys(self) -> pa.Array:
        counts = np.zeros(self._count, np.int32)
        found: list[str] = []
        for row in np.flatnonzero(self._table.headers["key_count"]).tolist():
            keys = self._read(row, lambda view: view.keys, ())
            counts[row] = len(keys)
            found += keys
        return pa.ListArray.from_arrays(_ends(counts), pa.array(found, pa.string()))

    def properties(self) -> pa.Array:
        counts = np.zeros(self._count, np.int32)
        names: list[str] = []
        values: list[str] = []
        for row in np.flatnonzero(self._may_have_properties()).tolist():
            found = self._read(row, lambda view: view.properties, {})
            counts[row] = len(found)
            names += found
            values += found.values()
        return pa.MapArray.from_arrays(
            _ends(counts), pa.array(names, pa.string()), pa.array(values, pa.string())
        )

    def _may_have_properties(self) -> npt.NDArray[np.bool_]:
        """Tell where the rest run holds more than the fields topic and body: decided by lengths alone."""
        headers, positions = self._table.headers, self._table.positions
        if self._count and are_alike(headers):
            headers = headers[:1]  # it stands for all of them
        run = headers["key_count"].astype(np.int64) * 8 + headers["system_size"] + RECORD_HEADER_SIZE
        end = run + headers["rest_size"]
        body_size = headers["body_size"].astype(np.int64)
        lengths = 1 + sum((body_size >= 1 << bits).astype(np.int64) for bits in (7, 14, 21, 28))
        before = headers["body_offset"].astype(np.int64) - run - lengths - 1  # bytes before the body's field
        bytes_of = np.frombuffer(self._table.data, np.uint8)
        at = np.minimum(positions + run, len(bytes_of) - 2)
        topic_only = (bytes_of[at] == _TOPIC_FIELD) & (bytes_of[at + 1] == before - 2)
        topic_only &= (before >= 2) & (before - 2 < _ONE_BYTE_LENGTH)
        ends_with_body = headers["body_offset"] + body_size == end
        plain: npt.NDArray[np.bool_] = ends_with_body & (topic_only | (before == 0))
        return ~plain

    def body(self) -> pa.Array:
        starts = self._table.positions + self._table.headers["body_offset"]
        bounds = np.empty(2 * self._count, np.int32)
        bounds[::2] = starts
        bounds[1::2] = starts + self._table.headers["body_size"]
        if self._count == 0:
            return pa.array([], pa.binary())
        # Bodies and the gaps between them, as one array over the fetched bytes; taking every other element
        # copies the bodies without an object for each.
        both = pa.Array.from_buffers(
            pa.binary(), 2 * self._count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self._table.data)]
        )
        bodies = both.take(pa.array(np.arange(0, 2 * self._count, 2)))
        packed = np.flatnonzero(self._flags & RecordFlags.GZIP)
        if len(packed) == 0:
            return bodies
        unpacked = bodies.to_pylist()
        for row in packed.tolist():
            unpacked[row] = self._read(row, lambda view: view.body, None)
        return pa.array(unpacked, pa.binary())


def _times(milliseconds: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(np.clip(milliseconds, *_TIMES) * 1000, pa.timestamp("us", "UTC"))


def _ends(counts: npt.NDArray[np.int32]) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))


def message_batches(
    table: RecordTable, schema: pa.Schema, *, lenient: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the table as batches, see `message_batch`. Raises: CorruptMessageError."""
    step = len(table)
    if "body" in schema.names and bool((table.headers["flags"] & RecordFlags.GZIP).any()):
        step = _PACKED_ROWS
    for start in range(0, len(table), step or 1):
        rows = np.zeros(len(table), np.bool_)
        rows[start : start + step] = True
        yield message_batch(table.chosen(rows), schema, lenient=lenient)
