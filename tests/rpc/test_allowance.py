"""A reserve that grows with time."""

from __future__ import annotations

from ledgermq.rpc.allowance import Allowance


def test_the_reserve_can_be_spent_at_once_and_no_more() -> None:
    allowance = Allowance(3, 10, now=100.0)
    assert [allowance.spend(100.0) for _ in range(4)] == [True, True, True, False]


def test_several_events_are_counted_at_once_or_not_at_all() -> None:
    allowance = Allowance(3, 10, now=100.0)
    assert allowance.spend(100.0, 2)
    assert not allowance.spend(100.0, 2)
    assert allowance.spend(100.0), "the refused ones took nothing"


def test_what_was_spent_grows_again_up_to_the_reserve() -> None:
    allowance = Allowance(3, 10, now=100.0)
    for _ in range(3):
        allowance.spend(100.0)
    assert allowance.spend(100.15), "0.1 s later one more may come"
    assert not allowance.spend(100.15)
    assert [allowance.spend(200.0) for _ in range(4)].count(True) == 3
