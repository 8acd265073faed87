"""Retention policy: disk steps and their hysteresis, the segments to delete, the rate. No clock, no disk."""

from __future__ import annotations

import random

import pytest

from ledgermq.broker.retention.policy import (
    DeletionPace,
    Expiry,
    expired_before,
    held_from,
    oldest_before,
    protected_by,
)
from ledgermq.broker.service.disk_steps import (
    LIMITS,
    MARGIN,
    DiskStep,
    DiskWatch,
    RetentionView,
    Use,
    bytes_to_free,
    hindering_share,
    limits_of,
    next_step,
)
from ledgermq.raft.log.segment import SegmentInfo
from ledgermq.raft.types import LogIndex


def segments(*timestamps: int) -> list[SegmentInfo]:
    """One segment of 100 bytes and ten entries per timestamp."""
    return [
        SegmentInfo(i * 100, LogIndex(i * 10 + 1), LogIndex(i * 10 + 10), stamp, i * 100 + 100)
        for i, stamp in enumerate(timestamps)
    ]


def expiry(now: int, keep_ms: int, floor: int = 1000, protected_from: int | None = None) -> Expiry:
    return Expiry(now, keep_ms, floor, protected_from)


# --- steps ----------------------------------------------------------------------------------------------
def test_each_step_begins_above_its_limit() -> None:
    for below, above, step in zip(
        (0.0, 0.75, 0.85, 0.90, 0.95), (0.75, 0.85, 0.90, 0.95, 1.0), DiskStep, strict=True
    ):
        assert next_step(DiskStep.NORMAL, below + 0.001) is next_step(DiskStep.NORMAL, above) is step
    assert next_step(DiskStep.NORMAL, 0.0) is DiskStep.NORMAL


@pytest.mark.parametrize("step", list(LIMITS))
def test_each_step_ends_two_points_below_its_limit(step: DiskStep) -> None:
    limit = LIMITS[step]
    assert next_step(step, limit - MARGIN + 0.001) is step
    assert next_step(step, limit - MARGIN - 0.001) == step - 1


def test_a_use_that_flutters_at_a_limit_changes_the_step_once() -> None:
    rng, step, changes = random.Random(1), DiskStep.NORMAL, 0
    for _ in range(1000):
        after = next_step(step, 0.90 + rng.uniform(-0.015, 0.015))
        changes += after is not step
        step = after
    assert step is DiskStep.REFUSE_MESSAGES
    assert changes <= 2, "DELETE_OLDEST first, perhaps, then REFUSE_MESSAGES for good"


def test_a_fall_ends_all_steps_at_once() -> None:
    assert next_step(DiskStep.REFUSE_WRITES, 0.2) is DiskStep.NORMAL


def test_a_disk_that_refused_a_write_refuses_messages_whatever_its_share() -> None:
    assert next_step(DiskStep.NORMAL, 0.1, full=True) is DiskStep.REFUSE_MESSAGES
    assert next_step(DiskStep.REFUSE_WRITES, 0.96, full=True) is DiskStep.REFUSE_WRITES
    watch = DiskWatch("n1", "/data")
    assert watch.look(Use(10, 100, full=True))
    assert "is full" in watch.refusal and not watch.write_refusal


def refusals(watch: DiskWatch, used: int) -> tuple[bool, bool]:
    """Look at `used` of 100 bytes; return whether messages and whether all writes are refused."""
    watch.look(Use(used, 100))
    return bool(watch.refusal), bool(watch.write_refusal)


def test_messages_are_refused_above_90_percent_and_all_writes_above_95() -> None:
    watch = DiskWatch("n1", "/data")
    assert refusals(watch, 90) == (False, False)
    assert refusals(watch, 91) == (True, False)
    told = "n1 refuses messages: its disk is 91% used (91 of 100 bytes at /data; the limit is 90%)"
    assert told in watch.refusal
    assert "below 88%" in watch.refusal and "ledgermq admin clean" in watch.refusal
    assert refusals(watch, 96) == (True, True)
    assert "refuses all writes: its disk is 96% used" in watch.write_refusal
    assert refusals(watch, 94) == (True, True)
    assert refusals(watch, 92) == (True, False)
    assert refusals(watch, 89) == (True, False)
    assert refusals(watch, 87) == (False, False)


