"""Which trace events are deliveries, redeliveries and ends of consumptions."""

from __future__ import annotations

from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.client.trace.events import TraceEvent, TraceSource, encode_batch  # noqa: E402
from ledgermq.spark_jobs.topics.traced_deliveries import SCHEMA, delivery_batches  # noqa: E402


def event(kind: str, result: str, *, attempt: int = 1, topic: str = "orders", offset: int = 7) -> TraceEvent:
    return TraceEvent(kind, "01AB", topic, 1_000, result, 50, "g0", 2, offset, attempt=attempt)


def body(client: str, *events: TraceEvent) -> bytes:
    return encode_batch(TraceSource(client, "billing", "c", "h", 1), events)


def rows(*bodies: bytes | None) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], ["body"])
    found = list(delivery_batches({"orders"}, iter([batch])))
    assert all(each.schema == SCHEMA for each in found)
    return [row for each in found for row in each.to_pylist()]


def told(client: str, *events: TraceEvent) -> list[tuple[int | None, int, int]]:
    """Return (done_ms, redelivered, given_up) of each row."""
    return [(row["done_ms"], row["redelivered"], row["given_up"]) for row in rows(body(client, *events))]


def test_a_row_names_the_place_of_the_message_and_the_consumer_group() -> None:
    (row,) = rows(body("push", event("consume", "consumed")))
    assert row == {
        "topic": "orders", "queue_group": "g0", "queue": 2, "offset": 7, "message_id": "01AB",
        "consumer_group": "billing", "done_ms": 1_050, "redelivered": 0, "given_up": 0, "unreadable": 0,
    }  # fmt: skip


def test_a_push_consumer_delivers_by_calling_its_listener() -> None:
    assert told(
        "push", event("consume", "failed"), event("consume", "failed", attempt=2),
        event("consume", "skipped", attempt=2), event("consume", "consumed", attempt=3),
    ) == [(None, 0, 0), (None, 1, 0), (None, 0, 1), (1_050, 1, 0)]  # fmt: skip


def test_a_simple_consumer_delivers_once_for_each_receive() -> None:
    assert told(
        "simple", event("receive", "delivered"), event("consume", "given back"),
        event("receive", "delivered", attempt=2), event("consume", "consumed", attempt=2),
    ) == [(None, 0, 0), (None, 0, 0), (None, 1, 0), (1_050, 0, 0)]  # fmt: skip


def test_a_pull_consumer_is_done_when_it_has_a_message() -> None:
    assert told("pull", event("receive", "delivered", attempt=0)) == [(1_000, 0, 0)]


def test_sends_other_topics_and_events_without_a_place_are_left_out() -> None:
    assert not rows(
        body("producer", event("send", "stored")),
        body("push", event("consume", "consumed", topic="other"), event("consume", "consumed", offset=-1)),
    )


def test_what_is_no_trace_is_counted() -> None:
    found = rows(b"{", None, body("pull", event("receive", "delivered")), b'{"version": 2}')
    assert [(row["topic"], row["unreadable"]) for row in found] == [("orders", 0), (None, 3)]


def test_many_bodies_are_some_batches() -> None:
    assert len(rows(*[body("push", event("consume", "consumed"))] * 450)) == 450
