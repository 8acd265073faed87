"""Log time (D21): never decreasing, continued by a new leader, slewed by at most 1 %."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.raft.core.log_time import LogTime


@pytest.mark.parametrize(
    ("observed", "wall_ms", "monotonic_ms", "expected", "is_off"),
    [
        ([], 5_000, 1, 5_000, False),
        ([(100_000, 100_000, 50)], 100_700, 750, 100_700, False),
        ([(100_000, 200_000, 0)], 201_000, 1_000, 101_010, True),
        ([(100_000, 95_000, 0)], 96_000, 1_000, 100_990, True),
        ([(100_000, 100_005, 0)], 101_005, 1_000, 101_005, False),
        ([(100_000, 100_000, 0), (90_000, 0, 1)], 0, 1, 100_000, True),
    ],
    ids=[
        "the first leader starts at its wall clock",
        "from the last heartbeat plus monotonic time",
        "a wall clock ahead is approached by one percent",
        "a wall clock behind slows log time and never turns it back",
        "a small difference is removed and is no warning",
        "never below a timestamp that was observed",
    ],
)
def test_a_new_leader_continues_log_time(
    observed: list[tuple[int, int, int]], wall_ms: int, monotonic_ms: int, expected: int, is_off: bool
) -> None:
    clock = LogTime()
    for timestamp, wall, monotonic in observed:
        clock.observe(timestamp, wall, monotonic)
    assert clock.lead(wall_ms, monotonic_ms) == expected
    assert clock.is_off is is_off


def test_after_a_restart_of_all_nodes_log_time_goes_on_at_the_wall_clock_but_not_below_the_log() -> None:
    ahead, behind = LogTime(), LogTime()
    ahead.restore(5_000)
    behind.restore(5_000)
    assert ahead.lead(wall_ms=9_000, monotonic_ms=0) == 9_000
    assert behind.lead(wall_ms=1_000, monotonic_ms=0) == 5_000


TEN_YEARS = 10 * 365 * 24 * 3_600_000


def test_one_heartbeat_does_not_move_log_time_years_ahead() -> None:
    clock = LogTime()
    assert clock.observe(100_000, wall_ms=100_000, monotonic_ms=0)
    assert not clock.observe(100_000 + TEN_YEARS, wall_ms=100_075, monotonic_ms=75)
    assert clock.estimate(wall_ms=100_075, monotonic_ms=75) == 100_075
    assert clock.lead(wall_ms=100_100, monotonic_ms=100) == 100_100
    assert not clock.is_off


def test_a_log_that_is_ahead_of_the_wall_clock_is_followed() -> None:
    clock = LogTime()
    clock.observe_entry(100_000 + TEN_YEARS, wall_ms=100_000, monotonic_ms=0)
    assert clock.observe(100_500 + TEN_YEARS, wall_ms=100_500, monotonic_ms=500)
    assert clock.estimate(wall_ms=100_600, monotonic_ms=600) == 100_600 + TEN_YEARS
    assert clock.is_off


def test_a_node_that_was_frozen_follows_when_its_wall_clock_was_set_again() -> None:
    clock = LogTime()
    clock.observe(100_000, wall_ms=100_000, monotonic_ms=0)
    assert not clock.observe(5_000_000, wall_ms=100_010, monotonic_ms=10)
    assert clock.observe(5_000_000, wall_ms=5_000_000, monotonic_ms=20)


def test_a_heartbeat_from_long_ago_does_not_make_log_time_stand_still_on_a_new_leader() -> None:
    clock = LogTime()
    clock.observe(1_000_000, wall_ms=1_000_000, monotonic_ms=0)
    clock.observe(0, wall_ms=1_000_010, monotonic_ms=10)
    clock.lead(wall_ms=1_000_020, monotonic_ms=20)
    assert clock.lead(wall_ms=1_001_020, monotonic_ms=1_020) >= 1_000_990


def test_an_old_entry_that_comes_while_a_node_catches_up_does_not_turn_log_time_back() -> None:
    clock = LogTime()
    clock.observe(200_000, wall_ms=200_000, monotonic_ms=0)
    clock.observe_entry(100_000, wall_ms=200_010, monotonic_ms=10)
    assert not clock.is_off
    assert clock.lead(wall_ms=200_010, monotonic_ms=10) == 200_010


def test_an_old_entry_alone_does_not_tell_what_log_time_is_now() -> None:
    clock = LogTime()
    clock.observe_entry(100_000, wall_ms=200_000, monotonic_ms=0)
    assert not clock.is_off
    assert clock.lead(wall_ms=200_000, monotonic_ms=0) == 200_000


def test_an_entry_that_is_ahead_is_followed() -> None:
    clock = LogTime()
    clock.observe(100_000, wall_ms=100_000, monotonic_ms=0)
    clock.observe_entry(150_000, wall_ms=100_010, monotonic_ms=10)
    assert clock.estimate(wall_ms=100_010, monotonic_ms=10) == 150_000
    assert clock.is_off


def test_an_estimate_goes_on_from_the_leaders_time_and_changes_nothing() -> None:
    clock = LogTime()
    clock.observe(100_000, wall_ms=200_000, monotonic_ms=0)
    assert clock.estimate(wall_ms=200_500, monotonic_ms=500) == 100_500
    assert clock.floor == 100_000
    assert LogTime().estimate(wall_ms=7, monotonic_ms=0) == 7


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e6)), min_size=1, max_size=50))
def test_timestamps_never_decrease_whatever_the_clocks_do(steps: list[tuple[float, float]]) -> None:
    clock, monotonic, last = LogTime(), 0.0, -1
    for wall, elapsed in steps:
        monotonic += elapsed
        now = clock.lead(wall, monotonic)
        assert now >= last
        last = now
