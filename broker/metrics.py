"""Metrics of a broker node: one table, one registry per process, gauges read at scrape time.

Names follow RocketMQ's where the meaning is the same. Units are base units; labels come from closed sets
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_LATENCY_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class MetricReading:
    """A value that is read at scrape time. `kind` is gauge or counter."""

    name: str
    kind: str
    help: str
    read: Callable[[], float]


class _Readings(Collector):
    def __init__(self, readings: list[MetricReading]) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        for reading in self._readings:
            family = CounterMetricFamily if reading.kind == "counter" else GaugeMetricFamily
            yield family(reading.name, reading.help, value=reading.read())


class Metrics:
    """Counters of the services. Create one per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._readings: list[MetricReading] = []
        self.registry.register(_Readings(self._readings))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        self.messages_in = counter("rocketmq_messages_in", "Messages acknowledged as committed", "service")
        self.messages_sent = self.messages_in.labels("messaging")
        self.messages_out = counter("rocketmq_messages_out", "Messages handed to consumers", "service")
        self.bytes_in = counter("rocketmq_throughput_in", "Bytes of sections appended by producers")
        self.bytes_out = counter("rocketmq_throughput_out", "Bytes handed to consumers", "service")
        self.entries = counter("ledgermq_append_turns", "Log entries that the append pipeline proposed")
        self.duplicates = counter("ledgermq_duplicates", "Retried sends that were recognised", "service")
        self.refusals = counter("ledgermq_refusals", "Requests refused, by reason", "code")
        self.forwards = counter("ledgermq_forwards", "Calls forwarded to the leader", "result")
        self.granted_messages = counter(
            "ledgermq_granted_messages", "Messages handed out here under a grant of the leader", "read_from"
        )
        self.bytes_from_leader = counter(
            "ledgermq_receive_bytes_from_leader",
            "Bytes that the leader sent for receives of consumers of this node",
            "kind",
        )
        self.reads_moved = counter(
            "ledgermq_reads_moved", "Fetch answers that told the reader to go on at another node", "to"
        )
        self.reads_below_begin = counter(
            "ledgermq_reads_below_begin", "Fetches of messages that retention had deleted"
        )
        self.segments_deleted = counter("ledgermq_retention_segments_deleted", "Log segments unlinked here")
        self.messages_lost = counter(
            "ledgermq_retention_unconsumed_messages",
            "Messages deleted before a consumer group had consumed them",
        )
        self.held_messages_deleted = counter(
            "ledgermq_retention_held_messages", "Messages deleted although a hold waited for them"
        )
        self.commit_seconds = Histogram(
            "ledgermq_commit_seconds", "Proposal to commit", buckets=_LATENCY_BUCKETS, registry=self.registry
        )

    def add_readings(self, *readings: MetricReading) -> None:
        """Publish values that are read at scrape time."""
        self._readings += readings

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(self.registry)
