"""Looking messages up by id, key and time, against a scan; what is hidden is not shown."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ledgermq.broker.admin import message_search
from ledgermq.broker.admin.message_search import MAX_LIMIT, MAX_RUNNING, MessageQueries
from ledgermq.broker.reading.key_hashes import ItemForm
from ledgermq.broker.reading.key_index import KeyIndex
from ledgermq.broker.reading.log_reader import LogReader
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.service import read_barrier
from ledgermq.broker.service.read_barrier import ReadBarrier
from ledgermq.broker.state.commands import DeleteTopic, SetTopicRetention, TrimQueues, position_rows
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import route_pb2
from ledgermq.proto.record import decode_record

from ..entry_log import START_MS
from ..key_log import FakeLeadership, FakeRaft, FakeReplica, MessageLog, Stored, indexed, settled


class Asking:
    """A node that can be asked."""

    def __init__(self, node: MessageLog, index: KeyIndex) -> None:
        self.node = node
        self.raft = FakeRaft(node.log)
        raft, replica, leadership = (
            cast(Any, self.raft),
            cast(Any, FakeReplica(node)),
            cast(Any, FakeLeadership()),
        )
        barrier = ReadBarrier(raft, replica, leadership)
        self.queries = MessageQueries(raft, replica, LogReader(node.log), index, barrier)

    async def page(self, **request: Any) -> pb.QueryMessagesResponse:
        return await self.queries.answer(pb.QueryMessagesRequest(**request), 5.0)

    async def all(self, **request: Any) -> list[tuple[str, int, int, int]]:
        """Return everything, page by page."""
        found: list[pb.StoredMessage] = []
        before = 0
        while True:
            answer = await self.page(**request, before_offset=before)
            assert not answer.unsearched_bytes and not answer.stale and answer.node_id == "n1"
            assert len(answer.messages) <= request.get("limit", message_search.DEFAULT_LIMIT)
            found += answer.messages
            before = answer.next_before
            if not before:
                break
        for each in found:
            assert decode_record(each.record).size == len(each.record)
        return [(each.topic, each.queue_id, each.queue_offset, each.store_timestamp) for each in found]


@asynccontextmanager
async def asking(node: MessageLog, folder: Path, **options: Any) -> AsyncIterator[Asking]:
    async with indexed(node.log, folder, **options) as index:
        await settled(index)
        yield Asking(node, index)


def places(stored: list[Stored]) -> list[tuple[str, int, int, int]]:
    """As an answer has them: the newest first."""
    ordered = sorted(stored, key=lambda each: each.offset, reverse=True)
    return [(each.topic, each.queue_id, each.queue_offset, each.stored) for each in ordered]


def random_log(rng: random.Random) -> MessageLog:
    """A log with two topics, in which an id is used twice now and then, and time passes."""
    node = MessageLog()
    topics = [node.topic("orders", 3), node.topic("payments", 1)]
    for _ in range(rng.randint(20, 60)):
        node.log.now += rng.choice((0, 1, 1000))
        topic = rng.choice(topics)
        queue = rng.randrange(3) if topic == topics[0] else 0
        messages = [
            (rng.choice((f"m{rng.randrange(1 << 30)}", "twice", f"01{rng.getrandbits(128):032X}")),
             rng.sample(("a", "b", "c"), rng.randint(0, 2)))
            for _ in range(rng.choice((1, 1, 2, 6)))
        ]  # fmt: skip
        node.send(topic, queue, *messages, pad=rng.choice((0, 200)))
    return node


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("form", [None, ItemForm(62)])
async def test_every_query_gives_what_a_scan_gives(seed: int, form: ItemForm | None, tmp_path: Path) -> None:
    """Also when a hash has two bits, so that nearly everything collides: no other message is ever shown."""
    rng = random.Random(seed)
    node = random_log(rng)
    stored = node.stored

    async with asking(node, tmp_path, form=form) as ask:
        for each in rng.sample(stored, 5):
            same = [other for other in stored if other.message_id == each.message_id]
            assert await ask.all(message_id=each.message_id) == places(same)
            here = [other for other in same if other.topic == "orders"]
            assert await ask.all(message_id=each.message_id, topic="orders") == places(here)
        for _ in range(4):
            begin, end = sorted((rng.randint(-5, 60_000), rng.randint(-5, 60_000)))
            times = {"begin_ms": START_MS + begin, "end_ms": START_MS + end + 1}
            for key in ("a", "unused", ""):
                right = [
                    each for each in stored
                    if each.topic == "orders" and (not key or key in each.keys)
                    and times["begin_ms"] <= each.stored < times["end_ms"]
                ]  # fmt: skip
                request: dict[str, Any] = {"topic": "orders", "key": key, "limit": rng.randint(1, 9)}
                assert await ask.all(**request, **times) == places(right)
        everything = [each for each in stored if each.topic == "payments"]
        assert await ask.all(topic="payments") == places(everything)


async def test_a_message_that_retention_hides_is_not_found(tmp_path: Path) -> None:
    node = MessageLog()
    topic = node.topic("orders", 1)
    stored = node.send(topic, 0, *((f"m{i}", ["k"]) for i in range(10)))

    async with asking(node, tmp_path) as ask:
        node.command(TrimQueues(position_rows([(topic, 0, 4)])))
        for request in ({"topic": "orders"}, {"topic": "orders", "key": "k"}):
            assert await ask.all(**request) == places(stored[4:])
        assert await ask.all(message_id="m3") == []
        assert await ask.all(message_id="m4") == places(stored[4:5])
        node.command(DeleteTopic(topic))
        assert await ask.all(message_id="m4") == []
        with pytest.raises(RefusedError, match="does not exist"):
            await ask.page(topic="orders", key="k")
        again = node.topic("orders", 1)  # another topic of the same name: other messages
        assert await ask.all(topic="orders", key="k") == []
        newer = node.send(again, 0, ("m4", ["k"]))
        assert await ask.all(topic="orders", key="k") == places(newer)
        assert await ask.all(message_id="m4") == places(newer)


async def test_what_a_topic_hides_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic's own retention may hide a million messages with one key, which the log still holds."""
    monkeypatch.setattr(message_search, "_MAX_LOOKED_AT", 5)
    node = MessageLog()
    topic = node.topic("orders", 2)
    for i in range(50):
        node.send(topic, i % 2, (f"m{i}", ["k"]))
    node.command(SetTopicRetention(topic, 1000), TrimQueues(position_rows([(topic, 0, 24), (topic, 1, 25)])))
    assert node.state.queue_begin(topic, 1) == node.state.queue_end(topic, 1)

    async with asking(node, tmp_path) as ask:
        answer = await ask.page(topic="orders", key="k")
        assert [each.queue_offset for each in answer.messages] == [24] and not answer.next_before
        node.command(TrimQueues(position_rows([(topic, 0, 25)])))
        assert await ask.all(topic="orders", key="k") == []


