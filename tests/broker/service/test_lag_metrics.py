"""How far consumer groups are, as a leader's metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ledgermq.broker.service import probes as lag_metrics
from ledgermq.broker.service.probes import LagMetrics
from ledgermq.broker.state.commands import CommitOffsets, position_rows
from ledgermq.broker.state.machine import BrokerState

from ..entry_log import Node


def samples(state: BrokerState | None) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(LagMetrics(lambda: state))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def behind(group: str, topic: str) -> str:
    return f'rocketmq_consumer_lag_messages{{consumer_group="{group}",topic="{topic}"}}'


def test_a_leader_tells_how_far_every_group_is_and_others_tell_nothing() -> None:
    node = Node()
    topic, group = node.topic("orders"), node.group("billing")
    node.fill(topic, 0, 10)
    node.command(CommitOffsets(group, position_rows([(topic, 0, 4)])))
    found = samples(node.state)
    assert found[behind("billing", "orders")] == 6
    assert found['rocketmq_consumer_inflight_messages{consumer_group="billing",topic="orders"}'] == 0
    assert samples(None) == {}


def test_only_the_farthest_behind_have_a_line_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_metrics, "MAX_PAIRS", 2)
    node = Node()
    topic = node.topic("orders")
    node.fill(topic, 0, 10)
    for number in range(4):
        group = node.group(f"c{number}")
        node.command(CommitOffsets(group, position_rows([(topic, 0, 2 * number), (topic, 1, 0)])))
    found = samples(node.state)
    lags = {name: value for name, value in found.items() if "lag" in name}
    assert lags == {
        behind("c0", "orders"): 10, behind("c1", "orders"): 8, behind("(others)", "(others)"): 6 + 4,
    }  # fmt: skip
