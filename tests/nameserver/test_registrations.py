"""What a node may register: every client that reaches the port can."""

from __future__ import annotations

import pytest

from ledgermq.nameserver.registrations import MAX_TOPICS, problem_of
from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto.route_pb2 import GroupRoute, ListenerAddresses, NodeInfo, TopicInfo


def registration() -> pb.RegisterRequest:
    addresses = ListenerAddresses(name="default", messaging_address="h:8081", log_address="[::1]:8082")
    node = NodeInfo(node_id="n1", zone="zone \u00fc", listeners=[addresses])
    topics = [TopicInfo(name="%RETRY%orders|a", queue_count=1024)]
    route = GroupRoute(cluster="c", group="g", leader_id="n1", nodes=[node], topics=topics)
    return pb.RegisterRequest(node_id="n1", incarnation="i", route=route)


def test_what_brokers_register_is_taken() -> None:
    assert problem_of(registration()) == ""


@pytest.mark.parametrize("text", ["a\nforged line", "\x1b[2J", "x" * 256, "a\u202eb"])
@pytest.mark.parametrize(
    "path", ["node_id", "incarnation", "route.cluster", "route.group", "route.leader_id", "route.master_id",
             "route.nodes.node_id", "route.nodes.zone", "route.topics.name", "route.nodes.listeners.name",
             "route.nodes.listeners.log_address"],
)  # fmt: skip
def test_text_that_cannot_be_shown_is_refused_wherever_it_stands(path: str, text: str) -> None:
    request = registration()
    *names, last = path.split(".")
    place = request
    for name in names:
        place = getattr(place, name)
        place = place[0] if name in ("nodes", "topics", "listeners") else place
    setattr(place, last, text)
    problem = problem_of(request)
    assert problem and problem.isprintable() and len(problem) < 300


@pytest.mark.parametrize("address", ["h", ":1", "h:", "h:x", "h:65536", "h:\u0661", "h:-1", "h:123456"])
def test_an_address_that_cannot_be_called_is_refused(address: str) -> None:
    """Brokers put it into the routes of official clients, with the port as a number."""
    request = registration()
    request.route.nodes[0].listeners[0].messaging_address = address
    assert "is not host:port" in problem_of(request)


def test_more_topics_than_a_group_may_have_are_refused() -> None:
    request = registration()
    request.route.topics.extend(TopicInfo(name=f"t{number}", queue_count=1) for number in range(MAX_TOPICS))
    assert "topics in one registration" in problem_of(request)


def test_a_topic_of_more_queues_than_a_group_makes_is_refused() -> None:
    """Brokers and clients go through the queues one by one."""
    request = registration()
    request.route.topics[0].queue_count = 2**32 - 1
    assert "at most 1024" in problem_of(request)
