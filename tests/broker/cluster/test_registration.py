"""A node's registration with nameservers: repeated, and ended once its broker group leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ledgermq.broker.cluster import registration as module
from ledgermq.broker.cluster.registration import Registration
from ledgermq.nameserver.service import NameServer
from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto import route_pb2


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 120))


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.005)


class Member:
    """A node of group g1 that registers; `withdrawn` once its group was removed."""

    def __init__(self, node_id: str, *nameservers: NameServer) -> None:
        self.withdrawn = False
        self.asked = self.beats = 0
        self.node_id = node_id
        addresses = tuple(each.addresses["default"] for each in nameservers)
        self.registration = Registration(addresses, self._request, self._beat, lambda: self.withdrawn)

    def _request(self) -> pb.RegisterRequest:
        self.asked += 1
        route = route_pb2.GroupRoute(cluster="local", group="g1", term=1, leader_id="n4")
        return pb.RegisterRequest(node_id=self.node_id, incarnation="i", route=route, is_leader=True)

    def _beat(self) -> pb.HeartbeatBeat:
        self.beats += 1
        return pb.HeartbeatBeat(cluster="local", group="g1", node_id=self.node_id, term=1, leader_id="n4")


async def asked_when_only_beats_come(member: Member) -> int:
    """Return how often a node has registered, when ten beats have come since the last time."""
    asked = -1
    while asked != member.asked:
        asked, beats = member.asked, member.beats
        await until(lambda: member.beats >= beats + 10)  # noqa: B023
    return asked


def listed(nameserver: NameServer) -> set[str]:
    return {node.node_id for view in nameserver.table.broker_groups("local") for node in view.nodes}


def alive(nameserver: NameServer) -> set[str]:
    views = nameserver.table.broker_groups("local")
    return {node.node_id for view in views for node in view.nodes if node.alive}


async def test_a_node_registers_with_every_nameserver_at_start_on_a_change_and_now_and_then(
    monkeypatch: Any,
) -> None:
    """A1.2, A1.3."""
    monkeypatch.setattr(module, "BEAT_INTERVAL", 0.01)
    nameservers = [NameServer({"default": "127.0.0.1:0"}, 60_000) for _ in range(2)]
    for each in nameservers:
        await each.start()
    member = Member("n4", *nameservers)
    try:
        member.registration.start()
        await until(lambda: all(listed(each) == {"n4"} for each in nameservers))
        asked = await asked_when_only_beats_come(member)
        member.registration.changed()
        await until(lambda: member.asked >= asked + 2)
        monkeypatch.setattr(module, "REGISTER_INTERVAL", 0.01)
        member.registration.changed()  # the interval counts from the next one
        await until(lambda: member.asked > asked + 10)
    finally:
        await member.registration.stop()
        assert not any(map(listed, nameservers)), "it says goodbye to each"
        for each in nameservers:
            await each.stop(0)


async def test_a_removed_group_leaves_the_route_with_its_dead_nodes_and_does_not_come_back(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(module, "BEAT_INTERVAL", 0.01)
    nameserver = NameServer({"default": "127.0.0.1:0"}, 60_000)
    await nameserver.start()
    members = [Member(name, nameserver) for name in ("n4", "n5", "n6")]
    try:
        for member in members:
            member.registration.start()
        await until(lambda: listed(nameserver) == {"n4", "n5", "n6"})
        dead = members.pop()
        await asked_when_only_beats_come(dead)  # one on its way would list it again after its removal
        for link in dead.registration._links:  # it is killed: it says no goodbye
            for task in link.tasks:
                task.cancel()
        await until(lambda: "n6" not in alive(nameserver))  # while it may live, it keeps its place
        for member in members:
            member.withdrawn = True
            member.registration.changed()
        await until(lambda: not listed(nameserver))
        asked = [member.asked for member in members]
        for member in members:
            member.registration.changed()
        assert nameserver.table.gone_broker_groups("local") == []
        assert [member.asked for member in members] == asked
        members[0].withdrawn = False  # taken back
        members[0].registration.changed()
        await until(lambda: listed(nameserver) == {"n4"})
    finally:
        for member in members:
            await member.registration.stop()
        await nameserver.stop(0)
