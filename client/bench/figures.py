"""Figures of a workload: latency percentiles and histogram, throughput over time. Pure.

Owns: the buckets. Latencies are counted in buckets 1.2 % wide, so that memory does not grow with the number
of messages, and a percentile is right within 0.6 %. Minimum and maximum are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

_PER_DECADE: Final = 200
_PER_BAR: Final = 10  # buckets per bar of the histogram as shown: 12 % wide
_LEAST_S: Final = 1e-6
_DECADES: Final = 10  # up to 10,000 s
_SIZE: Final = _PER_DECADE * _DECADES
_FOLD: Final = 1 << 15  # calls that are kept individually before they are counted
_FINE_SERIES_S: Final = 60.0  # longer series have buckets of one second

#: Names of the percentiles in `Figures`, with their values.
PERCENTILES: Final = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9}


@dataclass(slots=True)
class Figures:
    """Result of one workload. Latencies are ms; 0: none was measured.

    `histogram`: (upper bound in ms, calls), ascending, without empty bars. `series`: messages per `bucket_s`;
    the end cuts the last one short. `messages_per_call` above 1: latencies are those of batches.
    """

    workload: str
    messages: int
    seconds: float
    bytes_per_message: int
    p50_ms: float = 0.0
    p90_ms: float = 0.0
    p99_ms: float = 0.0
    p999_ms: float = 0.0
    max_ms: float = 0.0
    messages_per_call: int = 1
    client_cpu_us: float = 0.0  # CPU time of this process per message, user and system, µs
    bucket_s: float = 0.1
    series: list[int] = field(default_factory=list)
    histogram: list[tuple[float, int]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0

    def rates(self) -> list[tuple[float, float]]:
        """Return (seconds since the begin, messages per second) of each bucket.

        A last bucket that is too short is merged into the one before.
        """
        spans = [(number * self.bucket_s, count) for number, count in enumerate(self.series)]
        points: list[tuple[float, float]] = []
        while spans:
            begin, count = spans.pop(0)
            end = min(begin + self.bucket_s, self.seconds)
            if len(spans) == 1 and self.seconds - spans[0][0] < self.bucket_s / 2:
                count, end = count + spans.pop()[1], self.seconds
            if end > begin:
                points.append(((begin + end) / 2, count / (end - begin)))
        return points

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "messages_per_second": round(self.rate, 1)}


class Latencies:
    """Counts of latencies by bucket."""

    def __init__(self) -> None:
        self._counts = np.zeros(_SIZE, np.int64)
        self._least = float("inf")
        self._most = 0.0

    def add(self, seconds: Iterable[float]) -> None:
        values = np.fromiter(seconds, np.float64)
        if not values.size:
            return
        self._least = min(self._least, float(values.min()))
        self._most = max(self._most, float(values.max()))
        buckets = np.log10(np.maximum(values, _LEAST_S) / _LEAST_S) * _PER_DECADE
        numbers = np.minimum(buckets.astype(np.int64), _SIZE - 1)
        self._counts += np.bincount(numbers, minlength=_SIZE)

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    @property
    def most_s(self) -> float:
        return self._most

    def percentile_s(self, percent: float) -> float:
        """Return the latency that `percent` of the calls do not exceed, s; 0 without calls."""
        count = self.count
        if not count:
            return 0.0
        rank = min(count - 1, int(count * percent / 100))
        number = int(np.searchsorted(np.cumsum(self._counts), rank, side="right"))
        middle = _LEAST_S * 10 ** ((number + 0.5) / _PER_DECADE)
        return float(min(max(middle, self._least), self._most))

    def histogram(self) -> list[tuple[float, int]]:
        """Return (upper bound in ms, calls) of every bar that is not empty."""
        bars = self._counts.reshape(-1, _PER_BAR).sum(axis=1)
        return [
            (
                float(f"{1e3 * _LEAST_S * 10 ** ((int(number) + 1) * _PER_BAR / _PER_DECADE):.4g}"),
                int(bars[number]),
            )
            for number in np.flatnonzero(bars)
        ]  # fmt: skip


class Recorder:
    """Records a running workload. Call `begin` first. Times are seconds of one clock."""

    def __init__(self, workload: str, size: int, seconds: float, messages_per_call: int = 1) -> None:
        self._figures = Figures(workload, 0, 0.0, size, messages_per_call=messages_per_call)
        self._figures.bucket_s = 0.1 if seconds <= _FINE_SERIES_S else 1.0
        self._per_call = messages_per_call
        self._latencies = Latencies()
        self._series = np.zeros(0, np.int64)
        self._open: list[float] = []  # latencies not counted yet, s
        self._ends: list[float] = []  # end times of these calls; as long as `_open`
        self._folded = 0  # messages counted
        self._begin = 0.0

    def begin(self, now: float) -> None:
        """Discard what was recorded so far: the warm-up."""
        self._begin = now
        self._latencies = Latencies()
        self._series = np.zeros(0, np.int64)
        self._open.clear()
        self._ends.clear()
        self._folded = 0

    @property
    def messages(self) -> int:
        return self._folded + self._per_call * len(self._ends)

    def call(self, begun: float, now: float) -> None:
        """A call that began at `begun` was answered."""
        self._open.append(now - begun)
        self._ends.append(now)
        if len(self._ends) >= _FOLD:
            self._fold()

    def received(self, count: int, now: float) -> None:
        """`count` messages arrived, with unknown latency."""
        self._count(np.array([now]), count)

    def finish(self, now: float, cpu_s: float) -> Figures:
        """Return the figures. `cpu_s`: CPU time of this process since the begin."""
        self._fold()
        figures = self._figures
        figures.messages, figures.seconds = self._folded, now - self._begin
        figures.series = [int(count) for count in self._series]
        figures.client_cpu_us = 1e6 * cpu_s / max(figures.messages, 1)
        for name, percent in PERCENTILES.items():
            setattr(figures, name, 1e3 * self._latencies.percentile_s(percent))
        figures.max_ms = 1e3 * self._latencies.most_s
        figures.histogram = self._latencies.histogram()
        return figures

    def _fold(self) -> None:
        if self._ends:
            self._latencies.add(self._open)
            self._count(np.array(self._ends), self._per_call)
            self._open.clear()
            self._ends.clear()

    def _count(self, ends: np.ndarray[Any, np.dtype[np.float64]], weight: int) -> None:
        numbers = np.maximum((ends - self._begin) / self._figures.bucket_s, 0).astype(np.int64)
        counted = np.bincount(numbers, minlength=len(self._series)) * weight
        counted[: len(self._series)] += self._series
        self._series = counted
        self._folded += weight * len(ends)
