"""Ticks from a monotonic clock; one tick after a stall."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.raft.core.tick_schedule import TickSchedule


def test_a_punctual_loop_gets_one_tick_per_period() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert [schedule.take(now) for now in (10, 20, 30)] == [1, 1, 1]


def test_an_early_call_gives_no_tick() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert schedule.take(4) == 0
    assert schedule.wake_at(0) == 10


def test_a_slightly_late_loop_gets_the_ticks_it_missed() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert schedule.take(45) == 4
    assert schedule.take(50) == 1


def test_after_a_stall_input_comes_first_and_then_one_tick() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert schedule.take(5_000) == 0
    assert schedule.take(5_010) == 1
    assert schedule.take(5_020) == 1


def test_a_loop_that_stalls_again_and_again_still_ticks() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert [schedule.take(now) for now in (1_000, 2_000, 3_000, 4_000)] == [0, 1, 0, 1]


def test_ticks_that_decide_nothing_are_slept_through_and_counted_together() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    schedule.wake_ms = schedule.wake_at(6)
    assert schedule.wake_ms == 70
    assert schedule.take(71) == 7
    assert schedule.lateness_ms == 1
    assert schedule.wake_at(0) == 80


def test_a_sleep_is_at_most_half_as_long_as_what_counts_as_a_stall() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert schedule.wake_at(1_000) == 110
    assert schedule.take(110) == 11


def test_before_an_input_the_core_gets_the_ticks_that_passed_but_none_that_decides() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert not schedule.has_passed(9)
    assert schedule.take_passed(9, quiet=100) == 0
    assert schedule.take_passed(35, quiet=100) == 3
    assert schedule.take_passed(65, quiet=1) == 1
    assert schedule.take(65) == 2


def test_after_a_stall_an_input_comes_before_any_tick() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert schedule.take_passed(5_000, quiet=100) == 0
    assert schedule.take(5_000) == 0
    assert schedule.take_passed(5_009, quiet=100) == 0
    assert schedule.wake_at(100) == 5_010, "the one tick comes soon"
    assert schedule.take(5_010) == 1
    assert schedule.take_passed(5_020, quiet=100) == 1


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans(), st.integers(0, 20)), max_size=60))
def test_without_stalls_no_tick_is_lost_and_none_comes_early(calls: list[tuple[int, bool, int]]) -> None:
    schedule, now, given_ticks = TickSchedule(10, 400, now_ms=0), 0, 0
    for pause, is_timer, quiet in calls:
        now += pause
        given_ticks += schedule.take(now) if is_timer else schedule.take_passed(now, quiet)
        if schedule._recovering:
            return
        assert given_ticks <= now // 10
        if is_timer:
            assert given_ticks == now // 10
