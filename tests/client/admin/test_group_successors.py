"""Which topics of a broker group no other one would take messages of."""

from __future__ import annotations

from ledgermq.client.admin.broker_group_rules import OtherBrokerGroup, left_alone
from ledgermq.proto.route_pb2 import FIFO, MIXED, NORMAL, TopicInfo, TopicMessageType


def topic(name: str, kind: TopicMessageType = NORMAL) -> TopicInfo:
    return TopicInfo(name=name, queue_count=1, message_type=kind)


def group(name: str, *topics: TopicInfo, why_not: str = "") -> OtherBrokerGroup:
    return OtherBrokerGroup(name, why_not, {info.name: info for info in topics})


def test_a_topic_that_some_other_group_takes_messages_of_is_not_alone() -> None:
    others = [group("g1", topic("orders")), group("g2", topic("news")), group("g3", why_not="has no leader")]
    assert left_alone([topic("orders"), topic("news")], others) == {}


def test_a_topic_is_alone_with_groups_that_lack_it_or_take_no_messages() -> None:
    others = [group("g1", topic("news")), group("g2", topic("orders"), why_not="is being drained")]
    assert left_alone([topic("orders"), topic("news")], others) == {
        "orders": "g1 does not have it; g2 is being drained"
    }


def test_a_group_that_has_the_topic_with_another_type_takes_its_messages_only_when_it_takes_all_types() -> (
    None
):
    orders = topic("orders", FIFO)
    assert left_alone([orders], [group("g1", topic("orders", MIXED))]) == {}
    assert left_alone([orders], [group("g1", topic("orders"))]) == {
        "orders": "g1 takes it as normal, not as fifo"
    }
    assert left_alone([topic("orders", MIXED)], [group("g1", orders)]) == {
        "orders": "g1 takes it as fifo, not as mixed"
    }
