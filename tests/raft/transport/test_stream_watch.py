"""A stalled stream is told from a busy one, and from a loop that was late."""

from __future__ import annotations

import pytest

from ledgermq.raft.transport.stream_watch import FAIR_BYTES, MAX_GROWTH, StreamWatch

FLOOR_S = 0.4
STEP_S = 0.1


def looks(watch: StreamWatch, goals_and_passed: list[tuple[int, int]], step_s: float = STEP_S) -> list[bool]:
    """Look once per step. Returns whether the stream is stuck."""
    found = []
    for number, (goal, passed) in enumerate(goals_and_passed):
        found.append(watch.look(number * step_s, goal, passed) >= watch.limit_s)
    return found


def test_what_stands_still_for_the_limit_is_stuck() -> None:
    watch = StreamWatch(FLOOR_S)
    assert looks(watch, [(100, 0)] * 6) == [False] * 4 + [True, True]
    assert not watch.has_moved


def test_more_that_is_sent_does_not_hide_that_nothing_arrives() -> None:
    assert looks(StreamWatch(FLOOR_S), [(100 * n, 0) for n in range(1, 7)])[-1]


def test_what_reaches_each_goal_in_time_moves_however_much_is_under_way() -> None:
    watch = StreamWatch(FLOOR_S)
    assert not any(looks(watch, [(100 * n + 300, 100 * n) for n in range(1, 60)]))
    assert watch.has_moved


def test_a_few_bytes_at_a_time_are_no_movement_and_a_fair_number_is() -> None:
    assert any(looks(StreamWatch(FLOOR_S), [(1 << 30, 1000 * n) for n in range(60)]))
    assert not any(looks(StreamWatch(FLOOR_S), [(1 << 30, FAIR_BYTES * n // 3) for n in range(60)]))


def test_a_large_frame_on_a_slow_link_has_moved_only_when_it_has_arrived() -> None:
    watch = StreamWatch(FLOOR_S)
    size = 40 * FAIR_BYTES
    assert not any(looks(watch, [(size, FAIR_BYTES * n // 3) for n in range(119)]))
    moved = [watch.has_moved]
    watch.moved(11.9, size)
    assert [*moved, watch.has_moved] == [False, True]
    assert watch.limit_s == MAX_GROWTH * FLOOR_S


def test_a_stream_with_nothing_under_way_is_never_stuck() -> None:
    watch = StreamWatch(FLOOR_S)
    assert not any(looks(watch, [(100, 0), (100, 100), *[(100, 100)] * 50]))
    assert watch.look(100.0, 200, 100) == 0.0  # after a long rest it gets the full time again


def test_a_loop_that_was_late_blames_no_stream() -> None:
    watch = StreamWatch(FLOOR_S)
    assert not any(looks(watch, [(100, 0)] * 50, step_s=5.0))


def test_the_limit_grows_with_round_trips_and_not_without_end() -> None:
    watch = StreamWatch(FLOOR_S)
    for number in range(100):
        watch.look(number * 2.0, number + 1, number)
        watch.moved(number * 2.0 + 0.3, number + 1)
    assert watch.limit_s == pytest.approx(4 * 0.3, rel=0.01)
    for number in range(100, 200):
        watch.look(number * 99.0, number + 1, number)
        watch.moved(number * 99.0 + 50, number + 1)
    assert watch.limit_s == MAX_GROWTH * FLOOR_S


def test_a_new_connection_begins_anew() -> None:
    watch = StreamWatch(FLOOR_S)
    assert looks(watch, [(100, 0)] * 6)[-1]
    watch.begin()
    assert (watch.stood_s, watch.has_moved) == (0.0, False)
    assert watch.look(10.0, 50, 0) == 0.0
