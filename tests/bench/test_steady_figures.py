"""Percentiles of histograms and slopes of memory, from samples that are made up."""

from __future__ import annotations

import math

import pytest

from bench.steady.figures import NodeFigures, Part, at_most, between, buckets, slope_per_hour, table, value

TEXT = """# HELP late How late a timer fires
# TYPE late histogram
late_bucket{le="0.001"} 990.0
late_bucket{le="0.01"} 998.0
late_bucket{le="+Inf"} 1000.0
late_count 1000.0
late_more_bucket{le="0.001"} 5.0
term 7.0
"""


def test_metrics_are_read_from_the_text_of_a_node() -> None:
    assert buckets(TEXT, "late") == {0.001: 990.0, 0.01: 998.0, math.inf: 1000.0}
    assert value(TEXT, "term") == 7.0
    with pytest.raises(ValueError, match="no histogram"):
        buckets(TEXT, "early")
    with pytest.raises(ValueError, match="no metric"):
        value(TEXT, "ter")


def test_a_percentile_of_a_histogram_is_the_bound_that_it_does_not_exceed() -> None:
    counted = buckets(TEXT, "late")
    assert [at_most(counted, percent) for percent in (50, 99, 99.1, 99.8, 99.9)] == [
        0.001,
        0.001,
        0.01,
        0.01,
        math.inf,
    ]
    assert math.isnan(at_most({0.001: 0.0, math.inf: 0.0}, 99.9))


def test_only_what_was_counted_between_two_looks_counts() -> None:
    before = {0.001: 100.0, 0.01: 100.0, math.inf: 120.0}
    after = {0.001: 1099.0, 0.01: 1100.0, math.inf: 1120.0}
    assert at_most(between(before, after), 99.9) == 0.001
    assert at_most(between(before, after), 100) == 0.01


def test_the_slope_is_that_of_the_line_through_the_samples() -> None:
    rising = [(float(at), 100 + at / 360) for at in range(0, 600, 5)]
    assert slope_per_hour(rising) == pytest.approx(10.0)
    wavy = [(float(at), 100 + (at // 5) % 2) for at in range(0, 600, 5)]
    assert abs(slope_per_hour(wavy)) < 1.0
    assert math.isnan(slope_per_hour([(1.0, 5.0)]))


def test_the_memory_of_the_first_half_is_not_taken_for_growth() -> None:
    filling = [(float(at), 50.0 + min(at, 100)) for at in range(0, 300, 10)]
    node = NodeFigures("n1", memory=filling)
    assert slope_per_hour(filling) > 100
    assert node.mib_per_hour == pytest.approx(0.0)


def test_the_table_says_what_is_flat_and_how_often_the_term_changed() -> None:
    flat = NodeFigures(
        "n1", 0, {0.002: 1000.0, math.inf: 1000.0}, [(0.0, 50.0), (200.0, 60.0), (400.0, 60.0)], 0.5
    )
    grows = NodeFigures(
        "n2", 1, {0.002: 0.0, math.inf: 10.0}, [(0.0, 50.0), (200.0, 60.0), (400.0, 61.0)], 0.5
    )
    part = Part("soak", 400.0, 40000, {"SendTimeoutError: late": 3}, (4.0, 5.0), [flat, grows])
    assert table([part]).splitlines()[2:] == [
        "| soak, 400 s | 100 | 3 | 1 | n1 | 50 | 2 | 50 → 60 (60) | +0.0 (flat) |",
        "| soak, 400 s | 100 | 3 | 1 | n2 | 50 | inf | 50 → 61 (61) | +18.0 (grows) |",
    ]
    assert part.as_row()["messages_per_second"] == 100.0
    assert NodeFigures("n3", memory=[(0.0, 50.0), (60.0, 90.0)]).memory_verdict == "too short to tell"
