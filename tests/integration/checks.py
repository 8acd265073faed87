"""Waits for tests with a Load in the background, and their final checks of every node."""

from __future__ import annotations

import functools

from .cluster import Cluster, wait_until
from .history import History, Load, Place, read_topic


def wait_for_more(load: Load, count: int = 200) -> None:
    """Wait until `count` more messages are acknowledged."""
    target = load.count + count
    wait_until(lambda: load.count >= target, f"{count} more acknowledged messages")


def check_every_node(cluster: Cluster, topic: str, history: History) -> dict[Place, bytes]:
    """Each node, asked alone, serves all that was acknowledged, and all serve the same, which is returned."""
    views: dict[str, dict[Place, bytes]] = {}
    for name in cluster.nodes:
        cluster.wait_ready(name)
        served = functools.partial(_has_all, cluster, name, topic, history)
        wait_until(served, f"{name} serves every acknowledged message")
        views[name] = read_topic(cluster.address(name), topic)
        history.check(views[name], name)
    first, *others = views
    for name in others:
        assert views[name] == views[first], f"{first} and {name} serve different messages"
    return views[first]


def _has_all(cluster: Cluster, name: str, topic: str, history: History) -> bool:
    return history.acknowledged.keys() <= set(read_topic(cluster.address(name), topic).values())


def wait_even(cluster: Cluster) -> None:
    """Wait until the logs of all nodes end with the same entry."""

    def even() -> bool:
        found = [cluster.status(name) for name in cluster.nodes]
        return len({status and status.last_index for status in found}) == 1 and None not in found

    wait_until(even, "the logs of all nodes are even")


def leads(cluster: Cluster, name: str) -> bool:
    """Tell whether a node says of itself that it leads."""
    status = cluster.status(name)
    return status is not None and status.role == "leader"
