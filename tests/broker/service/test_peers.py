"""The nodes of a group get to know each other: through their leader, and without one from each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.cluster.lane import ForwardError
from ledgermq.broker.cluster.members import Members
from ledgermq.broker.service import peers
from ledgermq.broker.service.peers import Peers
from ledgermq.proto import peer_pb2
from ledgermq.proto.route_pb2 import ListenerAddresses, NodeInfo

NAMES = ("n1", "n2", "n3")


class Node:
    """One node's part in it; calls go straight to the others that are there."""

    def __init__(self, name: str, there: dict[str, Node]) -> None:
        listener = ListenerAddresses(name="default", log_address=f"{name}:8082")
        self.members = Members(NodeInfo(node_id=name, listeners=[listener]), NAMES)
        self.leadership = Leadership(name)
        self.asked: list[str] = []
        self._there = there
        forwarder: Any = self
        self.peers = Peers(
            self.members, self.leadership, forwarder, list, lambda ids: None, dict, lambda: None
        )

    async def unary(self, to: str, method: str, request: bytes, metadata: object, timeout: float) -> bytes:
        """Be the forwarder."""
        self.asked.append(to)
        if to not in self._there:
            raise ForwardError(True, f"{to} is not there")
        handler = self._there[to].peers.handler()._method_handlers[method]
        answer: peer_pb2.GroupView = await handler.unary_unary(request, None)
        return answer.SerializeToString()

    def knows(self) -> list[str]:
        return [name for name in NAMES if self.members.addresses(name, "default") is not None]


def run(
    monkeypatch: pytest.MonkeyPatch, there: list[str], test: Callable[..., Coroutine[Any, Any, None]]
) -> None:
    """Start those that are there, with rounds that follow each other at once."""
    monkeypatch.setattr(peers, "REPORT_INTERVAL", 0.001)

    async def main() -> None:
        nodes: dict[str, Node] = {}
        nodes.update({name: Node(name, nodes) for name in there})
        for node in nodes.values():
            node.peers.start()
        try:
            await test(**nodes)
        finally:
            await asyncio.gather(*(node.peers.stop() for node in nodes.values()))

    asyncio.run(asyncio.wait_for(main(), 30))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.001)


def test_nodes_without_a_leader_learn_where_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """n2 and n3 never heard of each other from the master n1, which died early: each reports to the other."""

    async def test(n2: Node, n3: Node) -> None:
        await until(lambda: n2.knows() == n3.knows() == ["n2", "n3"])
        assert [name for name, _ in n2.members.alive("default")] == ["n2", "n3"]

    run(monkeypatch, ["n2", "n3"], test)


def test_a_follower_reports_to_its_leader_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(n1: Node, n2: Node, n3: Node) -> None:
        n1.leadership.on_ready(1)
        for node in (n2, n3):
            node.leadership.on_changed("n1", 1)
        await until(lambda: n1.knows() == n2.knows() == n3.knows() == list(NAMES))
        await until(lambda: n2.asked[-3:] == n3.asked[-3:] == ["n1"] * 3)

    run(monkeypatch, ["n1", "n2", "n3"], test)
