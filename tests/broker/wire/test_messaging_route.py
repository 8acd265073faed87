"""Routes and assignments of the policy `nodes`."""

from __future__ import annotations

from ledgermq.broker.wire import route as routes
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.route_pb2 import ListenerAddresses, TopicMessageType

NODES = [
    (name, ListenerAddresses(messaging_address=f"127.0.0.1:80{i}1")) for i, name in ((8, "n1"), (9, "n2"))
]
TOPIC = v2.Resource(resource_namespace="space", name="orders")


def test_every_node_lists_every_queue_with_one_address_and_nodes_alternate() -> None:
    queues = routes.route(TOPIC, [routes.BrokerGroupQueues("g0", 2, NODES)], TopicMessageType.NORMAL)
    assert [(q.id, q.broker.name) for q in queues] == [(0, "g0.n1"), (0, "g0.n2"), (1, "g0.n1"), (1, "g0.n2")]
    assert all(len(q.broker.endpoints.addresses) == 1 and q.broker.id == 0 for q in queues)
    assert all(q.permission == v2.READ_WRITE and list(q.accept_message_types) == [v2.NORMAL] for q in queues)
    assert queues[0].topic == TOPIC


def test_the_queues_of_several_groups_alternate() -> None:
    groups = [routes.BrokerGroupQueues("g0", 2, NODES[:1]), routes.BrokerGroupQueues("g1", 1, NODES[1:])]
    queues = routes.route(TOPIC, groups, TopicMessageType.NORMAL)
    assert [(q.id, q.broker.name) for q in queues] == [(0, "g0.n1"), (0, "g1.n2"), (1, "g0.n1")]


def test_an_ordered_topic_lists_each_queue_once_so_a_hash_meets_one_broker_group_whichever_nodes_live() -> (
    None
):
    def groups_of(nodes: routes.LiveNodes) -> list[str]:
        groups = [routes.BrokerGroupQueues("g0", 3, nodes), routes.BrokerGroupQueues("g1", 3, NODES)]
        return [q.broker.name[:2] for q in routes.route(TOPIC, groups, TopicMessageType.FIFO)]

    assert groups_of(NODES) == groups_of(NODES[:1]) == ["g0", "g1"] * 3


def test_a_push_consumer_polls_every_group() -> None:
    groups = [routes.BrokerGroupQueues("g0", 4, NODES[:1]), routes.BrokerGroupQueues("g1", 4, NODES[1:])]
    found = routes.assignments(TOPIC, groups, fifo=False)
    assert [a.message_queue.broker.name for a in found] == ["g0.n1", "g1.n2"]


def test_a_mixed_topic_takes_every_type() -> None:
    assert routes.accepted_types(TopicMessageType.MIXED) == (v2.NORMAL, v2.FIFO), "the supported types"
    assert routes.accepted_types(0) == (v2.NORMAL,)


def test_an_ordinary_group_polls_any_queue_of_every_node() -> None:
    found = routes.assignments(TOPIC, [routes.BrokerGroupQueues("g0", 4, NODES)], fifo=False)
    assert [(a.message_queue.id, a.message_queue.broker.name) for a in found] == [
        (-1, "g0.n1"),
        (-1, "g0.n2"),
    ]


def test_a_fifo_group_has_each_queue_under_exactly_one_node() -> None:
    found = routes.assignments(TOPIC, [routes.BrokerGroupQueues("g0", 3, NODES)], fifo=True)
    polled = [(a.message_queue.id, a.message_queue.broker.name[-2:]) for a in found]
    assert polled == [(0, "n1"), (1, "n2"), (2, "n1")]


def test_the_scheme_follows_the_host() -> None:
    assert routes.endpoints("127.0.0.1:1").scheme == v2.IPv4
    assert routes.endpoints("[::1]:1").addresses[0].host == "::1"
    assert routes.endpoints("broker:1").scheme == v2.DOMAIN_NAME


def test_the_queues_of_a_drained_group_may_be_read_only_and_are_polled_as_before() -> None:
    groups = [
        routes.BrokerGroupQueues("g0", 1, NODES[:1], writable=False),
        routes.BrokerGroupQueues("g1", 1, NODES[1:]),
    ]
    queues = routes.route(TOPIC, groups, TopicMessageType.NORMAL)
    assert [(q.broker.name, q.permission) for q in queues] == [("g0.n1", v2.READ), ("g1.n2", v2.READ_WRITE)]
    assert all(q.accept_message_types for q in queues)
    assigned = routes.assignments(TOPIC, groups, fifo=False)
    assert [a.message_queue.permission for a in assigned] == [v2.READ_WRITE] * 2
