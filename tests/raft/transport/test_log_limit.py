"""Repeated events are logged once a minute, with their number."""

from __future__ import annotations

from ledgermq.raft.transport.out_stream import LOG_PERIOD_S, LogLimit


def test_one_line_per_key_and_minute_that_counts_what_was_kept_back() -> None:
    limit = LogLimit()
    assert limit.passes("n1", 0.0) == 0
    assert [limit.passes("n1", 1.0 + number) for number in range(5)] == [None] * 5
    assert limit.passes("n2", 3.0) == 0
    assert limit.passes("n1", LOG_PERIOD_S) == 5
    assert limit.passes("n1", LOG_PERIOD_S + 1) is None
    assert limit.passes("n1", 2 * LOG_PERIOD_S) == 1
