"""Attempts at a part of a batch: what the leader admits, and that every row is stored once in the end.

The second half runs attempts against one another through failovers, in every order that a seed gives, and
breaks the leader's view in ways that must be found.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ledgermq.broker.leader.leader_view import Admission, LeaderView, Verdict
from ledgermq.broker.state.batch_writes import ENDED_FORGOTTEN_AFTER_MS, FORGOTTEN_AFTER_MS
from ledgermq.broker.state.commands import (
    BeginBatch,
    BrokerGroupMode,
    EndJob,
    ForgetBatches,
    SetBrokerGroupMode,
)
from ledgermq.broker.state.effects import BatchResult, BatchState
from ledgermq.proto.entry import EntryHeader
from ledgermq.proto.record import record_positions, walk_sections

from ..entry_log import START_MS, Node, records, result_of, section

JOB, WRITER = bytes(16), 9


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def topic(node: Node) -> int:
    return node.topic()


def begun(node: Node, topic: int) -> BatchResult:
    return result_of(node.command(BeginBatch(JOB, WRITER, topic, 0)), BatchResult)


def send(
    node: Node, topic: int, sequence: int, epoch: int, *, count: int = 2, queue: int = 0, apply: bool = True
) -> Admission:
    turn = node.view.open_turn("token")
    made = section(
        topic, queue, records(count), producer_id=WRITER, producer_epoch=epoch, base_sequence=sequence
    )
    admission = turn.add_records(made)
    if admission.verdict is not Verdict.ACCEPTED:
        return admission
    if apply:
        node.commit(turn)
    else:
        node.propose(turn)
    return admission


def test_the_sequence_of_a_part_spans_its_queues(node: Node, topic: int) -> None:
    epoch = begun(node, topic).epoch
    assert send(node, topic, 0, epoch, queue=0).verdict is Verdict.ACCEPTED
    assert send(node, topic, 2, epoch, queue=1, apply=False).verdict is Verdict.ACCEPTED
    gap = send(node, topic, 6, epoch, queue=0)
    assert (gap.verdict, gap.expected_sequence) == (Verdict.SEQUENCE_GAP, 4)
    assert send(node, topic, 0, epoch).verdict is Verdict.DUPLICATE
    repeated = send(node, topic, 2, epoch)
    assert repeated.verdict is Verdict.PENDING and repeated.turn is not None
    assert send(node, topic, 4, epoch, queue=1, apply=False).verdict is Verdict.ACCEPTED


def test_sections_of_an_attempt_are_refused_from_the_proposal_of_the_next_one(node: Node, topic: int) -> None:
    old = begun(node, topic)
    send(node, topic, 0, old.epoch)
    turn = node.view.open_turn()
    turn.add_command(BeginBatch(JOB, WRITER, topic, 0))
    assert send(node, topic, 2, old.epoch).verdict is Verdict.BATCH_CHANGING
    entry = node.propose(turn)
    assert send(node, topic, 2, old.epoch).verdict is Verdict.BATCH_CHANGING
    new = result_of(node.commit_proposed(entry), BatchResult)
    assert send(node, topic, 2, old.epoch).verdict is Verdict.STALE_EPOCH
    assert send(node, topic, new.count, new.epoch).verdict is Verdict.ACCEPTED


def test_a_beginning_that_is_not_proposed_holds_up_nothing(node: Node, topic: int) -> None:
    epoch = begun(node, topic).epoch
    turn = node.view.open_turn()
    turn.add_command(BeginBatch(JOB, WRITER, topic, 0))
    turn.abandon()
    assert send(node, topic, 0, epoch).verdict is Verdict.ACCEPTED


def test_sections_without_an_attempt_are_refused(node: Node, topic: int) -> None:
    assert send(node, topic, 0, 1 << 31).verdict is Verdict.STALE_EPOCH


def test_a_drained_broker_group_takes_no_more_sections_and_still_begins_attempts(
    node: Node, topic: int
) -> None:
    epoch = begun(node, topic).epoch
    send(node, topic, 0, epoch)
    node.command(SetBrokerGroupMode(BrokerGroupMode.DRAINING))
    assert send(node, topic, 2, epoch).verdict is Verdict.DRAINING
    assert begun(node, topic).count == 2


def test_housekeeping_forgets_jobs_behind_the_window_and_holds_up_sections_meanwhile(
    node: Node, topic: int
) -> None:
    epoch = begun(node, topic).epoch
    now = node.log.now + FORGOTTEN_AFTER_MS
    assert not [each for each in node.view.housekeeping(now) if isinstance(each, ForgetBatches)]
    (command,) = node.view.housekeeping(now + 60_000)
    last = now + 60_000
    assert command == ForgetBatches(last - FORGOTTEN_AFTER_MS, last - ENDED_FORGOTTEN_AFTER_MS)
    turn = node.view.open_turn()
    turn.add_command(command)
    assert send(node, topic, 0, epoch).verdict is Verdict.BATCH_CHANGING
    node.commit(turn)
    assert send(node, topic, 0, epoch).verdict is Verdict.STALE_EPOCH
    assert not node.state.batch_writes.jobs


def test_no_section_of_a_job_follows_its_end_in_the_log(node: Node, topic: int) -> None:
    epoch = begun(node, topic).epoch
    turn = node.view.open_turn()
    turn.add_command(EndJob(JOB))
    entry = node.propose(turn)
    assert send(node, topic, 0, epoch).verdict is Verdict.BATCH_CHANGING
    node.commit_proposed(entry)
    assert send(node, topic, 0, epoch).verdict is Verdict.STALE_EPOCH


def test_an_attempt_that_is_proposed_before_the_end_of_its_job_stores_nothing_behind_it(
    node: Node, topic: int
) -> None:
    beginning, ending = node.view.open_turn(), node.view.open_turn()
    beginning.add_command(BeginBatch(JOB, WRITER, topic, 0))
    first = node.propose(beginning)
    ending.add_command(EndJob(JOB))
    second = node.propose(ending)
    epoch = result_of(node.commit_proposed(first), BatchResult).epoch
    assert send(node, topic, 0, epoch).verdict is Verdict.BATCH_CHANGING
    node.commit_proposed(second)
    assert send(node, topic, 0, epoch).verdict is Verdict.STALE_EPOCH


def test_the_end_of_a_job_does_not_hold_up_the_sections_of_others(node: Node, topic: int) -> None:
    epoch = begun(node, topic).epoch
    node.command(BeginBatch(bytes([1] * 16), WRITER + 1, topic, 0))
    turn = node.view.open_turn()
    turn.add_command(EndJob(bytes([1] * 16)))
    node.propose(turn)
    assert send(node, topic, 0, epoch, apply=False).verdict is Verdict.ACCEPTED


def test_a_section_that_would_make_a_span_beyond_the_limit_is_refused(node: Node, topic: int) -> None:
    node.view = LeaderView(node.state, 1, START_MS, max_spans=1)
    epoch = begun(node, topic).epoch
    turn = node.view.open_turn()
    made = section(topic, 0, records(2), producer_id=WRITER, producer_epoch=epoch)
    assert turn.add_records(made).verdict is Verdict.ACCEPTED
    assert send(node, topic, 2, epoch, queue=1).verdict is Verdict.TOO_MANY_SPANS, "what is proposed counts"
    turn.abandon()
    assert send(node, topic, 0, epoch, queue=1, apply=False).verdict is Verdict.ACCEPTED
    assert send(node, topic, 2, epoch, queue=1, apply=False).verdict is Verdict.ACCEPTED, "the same span"
    for index in (node.state.applied_index + 1, node.state.applied_index + 2):
        node.commit_proposed(node.log.entry(index))
    assert send(node, topic, 4, epoch, queue=0).verdict is Verdict.TOO_MANY_SPANS
    assert send(node, topic, 4, epoch, queue=1).verdict is Verdict.ACCEPTED
    assert send(node, topic, 0, epoch, queue=1).verdict is Verdict.DUPLICATE
    assert node.state.batch_writes.span_count == 1


# --- attempts against one another ---------------------------------------------------------------------------
ROWS = 12
QUEUES = 2


@dataclass
class Attempt:
    """What an executor does: begin, leave out what is stored, send the rest in any order, be done."""

    epoch: int = 0
    next: int = 0
    left: list[int] = field(default_factory=list)  # rows to send, by number
    state: str = "new"  # new, beginning, sending, done, ended
    waits: bool = False  # for the answer to a section


class World:
    """One part with rows of which two are equal, its log, and the leader of the moment."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.node = Node()
        self.topic = self.node.topic(queues=QUEUES)
        self.rows = [max(number, 1) for number in range(ROWS)]
        self.attempts = [Attempt() for _ in range(4)]
        self.proposed: list[tuple[tuple[EntryHeader, memoryview], Callable[[Any], None]]] = []

    def stored(self) -> list[int]:
        """Return the rows in the log, as reading back finds them: by the sections of the part."""
        found = []
        for index in range(1, self.node.state.applied_index + 1):
            header, payload = self.node.log.entry(index)
            for position, head in walk_sections(payload, header.section_count):
                if head.producer_id == WRITER:
                    body = payload[position + 64 : position + head.total_size]
                    for start in record_positions(body, head.count).tolist():
                        found.append(int.from_bytes(body[start + 48 : start + 64], "little"))
        return found

    def step(self) -> None:
        what = self.choose.random()
        if what < 0.35 and self.proposed:
            entry, answer = self.proposed.pop(0)
            answer(self.node.commit_proposed(entry))
        elif what < 0.42:
            self.fail_over()
        else:
            self.act(self.choose.choice(self.attempts))

    def fail_over(self) -> None:
        """Another leader: the entries behind a random one are gone, and so are all answers."""
        kept = self.choose.randrange(len(self.proposed) + 1)
        for entry, _ in self.proposed[:kept]:
            self.node.commit_proposed(entry)
        log = self.node.log
        if lost := self.proposed[kept:]:
            first = lost[0][0][0]
            del log.raw[first.index - 1 :]
            log.end, log.crc = first.physical_offset, log.entry(first.index - 1)[0].crc
        self.proposed = []
        self.node.view = LeaderView(self.node.state, 2, START_MS)
        for each in self.attempts:
            each.waits = False  # the answer is lost: it is sent again
            each.state = "new" if each.state == "beginning" else each.state

    def act(self, attempt: Attempt, *, urgent: bool = False) -> None:
        if attempt.state == "new" and (urgent or self.choose.random() < 0.1):
            self.begin(attempt)
        elif attempt.state == "sending" and not attempt.waits:
            self.send(attempt)

    def begin(self, attempt: Attempt) -> None:
        turn = self.node.view.open_turn()
        slot = turn.add_command(BeginBatch(JOB, WRITER, self.topic, 0))
        attempt.state = "beginning"

        def begun(effects: Any) -> None:
            result = effects.results[slot]
            if result.state is BatchState.BUSY:
                attempt.state = "new"
                return
            stored, rows = Counter(self.stored()), list(self.rows)
            assert result.count == stored.total(), "an attempt learns exactly what is stored"
            self.choose.shuffle(rows)
            attempt.left = []
            for row in rows:
                if stored[row]:
                    stored[row] -= 1
                else:
                    attempt.left.append(row)
            attempt.epoch, attempt.next, attempt.state = result.epoch, result.count, "sending"

        self.proposed.append((self.node.propose(turn), begun))

    def send(self, attempt: Attempt) -> None:
        if not attempt.left:
            attempt.state = "done"
            return
        made = section(
            self.topic, self.choose.randrange(QUEUES), records(1, first_id=attempt.left[0]),
            producer_id=WRITER, producer_epoch=attempt.epoch, base_sequence=attempt.next,
        )  # fmt: skip
        turn = self.node.view.open_turn()
        admission = turn.add_records(made)
        verdict = admission.verdict

        def stored(_: Any = None) -> None:
            attempt.left.pop(0)
            attempt.next += 1
            attempt.waits = False

        if verdict is Verdict.ACCEPTED:
            entry = self.node.propose(turn)
            attempt.waits = True
            self.proposed.append((entry, stored))
            return
        turn.abandon()
        if verdict is Verdict.DUPLICATE:
            stored()
        elif verdict in (Verdict.STALE_EPOCH, Verdict.SEQUENCE_GAP):
            attempt.state = "ended"
            self.attempts.append(Attempt())  # Spark tries again

    def run(self) -> None:
        for _ in range(250):
            self.step()
            self.check()
        last = Attempt()
        for _ in range(10 * ROWS):
            if last.state == "ended":
                last = Attempt()
            if self.proposed:
                entry, answer = self.proposed.pop(0)
                answer(self.node.commit_proposed(entry))
            else:
                self.act(last, urgent=True)
            self.check()
        assert last.state == "done"
        assert Counter(self.stored()) == Counter(self.rows)

    def check(self) -> None:
        more = Counter(self.stored()) - Counter(self.rows)
        assert not more, f"stored more than once: {dict(more)}"


