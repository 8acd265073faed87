"""Time limits of retention's pins for a follower under reset."""

from __future__ import annotations

from ledgermq.raft.reset.sender import IDLE_SECONDS, TOTAL_SECONDS, SegmentPins
from ledgermq.raft.types import LogIndex, NodeId

N2, N3 = NodeId("n2"), NodeId("n3")


def pinned(now: float = 0.0) -> SegmentPins:
    pins = SegmentPins()
    pins.pin(N3, LogIndex(100), LogIndex(500), now)
    return pins


def test_entries_stay_from_the_first_one_of_the_reset_and_then_from_what_the_follower_holds() -> None:
    pins = pinned()
    assert SegmentPins().keep_from({}, 0.0) is None
    assert pins.keep_from({}, 1.0) == 100
    assert pins.keep_from({N3: LogIndex(7)}, 2.0) == 100, "what it held before the reset"
    assert pins.keep_from({N3: LogIndex(300)}, 3.0) == 301


def test_a_pin_ends_when_the_follower_holds_the_target() -> None:
    pins = pinned()
    assert pins.holds(N3, 1.0)
    assert pins.keep_from({N3: LogIndex(500)}, 1.0) is None
    assert not pins.holds(N3, 1.0)


def test_the_follower_that_needs_most_decides() -> None:
    pins = pinned()
    pins.pin(N2, LogIndex(50), LogIndex(400), 0.0)
    assert pins.keep_from({N3: LogIndex(450)}, 1.0) == 50
    assert pins.keep_from({N2: LogIndex(400), N3: LogIndex(450)}, 1.0) == 451


def test_a_follower_without_progress_is_not_waited_for() -> None:
    pins = pinned()
    assert pins.keep_from({}, IDLE_SECONDS - 1) == 100
    pins.touch(N3, IDLE_SECONDS - 1)
    assert pins.keep_from({}, IDLE_SECONDS + 5) == 100, "it took a chunk"
    assert pins.keep_from({N3: LogIndex(200)}, 2 * IDLE_SECONDS - 2) == 201, "it took entries"
    assert pins.keep_from({N3: LogIndex(200)}, 3 * IDLE_SECONDS) is None


def test_one_that_tries_again_and_again_gets_half_of_the_time() -> None:
    pins, kept = SegmentPins(), []
    for minute in range(121):
        pins.pin(N3, LogIndex(100), LogIndex(500), 60.0 * minute)
        kept.append(pins.keep_from({}, 60.0 * minute) is not None)
    assert 2 * TOTAL_SECONDS / 60 == 60
    assert kept == ([True] * 30 + [False] * 30) * 2 + [True]


def test_a_lead_that_is_lost_keeps_nothing() -> None:
    pins = pinned()
    pins.clear()
    assert pins.keep_from({}, 1.0) is None
