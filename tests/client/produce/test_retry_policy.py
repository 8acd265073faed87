"""What follows from a refusal."""

from __future__ import annotations

import pytest

from ledgermq.client.pauses import backoff_ms
from ledgermq.client.produce.retry_policy import Action, decide
from ledgermq.proto import route_pb2 as pb


@pytest.mark.parametrize(
    ("code", "action", "definite"),
    [
        (pb.OUTCOME_UNKNOWN, Action.RESEND, False),
        (pb.SLAVE_TIMEOUT, Action.RESEND, False),
        (pb.SLAVES_AWAY, Action.RESEND, False),
        (pb.NOT_LEADER, Action.FIND_LEADER, True),
        (pb.NO_QUORUM, Action.FIND_LEADER, True),
        (pb.SHUTTING_DOWN, Action.FIND_LEADER, True),
        (pb.TOO_MANY_REQUESTS, Action.RESEND, True),
        (pb.DISK_FULL, Action.RESEND, True),
        (pb.STALE_ROUTE, Action.REFRESH_ROUTE, True),
        (pb.GROUP_DRAINING, Action.REFRESH_ROUTE, True),
        (pb.STALE_PRODUCER_EPOCH, Action.NEW_SESSION, True),
        (pb.MESSAGE_TOO_LARGE, Action.FAIL, True),
        (pb.CORRUPT_SECTION, Action.FAIL, True),
        (pb.INVALID_ARGUMENT, Action.FAIL, True),
    ],
)
def test_each_refusal_has_its_consequence(code: pb.RefusalCode, action: Action, definite: bool) -> None:
    decision = decide(pb.Refusal(code=code), 1, first_of_queue=True, fifo=False)
    assert (decision.action, decision.definite) == (action, definite)


def test_a_gap_behind_an_open_section_heals_by_itself() -> None:
    gap = pb.Refusal(code=pb.SEQUENCE_GAP)
    assert decide(gap, 1, first_of_queue=False, fifo=False).action is Action.RESEND
    assert decide(gap, 1, first_of_queue=True, fifo=False).action is Action.NEW_SESSION


def test_ordered_messages_never_change_their_group() -> None:
    full = pb.Refusal(code=pb.DISK_FULL)
    assert decide(full, 1, first_of_queue=True, fifo=False).try_other_broker_group
    assert not decide(full, 1, first_of_queue=True, fifo=True).try_other_broker_group


@pytest.mark.parametrize("code", [pb.OUTCOME_UNKNOWN, pb.SLAVE_TIMEOUT, pb.SLAVES_AWAY])
def test_an_unknown_outcome_never_changes_its_group(code: pb.RefusalCode) -> None:
    unknown = pb.Refusal(code=code)
    assert not decide(unknown, 1, first_of_queue=True, fifo=False).try_other_broker_group


def test_the_brokers_own_pause_counts_more_than_ours() -> None:
    busy = pb.Refusal(code=pb.TOO_MANY_REQUESTS, retry_after_ms=77)
    assert decide(busy, 9, first_of_queue=True, fifo=False).pause_ms == 77


def test_pauses_double_up_to_half_a_second() -> None:
    assert [backoff_ms(n) for n in (1, 2, 3, 50)] == [10, 20, 40, 500]


def test_a_drained_group_moves_messages_at_once_but_fails_those_with_an_order() -> None:
    refusal = pb.Refusal(code=pb.GROUP_DRAINING, retryable=True, retry_after_ms=1000)
    decision = decide(refusal, 1, first_of_queue=True, fifo=False)
    assert decision.try_other_broker_group
    assert not decision.unseen, "it was looked up before it was refused"
    ordered = decide(refusal, 1, first_of_queue=True, fifo=True)
    assert (ordered.action, ordered.try_other_broker_group) == (Action.FAIL, False)
