"""A node's registration when its broker group leaves the cluster, against a nameserver in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ledgermq.broker import registration as module
from ledgermq.broker.registration import Registration
from ledgermq.nameserver.service import NameServer
from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto import route_pb2


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 30))


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.005)


class Member:
    """A node of group g1 that registers; `withdrawn` once its group was removed."""

    def __init__(self, nameserver: NameServer, node_id: str) -> None:
        self.withdrawn = False
        self.asked = 0
        self.node_id = node_id
        address = nameserver.addresses["default"]
        self.registration = Registration((address,), self._request, self._beat, lambda: self.withdrawn)

    def _request(self) -> pb.RegisterRequest:
        self.asked += 1
        route = route_pb2.GroupRoute(cluster="local", group="g1", term=1, leader_id="n4")
        return pb.RegisterRequest(node_id=self.node_id, incarnation="i", route=route, is_leader=True)

    def _beat(self) -> pb.HeartbeatBeat:
        return pb.HeartbeatBeat(cluster="local", group="g1", node_id=self.node_id, term=1, leader_id="n4")


def listed(nameserver: NameServer) -> set[str]:
    return {node.node_id for view in nameserver.table.groups("local") for node in view.nodes}


def test_a_removed_group_leaves_the_route_with_its_dead_nodes_and_does_not_come_back(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(module, "BEAT_INTERVAL", 0.01)

    async def scenario() -> None:
        nameserver = NameServer({"default": "127.0.0.1:0"}, 60_000)
        await nameserver.start()
        members = [Member(nameserver, name) for name in ("n4", "n5", "n6")]
        try:
            for member in members:
                member.registration.start()
            await until(lambda: listed(nameserver) == {"n4", "n5", "n6"})
            dead = members.pop()
            for link in dead.registration._links:  # it is killed: it says no goodbye
                for task in link.tasks:
                    task.cancel()
            for member in members:
                member.withdrawn = True
                member.registration.changed()
            await until(lambda: not listed(nameserver))
            asked = [member.asked for member in members]
            for member in members:
                member.registration.changed()
            assert nameserver.table.gone_groups("local") == []
            assert [member.asked for member in members] == asked
            members[0].withdrawn = False  # taken back
            members[0].registration.changed()
            await until(lambda: listed(nameserver) == {"n4"})
        finally:
            for member in members:
                await member.registration.stop()
            await nameserver.stop(0)

    run(scenario())
