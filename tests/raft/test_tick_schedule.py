"""Ticks from a monotonic clock; one tick after a stall."""

from __future__ import annotations

from ledgermq.raft.tick_schedule import TickSchedule


def test_a_punctual_loop_gets_one_tick_per_period() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert [schedule.due(now) for now in (10, 20, 30)] == [1, 1, 1]


def test_an_early_call_gives_no_tick() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert schedule.due(4) == 0
    assert schedule.delay_ms(4) == 6


def test_a_slightly_late_loop_gets_the_ticks_it_missed() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert schedule.due(45) == 4
    assert schedule.due(50) == 1


def test_after_a_stall_input_comes_first_and_then_one_tick() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert schedule.due(5_000) == 0
    assert schedule.due(5_010) == 1
    assert schedule.due(5_020) == 1


def test_a_loop_that_stalls_again_and_again_still_ticks() -> None:
    schedule = TickSchedule(10, 200, now_ms=0)
    assert [schedule.due(now) for now in (1_000, 2_000, 3_000, 4_000)] == [0, 1, 0, 1]
