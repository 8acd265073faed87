"""Parts of batches that are written exactly once: epochs, counts, spans, and what is forgotten."""

from __future__ import annotations

import random

import pytest

from ledgermq.broker.state import commands as c
from ledgermq.broker.state.batch_writes import JOB_WINDOW_MS
from ledgermq.broker.state.effects import BatchResult, BatchState, TopicResult
from ledgermq.broker.state.machine import BrokerState
from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.proto.record import BATCH_WRITE_EPOCH, seal_section

from ..entry_log import Node, checkpoint, records, restored, result_of, section

JOB = bytes(range(16))
WRITER = 77


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def topic(node: Node) -> int:
    return node.topic()


def begin(
    node: Node, topic: int, batch: int = 0, *, job: bytes = JOB, writer: int = WRITER, **options: bool
) -> BatchResult:
    return result_of(node.command(c.BeginBatch(job, writer, topic, batch, **options)), BatchResult)


def finish(node: Node, topic: int, epoch: int, count: int, writer: int = WRITER) -> BatchResult:
    return result_of(node.command(c.FinishBatch(writer, topic, epoch, count)), BatchResult)


def store(node: Node, topic: int, queue: int, count: int, epoch: int, writer: int = WRITER) -> None:
    """Apply a section of a part, as the leader admitted it."""
    base = node.state.queue_end(topic, queue)
    made = section(
        topic, queue, records(count), base=base, producer_id=writer, producer_epoch=epoch, base_sequence=0
    )
    seal_section(made, base_queue_offset=base, entry_distance=HEADER_SIZE)
    node.apply(made)


def test_an_attempt_learns_how_many_messages_are_stored_and_between_which_offsets(
    node: Node, topic: int
) -> None:
    first = begin(node, topic)
    assert (first.state, first.count, first.spans) == (BatchState.BEGUN, 0, ())
    node.fill(topic, 0, 5)
    store(node, topic, 0, 3, first.epoch)
    node.fill(topic, 0, 2)
    store(node, topic, 1, 4, first.epoch)
    store(node, topic, 0, 1, first.epoch)
    second = begin(node, topic)
    assert second.epoch not in (0, first.epoch) and second.epoch & BATCH_WRITE_EPOCH
    assert (second.count, second.spans) == (8, ((0, 5, 11), (1, 0, 4)))
    assert node.state.streams.oldest() is None, "a part is no stream of a producer"


def test_two_attempts_in_one_entry_do_not_share_an_epoch(node: Node, topic: int) -> None:
    both = node.command(c.BeginBatch(JOB, WRITER, topic, 0), c.BeginBatch(JOB, WRITER, topic, 0))
    assert result_of(both, BatchResult, 0).state is BatchState.BEGUN
    assert result_of(both, BatchResult, 1).state is BatchState.BUSY


def test_a_part_is_finished_by_its_current_attempt_with_the_right_count_only(node: Node, topic: int) -> None:
    old = begin(node, topic)
    store(node, topic, 0, 3, old.epoch)
    new = begin(node, topic)
    assert finish(node, topic, old.epoch, 3).state is BatchState.OLDER
    assert finish(node, topic, new.epoch, 2).state is BatchState.OLDER
    for _ in range(2):  # the answer may be lost
        assert finish(node, topic, new.epoch, 3).state is BatchState.FINISHED
    late = begin(node, topic)
    assert (late.state, late.count, late.epoch) == (BatchState.FINISHED, 3, new.epoch)


def test_a_newer_batch_drops_the_parts_of_the_one_before_and_an_older_one_is_refused(
    node: Node, topic: int
) -> None:
    old = begin(node, topic, 4, unknown_too=True)
    begin(node, topic, 4, writer=78)
    store(node, topic, 0, 3, old.epoch)
    new = begin(node, topic, 5)
    assert (new.state, new.count, node.state.batch_writes.part_count) == (BatchState.BEGUN, 0, 1)
    assert node.state.batch_writes.span_count == 0
    refused = begin(node, topic, 4)
    assert (refused.state, refused.batch) == (BatchState.OLDER, 5)
    assert finish(node, topic, old.epoch, 3).state is BatchState.OLDER


