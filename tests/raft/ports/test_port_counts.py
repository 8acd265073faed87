"""Log lines and metrics about connections of a port."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ledgermq.raft.ports.counts import LOG_PERIOD_S, Ended, PortCounts, PortMetrics, Refused


def test_a_storm_is_one_line_and_one_more_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    time = [100.0]
    counts = PortCounts("messaging", "default", limit=5, open=5, clock=lambda: time[0])
    for _ in range(50):
        counts.refuse(Refused.LIMIT, "10.0.0.7")
    time[0] += LOG_PERIOD_S
    counts.refuse(Refused.ADDRESS, "10.0.0.8")
    assert len(caplog.messages) == 2
    assert "port=messaging/default reason=limit count=1 last=10.0.0.7 open=5 limit=5" in caplog.messages[0]
    assert "reason=address count=50 last=10.0.0.8" in caplog.messages[1]
    assert "max_connections_per_address" in caplog.messages[1]


def test_every_reason_is_a_metric_before_it_happens() -> None:
    registry, ports = CollectorRegistry(), PortMetrics()
    registry.register(ports)
    ports.add("raft")
    counts = ports.add("messaging", "default", 10)
    counts.open = 3
    counts.refused[Refused.LIMIT] += 2
    text = generate_latest(registry).decode()
    for port, listener in (("raft", ""), ("messaging", "default")):
        where = f'listener="{listener}",port="{port}"'
        for reason in Refused:
            assert f'ledgermq_connections_refused_total{{{where},reason="{reason.value}"}}' in text
        for end in Ended:
            assert f'ledgermq_connections_closed_total{{{where},reason="{end.value}"}} 0.0' in text
    assert 'ledgermq_connections{listener="default",port="messaging"} 3.0' in text
    assert 'ledgermq_connections_limit{listener="default",port="messaging"} 10.0' in text
    assert 'refused_total{listener="default",port="messaging",reason="limit"} 2.0' in text
