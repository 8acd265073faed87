"""What producers and consumers write to the trace topic, and what the search finds there; over fake nodes."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.client import Message, MessageView, Producer, PullConsumer, PushOptions, SimpleConsumer
from ledgermq.client.admin.trace_query import TraceReport, find_traces
from ledgermq.client.consume.offsets import ConsumerGroupOffsets
from ledgermq.client.errors import NoQuorumError, SendTimeoutError
from ledgermq.client.trace.events import TRACE_TOPIC, TraceEvent, TraceSource, decode_batch, encode_batch
from ledgermq.proto import route_pb2 as pb

from ..fake_messaging import MessagingCluster
from ..fakes import FakeCluster, FakeGroup
from ..push_listeners import QUICK, Seen, consumer_of, fill, until_committed

TOPICS = {"orders": 1, TRACE_TOPIC: 1}


async def traced(cluster: FakeCluster) -> list[TraceEvent]:
    """Return all events of the trace topic."""
    events: list[TraceEvent] = []
    async with PullConsumer(cluster.address) as consumer:
        ((_, _, _, end),) = await consumer.offsets(TRACE_TOPIC)
        await consumer.subscribe(TRACE_TOPIC)
        read = 0
        while read < end:
            for message in await consumer.poll():
                read += 1
                batch = decode_batch(message.body)
                assert batch is not None
                assert {event.message_id for event in batch.events} <= set(message.keys)
                events += batch.events
    return events


async def test_every_way_to_send_is_traced_with_id_place_and_labels() -> None:
    async with FakeCluster(FakeGroup(topics=TOPICS)) as cluster:
        async with Producer(cluster.address, trace=True) as producer:
            receipts = [
                await producer.send("orders", b"plain"),
                await producer.send("orders", b"labelled", tag="new", keys=["order-7", "k"]),
                await producer.send("orders", b"in order", message_group="one"),
                *await producer.send_batch(Message("orders", b"batch") for _ in range(20)),
            ]
            assert producer.send_oneway("orders", b"one way")
        events = await traced(cluster)
    assert [(each.kind, each.result, each.broker_group) for each in events] == [("send", "stored", "g0")] * 24
    by_id = {each.message_id: each for each in events}
    for receipt in receipts:
        event = by_id[receipt.message_id]
        assert (event.queue_id, event.queue_offset) == (receipt.queue_id, receipt.queue_offset)
    labelled = by_id[receipts[1].message_id]
    assert (labelled.tag, labelled.keys, labelled.topic) == ("new", ("order-7", "k"), "orders")


async def test_a_producer_that_does_not_trace_writes_nothing_there() -> None:
    async with FakeCluster(FakeGroup(topics=TOPICS)) as cluster:
        await fill(cluster, [b"a"])
        assert await traced(cluster) == []


async def test_a_retry_that_met_the_first_copy_and_a_refusal_are_told() -> None:
    async with FakeCluster(FakeGroup(topics=TOPICS)) as cluster:
        async with Producer(cluster.address, trace=True) as producer:
            cluster.node().drop_answers = 1
            assert (await producer.send("orders", b"twice")).duplicate
            cluster.node().refusals.append(pb.Refusal(code=pb.MESSAGE_TOO_LARGE, message="too large"))
            with pytest.raises(Exception, match="too large"):
                await producer.send("orders", b"refused", tag="t")
        events = await traced(cluster)
    assert [each.result for each in events] == ["duplicate", "refused"]
    assert "too large" in events[1].error
    assert events[1].queue_offset == -1


async def test_an_unknown_outcome_is_told_as_unknown() -> None:
    async with FakeCluster(FakeGroup(topics=TOPICS)) as cluster:
        async with Producer(cluster.address, trace=True) as producer:
            await producer.send("orders", b"warm")
            producer.timeout_ms = 300
            cluster.node().may_answer.clear()
            with pytest.raises(SendTimeoutError):
                await producer.send("orders", b"who knows", tag="t")
            cluster.node().may_answer.set()
        assert [each.result for each in await traced(cluster)] == ["stored", "unknown"]


async def test_attempts_of_a_listener_are_told_one_by_one() -> None:
    group = FakeGroup(topics=TOPICS)
    failures = 0

    async def listener(messages: list[MessageView]) -> None:
        nonlocal failures
        if any(message.body == b"bad" for message in messages) and failures < 2:
            failures += 1
            raise ValueError("no such order")

    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"bad"], tag="t")
        async with consumer_of(cluster, listener, trace=True) as consumer:
            await consumer.subscribe("orders")
            await until_committed(group, 1)
        events = await traced(cluster)
    assert [(each.kind, each.result, each.attempt) for each in events] == [
        ("consume", "failed", 1), ("consume", "failed", 2), ("consume", "consumed", 3),
    ]  # fmt: skip
    assert events[0].error == "ValueError: no such order"
    assert (events[0].tag, events[0].queue_offset, events[0].stored_ms) == ("t", 0, 1)


async def test_what_is_given_up_is_told() -> None:
    group = FakeGroup(topics=TOPICS)

    async def listener(messages: list[MessageView]) -> None:
        raise ValueError("never")

    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"bad"])
        options = PushOptions(commit_interval_ms=5, retry_ms=1, longest_retry_ms=2, max_attempts=1)
        async with consumer_of(cluster, listener, options=options, trace=True) as consumer:
            await consumer.subscribe("orders")
            await until_committed(group, 1)
        assert [each.result for each in await traced(cluster)] == ["failed", "skipped"]


async def test_what_a_pull_consumer_hands_out_is_told_once() -> None:
    async with FakeCluster(FakeGroup(topics=TOPICS)) as cluster:
        await fill(cluster, [b"a", b"b", b"c"])
        async with PullConsumer(cluster.address, trace=True) as consumer:
            await consumer.subscribe("orders")
            await consumer.poll(1)
            async for message in consumer:
                if message.body == b"c":
                    break
        events = await traced(cluster)
    assert [(each.kind, each.queue_offset) for each in events] == [("receive", at) for at in range(3)]


async def test_leases_are_told_from_their_receipt_to_their_end() -> None:
    async with MessagingCluster(FakeGroup(topics=TOPICS)) as cluster:
        async with SimpleConsumer(cluster.address, group="billing", trace=True) as consumer:
            await consumer.subscribe("orders")
            cluster.messages.add(b"a", b"b")
            first, second = await consumer.receive()
            await consumer.ack(first)
            await consumer.change_invisible(second, 0)
        events = await traced(cluster)
    assert [(each.kind, each.result) for each in events] == [
        ("receive", "delivered"), ("receive", "delivered"), ("consume", "consumed"),
        ("consume", "given back"),
    ]  # fmt: skip
    assert [events[0].message_id, events[1].message_id] == [each.message_id for each in events[2:]]


async def test_a_consumer_of_the_trace_topic_leaves_no_trace() -> None:
    async with FakeCluster(FakeGroup(topics=TOPICS)) as cluster:
        async with Producer(cluster.address, trace=True) as producer:
            await producer.send("orders", b"a")
        async with PullConsumer(cluster.address, trace=True) as consumer:
            await consumer.subscribe(TRACE_TOPIC)
            await consumer.poll()
        assert len(await traced(cluster)) == 1


async def test_a_cluster_that_keeps_no_traces_takes_messages_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        FakeCluster(FakeGroup(topics={"orders": 1})) as cluster,
        Producer(cluster.address, trace=True) as producer,
    ):
        assert (await producer.send("orders", b"a")).queue_offset == 0
    assert "Do the brokers keep traces (trace_topic = true)?" in caplog.text


# --- the search ---------------------------------------------------------------------------------------------


async def search(cluster: FakeCluster, **wanted: str) -> TraceReport:
    return await find_traces(cluster.address, since_ms=1, until_ms=None, **wanted)


async def test_the_search_puts_the_steps_of_a_message_together() -> None:
    group = FakeGroup(topics=TOPICS)
    seen = Seen()
    async with FakeCluster(group) as cluster:
        async with Producer(cluster.address, group="checkout", trace=True) as producer:
            receipt = await producer.send("orders", b"wanted", keys=["order-7"])
            other = await producer.send("orders", b"other", keys=["order-8"])
        async with consumer_of(cluster, seen, trace=True, options=QUICK) as consumer:
            await consumer.subscribe("orders")
            await until_committed(group, 2)
        (found,) = (await search(cluster, message_id=receipt.message_id.lower())).traces
        assert [(each.source.client, each.event.result) for each in found.steps] == [
            ("producer", "stored"), ("push", "consumed"),
        ]  # fmt: skip
        assert [each.source.group for each in found.steps] == ["checkout", "billing"]
        assert (found.stored_ms, found.queue_offset, found.size) == (1, 0, 6)
        by_key = (await search(cluster, key="order-8")).traces
        assert [each.message_id for each in by_key] == [other.message_id]
        nothing = await search(cluster, key="order-9")
        assert (nothing.traces, nothing.incomplete) == ([], "")
        assert nothing.read > 0


async def test_a_trace_stands_when_its_message_is_deleted_and_rubbish_is_passed_over() -> None:
    group = FakeGroup(topics=TOPICS)
    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"no trace at all"], topic=TRACE_TOPIC)
        async with Producer(cluster.address, trace=True) as producer:
            receipt = await producer.send("orders", b"gone")
        queue = group.queues[group.topics["orders"][0], 0]
        queue.begin, queue.sections = 1, []
        (found,) = (await search(cluster, message_id=receipt.message_id)).traces
        assert (len(found.steps), found.size, found.stored_ms) == (1, -1, 0)


async def test_the_search_says_when_a_part_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgermq.client.admin.trace_query._SILENCE_MS", 1)
    monkeypatch.setattr("ledgermq.client.admin.trace_query._LOOK_MS", 50)
    async with FakeCluster(FakeGroup(topics=TOPICS)) as cluster:
        async with Producer(cluster.address, trace=True) as producer:
            receipt = await producer.send("orders", b"a")
        cluster.node().running.clear()
        report = await search(cluster, message_id=receipt.message_id)
        cluster.node().running.set()
        assert (report.traces, report.incomplete) == ([], "broker group g0 does not answer")


async def test_a_broker_group_that_is_away_hides_no_traces_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ledgermq.client.admin.trace_query._LOOK_MS", 300)
    drained = FakeGroup("g1", TOPICS)
    drained.mode = pb.MODE_DRAINING  # so that what is sent goes to the other one
    async with FakeCluster(FakeGroup("g0", TOPICS), drained) as cluster:
        true = TraceEvent("consume", "0A", "gone", 1, "consumed", keys=("order-7",))
        await tell(cluster, true)
        await cluster.node(group="g1").stop()
        searches: list[dict[str, str]] = [{"message_id": "0A"}, {"key": "order-7"}]
        for wanted in searches:
            report = await search(cluster, **wanted)
            assert [len(each.steps) for each in report.traces] == [1]
            assert report.incomplete == "broker group g1 does not answer"


async def test_a_broker_group_without_a_leader_hides_no_traces_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = ConsumerGroupOffsets.query

    async def query(self: ConsumerGroupOffsets, topic: str, name: str, **options: Any) -> Any:
        if name == "g1" and not options.get("allow_stale"):
            raise NoQuorumError("NO_QUORUM", "no leader is known")
        return await ask(self, topic, name, **options)

    monkeypatch.setattr(ConsumerGroupOffsets, "query", query)

    drained = FakeGroup("g1", TOPICS)
    drained.mode = pb.MODE_DRAINING
    async with FakeCluster(FakeGroup("g0", TOPICS), drained) as cluster:
        await tell(cluster, TraceEvent("consume", "0A", "gone", 1, "consumed", keys=("order-7",)))
        report = await search(cluster, key="order-7")
        assert [len(each.steps) for each in report.traces] == [1]
        assert report.incomplete == "broker group g1 does not answer"


async def test_traces_of_an_id_are_looked_up_and_the_topic_is_read_where_the_index_does_not_know_all() -> (
    None
):
    async with FakeCluster(FakeGroup(topics=TOPICS)) as cluster:
        node = cluster.node()
        async with Producer(cluster.address, trace=True) as producer:
            wanted = await producer.send("orders", b"wanted")
        async with Producer(cluster.address, trace=True) as producer:
            await producer.send("orders", b"other")
        report = await search(cluster, message_id=wanted.message_id)
        assert [len(each.steps) for each in report.traces] == [1]
        assert (report.read, node.fetches) == (1, 0), "the topic was not read"
        node.unsearched = 100
        report = await search(cluster, message_id=wanted.message_id)
        assert [len(each.steps) for each in report.traces] == [1], "no step comes twice"
        assert report.read == 2
        assert node.fetches > 0


LIAR = TraceSource("push", "liars", "somebody", "host", 1)


async def tell(cluster: FakeCluster, event: TraceEvent) -> None:
    """Write a trace by hand, as anybody may."""
    async with Producer(cluster.address) as producer:
        body = encode_batch(LIAR, [event])
        await producer.send(Message(TRACE_TOPIC, body, keys=[event.message_id]))


@pytest.mark.parametrize(
    ("what", "kept"),
    [
        ({}, True),  # it is true
        ({"queue_offset": 1}, False),  # another message stands there
        ({"queue_offset": 2}, False),  # nothing does yet
        ({"queue_offset": 1 << 62}, False),
        ({"queue_id": 7}, False),  # the topic never had such a queue
        ({"topic": "payments"}, True),  # perhaps that topic was deleted
        ({"broker_group": "g7"}, True),  # or that group was removed
        ({"queue_id": 1 << 40}, False),  # cannot be
        ({"begin_ms": 1 << 60}, False),
        ({"kind": "explode"}, False),
    ],
)
async def test_what_a_trace_says_of_a_place_is_compared_with_what_stands_there(
    what: dict[str, object], kept: bool
) -> None:
    group = FakeGroup(topics=TOPICS)
    group.store_timestamp = 7
    async with FakeCluster(group) as cluster:
        async with Producer(cluster.address, trace=True) as producer:
            receipt = await producer.send("orders", b"wanted")
            await producer.send("orders", b"other message")
        true = TraceEvent(
            "consume", receipt.message_id, "orders", 1, "consumed",
            broker_group="g0", queue_id=0, queue_offset=0, stored_ms=999,
        )  # fmt: skip
        await tell(cluster, TraceEvent(**{**true._asdict(), **what}))
        report = await search(cluster, message_id=receipt.message_id)
        (found,) = report.traces
        assert sorted(each.source.client for each in found.steps) == ["producer"] + ["push"] * kept
        assert report.skipped == (not kept)
        assert (found.queue, found.queue_offset) == (("orders", "g0", 0), 0)
        assert (found.stored_ms, found.size) == (7, 6), "not what somebody says"


async def test_a_trace_in_which_nothing_can_be_true_is_none() -> None:
    async with FakeCluster(FakeGroup(topics=TOPICS)) as cluster:
        await fill(cluster, [b"a"])
        event = TraceEvent(
            "consume", "0A", "orders", 1, "consumed", broker_group="g0", queue_id=0, queue_offset=0
        )
        await tell(cluster, event)
        report = await search(cluster, message_id="0A")
        assert (report.traces, report.skipped) == ([], 1)