def test_a_batch_of_an_unknown_job_is_begun_only_if_it_is_the_first_or_the_caller_insists(
    node: Node, topic: int
) -> None:
    assert begin(node, topic, 3).state is BatchState.UNKNOWN
    assert not node.state.batch_writes.jobs
    assert begin(node, topic, 3, unknown_too=True).state is BatchState.BEGUN
    assert begin(node, topic, 0, job=bytes(16), writer=5).state is BatchState.BEGUN


def test_a_writer_belongs_to_one_job(node: Node, topic: int) -> None:
    begin(node, topic)
    assert begin(node, topic, job=bytes(16)).state is BatchState.TAKEN
    assert list(node.state.batch_writes.jobs) == [JOB]


def test_a_job_is_forgotten_when_nothing_of_it_changed_for_the_window(node: Node, topic: int) -> None:
    epoch = begin(node, topic).epoch
    started = node.log.now
    node.log.now += 1000
    store(node, topic, 0, 1, epoch)
    node.command(c.ForgetBatches(started + 1000, started + 9000))
    assert begin(node, topic).count == 1, "its last change is not older"
    node.log.now += 1000
    node.command(c.ForgetBatches(node.log.now, 0))
    assert not node.state.batch_writes.jobs and not node.state.batch_writes.part_count
    assert begin(node, topic, 1).state is BatchState.UNKNOWN
    before = node.state.queue_end(topic, 0)
    store(node, topic, 0, 1, epoch)  # in the log behind it: the message is kept, the part stays forgotten
    assert node.state.queue_end(topic, 0) == before + 1
    assert node.state.batch_writes.oldest() is None


def test_a_job_that_was_silent_for_the_window_is_continued_only_if_the_caller_insists(
    node: Node, topic: int
) -> None:
    store(node, topic, 0, 3, begin(node, topic, 0).epoch)
    node.log.now += JOB_WINDOW_MS
    assert begin(node, topic).count == 3
    node.log.now += JOB_WINDOW_MS + 1
    for batch in (0, 1):
        assert begin(node, topic, batch).state is BatchState.SILENT
    assert begin(node, topic, unknown_too=True).count == 3, "it still knows what is stored"
    assert begin(node, topic).state is BatchState.BEGUN


def test_a_job_that_has_ended_keeps_no_parts_and_tells_late_attempts_that_nothing_is_to_be_done(
    node: Node, topic: int
) -> None:
    epoch = begin(node, topic).epoch
    store(node, topic, 0, 3, epoch)
    begin(node, topic, writer=78)
    node.command(c.EndJob(JOB), c.EndJob(bytes(16)))
    found = node.state.batch_writes
    assert list(found.jobs) == [JOB] and (found.part_count, found.span_count) == (0, 0)
    for late in (begin(node, topic), begin(node, topic, 1), begin(node, topic, unknown_too=True)):
        assert (late.state, late.epoch) == (BatchState.FINISHED, 0)
    assert found.look(JOB, 0, (WRITER, topic)).state is BatchState.FINISHED
    assert finish(node, topic, epoch, 3).state is BatchState.OLDER
    assert restored(checkpoint(node.state)).batch_writes.jobs == found.jobs


def test_a_job_that_has_ended_is_forgotten_by_a_limit_of_its_own(node: Node, topic: int) -> None:
    begin(node, topic)
    begin(node, topic, job=bytes(16), writer=5)
    node.log.now += 1000
    node.command(c.EndJob(JOB))
    ended = node.log.now
    found = node.state.batch_writes
    assert (found.oldest(), found.oldest(ended=True)) == (ended - 1000, ended)
    node.command(c.ForgetBatches(0, ended))
    assert len(found.jobs) == 2, "its end was a change"
    node.command(c.ForgetBatches(0, ended + 1))
    assert list(found.jobs) == [bytes(16)] and found.oldest(ended=True) is None
    assert begin(node, topic).state is BatchState.BEGUN


def test_a_deleted_topic_takes_its_parts_with_it(node: Node, topic: int) -> None:
    other = node.topic("other")
    store(node, topic, 1, 2, begin(node, topic).epoch)
    store(node, other, 0, 3, begin(node, other).epoch)
    node.command(c.DeleteTopic(topic))
    assert node.state.batch_writes.span_count == node.state.batch_writes.part_count == 1
    assert begin(node, other).count == 3
    result = result_of(node.command(c.BeginBatch(JOB, WRITER, topic, 0)), TopicResult)
    assert result.topic is None


