"""Log lines of processes and containers on one time line."""

from __future__ import annotations

from datetime import datetime

from bench.failover.time_line import events, parse

LOCAL = "2026-11-22 05:20:00,250 INFO ledgermq.raft.drive.leadership leads node=n2 group=g0 term=2"


def test_a_line_of_a_process_is_in_local_time() -> None:
    at = datetime(2026, 11, 22, 5, 20).timestamp() + 0.25
    assert parse(LOCAL) == (at, "raft.drive.leadership: leads node=n2 group=g0 term=2")


def test_of_a_container_the_time_stamp_of_the_engine_counts() -> None:
    parsed = parse(f"2026-11-22T05:20:00.125000000Z {LOCAL}")
    assert parsed is not None
    assert parsed[0] == datetime.fromisoformat("2026-11-22T05:20:00.125+00:00").timestamp()


def test_what_is_no_log_line_is_left_out() -> None:
    assert parse("Traceback (most recent call last):") is None
    assert parse("") is None


def test_events_are_merged_in_order_and_counted_from_the_end() -> None:
    zero = datetime(2026, 11, 22, 5, 20).timestamp()
    other = LOCAL.replace("00,250", "00,100").replace("leads node=n2", "stream lost")
    late = LOCAL.replace("00,250", "09,000")
    found = events([("n2", [LOCAL, late]), ("n3", [other, "noise"])], zero - 1, zero + 1, zero)
    assert [(round(at), who) for at, who, _ in found] == [(100, "n3"), (250, "n2")]
