"""Which groups are avoided after slow and failed calls, and which of the rest are quickest."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.errors import UsageError
from ledgermq.client.produce.latency_fault import SEED_TABLE, CallTimes, LatencyTable, quickest

#: What RocketMQ itself has: 0.05 to 15 s of latency, up to 30 s of avoidance.
REAL_TABLE = ((50, 0), (100, 0), (550, 2000), (1800, 5000), (3000, 6000), (5000, 10_000), (15_000, 30_000))

WELL, SLOW, FAILED = range(3)


def call(calls: CallTimes, latency: int, *, at: int = 0, node: str = "n1") -> int:
    """Make one call that takes so long; return when it is answered."""
    calls.sent(at)
    calls.answered(node, at + latency)
    return at + latency


@pytest.mark.parametrize(("latency", "avoided"), [(499, 0), (500, 3000), (60_000, 3000)])
def test_the_seeds_example_half_a_second_costs_three(latency: int, avoided: int) -> None:
    assert LatencyTable().duration(latency) == avoided


@pytest.mark.parametrize(
    ("latency", "avoided"), [(49, 0), (549, 0), (550, 2000), (1799, 2000), (3000, 6000), (14_999, 10_000)]
)
def test_a_table_of_several_rows_goes_by_the_last_one_that_was_reached(latency: int, avoided: int) -> None:
    table = LatencyTable(REAL_TABLE)
    assert (table.duration(latency), table.shortest_slow, table.longest) == (avoided, 550, 30_000)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(0, 10)],
        [(500, -1)],
        [(500, 3000), (400, 4000)],
        [(1, 2), (1, 3)],
        [(1, 3), (2, 2)],
        None,
        [500],
        [(500,)],
        [("a", "b")],
        [(math.nan, math.inf)],
    ],
)
def test_a_table_that_makes_no_sense_is_refused_with_an_example(rows: Any) -> None:
    with pytest.raises(UsageError, match=r"For example \[\(500, 3000\)\]"):
        LatencyTable(rows)


def test_a_table_without_consequences_avoids_no_broker_group() -> None:
    calls = CallTimes(LatencyTable([(1, 0)]))
    calls.sent(0)
    assert calls.rank(1 << 40) == WELL
    calls.failed("n1", 10)
    assert calls.rank(10) == WELL


def test_a_slow_call_keeps_its_group_out_for_as_long_as_the_table_says() -> None:
    calls = CallTimes(LatencyTable(SEED_TABLE))
    assert calls.rank(call(calls, 499)) == WELL
    end = call(calls, 500, at=1000)
    assert [calls.rank(end + later) for later in (0, 2999, 3000)] == [SLOW, SLOW, WELL]


def test_a_call_that_has_no_answer_yet_is_slow_from_the_same_moment_on() -> None:
    calls = CallTimes(LatencyTable())
    calls.sent(100)
    calls.sent(300)
    assert [calls.rank(now) for now in (599, 600)] == [WELL, SLOW]
    assert calls.latency(600) == 500
    calls.answered("n1", 400)
    assert [calls.rank(now) for now in (799, 800)] == [WELL, SLOW], "the second one is the oldest now"


def test_a_failed_call_counts_as_the_last_row() -> None:
    for fail in ("refused", "broken"):
        calls = CallTimes(LatencyTable(REAL_TABLE))
        calls.sent(0)
        if fail == "refused":
            calls.refused("n1", 5)
        else:
            calls.ended("n1", 5, broken=True)
        assert [calls.rank(now) for now in (5, 30_004, 30_005)] == [FAILED, FAILED, WELL], fail


def test_a_stream_that_ends_with_nothing_open_or_on_our_wish_is_no_failure() -> None:
    calls = CallTimes(LatencyTable())
    calls.ended("n1", 0, broken=True)
    calls.sent(0)
    calls.ended("n1", 0, broken=False)
    assert calls.rank(0) == WELL
    assert calls.rank(10_000) == WELL, "what was out will be counted when it goes again"


def test_a_quick_call_does_not_end_the_avoidance() -> None:
    calls = CallTimes(LatencyTable())
    end = call(calls, 600)
    call(calls, 1, at=end)
    assert calls.rank(end + 2999) == SLOW


def test_what_one_node_did_is_not_held_against_the_next_leader() -> None:
    calls = CallTimes(LatencyTable())
    end = call(calls, 600, node="n1")
    calls.failed("n1", end)
    end = call(calls, 1, at=end, node="n2")
    assert calls.rank(end) == WELL
    assert calls.latency(end) == 1
    calls.failed("n2", end)
    calls.forget()
    assert calls.rank(end) == WELL
    assert calls.latency(end) == 0


def test_the_latency_is_a_mean_that_follows_and_grows_stale() -> None:
    calls = CallTimes(LatencyTable())
    now = call(calls, 100)
    assert calls.latency(now) == 100
    for _ in range(30):
        now = call(calls, 20, at=now)
    assert 20 <= calls.latency(now) < 21
    assert calls.latency(now + 2999) > 0
    assert calls.latency(now + 3000) == 0, "its group is tried again"
    assert call(calls, 7, at=now + 5000) and calls.latency(now + 5007) == 7


def test_groups_are_alike_within_a_factor_of_two_or_five_milliseconds() -> None:
    assert quickest([1, 6, 7]) == [0, 1]
    assert quickest([20, 40, 41]) == [0, 1]
    assert quickest([30, 0, 3]) == [1, 2]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_the_quickest_is_always_there_and_none_is_left_out_before_a_slower_one(
    latencies: list[float],
) -> None:
    found = quickest(latencies)
    assert latencies.index(min(latencies)) in found
    left_out = [latency for number, latency in enumerate(latencies) if number not in found]
    assert max(latencies[number] for number in found) < min(left_out, default=float("inf"))
