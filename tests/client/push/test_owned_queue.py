"""A push consumer's queue: batches, retries, progress and limits, beside a model that remembers every
message.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.client.consume.fetched_records import tag_hashes
from ledgermq.client.errors import CorruptMessageError
from ledgermq.client.message import MessageQueue
from ledgermq.client.push.owned_queue import (
    Batch,
    ByteBudget,
    OwnedQueue,
    PushIntake,
    QueueLimits,
)
from ledgermq.proto import log_pb2
from ledgermq.proto import route_pb2 as pb

from ..sections import TOPIC_ID, answer, section

TAGS = ("a", "b", "c")
SECTION_BYTES = len(section(0, 0, b"body"))


def fetched(base: int, *bodies: bytes, tags: tuple[str, ...] = ()) -> log_pb2.FetchedSection:
    return log_pb2.FetchedSection(section=section(0, base, *bodies, tags=tags), store_timestamp=5)


def queue_at(
    offset: int = 0,
    expression: str = "*",
    budget: ByteBudget | None = None,
    limits: QueueLimits | None = None,
    queue_id: int = 0,
) -> OwnedQueue:
    return OwnedQueue(
        MessageQueue("orders", "g0", queue_id),
        TOPIC_ID,
        offset,
        offset,
        limits=limits or QueueLimits(),
        budget=budget or ByteBudget(1 << 30),
        tags=tag_hashes(expression),
        committed=offset,
    )


def bodies(batch: Batch | None) -> list[bytes]:
    assert batch is not None
    return [message.body for message in batch.messages]


def test_a_batch_takes_messages_of_several_sections() -> None:
    owned = queue_at(2)
    owned.add(fetched(0, b"0", b"1", b"2"))
    owned.add(fetched(3, b"3"))
    owned.add(fetched(4, b"4", b"5"))
    first, second = owned.take(3), owned.take(3)
    assert (bodies(first), bodies(second), owned.take(3)) == ([b"2", b"3", b"4"], [b"5"], None)
    assert first is not None
    assert second is not None
    assert not owned.finish(second)
    assert (owned.progress.position, owned.unfinished) == (2, 3)
    assert owned.finish(first)
    assert (owned.progress.position, owned.unfinished, owned.bytes, owned.running) == (6, 0, 0, 0)


def test_what_the_filter_keeps_back_is_passed_over_without_a_message() -> None:
    owned = queue_at(expression="b || c")
    owned.add(fetched(0, b"0", b"1", tags=("a", "a")))
    owned.add(fetched(2, b"2", b"3", b"4", tags=("a", "b", "a")))
    batch = owned.take(10)
    assert bodies(batch) == [b"3"]
    assert batch is not None
    assert batch.spans == [(0, 5)]
    owned.add(fetched(5, b"5", tags=("a",)))
    empty = owned.take(10)
    assert bodies(empty) == []
    assert empty is not None
    owned.finish(empty)
    owned.finish(batch)
    assert (owned.progress.position, owned.bytes) == (6, 0)


def test_what_is_wanted_again_comes_alone_and_the_rest_is_finished() -> None:
    owned = queue_at()
    owned.add(fetched(0, b"0", b"1", b"2", b"3"))
    batch = owned.take(4)
    assert batch is not None
    again = owned.put_back(batch, batch.messages[1:3])
    assert (owned.progress.position, owned.unfinished, owned.running) == (1, 2, 0)
    owned.try_again(again)
    first = owned.take(4)
    assert (bodies(first), first and first.attempt) == ([b"1"], 2)
    second = owned.take(4)
    assert second is not None
    owned.finish(second)
    assert owned.progress.position == 1
    assert first is not None
    owned.finish(first)
    assert (owned.progress.position, owned.bytes) == (4, 0)


def test_retention_leaves_a_gap_that_is_passed_over_behind_what_was_fetched() -> None:
    owned = queue_at()
    owned.add(fetched(0, b"0"))
    owned.skip_to(10)
    batch = owned.take(5)
    assert batch is not None
    owned.finish(batch)
    assert owned.progress.position == 10
    owned.skip_to(20)
    assert (owned.progress.position, owned.position, owned.fetch_offset) == (20, 20, 20)


def test_a_queue_that_is_gone_keeps_nothing_and_counts_nothing() -> None:
    budget = ByteBudget(1 << 20)
    owned = queue_at(budget=budget)
    owned.add(fetched(0, b"0", b"1"))
    batch, other = owned.take(1), owned.take(1)
    assert batch is not None
    assert other is not None
    owned.drop()
    assert (budget.used, owned.take(1)) == (0, None)
    assert not owned.finish(batch)
    assert owned.put_back(other, other.messages) == []
    assert (owned.progress.position, owned.running, budget.used) == (0, 0, 0)


def test_a_queue_that_is_handed_over_starts_nothing_and_finishes_what_runs() -> None:
    owned = queue_at()
    owned.add(fetched(0, b"0", b"1", b"2"))
    batch = owned.take(1)
    owned.release()
    assert owned.take(1) is None
    assert not owned.accepting
    assert batch is not None
    again = owned.put_back(batch, batch.messages)
    owned.try_again(again)
    assert owned.take(1) is None


@pytest.mark.parametrize(
    "limits",
    [QueueLimits(messages=4), QueueLimits(bytes=4 * SECTION_BYTES), QueueLimits(span=4)],
    ids=str,
)
def test_asking_stops_at_a_limit_and_goes_on_at_half_of_it(limits: QueueLimits) -> None:
    owned = queue_at(limits=limits)
    for offset in range(4):
        assert owned.accepting
        owned.add(fetched(offset, b"body"))
    batches = [owned.take(1) for _ in range(4)]
    full = []
    for batch in batches:
        assert batch is not None
        full.append(owned.accepting)
        owned.finish(batch)
    assert full[:2] == [False, False]
    assert owned.accepting


def test_one_stuck_message_stops_asking_by_the_span() -> None:
    owned = queue_at(limits=QueueLimits(messages=1000, span=10))
    owned.add(fetched(0, b"stuck"))
    stuck = owned.take(1)
    for offset in range(1, 12):
        if not owned.accepting:
            break
        owned.add(fetched(offset, b"x"))
        batch = owned.take(1)
        assert batch is not None
        owned.finish(batch)
    assert (owned.unfinished, owned.fetch_offset) == (1, 10)
    assert stuck is not None
    owned.finish(stuck)
    assert owned.accepting


class Model:
    """Every finished offset, one by one."""

    def __init__(self, tags: list[str], wanted: set[str]) -> None:
        self.finished = {offset for offset, tag in enumerate(tags) if tag not in wanted}

    def position(self, handed_out_to: int) -> int:
        at = 0
        while at < handed_out_to and at in self.finished:
            at += 1
        return at


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_nothing_is_lost_twice_or_committed_too_early(data: st.DataObject) -> None:
    tags = data.draw(st.lists(st.sampled_from(TAGS), min_size=1, max_size=40))
    wanted = data.draw(st.sets(st.sampled_from(TAGS), min_size=1))
    budget = ByteBudget(1 << 30)
    owned = queue_at(expression=" || ".join(sorted(wanted)), budget=budget)
    model = Model(tags, wanted)
    out: list[Batch] = []
    waiting: list[Batch] = []
    done: list[int] = []
    fetched_to = 0
    for step in data.draw(
        st.lists(st.sampled_from(("fetch", "take", "take", "finish", "fail", "retry")), max_size=80)
    ):
        if step == "fetch" and fetched_to < len(tags):
            end = data.draw(st.integers(fetched_to + 1, len(tags)))
            names = [b"%d" % offset for offset in range(fetched_to, end)]
            owned.add(fetched(fetched_to, *names, tags=tuple(tags[fetched_to:end])))
            fetched_to = end
        elif step == "take" and (batch := owned.take(data.draw(st.integers(1, 5)))) is not None:
            if batch.messages:
                out.append(batch)
            else:
                owned.finish(batch)
        elif step == "retry":
            owned.try_again(waiting)
            waiting = []
        elif step in ("finish", "fail") and out:
            batch = out.pop(data.draw(st.integers(0, len(out) - 1)))
            offsets = [message.queue_offset for message in batch.messages]
            again = data.draw(st.sets(st.sampled_from(offsets))) if step == "fail" else set()
            if again:
                waiting += owned.put_back(batch, [m for m in batch.messages if m.queue_offset in again])
            else:
                owned.finish(batch)
            finished = [offset for offset in offsets if offset not in again]
            done += finished
            model.finished.update(finished)
        assert owned.progress.position <= model.position(owned.position)
        assert owned.unfinished == sum(tag in wanted for tag in tags[:fetched_to]) - len(done)
        assert len(done) == len(set(done))
    owned.try_again(waiting)
    for batch in out:
        owned.finish(batch)
        done += [message.queue_offset for message in batch.messages]
    while (batch := owned.take(3)) is not None:
        owned.finish(batch)
        done += [message.queue_offset for message in batch.messages]
    assert sorted(done) == [offset for offset, tag in enumerate(tags[:fetched_to]) if tag in wanted]
    assert (owned.progress.position, owned.unfinished, budget.used) == (fetched_to, 0, 0)


# --- the intake ---------------------------------------------------------------------------------------------


def intake_of(*queues: OwnedQueue, budget: ByteBudget | None = None) -> tuple[PushIntake, list[OwnedQueue]]:
    intake = PushIntake(budget or ByteBudget(1 << 30))
    for owned in queues:
        intake.assign(owned)
    return intake, list(queues)


def test_only_queues_with_room_are_asked_for_and_one_that_gets_room_is_not_kept_waiting() -> None:
    limits = QueueLimits(messages=2)
    intake, (full, idle) = intake_of(queue_at(limits=limits), queue_at(limits=limits, queue_id=1))
    _, asked = intake.next_request(1000)
    intake.on_response(answer((0, section(0, 0, b"a", b"b"))), asked)
    assert intake.take_arrived() == [full]
    request, _ = intake.next_request(1000)
    assert [each.queue_id for each in request.positions] == [1]
    assert not intake.is_left_out(full)
    batch = full.take(2)
    assert batch is not None
    full.finish(batch)
    assert intake.is_left_out(full)
    assert not intake.is_left_out(idle)
    idle.end_offset = 5
    intake.next_request(1000)
    full.generation += 0
    assert not intake.is_left_out(full), "both are asked for now"


def test_a_request_whose_answer_is_about_to_come_is_not_disturbed() -> None:
    limits = QueueLimits(messages=2)
    intake, (full, busy) = intake_of(queue_at(limits=limits), queue_at(limits=limits, queue_id=1))
    full.add(fetched(0, b"a", b"b"))
    busy.end_offset = 9
    intake.next_request(1000)
    batch = full.take(2)
    assert batch is not None
    full.finish(batch)
    assert not intake.is_left_out(full)


def test_the_consumer_as_a_whole_holds_no_more_than_its_budget() -> None:
    budget = ByteBudget(300)
    intake, (first, second) = intake_of(
        queue_at(budget=budget), queue_at(budget=budget, queue_id=1), budget=budget
    )
    room = [intake.has_room]
    first.add(fetched(0, bytes(400)))
    room.append(intake.has_room)
    batch = first.take(1)
    assert batch is not None
    first.finish(batch)
    room.append(intake.has_room)
    assert room == [True, False, True]
    assert second.accepting


def test_small_messages_are_asked_for_by_their_size() -> None:
    intake, (owned,) = intake_of(queue_at(limits=QueueLimits(messages=1000)))
    first, asked = intake.next_request(1000)
    assert first.max_bytes == 1000 * 1024
    intake.on_response(answer((0, section(0, 0, *[b"x"] * 200))), asked)
    second, _ = intake.next_request(1000)
    assert 64 * 1024 <= second.max_bytes < 400_000
    assert owned.unfinished == 200


def test_damaged_bytes_are_an_error_and_nothing_of_them_is_kept() -> None:
    intake, (owned,) = intake_of(queue_at())
    _, asked = intake.next_request(1000)
    raw = bytearray(section(0, 0, b"a", b"b"))
    raw[-9] ^= 1
    with pytest.raises(CorruptMessageError):
        intake.on_response(answer((0, bytes(raw))), asked)
    assert (owned.fetch_offset, owned.unfinished) == (0, 0)


def test_an_answer_for_a_queue_that_was_lost_meanwhile_is_dropped() -> None:
    intake, (owned,) = intake_of(queue_at())
    _, asked = intake.next_request(1000)
    intake.remove(owned)
    owned.drop()
    again = queue_at(7)
    intake.assign(again)
    again.generation = 1
    intake.on_response(answer((0, section(0, 0, b"a"))), asked)
    assert (again.fetch_offset, again.unfinished, intake.has_messages) == (7, 0, False)


def test_a_refusal_is_handed_back() -> None:
    intake, (owned,) = intake_of(queue_at())
    _, asked = intake.next_request(1000)
    response = log_pb2.FetchResponse()
    response.queues.add(topic_id=TOPIC_ID, refusal=pb.Refusal(code=pb.STALE_ROUTE))
    assert intake.on_response(response, asked) == [(owned, pb.Refusal(code=pb.STALE_ROUTE))]
