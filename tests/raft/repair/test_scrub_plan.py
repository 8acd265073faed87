"""Pace of the scrubber."""

from __future__ import annotations

import pytest

from ledgermq.raft.errors import ConfigurationError
from ledgermq.raft.repair.scrub_plan import ScrubPlan

WEEK = 7 * 24 * 3600.0
PLAN = ScrubPlan(8 << 20, WEEK)


def test_it_reads_at_the_set_rate() -> None:
    assert PLAN.pause_s(8 << 20, 0.25, 1 << 30) == 0.75
    assert PLAN.pause_s(8 << 20, 3.0, 1 << 30) == 0.0


def test_a_log_too_large_for_a_pass_in_the_interval_is_read_faster() -> None:
    large = int(4 * (8 << 20) * WEEK)
    assert PLAN.rate(large) == 4 * (8 << 20)
    assert PLAN.pause_s(8 << 20, 0.0, large) == 0.25


def test_the_next_pass_begins_when_the_interval_has_passed_since_the_last_one_began() -> None:
    assert PLAN.wait_s(1000.0) == WEEK - 1000.0
    assert PLAN.wait_s(2 * WEEK) == 0.0


def test_rate_zero_is_off_and_nonsense_is_refused() -> None:
    assert not ScrubPlan(0, WEEK).is_on and PLAN.is_on
    for rate, interval in ((-1, WEEK), (1, 0.0)):
        with pytest.raises(ConfigurationError):
            ScrubPlan(rate, interval)


def test_what_has_no_digests_is_read_faster_up_to_four_times_the_rate() -> None:
    assert PLAN.rate(1 << 30, 600 * (8 << 20)) == 8 << 20
    assert PLAN.rate(1 << 30, 600 * (20 << 20)) == 20 << 20
    assert PLAN.rate(1 << 30, 1 << 40) == 32 << 20
    assert PLAN.pause_s(8 << 20, 0.0, 1 << 30, 1 << 40) == 0.25
