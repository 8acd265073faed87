"""`ledgermq message trace` as a person and a program see it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from ledgermq.client import Message, Producer
from ledgermq.client.admin.trace_query import TracedEvent, begin_of
from ledgermq.client.cli import run_cli
from ledgermq.client.cli.trace import _step
from ledgermq.client.produce.message_ids import process_ids, time_of
from ledgermq.client.trace.events import TRACE_TOPIC, TraceEvent, TraceSource, encode_batch

from ..fakes import FakeCluster, FakeGroup
from ..served import Served, served


@pytest.fixture
def cluster() -> Iterator[Served[FakeCluster]]:
    def make() -> FakeCluster:
        group = FakeGroup(topics={"orders": 1, TRACE_TOPIC: 1})
        group.store_timestamp = time.time_ns() // 1_000_000
        return FakeCluster(group)

    with served(make) as running:
        yield running


def send(cluster: Served[FakeCluster]) -> str:
    async def work() -> str:
        async with Producer(cluster.address, group="checkout", trace=True) as producer:
            receipt = await producer.send("orders", b"hello", tag="new", keys=["order-7"])
            return receipt.message_id

    return cluster.run(work())


def test_the_time_line_of_a_message(cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]) -> None:
    message_id = send(cluster)
    assert run_cli(["message", "trace", message_id, "-n", cluster.address]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == f"{message_id}  topic orders, tag new, keys order-7, 5 bytes"
    assert len(lines) == 2
    assert any("sent by" in line and "(producer group checkout): stored after" in line for line in lines)
    assert any("stored     in g0 queue 0 at offset 0" in line for line in lines)


def test_json_by_key(cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]) -> None:
    message_id = send(cluster)
    assert run_cli(["message", "trace", "--key", "order-7", "--json", "-n", cluster.address]) == 0
    found = json.loads(capsys.readouterr().out)
    (trace,) = found["traces"]
    assert (trace["message_id"], trace["broker_group"], trace["queue_offset"]) == (message_id, "g0", 0)
    (step,) = trace["steps"]
    assert (step["kind"], step["result"], step["by_group"]) == ("send", "stored", "checkout")


def test_what_contradicts_what_is_stored_is_counted_and_nothing_changes_the_terminal(
    cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    message_id = send(cluster)

    async def lie() -> None:
        source = TraceSource("push", "liars\x1b[2J", "somebody", "host", 1)
        event = TraceEvent("consume", message_id, "orders", 1, "failed", error="line\nanother [red]line")
        wrong = event._replace(broker_group="g0", queue_id=0, queue_offset=99)
        async with Producer(cluster.address) as producer:
            body = encode_batch(source, [event, wrong])
            await producer.send(Message(TRACE_TOPIC, body, keys=[message_id]))

    cluster.run(lie())
    assert run_cli(["message", "trace", message_id, "-n", cluster.address]) == 0
    printed = capsys.readouterr()
    assert printed.err == (
        "1 record of the trace topic was skipped: no traces that can be read, or contrary to what is stored\n"
    )
    (line,) = [line for line in printed.out.splitlines() if "somebody" in line]
    assert line.endswith("(consumer group liars\\x1b[2J): failed after 0 ms: line\\x0aanother [red]line")
    assert run_cli(["message", "trace", message_id, "--json", "-n", cluster.address]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 1


def test_what_is_not_traced_is_said_with_the_way_to_trace_it(
    cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    send(cluster)
    assert run_cli(["message", "trace", "--key", "order-8", "-n", cluster.address]) == 1
    text = capsys.readouterr().err
    assert "no trace of a message with key 'order-8' among 1 trace messages" in text
    assert "trace=True" in text
    assert "--since TIME" in text


def test_a_cluster_without_a_trace_topic_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with served(lambda: FakeCluster(FakeGroup(topics={"orders": 1}))) as running:
        assert run_cli(["message", "trace", "--key", "a", "-n", running.address]) == 1
    text = capsys.readouterr().err
    assert "no broker keeps traces" in text
    assert "trace_topic = true" in text


@pytest.mark.parametrize("arguments", [[], ["01AB", "--key", "a"]])
def test_either_an_id_or_a_key(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["message", "trace", *arguments]) == 1
    assert "give the id of a message, or --key" in capsys.readouterr().err


@pytest.mark.parametrize("since", [["--since", "2026-01-02"], []])
def test_an_end_before_the_beginning_is_said(since: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["message", "trace", "--key", "a", "--until", "2026-01-01", *since]) == 1
    assert "--until 2026-01-01T00:00:00 is before the beginning" in capsys.readouterr().err


def test_reading_begins_when_the_id_was_made() -> None:
    now_ms = 1_800_000_000_000
    _, text = process_ids().next(now_ms - 7_200_000)
    assert time_of(text) == now_ms - 7_200_000
    assert begin_of(text, now_ms) == now_ms - 7_200_000 - 60_000
    day_ago = now_ms - 24 * 3600 * 1000
    assert begin_of("", now_ms) == begin_of("no id", now_ms) == begin_of("00" * 17, now_ms) == day_ago
    _, future = process_ids().next(now_ms + 7_200_000)
    assert begin_of(future, now_ms) == day_ago, "a clock that is wrong says nothing"


def test_a_step_names_who_took_it_and_what_came_of_it() -> None:
    push = TraceSource("push", "billing", "host@1@ab", "host", 1)
    event = TraceEvent("consume", "01", "orders", 1, "failed", 5, attempt=2, error="ValueError: no")
    text = "listener of host@1@ab (consumer group billing), attempt 2: failed after 5 ms: ValueError: no"
    assert _step(TracedEvent(push, event)) == text
    simple = TraceSource("simple", "billing", "host@1@ab", "host", 1)
    received = TraceEvent("receive", "01", "orders", 1, "delivered", attempt=1)
    assert (
        _step(TracedEvent(simple, received))
        == "handed to  host@1@ab (consumer group billing), attempt 1: delivered"
    )