async def test_messages_of_deleted_segments_are_not_found(tmp_path: Path) -> None:
    node = MessageLog()
    topic = node.topic("orders", 1)
    for i in range(100):
        node.send(topic, 0, (f"m{i}", ["k"]), pad=200)

    async with asking(node, tmp_path) as ask:
        assert len(await ask.all(topic="orders", key="k")) == 100
        node.log.drop_before(2)
        left = [each for each in node.stored if each.offset >= node.log.first_offset]
        node.command(TrimQueues(position_rows([(topic, 0, left[0].queue_offset)])))
        assert 0 < len(left) < 100
        assert await ask.all(topic="orders", key="k") == places(left)
        assert await ask.all(topic="orders", begin_ms=1) == places(left)
        assert await ask.all(message_id="m0") == []


async def test_an_answer_is_cut_to_its_bytes_and_says_that_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "MAX_BYTES", 3000)
    node = MessageLog()
    topic = node.topic("orders", 1)
    stored = [one for i in range(10) for one in node.send(topic, 0, (f"m{i}", ["k"]), pad=1000)]

    async with asking(node, tmp_path) as ask:
        for request in ({"topic": "orders"}, {"topic": "orders", "key": "k"}):
            first = await ask.page(**request)
            assert (len(first.messages), first.next_before) == (3, stored[-3].offset)
            assert await ask.all(**request) == places(stored)
        last = await ask.page(topic="orders", key="k", limit=10, before_offset=stored[3].offset)
        assert (len(last.messages), last.next_before) == (3, 0)