def test_a_change_of_the_step_is_told_once() -> None:
    watch = DiskWatch("n1", "/data")
    assert watch.look(Use(80, 100))
    assert not watch.look(Use(81, 100))
    assert watch.look(Use(50, 100))


def test_a_group_is_hindered_by_its_leader_or_by_so_many_that_a_majority_lacks_room() -> None:
    assert hindering_share(0.2, [], 1) == 0.2
    assert hindering_share(0.9, [0.1, 0.1], 3) == 0.9
    assert hindering_share(0.1, [0.9, 0.2], 3) == 0.2, "one follower that is full does not cost a majority"
    assert hindering_share(0.1, [0.9, 0.8], 3) == 0.8
    assert hindering_share(0.1, [0.9, 0.8, 0.7, 0.2], 5) == 0.7
    assert hindering_share(0.5, [], 3) == 0.5, "a follower without contact does not count"


# --- choice of segments ---------------------------------------------------------------------------------
def test_whole_segments_older_than_the_limit_go_and_the_last_one_stays() -> None:
    found = segments(1000, 2000, 3000)
    assert expired_before(found, expiry(10_000, 7_500)) is found[2]
    assert expired_before(segments(1000), expiry(10_000, 0)) is None
    assert expired_before([], expiry(10_000, 0)) is None


def test_a_segment_expires_when_its_last_entry_is_exactly_as_old_as_the_limit() -> None:
    found = segments(1000, 2000, 3000)
    assert expired_before(found, expiry(1000 + 72, 72)) is found[1]
    assert expired_before(found, expiry(1000 + 71, 72)) is None


def test_nothing_above_the_checkpoint_goes() -> None:
    found = segments(1000, 2000, 3000)
    assert expired_before(found, expiry(10_000, 0, floor=15)) is found[1]
    assert expired_before(found, expiry(10_000, 0, floor=10)) is None
    assert oldest_before(found, 1000, 15) is found[1]
    assert oldest_before(found, 1000, 10) is None


def test_an_unexpired_segment_stops_it() -> None:
    found = segments(1000, 9_000, 1_500)
    assert expired_before(found, expiry(10_000, 5_000)) is found[1]


def test_an_expired_segment_with_unread_messages_stays_with_all_behind_it() -> None:
    found = segments(1000, 2000, 3000, 4000)
    assert expired_before(found, expiry(10_000, 0, protected_from=100)) is found[1]
    assert expired_before(found, expiry(10_000, 0, protected_from=99)) is None
    assert expired_before(found, expiry(10_000, 0, protected_from=399)) is found[3]
    assert protected_by(found, expiry(10_000, 0, protected_from=150)) == found[1:3]
    assert protected_by(found, expiry(10_000, 7_500, protected_from=150)) == found[1:2]
    assert protected_by(found, expiry(10_000, 0)) == []


def test_on_a_nearly_full_disk_the_fewest_oldest_segments_go() -> None:
    found = segments(5000, 5000, 5000, 5000)
    assert oldest_before(found, 0, 1000) is None
    assert oldest_before(found, 1, 1000) is found[1]
    assert oldest_before(found, 100, 1000) is found[1]
    assert oldest_before(found, 101, 1000) is found[2]
    assert oldest_before(found, 1 << 40, 1000) is found[3], "the last one always stays"


def test_on_a_nearly_full_disk_what_a_topic_keeps_stays_with_all_behind_it() -> None:
    found = segments(5000, 5000, 5000, 5000)
    assert oldest_before(found, 1 << 40, 1000, kept_from=200) is found[2]
    assert oldest_before(found, 1 << 40, 1000, kept_from=199) is found[1]
    assert oldest_before(found, 1 << 40, 1000, kept_from=99) is None
    assert oldest_before(found, 1, 1000, kept_from=200) is found[1], "no more than needed"


def test_so_much_must_go_that_the_step_ends() -> None:
    assert bytes_to_free(Use(900, 1000), 0.9) == pytest.approx(70, abs=1)
    assert bytes_to_free(Use(820, 1000), 0.82) == 0
    assert bytes_to_free(Use(100, 1000), 0.93) == pytest.approx(100, abs=1), "a follower is fuller"
    assert bytes_to_free(Use(100, 1000, full=True), 0.1) == 1


