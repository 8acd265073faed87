"""The sender of traces: in batches, bounded, never in anybody's way."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.client.consume.consume_trace import _text
from ledgermq.client.errors import MessageTooLargeError, RefusedError, TopicNotFoundError
from ledgermq.client.message import Message
from ledgermq.client.trace import tracer as module
from ledgermq.client.trace.events import BATCH, TRACE_TOPIC, TraceEvent, decode_batch
from ledgermq.client.trace.tracer import MAX_EVENTS, Tracer, trace_source


class FakeProducer:
    """Keeps what it is given. `gate` closed: it does not answer; `errors` are raised first."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.errors: list[Exception] = []
        self.largest = 1 << 20
        self.gate = asyncio.Event()
        self.gate.set()
        self.started = self.closed = 0
        self.changed = asyncio.Event()
        self.gone = asyncio.Event()

    async def start(self) -> None:
        self.started += 1

    async def send(self, topic: Message) -> None:
        self.changed.set()
        await self.gate.wait()
        if len(topic.body) > self.largest:
            raise MessageTooLargeError(len(topic.body), self.largest)
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append(topic)

    async def close(self) -> None:
        self.closed += 1
        self.gone.set()

    @property
    def ids(self) -> list[str]:
        batches = [decode_batch(message.body) for message in self.sent]
        return [event.message_id for batch in batches if batch is not None for event in batch.events]


def event(number: int, topic: str = "orders") -> TraceEvent:
    return TraceEvent("send", f"{number:05}", topic, number, "stored")


@pytest.fixture
def producer() -> FakeProducer:
    return FakeProducer()


@pytest.fixture
def tracer(producer: FakeProducer) -> Tracer:
    return Tracer(trace_source("producer", "g"), lambda: producer)


async def test_events_travel_in_batches_and_close_sends_the_rest(
    tracer: Tracer, producer: FakeProducer
) -> None:
    for number in range(2 * BATCH + 7):
        tracer.add(event(number))
    await tracer.close()
    assert producer.ids == [f"{number:05}" for number in range(2 * BATCH + 7)]
    assert [message.topic for message in producer.sent] == [TRACE_TOPIC] * 3
    assert producer.sent[0].keys[:2] == ["00000", "00001"]
    assert (tracer.sent, tracer.dropped, producer.closed) == (2 * BATCH + 7, 0, 1)


async def test_an_event_waits_a_moment_for_others_only(
    tracer: Tracer, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.0)
    tracer.add(event(1))
    await producer.changed.wait()
    assert producer.ids == ["00001"]
    await tracer.close()


async def test_a_tracer_without_events_makes_nothing(tracer: Tracer, producer: FakeProducer) -> None:
    tracer.add(event(1, TRACE_TOPIC))
    await tracer.close()
    assert (producer.started, tracer.dropped) == (0, 0), "the trace topic itself is not traced"


async def test_what_finds_no_room_is_dropped_counted_and_logged(
    tracer: Tracer, producer: FakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    producer.gate.clear()
    for number in range(MAX_EVENTS + 5):
        tracer.add(event(number))
    assert (tracer.room, tracer.dropped) == (0, 5)
    producer.gate.set()
    await tracer.close()
    assert len(producer.ids) == MAX_EVENTS
    assert "traces lost" in caplog.text
    assert "events=5" in caplog.text


async def test_without_a_trace_topic_events_are_lost_with_a_hint_and_tried_again_later(
    tracer: Tracer, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.0)
    monkeypatch.setattr(module, "_NO_TOPIC_S", 0.0)
    producer.errors = [TopicNotFoundError(TRACE_TOPIC), RefusedError("ILLEGAL_TOPIC", "system topic")]
    for number in range(3 * BATCH):
        tracer.add(event(number))
    await tracer.close()
    assert producer.ids == [f"{number:05}" for number in range(2 * BATCH, 3 * BATCH)]
    assert tracer.dropped == 2 * BATCH
    assert "trace_topic = true" in caplog.text


async def test_a_batch_that_is_too_large_for_the_brokers_goes_in_halves(
    tracer: Tracer, producer: FakeProducer
) -> None:
    producer.largest = 600
    for number in range(20):
        tracer.add(event(number))
    tracer.add(event(20)._replace(keys=("k" * 1000,)))
    await tracer.close()
    assert producer.ids == [f"{number:05}" for number in range(20)]
    assert tracer.dropped == 1, "one event alone was too large"


async def test_close_does_not_wait_for_brokers_that_are_silent(
    tracer: Tracer, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.0)
    producer.gate.clear()
    for number in range(BATCH + 3):
        tracer.add(event(number))
    await producer.changed.wait()
    await tracer.close()
    assert (tracer.sent, tracer.dropped) == (0, BATCH + 3)
    tracer.add(event(1))
    assert tracer.dropped == BATCH + 4, "it is closed"
    assert "the client was closed" in caplog.text


async def test_what_cannot_be_encoded_ends_no_later_trace(
    tracer: Tracer, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.0)
    tracer.add(TraceEvent("consume", "00001", "orders", 1, "failed", error="lone \ud800 surrogate"))
    while not tracer.dropped:  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0.001)
    producer.errors = [ValueError("cannot be written")]
    tracer.add(event(2))
    while tracer.dropped < 2:  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0.001)
    tracer.add(event(3))
    while not producer.sent:  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0.001)
    assert producer.ids == ["00003"]


async def test_a_defect_ends_the_traces_and_is_told_but_does_not_disturb_the_client(
    tracer: Tracer, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.0)
    producer.gate.clear()
    producer.errors = [ZeroDivisionError("never thought of")]
    tracer.add(event(1))
    await producer.changed.wait()
    tracer.add(event(2))
    producer.gate.set()
    await producer.gone.wait()
    await tracer.close()
    assert (tracer.room, tracer.sent, tracer.dropped) == (0, 0, 2)
    tracer.add(event(3))
    assert (tracer.dropped, producer.sent) == (3, [])
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert error.exc_info is not None and error.exc_info[0] is ZeroDivisionError
    assert "events=2 reason=tracing has ended by a defect of LedgerMQ" in caplog.text


def test_the_text_of_an_error_is_short_and_can_be_written_whatever_it_is() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert _text(None) == ""
    assert _text(ValueError("x" * 10_000)) == "ValueError: " + "x" * 300
    assert _text(ValueError("\ud800")) == "ValueError: ?"
    assert _text(Broken()) == "Broken: (it has no text)"
