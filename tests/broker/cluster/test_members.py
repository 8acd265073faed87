"""Addresses and liveness of the nodes of a group."""

from __future__ import annotations

from ledgermq.broker.cluster.members import Members
from ledgermq.proto.route_pb2 import ListenerAddresses, NodeInfo


def node(name: str, *listeners: str, alive: bool = True) -> NodeInfo:
    addresses = [ListenerAddresses(name=each, log_address=f"{name}-{each}:8082") for each in listeners]
    return NodeInfo(node_id=name, listeners=addresses, alive=alive, voter=True)


def test_a_node_that_reports_itself_is_known_and_alive() -> None:
    members = Members(node("n1", "in"), ["n1", "n2", "n3"])
    assert members.learn(node("n3", "in"))
    assert not members.learn(node("n3", "in"))
    assert [name for name, _ in members.alive("in")] == ["n1", "n3"]


def test_answers_carry_the_listener_of_the_caller_or_else_the_first() -> None:
    members = Members(node("n1", "in", "out"), ["n1"])
    found = [members.addresses("n1", name) for name in ("out", "other")]
    assert [each.log_address for each in found if each] == ["n1-out:8082", "n1-in:8082"]
    assert members.addresses("n9", "in") is None


def test_a_silent_node_leaves_and_comes_back() -> None:
    members = Members(node("n1", "in"), ["n1", "n2"])
    members.learn(node("n2", "in"))
    assert members.set_silence({"n1": 0, "n2": 2500})
    assert [name for name, _ in members.alive("in")] == ["n1"]
    assert members.set_silence({"n2": 10})
    assert [name for name, _ in members.alive("in")] == ["n1", "n2"]


def test_a_node_that_is_not_configured_does_not_enter_the_routes() -> None:
    members = Members(node("n1", "in"), ["n1", "n2"])
    assert not members.learn(node("x9", "in"))
    assert not members.take_view([node("x9", "in")])
    assert [each.node_id for each in members.all()] == ["n1"]


def test_a_follower_takes_the_leaders_view_but_not_of_itself() -> None:
    members = Members(node("n1", "in"), ["n1", "n2"])
    assert members.take_view([node("n1", "in", alive=False), node("n2", "in", alive=False)])
    assert [name for name, _ in members.alive("in")] == ["n1"]
    assert not members.take_view([node("n2", "in", alive=False)])
