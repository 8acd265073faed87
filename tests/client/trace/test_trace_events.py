"""The form of traces: what is written can be read, the unreadable is passed over, and keys have bounds."""

from __future__ import annotations

import json
from collections import deque

import pytest

from ledgermq.client.trace.events import (
    BATCH,
    TraceEvent,
    TraceSource,
    decode_batch,
    encode_batch,
    take_batch,
)

SOURCE = TraceSource("producer", "checkout", "h@1@ab", "h", 1)
SENT = TraceEvent("send", "01AB", "orders", 1000, "stored", 3, "g0", 2, 17, "new", ("order-7", "ü"))
FAILED = TraceEvent(
    "consume", "01AB", "orders", 2000, "failed", 5, "g0", 2, 17, "new", ("order-7",), 1001, 1, "ValueError: x"
)


def test_what_is_written_can_be_read() -> None:
    assert decode_batch(encode_batch(SOURCE, [SENT, FAILED])) == (SOURCE, [SENT, FAILED])


def test_defaults_are_left_out_and_unknown_fields_ignored() -> None:
    event = TraceEvent("receive", "01AB", "orders", 1, "delivered")
    content = json.loads(encode_batch(SOURCE, [event]))
    assert content["events"] == [
        {"kind": "receive", "message_id": "01AB", "topic": "orders", "begin_ms": 1, "result": "delivered"}
    ]
    content["later"] = content["events"][0]["later"] = content["source"]["later"] = 1
    assert decode_batch(json.dumps(content).encode()) == (SOURCE, [event])


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff", b"[]", b"{}", b'"text"', b"[" * 100_000, b'{"version": 2}', b'{"version": 1}',
        b'{"version": "x", "source": {}, "events": []}',
    ],
)  # fmt: skip
def test_what_is_no_trace_or_of_a_newer_version_is_passed_over(body: bytes) -> None:
    assert decode_batch(body) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("begin_ms", "soon"), ("message_id", 7), ("attempt", None), ("kind", "explode"), ("begin_ms", -1),
        ("begin_ms", 1 << 60), ("stored_ms", 10**400), ("queue_id", 1 << 31), ("queue_offset", -2),
        ("queue_offset", 1 << 63), ("queue_id", True), ("attempt", 1.5), ("topic", "\ud800"),
        ("keys", ["\udfff"]),
        ("keys", 7), ("error", "x" * 20_000),
    ],
)  # fmt: skip
def test_an_event_of_wrong_types_is_no_trace(field: str, value: object) -> None:
    content = json.loads(encode_batch(SOURCE, [SENT]))
    content["events"][0][field] = value
    assert decode_batch(json.dumps(content).encode()) is None


@pytest.mark.parametrize(
    ("field", "value"), [("client_id", ["a"]), ("group", None), ("process", "1"), ("host", "\ud800")]
)
def test_a_source_of_wrong_types_is_no_trace(field: str, value: object) -> None:
    content = json.loads(encode_batch(SOURCE, [SENT]))
    content["source"][field] = value
    assert decode_batch(json.dumps(content).encode()) is None


def test_the_text_of_an_error_is_cut() -> None:
    event = SENT._replace(error="x" * 10_000)
    found = decode_batch(encode_batch(SOURCE, [event]))
    assert found is not None
    assert found.events[0].error == "x" * 300


def test_a_batch_has_the_ids_and_keys_of_its_messages_once_each() -> None:
    waiting = deque([SENT, FAILED, SENT._replace(message_id="01CD", keys=("order-7", "order-8"))])
    events, keys = take_batch(waiting)
    assert (len(events), keys) == (3, ["01AB", "order-7", "ü", "01CD", "order-8"])
    assert not waiting


def test_a_batch_ends_at_its_number_and_when_its_keys_are_full() -> None:
    waiting = deque(SENT._replace(message_id=f"{number:034X}") for number in range(BATCH + 1))
    assert len(take_batch(waiting)[0]) == BATCH
    assert len(waiting) == 1
    waiting = deque(
        SENT._replace(message_id=f"{number}", keys=("k" * 4000 + f"{number}",)) for number in range(9)
    )
    taken = []
    while waiting:
        events, keys = take_batch(waiting)
        assert sum(len(key.encode()) for key in keys) <= 8 * 1024
        assert all(event.message_id in keys for event in events)
        taken.append(len(events))
    assert taken == [2, 2, 2, 2, 1]
    events, keys = take_batch(deque([SENT._replace(keys=("k" * 5000, "l" * 5000, "m"))]))
    assert keys == ["01AB", "k" * 5000, "m"]