async def test_a_query_by_time_keeps_no_more_than_it_answers_however_many_queues_have_hits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues, at_most = list(range(1_000)), MAX_LIMIT + 1

    async def newest(self: Any, queue: int, begin: int, end: int, wanted: int) -> np.ndarray:
        return np.arange(wanted) * len(queues) + queue

    monkeypatch.setattr(MessageQueries, "_newest", newest)
    nothing: Any = None
    every: Any = queues
    tracemalloc.start()
    try:
        found = await MessageQueries(*[nothing] * 5)._newest_of_all(every, 0, 1, at_most)
        assert tracemalloc.get_traced_memory()[1] < 20 * 8 * at_most
    finally:
        tracemalloc.stop()
    last = len(queues) * at_most - 1
    assert found == list(range(last, last - at_most, -1))


async def test_what_vanishes_under_a_query_by_time_hides_nothing_that_is_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = MessageLog()
    topic = node.topic("orders", 2)
    stored = [one for i in range(20) for one in node.send(topic, i % 2, (f"m{i}", []))]
    gone = {each.offset for each in stored[-13:]}
    place_of = MessageQueries._place_of

    async def of_what_is_there(self: MessageQueries, offset: int) -> Any:
        return None if offset in gone else await place_of(self, offset)

    monkeypatch.setattr(MessageQueries, "_place_of", of_what_is_there)
    async with asking(node, tmp_path) as ask:
        assert await ask.all(topic="orders", limit=3) == places(stored[:-13])


async def test_a_query_looks_at_a_bounded_number_of_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two bits of hash every message is a candidate; the next page goes on behind the bound."""
    monkeypatch.setattr(message_search, "_MAX_LOOKED_AT", 7)
    monkeypatch.setattr(message_search, "_CANDIDATES", 3)
    node = MessageLog()
    topic = node.topic("orders", 1)
    (wanted,) = node.send(topic, 0, ("wanted", []))
    for i in range(50):
        node.send(topic, 0, (f"m{i}", []))

    async with asking(node, tmp_path, form=ItemForm(63)) as ask:
        first = await ask.page(message_id="wanted")
        assert not first.messages and first.next_before
        assert await ask.all(message_id="wanted") == places([wanted])


async def test_without_a_leader_a_node_answers_and_says_that_it_may_be_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_barrier, "STALE_AFTER_S", 0.3)
    node = MessageLog()
    node.send(node.topic("orders", 1), 0, ("m", []))

    async with asking(node, tmp_path) as ask:
        ask.raft.leads = False
        answer = await ask.page(message_id="m")
        assert len(answer.messages) == 1 and answer.stale


@pytest.mark.parametrize(
    ("request_fields", "reason"),
    [
        ({}, "needs a topic"),
        ({"key": "k"}, "needs a topic"),
        ({"message_id": "m", "key": "k", "topic": "orders"}, "not for both"),
        ({"topic": "orders", "begin_ms": 5, "end_ms": 5}, "no time"),
        ({"topic": "orders", "begin_ms": -1}, "no time"),
        ({"topic": "order"}, "does not exist"),
        ({"message_id": "m", "topic": "order"}, "does not exist"),
    ],
)
async def test_a_request_that_says_nothing_is_refused(
    request_fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    node = MessageLog()
    node.send(node.topic("orders", 1), 0, ("m", []))

    async with asking(node, tmp_path) as ask:
        with pytest.raises(RefusedError, match=reason) as refused:
            await ask.page(**request_fields)
        assert not refused.value.refusal.retryable


async def test_more_queries_than_a_node_runs_at_a_time_are_refused_for_a_moment(tmp_path: Path) -> None:
    node = MessageLog()
    node.send(node.topic("orders", 1), 0, ("m", []))

    async with asking(node, tmp_path) as ask:
        answers = await asyncio.gather(
            *(ask.page(message_id="m") for _ in range(MAX_RUNNING + 3)), return_exceptions=True
        )
        refused = [each for each in answers if isinstance(each, RefusedError)]
        assert len(refused) == 3 and len(answers) - len(refused) == MAX_RUNNING
        assert all(each.refusal.code == route_pb2.TOO_MANY_REQUESTS for each in refused)
        assert all(each.refusal.retryable for each in refused)
        assert len((await ask.page(message_id="m")).messages) == 1


async def test_an_empty_log_has_no_messages(tmp_path: Path) -> None:
    async with asking(MessageLog(), tmp_path) as ask:
        assert await ask.all(message_id="m") == []