def test_parts_survive_a_checkpoint_and_cost_nothing_without_them(node: Node, topic: int) -> None:
    assert checkpoint(node.state)[4:8] == bytes([1, 0, 0, 0]), "older nodes read it"
    epoch = begin(node, topic, 9, unknown_too=True).epoch
    store(node, topic, 1, 4, epoch)
    finish(node, topic, epoch, 4)
    raw = checkpoint(node.state)
    assert raw[4:8] == bytes([7, 0, 0, 0])
    loaded = restored(raw)
    assert loaded.batch_writes.jobs == node.state.batch_writes.jobs
    assert loaded.batch_writes.part((WRITER, topic)) == node.state.batch_writes.part((WRITER, topic))
    assert loaded.batch_writes.span_count == 1
    assert checkpoint(loaded) == raw


def test_a_snapshot_does_not_change(node: Node, topic: int) -> None:
    epoch = begin(node, topic).epoch
    copied = node.state.batch_writes.copy()
    store(node, topic, 0, 4, epoch)
    begin(node, topic, 1)
    assert copied[JOB].batch == 0
    assert copied[JOB].parts[WRITER, topic].count == 0


@pytest.mark.parametrize("seed", range(8))
def test_nodes_with_one_history_have_equal_checkpoints_even_when_one_restarts(seed: int) -> None:
    choose, node = random.Random(seed), Node()
    topics = [node.topic(f"t{number}") for number in range(2)]
    follower, at = BrokerState(), 1
    epochs = [0]
    for step in range(200):
        node.log.now += choose.randrange(50)
        what, topic, writer = choose.random(), choose.choice(topics), choose.randrange(1, 5)
        job = bytes([writer % 3]) * 16
        if what < 0.45:
            command = c.BeginBatch(
                job, writer, topic, choose.randrange(step // 20 + 1), choose.random() < 0.5
            )
            if isinstance(result := node.command(command).results[0], BatchResult):
                epochs.append(result.epoch)
        elif what < 0.8:
            store(node, topic, choose.randrange(2), choose.randrange(1, 4),
                  choose.choice(epochs[-3:]) | BATCH_WRITE_EPOCH, writer)  # fmt: skip
        elif what < 0.9:
            part = node.state.batch_writes.part((writer, topic))
            finish(node, topic, part.epoch if part else 5, part.count if part else 0, writer)
        elif what < 0.95:
            node.command(c.ForgetBatches(node.log.now - 200, node.log.now - 100))
        elif what < 0.97:
            node.command(c.EndJob(job))
        else:
            node.command(c.DeleteTopic(topic))
            topics = [each for each in topics if each != topic] + [node.topic(f"n{step}")]
        while at <= len(node.log.raw):
            follower.apply(*node.log.entry(at))
            at += 1
        if choose.random() < 0.1:
            follower = restored(checkpoint(follower))
        assert checkpoint(follower) == checkpoint(node.state), f"seed {seed} step {step}"
    found = node.state.batch_writes
    spans = sum(len(part.spans) for job in found.jobs.values() for part in job.parts.values())
    assert found.span_count == spans
    assert found.part_count == sum(len(job.parts) for job in found.jobs.values())


def test_attempts_at_two_batches_in_one_entry_do_not_share_an_epoch(node: Node, topic: int) -> None:
    both = node.command(c.BeginBatch(JOB, WRITER, topic, 0), c.BeginBatch(JOB, WRITER, topic, 1))
    first, second = (result_of(both, BatchResult, place) for place in (0, 1))
    assert (first.state, second.state) == (BatchState.BEGUN, BatchState.BUSY)
    assert begin(node, topic, 1).epoch != first.epoch


def test_a_section_of_no_part_is_one_of_a_producer_as_it_is_for_older_nodes(node: Node, topic: int) -> None:
    store(node, topic, 0, 2, BATCH_WRITE_EPOCH | 5)
    stream = node.state.streams.get((WRITER, topic, 0))
    assert stream is not None and stream.epoch == BATCH_WRITE_EPOCH | 5
