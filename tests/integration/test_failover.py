"""Three real processes lose their leader in every way that one machine can show; no acknowledged message is lost."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, wait_until
from .history import History, Load, read_topic

TOPIC = "failover"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, nodes=3) as running:
        yield running


def wait_for_more(load: Load, count: int = 200) -> None:
    """Wait until `count` more messages are acknowledged."""
    target = load.count + count
    wait_until(lambda: load.count >= target, f"{count} more acknowledged messages")


def check_every_node(cluster: Cluster, history: History) -> None:
    """Each node, asked alone, serves all that was acknowledged, and all serve the same."""
    views = {}
    for name in cluster.nodes:
        cluster.wait_ready(name)
        served = functools.partial(_has_all, cluster, name, history)
        wait_until(served, f"{name} serves every acknowledged message")
        views[name] = read_topic(cluster.address(name), TOPIC)
        history.check(views[name], name)
    assert len({frozenset(view.items()) for view in views.values()}) == 1, (
        "the nodes serve different messages"
    )


def _has_all(cluster: Cluster, name: str, history: History) -> bool:
    return len(read_topic(cluster.address(name), TOPIC)) >= len(history.acknowledged)


def test_ten_kills_of_the_leader_under_load_lose_no_acknowledged_message(cluster: Cluster) -> None:
    load = Load(cluster.nameserver_addresses[0], TOPIC)
    with load.running():
        for _ in range(10):
            wait_for_more(load)
            leader = cluster.wait_leader()
            cluster.kill(leader)
            cluster.wait_leader(other_than=leader)
            wait_for_more(load)
            cluster.restart(leader)
    check_every_node(cluster, load.history)


def test_a_stopped_leader_is_replaced_and_acknowledges_nothing_when_it_wakes(cluster: Cluster) -> None:
    load = Load(cluster.nameserver_addresses[0], TOPIC)
    with load.running():
        wait_for_more(load)
        leader = cluster.wait_leader()
        cluster.pause(leader)
        others = [name for name in cluster.nodes if name != leader]
        wait_until(lambda: any(_leads(cluster, name) for name in others), "another leader")
        wait_for_more(load)
        cluster.resume(leader)
        wait_until(lambda: not _leads(cluster, leader), "the old leader steps down")
        wait_for_more(load)
    check_every_node(cluster, load.history)


def _leads(cluster: Cluster, name: str) -> bool:
    status = cluster.status(name)
    return status is not None and status.role == "leader"


def test_all_nodes_killed_at_once_and_started_again_have_everything(cluster: Cluster) -> None:
    load = Load(cluster.nameserver_addresses[0], TOPIC)
    with load.running():
        for _ in range(3):
            wait_for_more(load)
            for name in cluster.nodes:
                cluster.kill(name)
            for name in cluster.nodes:
                cluster.start(name)
            for name in cluster.nodes:
                cluster.wait_ready(name)
    check_every_node(cluster, load.history)


def test_a_planned_stop_hands_the_lead_over_and_loses_nothing(cluster: Cluster) -> None:
    load = Load(cluster.nameserver_addresses[0], TOPIC)
    with load.running():
        for _ in range(3):
            wait_for_more(load)
            leader = cluster.wait_leader()
            assert cluster.terminate(leader) == 0, cluster.nodes[leader].log()
            assert cluster.wait_leader(other_than=leader) != leader
            wait_for_more(load)
            cluster.restart(leader)
    check_every_node(cluster, load.history)
