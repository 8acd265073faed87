"""Columns made by numpy against a decoder that reads one message after the other."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.client.errors import CorruptMessageError
from ledgermq.client.message import MessageQueue, MessageView
from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.proto.record import (
    RECORD_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    RecordFlags,
    SectionKind,
    decode_record,
    decode_section,
    encode_record,
    encode_section,
    pack_message_id,
    seal_section,
)

pa = pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.spark_jobs.topics.message_columns import (  # noqa: E402
    COLUMNS,
    RecordTable,
    message_batch,
    message_batches,
    record_table,
)

QUEUE = MessageQueue("orders", "g0", 3)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
}
SCHEMA = pa.schema([(name, TYPES[kind]) for name, kind in COLUMNS.items()])
TEXT = st.text("abcä", max_size=6)

MESSAGE = st.fixed_dictionaries(
    {
        "body": st.one_of(st.binary(min_size=1, max_size=300), st.integers(1, 200).map(bytes)),
        "tag": TEXT,
        "keys": st.lists(st.text("abc", min_size=1, max_size=4), max_size=3, unique=True),
        "properties": st.dictionaries(st.text("abc", min_size=1, max_size=4), TEXT, max_size=3),
        "message_group": TEXT,
        "born_ms": st.integers(0, 1 << 50),
        "foreign_id": st.booleans(),
    }
)


def encode(messages: list[dict[str, Any]], base: int) -> bytes:
    """Return a section as a broker stores it."""
    encoder = RecordEncoder("orders", born_host="here", compress_above=150)
    size, records = SECTION_HEADER_SIZE, []
    for number, each in enumerate(messages):
        text = f"{base + number:034X}" if each["foreign_id"] else "01" + f"{base + number:032X}"
        raw, flags = pack_message_id(text)
        record = encoder.encode(
            size, each["body"], (raw, text), each["born_ms"], each["tag"], each["keys"], each["properties"],
            each["message_group"],
        )  # fmt: skip
        if not flags:
            changed = bytearray(record)
            changed[8] &= 0xFF ^ RecordFlags.V1_ID
            record = bytes(changed)
        records.append(record)
        size += len(record)
    section = bytearray(encode_section(SectionKind.RECORDS, records, len(records), topic_id=7, queue_id=3))
    seal_section(section, base_queue_offset=base, entry_distance=64)
    return bytes(section)


def table_of(sections: list[bytes]) -> RecordTable:
    headers = [decode_section(raw) for raw in sections]
    return record_table(QUEUE, sections, headers, [1000 + n for n in range(len(sections))])


def slow_rows(sections: list[bytes]) -> list[dict[str, Any]]:
    """Return the rows by the plain reader of the client."""
    rows = []
    for number, raw in enumerate(sections):
        header = decode_section(raw)
        position = SECTION_HEADER_SIZE
        for index in range(header.count):
            view = MessageView(raw, position, QUEUE, header.base_queue_offset + index, 1000 + number)
            rows.append(
                {
                    "topic": view.topic,
                    "queue_group": view.queue.broker_group,
                    "queue": view.queue_id,
                    "offset": view.queue_offset,
                    "message_id": view.message_id,
                    "keys": list(view.keys),
                    "tag": view.tag or None,
                    "properties": sorted(view.properties.items()),
                    "body": view.body,
                    "born_time": EPOCH
                    + timedelta(milliseconds=min(view.born_timestamp, 253_402_300_799_999)),
                    "store_time": EPOCH + timedelta(milliseconds=view.store_timestamp),
                    "message_group": view.message_group or None,
                }
            )
            position += decode_record(raw, position).size
    return rows


def fast_rows(table: RecordTable) -> list[dict[str, Any]]:
    rows = [row for batch in message_batches(table, SCHEMA) for row in batch.to_pylist()]
    return [row | {"properties": sorted(row["properties"])} for row in rows]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(MESSAGE, min_size=1, max_size=6), min_size=1, max_size=4))
def test_columns_are_those_of_the_slow_decoder(parts: list[list[dict[str, Any]]]) -> None:
    sections, base = [], 5
    for part in parts:
        sections.append(encode(part, base))
        base += len(part)
    assert fast_rows(table_of(sections)) == slow_rows(sections)


def test_equal_records_and_a_body_that_looks_like_a_record() -> None:
    plain: dict[str, Any] = {
        "tag": "", "keys": [], "properties": {}, "message_group": "", "born_ms": 1, "foreign_id": False,
    }  # fmt: skip
    equal = encode([plain | {"body": b"x" * 100}] * 200, 0)
    # Every word of the body claims to be a record at its own place.
    first = encode([plain | {"body": b"a"}], 200)
    start = decode_record(first, SECTION_HEADER_SIZE).body_offset + SECTION_HEADER_SIZE
    forged = b"".join(
        (64).to_bytes(4, "little") + place.to_bytes(4, "little")
        for place in range((start + 9) & ~7, start + 130, 8)
    )
    lying = encode([plain | {"body": bytes(-start % 8 or 8) + forged}, plain | {"body": b"b"}], 200)
    sections = [equal, lying]
    assert fast_rows(table_of(sections)) == slow_rows(sections)


def test_filtered_records_keep_their_offsets_and_bodies() -> None:
    plain: dict[str, Any] = {
        "keys": [], "properties": {}, "message_group": "", "born_ms": 1, "foreign_id": False,
    }  # fmt: skip
    section = encode([plain | {"body": bytes([65 + n]), "tag": "odd" * (n % 2)} for n in range(6)], 10)
    table = table_of([section])
    batch = message_batch(table.chosen(table.headers["tag_hash"] != 0), SCHEMA)
    assert batch.column("offset").to_pylist() == [11, 13, 15]
    assert batch.column("body").to_pylist() == [b"B", b"D", b"F"]
    nothing = message_batch(table.chosen(np.zeros(6, np.bool_)), SCHEMA)
    assert nothing.num_rows == 0


def unreadable() -> RecordTable:
    """A table with a body that says it is compressed, and properties that are no protobuf."""
    raw, flags = pack_message_id("01" + "0" * 32)
    rest = b"\xff\xff\xffnot gzip"
    record = encode_record(
        b"", rest, section_distance=SECTION_HEADER_SIZE, body_offset_in_rest=3, body_size=8, message_id=raw,
        born_timestamp=-(1 << 62), flags=int(flags | RecordFlags.GZIP),
    )  # fmt: skip
    section = bytearray(encode_section(SectionKind.RECORDS, [record], 1, topic_id=7, queue_id=3))
    seal_section(section, base_queue_offset=4, entry_distance=64)
    return table_of([bytes(section)])


def test_what_cannot_be_decoded_is_named_or_null() -> None:
    with pytest.raises(CorruptMessageError, match="offset 4"):
        message_batch(unreadable(), SCHEMA)
    (row,) = message_batch(unreadable(), SCHEMA, lenient=True).to_pylist()
    assert (row["body"], row["properties"], row["offset"]) == (None, [], 4)


def test_sizes_that_do_not_fit_are_refused() -> None:
    section = bytearray(
        encode(
            [{"body": b"x", "tag": "", "keys": [], "properties": {}, "message_group": "", "born_ms": 1,
              "foreign_id": False}] * 3,
            0,
        )
    )  # fmt: skip
    section[SECTION_HEADER_SIZE + 24] = 255  # body size
    with pytest.raises(CorruptMessageError):
        table_of([bytes(section)])


def test_compressed_bodies_come_in_small_batches() -> None:
    each = {"tag": "", "keys": [], "properties": {}, "message_group": "", "born_ms": 1, "foreign_id": False}
    body = b"z" * 1000
    assert len(gzip.compress(body)) + RECORD_HEADER_SIZE < len(body)
    table = table_of([encode([each | {"body": body}] * 130, 0)])
    found = list(message_batches(table, SCHEMA))
    assert [batch.num_rows for batch in found] == [64, 64, 2]
    assert set(found[2].column("body").to_pylist()) == {body}
