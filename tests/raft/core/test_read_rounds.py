"""Rounds of heartbeats that confirm reads: only replies to a later round count (thesis 6.4)."""

from __future__ import annotations

from ledgermq.raft.core.quorum import Majority
from ledgermq.raft.core.read_rounds import Reader, ReadRounds
from ledgermq.raft.types import LogIndex, NodeId

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
QUORUM = Majority((N1, N2, N3))


def started(*contexts: str) -> ReadRounds:
    rounds = ReadRounds(number=7)
    rounds.waiting = [Reader(context) for context in contexts]
    rounds.start(LogIndex(5), N1)
    return rounds


def test_an_answer_to_the_round_before_confirms_nothing() -> None:
    rounds = started("a")
    rounds.on_ack(N2, rounds.number - 1)
    assert rounds.finished(QUORUM) == []
    rounds.on_ack(N2, rounds.number)
    assert rounds.finished(QUORUM) == [Reader("a")]


def test_an_answer_to_a_round_to_come_confirms_nothing() -> None:
    rounds = started("a")
    rounds.on_ack(N2, rounds.number + 1)
    assert rounds.finished(QUORUM) == []


def test_a_round_begins_without_the_confirmations_of_the_one_before() -> None:
    rounds = started("a")
    rounds.on_ack(N2, rounds.number)
    assert rounds.finished(QUORUM) == [Reader("a")]
    rounds.waiting = [Reader("b")]
    rounds.start(LogIndex(6), N1)
    assert rounds.finished(QUORUM) == [], "n2 has not answered this round"


def test_a_read_that_is_asked_during_a_round_waits_for_the_next_one() -> None:
    rounds = started("a")
    rounds.waiting.append(Reader("late"))
    assert not rounds.may_start()
    rounds.on_ack(N3, rounds.number)
    assert rounds.finished(QUORUM) == [Reader("a")]
    assert rounds.may_start()
    rounds.start(LogIndex(9), N1)
    assert rounds.finished(QUORUM) == []
    rounds.on_ack(N3, rounds.number)
    assert rounds.finished(QUORUM) == [Reader("late")]
    assert rounds.index == 9


def test_a_leader_that_steps_down_knows_every_reader_asked_for_or_waiting() -> None:
    rounds = started("a")
    rounds.waiting.append(Reader("late"))
    assert {reader.context for reader in rounds.everyone()} == {"a", "late"}
