"""Without a majority nothing is acknowledged, and no uncommitted message is visible."""

from __future__ import annotations

import pytest

from ledgermq.client.errors import LedgerMQError
from ledgermq.client.sync import Consumer, Producer

from .cluster import Cluster, wait_until
from .history import Load, describe_topic, read_topic

TOPIC = "quorum"


def receive_bodies(nameserver: str) -> set[bytes]:
    """Return what a consumer gets. Without a quorum no lease can be granted: a refusal means no messages."""
    with Consumer(nameserver, group="watchers", topic=TOPIC) as consumer:
        try:
            return {message.body for message in consumer.receive(32, timeout_ms=3000)}
        except LedgerMQError:
            return set()


def test_a_leader_without_followers_acknowledges_and_shows_nothing(cluster: Cluster) -> None:
    nameserver = cluster.nameserver
    with Producer(nameserver, timeout_ms=10_000) as producer:
        producer.send(TOPIC, b"before")
    leader = cluster.wait_leader()
    info = describe_topic(cluster.address(leader), TOPIC)
    followers = cluster.others(leader)
    for name in followers:
        cluster.pause(name)

    with Load(nameserver, TOPIC, in_flight=8, prefix="cut-off", timeout_ms=3000).running() as load:
        with pytest.raises(LedgerMQError), Producer(nameserver, timeout_ms=3000) as producer:
            producer.send(TOPIC, b"no follower hears this")
        assert load.count == 0, "a send was acknowledged by a leader alone"
        assert set(read_topic(cluster.address(leader), info).values()) == {b"before"}
        assert receive_bodies(nameserver) <= {b"before"}, "a consumer saw what was never committed"

        cluster.resume(followers[0])
        wait_until(lambda: load.count > 0, "sends are acknowledged again with two of three")
    load.history.unknown[b"no follower hears this"] = "sent without a quorum"
    load.history.unknown[b"before"] = "sent first"
    load.history.check(read_topic(cluster.address(cluster.wait_leader()), TOPIC), "the leader")
    cluster.resume(followers[1])
