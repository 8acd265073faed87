"""Metrics of the consensus layer: one table, and the gauges of RaftStatus. Times in seconds, sizes in bytes.

A node sets them. The process passes its `registry`; tests use their own. Labels come from closed sets.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .node_status import GAUGES
from .ports.counts import PortMetrics

#: name → (kind, help, labels)
METRICS: Final[dict[str, tuple[type[Counter] | type[Gauge] | type[Histogram], str, tuple[str, ...]]]] = {
    **{each.name: (Gauge, each.help, ()) for each in GAUGES.values()},
    "ledgermq_raft_is_leader": (Gauge, "1 while this node leads", ()),
    "ledgermq_raft_elections_total": (Counter, "Terms that this node began to lead", ()),
    "ledgermq_raft_leader_changes_total": (Counter, "Leaders seen", ()),
    "ledgermq_raft_proposals_total": (Counter, "Entries proposed here", ()),
    "ledgermq_raft_proposals_lost_total": (Counter, "Proposals whose outcome is unknown", ()),
    "ledgermq_raft_messages_dropped_total": (Counter, "Messages from peers that were not used", ("reason",)),
    "ledgermq_raft_peer_connected": (Gauge, "1 while the stream to the peer is up", ("peer", "stream")),
    "ledgermq_raft_streams_stuck_total": (
        Counter,
        "Streams opened anew because nothing of them arrived",
        ("peer", "stream"),
    ),
    "ledgermq_raft_peer_behind_bytes": (Gauge, "Log bytes that the follower does not hold yet", ("peer",)),
    "ledgermq_raft_damaged_ranges_total": (Counter, "Damaged log ranges found", ("found_by",)),
    "ledgermq_raft_repaired_ranges_total": (Counter, "Damaged log ranges repaired from a peer", ()),
    "ledgermq_raft_repairing": (Gauge, "1 while a damaged log range is fetched from the peers", ()),
    "ledgermq_raft_scrubbed_bytes_total": (Counter, "Log bytes read and verified by the scrubber", ()),
    "ledgermq_raft_scrub_passes_total": (Counter, "Passes of the scrubber over the whole log", ()),
    "ledgermq_raft_faulted": (Gauge, "1 after a fault: the node is silent and must be restarted", ()),
    "ledgermq_event_loop_lateness_seconds": (Histogram, "How late a timer of the event loop fires", ()),
}
#: Label values shown from the start: an alert sees an increase only of a series that existed before.
LABEL_VALUES: Final = {
    "ledgermq_raft_damaged_ranges_total": ("start", "apply", "read", "peer", "scrub"),
    "ledgermq_raft_messages_dropped_total": ("unreadable", "damaged", "entries", "disk_full"),
}
LATENESS_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class RaftMetrics:
    """Metrics of one node. Usage: `metrics.gauge("ledgermq_raft_term").set(3)`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.ports = PortMetrics()
        self.registry.register(self.ports)
        self._all: dict[str, Counter | Gauge | Histogram] = {}
        for name, (kind, text, labels) in METRICS.items():
            if kind is Histogram:
                self._all[name] = Histogram(
                    name, text, labels, registry=self.registry, buckets=LATENESS_BUCKETS
                )
            else:
                self._all[name] = kind(name, text, labels, registry=self.registry)
            for value in LABEL_VALUES.get(name, ()):
                self._all[name].labels(value)

    def gauge(self, name: str, *labels: str) -> Gauge:
        """Return a gauge, or its child for `labels`."""
        metric = self._all[name]
        assert isinstance(metric, Gauge)
        return metric.labels(*labels) if labels else metric

    def counter(self, name: str, *labels: str) -> Counter:
        """Return a counter, or its child for `labels`."""
        metric = self._all[name]
        assert isinstance(metric, Counter)
        return metric.labels(*labels) if labels else metric

    def histogram(self, name: str) -> Histogram:
        """Return a histogram."""
        metric = self._all[name]
        assert isinstance(metric, Histogram)
        return metric
