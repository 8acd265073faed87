"""Answers of /livez, /startupz, /readyz, /healthz and /metrics.

live: the process runs and has not faulted. A node that opens, verifies or repairs a log for hours is live: a
restart would not help. started: the node runs, its log is whole, and its ports are open. ready: a leader is
known, and this node has applied what was committed when it first heard of one. healthy: ready, and messages
are accepted. Every answer states in one line what the node is doing.

The leader exports the lag of its own broker group's consumer groups. Users choose their names, so their
number has no bound: those farthest behind get a line each, the rest are summed up in one. Nothing is cached.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.node_status import RaftStatus

from ..cluster.known_leader import Leadership
from ..leader.pipeline import AppendPipeline
from ..metrics import MetricReading, Metrics
from ..ports.http import TEXT, Answer, HttpServer, Routes
from ..reading.key_index import KeyIndex
from ..reading.polls import Polls
from ..replica import Replica
from ..state.backlog import progress
from ..state.machine import BrokerState
from .disk_steps import RetentionView
from .shutdown import Shutdown

#: Pairs of consumer group and topic that get a line of their own.
MAX_PAIRS: Final = 500
_OTHERS: Final = "(others)"
#: Metrics of a pair, by the field of its progress.
_LAG: Final = {
    "behind": ("rocketmq_consumer_lag_messages", "Messages that a consumer group has not finished"),
    "leased": ("rocketmq_consumer_inflight_messages", "Of them delivered, not acknowledged yet"),
    "parked": (
        "ledgermq_consumer_parked_messages",
        "Messages that a consumer group failed for the last time: not delivered until they are released",
    ),
}


class LagMetrics(Collector):
    """Lag of consumer groups. `state` returns the state while this node leads, else None."""

    def __init__(self, state: Callable[[], BrokerState | None]) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        state = self._state()
        rows = [row for row in progress(state) if row.group] if state is not None else []
        told = heapq.nlargest(MAX_PAIRS, rows, key=lambda row: (row.behind, row.parked))
        for field, (name, text) in _LAG.items():
            family = GaugeMetricFamily(name, text, labels=("consumer_group", "topic"))
            for row in told:
                family.add_metric((row.group, row.topic), getattr(row, field))
            if len(rows) > len(told):
                others = sum(getattr(row, field) for row in rows) - sum(getattr(row, field) for row in told)
                family.add_metric((_OTHERS, _OTHERS), others)
            yield family


class Probed(Protocol):
    """A node that answers probes."""

    def routes(self) -> Routes: ...


def starting(doing: str, metrics: Metrics | None = None) -> Routes:
    """Return the answers of a live process that does not run a node yet."""
    said = f"starting: {doing}\n".encode()

    routes: Routes = {"/livez": lambda: (200, TEXT, said)}
    routes |= dict.fromkeys(("/startupz", "/readyz", "/healthz"), lambda: (503, TEXT, said))
    if metrics is not None:
        routes["/metrics"] = lambda: (200, CONTENT_TYPE_LATEST, metrics.render())
    return routes


class ProcessProbes:
    """The HTTP port of a process. It is open before the first node starts and while a node is replaced."""

    def __init__(self) -> None:
        self.doing = "opens its data folder"  # while there is no node
        self.node: Probed | None = None
        self.http = HttpServer(lambda: self.node.routes() if self.node is not None else starting(self.doing))


class Probes:
    """The answers of one node. Pass `routes()` to the HTTP port."""

    def __init__(
        self,
        raft: RaftNode,
        replica: Replica,
        pipeline: AppendPipeline,
        leadership: Leadership,
        shutdown: Shutdown,
        metrics: Metrics,
    ) -> None:
        self._raft = raft
        self._replica = replica
        self._pipeline = pipeline
        self._leadership = leadership
        self._shutdown = shutdown
        self._metrics = metrics
        self._goal: int | None = None  # commit index when a leader was first known
        metrics.registry.register(LagMetrics(lambda: replica.state if leadership.ready else None))

    def routes(self) -> Routes:
        """Return the handler of each path."""
        return {
            "/livez": self._live,
            "/startupz": self._live,
            "/readyz": self._ready,
            "/healthz": self._healthy,
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, self._metrics.render()),
        }

    def check_ready(self) -> str:
        """Return why the node is not ready; "" when it is."""
        raft = self._raft
        if raft.fault is not None:
            return f"faulted: {raft.fault}"
        if self._shutdown.begun:
            return "stopping"
        if self._leadership.leader_id is None:
            return f"no leader is known: {_why_no_leader(raft.status())}"
        if (rebuild := self._replica.rebuild) is not None:
            return (
                f"its queues are being made again from the log: entry {rebuild.applied_index} of "
                f"{rebuild.target}"
            )
        if self._goal is None:
            self._goal = raft.commit_index
        if raft.applied_index < self._goal or raft.commit_index == 0:
            return f"catching up: applied {raft.applied_index} of {self._goal}"
        if raft.role == "learner":
            return "catching up as a learner"
        if any(peer.catching_up for peer in raft.status().peers if peer.node_id == self._leadership.node_id):
            return "catching up: it fetches the leader's state"
        leads = self._leadership.is_elected
        return "leads, but does not serve yet" if leads and not self._leadership.ready else ""

    def _live(self) -> Answer:
        status = 503 if self._raft.fault else 200
        return status, TEXT, f"{self.check_ready() or 'ok'}\n".encode()

    def _ready(self) -> Answer:
        return _yes_or(self.check_ready())

    def _healthy(self) -> Answer:
        return _yes_or(self.check_ready() or self._pipeline.produce_refusal)


def _yes_or(reason: str) -> Answer:
    return (503, TEXT, f"{reason}\n".encode()) if reason else (200, TEXT, b"ok\n")


def _why_no_leader(status: RaftStatus) -> str:
    if status.held_back:
        return status.held_back
    absent = [
        str(peer.node_id) for peer in status.peers if not peer.connected and peer.node_id != status.node_id
    ]
    if 2 * status.voters_reachable > status.voters:
        return f"an election is under way, {status.voters_reachable} of {status.voters} voters are connected"
    named = f", not {', '.join(absent)}" if absent else ""
    return f"waits for a majority: {status.voters_reachable} of {status.voters} voters are connected{named}"


def readings(
    raft: RaftNode,
    replica: Replica,
    pipeline: AppendPipeline,
    polls: Polls,
    retention: RetentionView,
    keys: KeyIndex,
) -> list[MetricReading]:
    """Return the gauges of a node."""
    gauges: dict[str, tuple[str, Callable[[], float]]] = {
        "ledgermq_applied_index": ("Last applied log index", lambda: raft.applied_index),
        "ledgermq_bytes_waiting": ("Bytes that wait for commit", lambda: pipeline.bytes_waiting),
        "ledgermq_waiting_polls": ("Long polls that wait", lambda: polls.count),
        "ledgermq_topics": ("Topics of this broker group", lambda: len(replica.state.topics)),
        "ledgermq_log_first_index": ("First entry of the log here", lambda: raft.first_index),
        "ledgermq_broker_group_mode": (
            "0 takes messages, 1 is drained, 2 was removed",
            lambda: replica.state.mode,
        ),
        "ledgermq_disk_step": (
            "0 normal, 1 expired segments go at once, 2 the oldest too, 3 messages refused, 4 writes refused",
            lambda: retention.step,
        ),
        "ledgermq_disk_share": ("Used part of the disk, as retention counts it", lambda: retention.use.share),
        "ledgermq_produce_refused": ("1: the disk is too full", lambda: bool(pipeline.produce_refusal)),
        "ledgermq_retention_segments_going": ("Segments that are being deleted", lambda: retention.going),
        "ledgermq_retention_protected_bytes": (
            "Expired, and kept for consumer groups (protect_unconsumed, topics with --keep-unread) or holds",
            lambda: retention.protected_bytes,
        ),
        "ledgermq_retention_held_bytes": ("Expired, and kept for holds only", lambda: retention.held_bytes),
        "ledgermq_key_index_entries_behind": (
            "Applied entries whose messages cannot be looked up yet",
            lambda: keys.entries_behind,
        ),
        "ledgermq_key_index_segments_missing": (
            "Old log segments whose messages cannot be looked up yet",
            lambda: keys.segments_missing,
        ),
        "ledgermq_key_index_damaged": (
            "Index files that were damaged and are made again, since the start",
            lambda: keys.damaged,
        ),
    }
    return [MetricReading(name, "gauge", text, read) for name, (text, read) in gauges.items()]
