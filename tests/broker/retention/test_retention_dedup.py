"""Retries after retention deleted their originals: the offset of the first copy, or a refusal.

Both windows are replicated state: they do not depend on the stored messages, and go with checkpoints to the
next leader.
"""

from __future__ import annotations

import random

import pytest

from ledgermq.broker.leader.leader_view import Admission, LeaderView, Verdict
from ledgermq.broker.state.commands import EvictDedup, LogStart, position_rows
from ledgermq.broker.state.machine import BrokerState

from ..entry_log import START_MS, Node, checkpoint, records, restored, section


def produce(node: Node, topic: int, sequence: int, count: int, view: LeaderView | None = None) -> Admission:
    """Send a batch of producer 7; store it when it is new."""
    turn = (view or node.view).open_turn()
    made = section(topic, 0, records(count, first_id=sequence), producer_id=7, base_sequence=sequence)
    admission = turn.add_records(made)
    if not turn.size:
        turn.abandon()
    elif view is None:
        node.commit(turn)
    return admission


def delete_everything(node: Node, topic: int) -> None:
    end = node.state.queue_end(topic, 0)
    node.command(LogStart(node.state.applied_index, node.log.end, position_rows([(topic, 0, end)])))
    assert node.state.queue_begin(topic, 0) == end


def next_leader(node: Node) -> LeaderView:
    """The view of another node that starts from a checkpoint, whose segments never held the originals."""
    raw = checkpoint(node.state)
    state: BrokerState = restored(raw)
    return LeaderView(state, 2, START_MS)


def test_a_retry_after_its_original_was_deleted_gets_the_first_offset_from_every_leader() -> None:
    node = Node()
    topic = node.topic(queues=1)
    assert produce(node, topic, 0, 3).base_offset == 0
    assert produce(node, topic, 3, 4).base_offset == 3
    delete_everything(node, topic)
    assert produce(node, topic, 7, 2).base_offset == 7, "offsets go on"
    for view in (None, next_leader(node)):
        for sequence, count, offset in ((0, 3, 0), (3, 4, 3), (7, 2, 7)):
            admission = produce(node, topic, sequence, count, view)
            assert (admission.verdict, admission.base_offset) == (Verdict.DUPLICATE, offset)


def test_a_retry_that_is_too_old_to_know_says_so_or_is_refused() -> None:
    node = Node()
    topic = node.topic(queues=1)
    for sequence in range(100):
        produce(node, topic, sequence, 1)
    delete_everything(node, topic)
    for view in (None, next_leader(node)):
        admission = produce(node, topic, 5, 1, view)
        assert (admission.verdict, admission.base_offset) == (Verdict.DUPLICATE, -1), "stored somewhere"
        admission = produce(node, topic, 34, 4, view)
        assert admission.verdict is Verdict.SEQUENCE_GAP, "half of it is too old to be known"
    node.command(EvictDedup(START_MS + 10_000, START_MS + 10_000))
    admission = produce(node, topic, 99, 1)
    assert (admission.verdict, admission.base_offset) == (Verdict.SEQUENCE_GAP, -1), "the stream is forgotten"


def test_a_message_id_leads_to_its_first_offset_after_that_was_deleted() -> None:
    node = Node()
    topic = node.topic(queues=1)
    node.fill(topic, 0, 5, first_id=1000)
    delete_everything(node, topic)
    node.fill(topic, 0, 5, first_id=2000)
    for view in (node.view, next_leader(node)):
        known = view.find_message(topic, (1003).to_bytes(16, "little"))
        assert known is not None and (known.queue_id, known.offset) == (0, 3)
        known = view.find_message(topic, (2003).to_bytes(16, "little"))
        assert known is not None and (known.queue_id, known.offset) == (0, 8)
        assert view.find_message(topic, (3003).to_bytes(16, "little")) is None


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_retried_whenever_the_offset_is_right_or_none_is_given(seed: int) -> None:
    """A random history of batches, deletions, evictions and new leaders against a list of batches."""
    rng, node = random.Random(seed), Node()
    topic = node.topic(queues=1)
    stored: dict[int, tuple[int, int]] = {}  # base sequence → count, offset
    sequence = 0
    for _ in range(300):
        node.log.now += rng.choice([0, 10, 500])
        roll = rng.random()
        if roll < 0.4:
            count = rng.randint(1, 5)
            admission = produce(node, topic, sequence, count)
            if admission.verdict is Verdict.ACCEPTED:
                stored[sequence] = (count, admission.base_offset)
                sequence += count
            else:
                assert admission.verdict is Verdict.SEQUENCE_GAP, "forgotten: a new epoch would begin at 0"
                break
        elif roll < 0.5:
            begin = rng.randint(0, node.state.queue_end(topic, 0))
            node.trim((topic, 0, begin))
        elif roll < 0.52:
            delete_everything(node, topic)
        elif roll < 0.53:
            node.command(EvictDedup(node.log.now - 5_000, node.log.now - 5_000))
        elif stored:
            base = rng.choice(sorted(stored))
            count, offset = stored[base]
            view = rng.choice([None, next_leader(node)])
            admission = produce(node, topic, base, count, view)
            if admission.verdict is Verdict.DUPLICATE:
                assert admission.base_offset in (offset, -1), f"seed {seed}"
            else:
                assert admission.verdict is Verdict.SEQUENCE_GAP or base == 0, f"seed {seed}"
                if admission.verdict is Verdict.ACCEPTED:
                    break  # a forgotten stream that begins again at 0 is a new one
