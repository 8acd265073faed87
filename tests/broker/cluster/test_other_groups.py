"""What a node knows of the other broker groups; views come in by hand, no nameserver is asked."""

from __future__ import annotations

from ledgermq.broker.cluster.other_broker_groups import GRACE, OtherBrokerGroups
from ledgermq.proto import route_pb2 as pb


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def view(group: str, *nodes: str, dead: str = "", kind: pb.TopicMessageType = pb.NORMAL) -> pb.GroupRoute:
    route = pb.GroupRoute(cluster="local", group=group)
    route.topics.add(name="orders", topic_id=1, queue_count=2, message_type=kind)
    for node in nodes:
        info = route.nodes.add(node_id=node, alive=node not in dead.split())
        info.listeners.add(name="internal", messaging_address=f"{node}:8081")
        info.listeners.add(name="external", messaging_address=f"host:{node}")
    return route


def groups(clock: Clock | None = None) -> OtherBrokerGroups:
    return OtherBrokerGroups("local", "g0", (), clock or Clock())


def found(others: OtherBrokerGroups, listener: str = "internal") -> dict[str, list[str]]:
    return {
        queues.broker_group: [addresses.messaging_address for _, addresses in queues.nodes]
        for queues, _ in others.queues("orders", listener)
    }


def test_live_nodes_are_given_in_the_network_of_the_caller() -> None:
    others = groups()
    others.take([view("g1", "n5", "n4", "n6", dead="n6")])
    assert found(others) == {"g1": ["n4:8081", "n5:8081"]}
    assert found(others, "external") == {"g1": ["host:n4", "host:n5"]}
    assert others.queues("payments", "internal") == []


def test_the_own_group_is_not_among_the_others() -> None:
    others = groups()
    others.take([view("g0", "n1"), view("g1", "n4")])
    assert list(found(others)) == ["g1"]


def test_a_group_that_a_nameserver_does_not_list_stays_for_a_moment() -> None:
    clock = Clock()
    others = groups(clock)
    others.take([view("g1", "n4")])
    others.take([])
    clock.now = GRACE
    assert list(found(others)) == ["g1"]
    clock.now = GRACE + 1
    assert found(others) == {}
    others.take([view("g1", "n4")])
    assert list(found(others)) == ["g1"]


def test_a_dead_group_keeps_its_place_where_messages_have_an_order() -> None:
    clock = Clock()
    others = groups(clock)
    others.take([view("g1", "n4", "n5", dead="n4 n5", kind=pb.FIFO)])
    assert found(others) == {"g1": ["n4:8081", "n5:8081"]}
    others.take([])
    clock.now = 100.0
    assert found(others) == {"g1": ["n4:8081", "n5:8081"]}


def test_a_drained_group_is_told_of_as_read_only_and_is_gone_for_good_when_it_leaves() -> None:
    """Else its dead queues would keep their places in the hash of message groups for ever."""
    others = groups()
    drained = view("g1", "n4", kind=pb.FIFO)
    drained.mode = pb.MODE_DRAINING
    others.take([drained, view("g2", "n7", kind=pb.FIFO)])
    assert [(queues.broker_group, queues.writable) for queues, _ in others.queues("orders", "internal")] == [
        ("g1", False),
        ("g2", True),
    ]
    others.take([])
    assert list(found(others)) == ["g2"]
