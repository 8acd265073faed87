"""Parked messages, as the brokers name them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgermq.client.errors import TopicNotFoundError
from ledgermq.client.sync import Admin
from ledgermq.proto import admin_pb2
from ledgermq.spark_jobs.topics.parked_places import as_rows, find_parked
from tests.client.fakes import FakeCluster, FakeGroup
from tests.client.served import Served, served


@pytest.fixture
def cluster() -> Iterator[Served[FakeCluster]]:
    with served(lambda: FakeCluster(FakeGroup(topics={"orders": 2}))) as running:
        yield running


def test_messages_are_counted_by_place_for_each_consumer_group(cluster: Served[FakeCluster]) -> None:
    (group,) = cluster.cluster.groups
    for name, offsets in (("billing", (3, 9)), ("books", (3,))):
        group.groups[name] = admin_pb2.ConsumerGroupInfo(name=name)
        group.park(
            name, "orders",
            *(admin_pb2.ParkedMessage(topic="orders", queue_id=1, queue_offset=each) for each in offsets),
        )  # fmt: skip
    group.losses = [
        admin_pb2.TopicProgress(group="billing", topic="orders", parked=5),
        admin_pb2.TopicProgress(group="books", topic="orders", parked=1),
        admin_pb2.TopicProgress(group="", topic="orders", lost=4),
    ]
    with Admin(cluster.address) as admin:
        found = find_parked(admin, ["orders"])
    assert found.places == {("orders", "g0", 1, 3): 2, ("orders", "g0", 1, 9): 1}
    assert found.unlisted == 3
    assert as_rows(found)[0] == {
        "topic": "orders", "queue_group": "g0", "queue": 1, "offset": 3, "parked": 2,
    }  # fmt: skip


def test_nothing_is_parked(cluster: Served[FakeCluster]) -> None:
    with Admin(cluster.address) as admin:
        assert find_parked(admin, ["orders"]).places == {}
        with pytest.raises(TopicNotFoundError, match='Did you mean "orders"'):
            find_parked(admin, ["ordres"])