@pytest.mark.parametrize("seed", range(20))
def test_whatever_goes_is_a_prefix_that_a_dumb_model_allows(seed: int) -> None:
    rng = random.Random(seed)
    stamps = sorted(rng.randint(0, 1000) for _ in range(rng.randint(1, 9)))
    found, now = segments(*stamps), 1000
    keep_ms, floor = rng.randint(0, 1000), rng.randint(0, 100)
    protected = rng.choice([None, rng.randint(0, 900)])
    first = expired_before(found, expiry(now, keep_ms, floor, protected))
    expected = 0
    for i, stamp in enumerate(stamps[:-1]):
        is_free = protected is None or 100 * i + 100 <= protected
        if stamp > now - keep_ms or 10 * i + 10 >= floor or not is_free:
            break
        expected = i + 1
    assert (found.index(first) if first else 0) == expected, f"seed {seed}"


# --- rate -----------------------------------------------------------------------------------------------
def test_segments_go_at_the_configured_rate() -> None:
    pace, gone = DeletionPace(3), 0
    for second in range(1, 11):
        granted = pace.take(1000, float(second))
        assert granted <= 3
        gone += granted
    assert gone == 30


def test_a_slow_rate_deletes_one_now_and_then_and_saves_nothing_up() -> None:
    pace = DeletionPace(0.25)
    assert [pace.take(9, float(second)) for second in range(9)] == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert pace.take(9, 1000.0) == 1
    assert pace.take(9, 1001.0) == 0


# --- holds ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(20))
def test_holds_keep_as_much_as_they_may_and_no_more(seed: int) -> None:
    rng = random.Random(seed)
    log = segments(*sorted(rng.randrange(100) for _ in range(rng.randint(1, 12))))
    rule = expiry(100, rng.randrange(100), rng.randrange(1, 140), rng.choice([None, rng.randrange(1300)]))
    without = expired_before(log, rule)
    deletable = [each for each in log if without is not None and each.start_offset < without.start_offset]
    held, limit = rng.randrange(1300), rng.randrange(1, 1300)
    begin = held_from(log, rule, held, limit)
    wanted = [each for each in deletable if each.end_offset > held]
    kept = [each for each in deletable if each.end_offset > begin]
    assert kept == wanted[len(wanted) - len(kept) :], "the newest of them"
    assert len(kept) == min(len(wanted), limit // 100)
    assert held_from(log, rule, held, 0) == held, "no limit"


# --- texts ----------------------------------------------------------------------------------------------
def test_a_person_is_told_what_is_kept_and_for_whom() -> None:
    assert RetentionView().protection == ""
    view = RetentionView(
        protected_segments=2, protected_bytes=2048, protected_for="consumer group billing in topic orders (s)"
    )
    assert view.protection == (
        "2 expired segments (2,048 bytes) have not been consumed and are kept for consumer group billing in"
        " topic orders (s)"
    )
    view.hold = "The log is held."
    assert view.protection == "The log is held.", "unexpired ones, too: it is nearly full"


def test_who_holds_the_log_stands_in_the_refusal() -> None:
    watch = DiskWatch("n1", "/data")
    watch.look(Use(91, 100))
    assert watch.refusal.endswith("It goes on below 88%. Free space: ledgermq admin clean, or more disk")
    watch.hold = "The log is held."
    assert watch.refusal.endswith("It goes on below 88%. The log is held.")


def test_the_steps_begin_where_the_settings_say() -> None:
    limits = limits_of(40, 50, 60)
    steps = [next_step(DiskStep.NORMAL, share, limits=limits) for share in (0.4, 0.45, 0.55, 0.65, 0.96)]
    assert steps == list(DiskStep)
    watch = DiskWatch("n1", "/data", limits)
    watch.look(Use(61, 100))
    assert "the limit is 60%). It goes on below 58%." in watch.refusal
    watch.look(Use(59, 100))
    assert watch.step is DiskStep.REFUSE_MESSAGES, "it holds until 2 points below"
    assert bytes_to_free(Use(55, 100), 0.55, limits) == 7, "until the step is over: 48 %"
