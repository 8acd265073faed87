"""When the daily expiry runs, and who does it. What goes is `test_retention_policy.py`, what nodes do `test_retention_node.py`."""

from __future__ import annotations

from datetime import datetime

from ledgermq.broker.retention import next_clean


def test_the_daily_expiry_runs_at_its_time_of_day() -> None:
    assert next_clean(datetime(2026, 1, 1, 3, 0), "04:00") == datetime(2026, 1, 1, 4, 0)
    assert next_clean(datetime(2026, 1, 1, 4, 0), "04:00") == datetime(2026, 1, 2, 4, 0)
