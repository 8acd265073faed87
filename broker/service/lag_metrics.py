"""How far consumer groups are, as metrics of the node that leads: each broker group tells of its own part.

Their names are users' choice, so there may be any number of them: the farthest behind are told one by one, the rest as one.
Owns: the names and the bound. Must not: keep anything; the state is read when somebody asks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..state.backlog import progress
from ..state.machine import BrokerState

#: Pairs of consumer group and topic with a line of their own.
MAX_PAIRS: Final = 500
_OTHERS: Final = "(others)"
_LABELS: Final = ("consumer_group", "topic")


class LagMetrics(Collector):
    """`state` gives the state while this node leads, else None."""

    def __init__(self, state: Callable[[], BrokerState | None]) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        behind = GaugeMetricFamily(
            "rocketmq_consumer_lag_messages",
            "Messages that a consumer group has not finished",
            labels=_LABELS,
        )
        leased = GaugeMetricFamily(
            "rocketmq_consumer_inflight_messages", "Of them delivered, not acknowledged yet", labels=_LABELS
        )
        parked = GaugeMetricFamily(
            "ledgermq_consumer_parked_messages",
            "Messages that a consumer group failed for the last time: not delivered until they are released",
            labels=_LABELS,
        )
        state = self._state()
        rows = [row for row in progress(state) if row.group] if state is not None else []
        told = heapq.nlargest(MAX_PAIRS, rows, key=lambda row: (row.behind, row.parked))
        for row in told:
            behind.add_metric((row.group, row.topic), row.behind)
            leased.add_metric((row.group, row.topic), row.leased)
            parked.add_metric((row.group, row.topic), row.parked)
        if len(rows) > len(told):
            names = (_OTHERS, _OTHERS)
            behind.add_metric(names, sum(row.behind for row in rows) - sum(row.behind for row in told))
            leased.add_metric(names, sum(row.leased for row in rows) - sum(row.leased for row in told))
            parked.add_metric(names, sum(row.parked for row in rows) - sum(row.parked for row in told))
        yield behind
        yield leased
        yield parked
