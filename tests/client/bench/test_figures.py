"""How latencies and messages are folded into percentiles, a histogram and throughput over time."""

from __future__ import annotations

import random

import pytest

from ledgermq.client.bench.figures import Figures, Latencies, Recorder


def begun(now: float, workload: str, size: int, seconds: float, messages_per_call: int = 1) -> Recorder:
    recorder = Recorder(workload, size, seconds, messages_per_call)
    recorder.begin(now)
    return recorder


def recorded(latencies: list[float], seconds: float = 2.0) -> Figures:
    """Calls of these latencies that all end at the end."""
    recorder = begun(10.0, "W1", 100, seconds)
    for latency in latencies:
        recorder.call(10.0 + seconds - 1e-9 - latency, 10.0 + seconds - 1e-9)
    return recorder.finish(10.0 + seconds, 0.5)


def test_latencies_are_folded_into_percentiles_and_a_histogram() -> None:
    figures = recorded([0.0002, 0.0004, 0.0003, 0.1])
    assert (figures.messages, figures.rate) == (4, 2.0)
    assert (figures.p50_ms, figures.p999_ms) == pytest.approx((0.4, 100.0), rel=0.006)
    assert figures.max_ms == pytest.approx(100.0)
    assert [count for _, count in figures.histogram] == [1, 1, 1, 1]
    for (bound, _), latency_ms in zip(figures.histogram, (0.2, 0.3, 0.4, 100.0), strict=True):
        assert bound / 1.1221 <= latency_ms * 1.0001 and latency_ms <= bound * 1.0001
    assert figures.as_dict()["messages_per_second"] == 2.0
    assert figures.client_cpu_us == pytest.approx(125_000)


def test_percentiles_agree_with_those_of_a_sorted_list() -> None:
    drawn = random.Random(7)
    values = [drawn.lognormvariate(-6, 1.5) for _ in range(50_000)]
    latencies = Latencies()
    for begin in range(0, len(values), 999):
        latencies.add(values[begin : begin + 999])
    assert latencies.count == len(values)
    ordered = sorted(values)
    for percent in (50, 90, 99, 99.9):
        exact = ordered[int(len(ordered) * percent / 100)]
        assert latencies.percentile_s(percent) == pytest.approx(exact, rel=0.006)
    assert latencies.most_s == ordered[-1]
    assert sum(count for _, count in latencies.histogram()) == len(values)


def test_latencies_beyond_the_buckets_are_counted_in_the_last_ones() -> None:
    latencies = Latencies()
    latencies.add([0.0, 1e6])
    assert latencies.count == 2
    assert latencies.percentile_s(0) == pytest.approx(1e-6, rel=0.02)
    assert latencies.most_s == 1e6
    assert len(latencies.histogram()) == 2


def test_without_latencies_there_is_only_a_rate() -> None:
    recorder = begun(0.0, "W4", 100, 1)
    recorder.received(7, 0.1)
    figures = recorder.finish(0.0, 0.0)
    assert (figures.messages, figures.rate, figures.p50_ms, figures.max_ms) == (7, 0.0, 0.0, 0.0)
    assert figures.histogram == []


def test_throughput_over_time_counts_every_message_in_the_bucket_of_its_end() -> None:
    recorder = begun(100.0, "W2", 10, 5, messages_per_call=3)
    for end in (100.05, 100.06, 100.31):
        recorder.call(100.0, end)
    assert recorder.messages == 9
    figures = recorder.finish(100.36, 0.0)
    assert (figures.messages, figures.messages_per_call, figures.bucket_s) == (9, 3, 0.1)
    assert figures.series == [6, 0, 0, 3]
    middles, rates = zip(*figures.rates(), strict=True)
    assert middles == pytest.approx((0.05, 0.15, 0.25, 0.33))
    assert rates == pytest.approx((60, 0, 0, 50))


def test_a_last_bucket_that_hardly_began_counts_for_the_one_before() -> None:
    recorder = begun(0.0, "W2", 10, 5)
    recorder.call(0.0, 0.05)
    recorder.call(0.0, 0.11)
    (point,) = recorder.finish(0.125, 0.0).rates()
    assert point == pytest.approx((0.0625, 16))


def test_a_workload_that_is_over_at_once_has_a_rate() -> None:
    recorder = begun(0.0, "W4", 10, 5)
    recorder.received(10, 0.01)
    assert recorder.finish(0.02, 0.0).rates() == [(0.01, 500)]


def test_a_long_workload_has_buckets_of_a_second() -> None:
    recorder = begun(0.0, "W2", 10, 600)
    recorder.call(0.0, 2.5)
    figures = recorder.finish(3.0, 0.0)
    assert (figures.bucket_s, figures.series) == (1.0, [0, 0, 1])


def test_many_calls_are_counted_whole_and_what_came_before_the_begin_is_forgotten() -> None:
    recorder = begun(0.0, "W3", 10, 5)
    recorder.call(0.0, 9.0)
    recorder.begin(10.0)
    for number in range(100_000):
        recorder.call(10.0, 10.0 + number / 100_000)
    assert recorder.messages == 100_000
    figures = recorder.finish(11.0, 0.0)
    assert figures.messages == sum(figures.series) == sum(count for _, count in figures.histogram) == 100_000
    assert figures.max_ms == pytest.approx(1000, rel=0.001)
    assert figures.p50_ms == pytest.approx(500, rel=0.01)
