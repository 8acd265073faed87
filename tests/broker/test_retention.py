"""Retention: what may go, when it runs, and when producing is refused."""

from __future__ import annotations

from datetime import datetime

from ledgermq.broker.retention import DiskWatch, expired_before, next_clean
from ledgermq.raft.segment import SegmentInfo
from ledgermq.raft.types import LogIndex


def segments(*timestamps: int) -> list[SegmentInfo]:
    """One segment per timestamp, ten entries each."""
    return [
        SegmentInfo(i * 100, LogIndex(i * 10 + 1), LogIndex(i * 10 + 10), stamp, i * 100 + 100)
        for i, stamp in enumerate(timestamps)
    ]


def test_whole_segments_older_than_the_limit_go_and_the_last_one_stays() -> None:
    found = segments(1000, 2000, 3000)
    first_kept = expired_before(found, 10_000, 7_500, floor=1000)
    assert first_kept is found[2]
    assert expired_before(segments(1000), 10_000, 0, floor=1000) is None


def test_nothing_above_the_checkpoint_goes() -> None:
    found = segments(1000, 2000, 3000)
    assert expired_before(found, 10_000, 0, floor=15) is found[1]
    assert expired_before(found, 10_000, 0, floor=10) is None


def test_an_unexpired_segment_stops_it() -> None:
    found = segments(1000, 9_000, 1_500)
    assert expired_before(found, 10_000, 5_000, floor=1000) is found[1]


def test_producing_is_refused_above_90_percent_and_taken_again_below_88() -> None:
    watch = DiskWatch("n1", "/data")
    assert not watch.look(90, 100, False)
    assert watch.look(91, 100, False)
    assert "91%" in watch.refusal
    assert "ledgermq admin clean" in watch.refusal
    assert not watch.look(89, 100, False)
    assert watch.refusal
    assert watch.look(87, 100, False)
    assert watch.refusal == ""


def test_a_disk_that_refused_a_write_counts_as_full_whatever_its_share() -> None:
    watch = DiskWatch("n1", "/data")
    assert watch.look(10, 100, True)
    assert "full" in watch.refusal


def test_the_daily_expiry_runs_at_its_time_of_day() -> None:
    assert next_clean(datetime(2026, 1, 1, 3, 0), "04:00") == datetime(2026, 1, 1, 4, 0)
    assert next_clean(datetime(2026, 1, 1, 4, 0), "04:00") == datetime(2026, 1, 2, 4, 0)