@pytest.mark.parametrize("seed", range(40))
def test_each_row_is_stored_once_whatever_attempts_and_leaders_do(seed: int) -> None:
    World(seed).run()


def _without_pending_begin(patch: pytest.MonkeyPatch) -> None:
    """A leader that forgets that a BeginBatch is proposed."""
    judge = LeaderView._judge_part

    def forgetful(view: LeaderView, header: Any) -> Admission:
        view._changing.clear()
        return judge(view, header)

    patch.setattr(LeaderView, "_judge_part", forgetful)


def _without_epochs(patch: pytest.MonkeyPatch) -> None:
    """A leader that takes sections of every attempt."""
    judge = LeaderView._judge_part

    def credulous(view: LeaderView, header: Any) -> Admission:
        found = judge(view, header)
        part = view._state.batch_writes.part((header.producer_id, header.topic_id))
        stale = found.verdict is Verdict.STALE_EPOCH and part is not None
        return Admission(Verdict.ACCEPTED) if stale else found

    patch.setattr(LeaderView, "_judge_part", credulous)


def _without_sequences(patch: pytest.MonkeyPatch) -> None:
    """A leader that does not know repeats."""
    judge = LeaderView._judge_part

    def naive(view: LeaderView, header: Any) -> Admission:
        found = judge(view, header)
        repeat = found.verdict in (Verdict.DUPLICATE, Verdict.PENDING)
        return Admission(Verdict.ACCEPTED) if repeat else found

    patch.setattr(LeaderView, "_judge_part", naive)


@pytest.mark.parametrize("mutate", [_without_pending_begin, _without_epochs, _without_sequences])
def test_a_leader_with_a_defect_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=r"stored more than once|learns exactly"):
        for seed in range(40):
            World(seed).run()
