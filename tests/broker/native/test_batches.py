"""BeginBatch and FinishBatch: what callers are answered, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.errors import TopicNotFoundError
from ledgermq.broker.native import batches
from ledgermq.broker.native.batches import Batches, writer_id
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.state.batch_writes import ENDED_FORGOTTEN_AFTER_MS, JOB_WINDOW_MS
from ledgermq.broker.state.commands import BATCH_WRITES
from ledgermq.proto import log_pb2, route_pb2
from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.proto.record import BATCH_WRITE_EPOCH, seal_section

from ..entry_log import Node, records, section


class Served:
    """The calls on a leader that applies at once."""

    def __init__(self) -> None:
        self.node = Node()
        self.topic = self.node.topic("orders")
        self.levels: list[int] = []
        self.barriers = 0
        replica: Any = SimpleNamespace(state=self.node.state)
        me: Any = self
        pipeline: Any = self.node
        self.batches = Batches(replica, pipeline, me, me)

    async def catch_up(self) -> None:
        self.barriers += 1

    async def require(self, level: int, what: str) -> None:
        self.levels.append(level)

    async def begin(self, batch: int = 0, **request: Any) -> log_pb2.BeginBatchResponse:
        return await self.batches.begin(
            log_pb2.BeginBatchRequest(**{"job": "j", "topic": "orders", "batch": batch, **request})
        )

    def store(self, begun: log_pb2.BeginBatchResponse, count: int) -> None:
        base = self.node.state.queue_end(self.topic, 0)
        made = section(
            self.topic, 0, records(count), base=base,
            producer_id=begun.producer_id, producer_epoch=begun.producer_epoch,
        )  # fmt: skip
        seal_section(made, base_queue_offset=base, entry_distance=HEADER_SIZE)
        self.node.apply(made)

    async def finish(self, begun: log_pb2.BeginBatchResponse, count: int) -> log_pb2.FinishBatchResponse:
        request = log_pb2.FinishBatchRequest(
            producer_id=begun.producer_id, producer_epoch=begun.producer_epoch, topic_id=begun.topic_id,
            count=count,
        )  # fmt: skip
        return await self.batches.finish(request)


@pytest.fixture
def served() -> Served:
    return Served()


async def refusal_of(call: Any) -> route_pb2.Refusal:
    with pytest.raises(RefusedError) as refused:
        await call
    return refused.value.refusal


async def test_an_attempt_is_told_its_ids_and_what_is_stored(served: Served) -> None:
    first = await served.begin(partition=3)
    assert (first.producer_id, first.topic_id) == (writer_id("j", 3), served.topic)
    assert first.producer_epoch & BATCH_WRITE_EPOCH and not first.count and not first.spans
    assert served.levels == [BATCH_WRITES]
    served.store(first, 3)
    second = await served.begin(partition=3)
    assert second.producer_epoch != first.producer_epoch
    assert (second.count, second.spans[0].offset, second.spans[0].end_offset) == (3, 0, 3)
    assert not (await served.finish(second, 3)).HasField("refusal")
    assert (await served.begin(partition=3)).finished


async def test_a_look_changes_nothing_and_waits_for_what_is_committed(served: Served) -> None:
    begun = await served.begin()
    applied = served.node.state.applied_index
    found = await served.begin(look=True)
    assert (found.producer_epoch, found.count) == (begun.producer_epoch, 0)
    assert (served.node.state.applied_index, served.barriers) == (applied, 1)
    assert (await served.begin(look=True, partition=1)).producer_epoch == 0


async def test_an_unknown_job_is_an_answer_and_nothing_begins(served: Served) -> None:
    assert (await served.begin(4)).unknown
    assert not served.node.state.batch_writes.jobs
    assert not (await served.begin(4, unknown_too=True)).unknown


async def test_a_silent_job_is_an_answer_and_nothing_begins(served: Served) -> None:
    await served.begin()
    served.node.log.now += JOB_WINDOW_MS + 1
    answer = await served.begin(1)
    assert (answer.silent, answer.unknown, answer.producer_epoch) == (True, False, 0)
    assert not (await served.begin(1, unknown_too=True)).silent


async def test_an_older_batch_is_refused_for_good(served: Served) -> None:
    await served.begin(5, unknown_too=True)
    refusal = await refusal_of(served.begin(4))
    assert (refusal.code, refusal.retryable) == (route_pb2.FENCED, False)
    assert "batch 5" in refusal.message and "older checkpoint" in refusal.message


async def test_an_attempt_that_was_superseded_cannot_finish(served: Served) -> None:
    old = await served.begin()
    served.store(old, 2)
    await served.begin()
    refusal = await refusal_of(served.finish(old, 2))
    assert refusal.code == route_pb2.STALE_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("request_of", "text"),
    [({"job": ""}, "name has 0 bytes"), ({"job": "x" * 256}, "256 bytes"), ({"batch": -1}, "negative")],
)
async def test_bad_requests_are_refused(served: Served, request_of: dict[str, Any], text: str) -> None:
    refusal = await refusal_of(served.begin(**request_of))
    assert refusal.code == route_pb2.INVALID_ARGUMENT and text in refusal.message


async def test_a_topic_must_exist_even_for_a_leader_that_catches_up(served: Served) -> None:
    with pytest.raises(TopicNotFoundError):
        await served.begin(topic="none")
    assert served.barriers == 1


@pytest.mark.parametrize("limit", ["MAX_JOBS", "MAX_PARTS", "MAX_SPANS"])
async def test_what_would_not_fit_is_refused_and_what_is_known_goes_on(
    served: Served, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.store(await served.begin(), 1)
    monkeypatch.setattr(batches, limit, 1)
    refusal = await refusal_of(served.begin(job="another"))
    assert (refusal.code, refusal.retryable) == (route_pb2.NOT_SUPPORTED, False)
    assert "8 days" in refusal.message and "an hour after" in refusal.message


@pytest.mark.parametrize("limit", ["MAX_PARTS", "MAX_SPANS"])
async def test_what_makes_room_itself_is_not_refused_for_want_of_room(
    served: Served, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.store(await served.begin(), 1)
    monkeypatch.setattr(batches, limit, 1)
    assert (await served.begin()).count == 1, "an attempt at a part that is known"
    assert (await refusal_of(served.begin(partition=1))).code == route_pb2.NOT_SUPPORTED
    assert (await served.begin(batch=1)).producer_epoch, "a batch drops the parts of the one before"
    assert served.node.state.batch_writes.part_count == 1


async def test_jobs_that_have_ended_are_forgotten_an_hour_later_and_make_room(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_JOBS", 2)
    monkeypatch.setattr(batches, "MAX_PARTS", 1)
    view, log = served.node.view, served.node.log
    for number in range(2):
        begun = await served.begin(job=f"write {number}")
        served.store(begun, 1)
        await served.batches.finish(log_pb2.FinishBatchRequest(job=f"write {number}"))
    assert (await served.begin(job="write 0")).finished
    assert "2" in (await refusal_of(served.begin(job="write 2"))).message
    assert not view.housekeeping(log.now + ENDED_FORGOTTEN_AFTER_MS)
    log.now += ENDED_FORGOTTEN_AFTER_MS + 60_000
    (command,) = view.housekeeping(log.now)
    served.node.command(command)
    assert (await served.begin(job="write 2")).producer_epoch


async def test_finishing_is_proposed_only_where_every_node_knows_the_command(served: Served) -> None:
    begun = await served.begin()
    served.store(begun, 1)
    await served.finish(begun, 1)
    assert served.levels == [BATCH_WRITES, BATCH_WRITES]
