"""Addresses and liveness of the group's nodes, as this node knows them.

The leader learns addresses from the reports of the others and liveness from Raft; followers learn both from the leader's
answer. What was learned is kept: without a leader the last view serves on, and whoever reports is known and alive. Pure: time comes in as monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ledgermq.proto.route_pb2 import ListenerAddresses, NodeInfo

#: A node that the leader has not heard for so long leaves routes and assignments (D17).
SILENCE_LIMIT_MS: Final = 2000

#: What was handed to another node so shortly before that node was found lost may not have reached the client.
ON_THE_WAY_SECONDS: Final = 5.0


class Members:
    """The nodes of one group. `own` is this node, with all its listeners."""

    def __init__(self, own: NodeInfo, voters: Iterable[str]) -> None:
        self.own = own
        self._voters = tuple(voters)
        self._master = ""  # "": all vote
        self._nodes: dict[str, NodeInfo] = {own.node_id: own}
        own.alive = own.voter = True

    def set_master(self, master: str) -> None:
        """In a group with a master only that one votes."""
        self._master = master
        self.own.voter = self._votes(self.own.node_id)

    def learn(self, node: NodeInfo) -> bool:
        """Take the addresses that a node reports of itself; return whether they are new. It is alive: it spoke.

        One that is no configured node is not believed: whoever reaches the port could enter the routes.
        """
        if node.node_id not in self._voters:
            return False
        known = self._nodes.get(node.node_id)
        node.voter = self._votes(node.node_id)
        node.alive = True
        if node.node_id == self.own.node_id or known == node:
            return False
        self._nodes[node.node_id] = node
        return True

    def _votes(self, node_id: str) -> bool:
        return node_id in self._voters and self._master in ("", node_id)

    def take_view(self, nodes: Iterable[NodeInfo]) -> bool:
        """Take the leader's view; return whether anything changed. Of itself a node knows better."""
        changed = False
        for node in nodes:
            if node.node_id in self.others and self._nodes.get(node.node_id) != node:
                self._nodes[node.node_id] = node
                changed = True
        return changed

    def set_silence(self, silence_ms: Mapping[str, int | None]) -> bool:
        """Leader: judge liveness by ms since each node was heard (None = never); return whether it changed."""
        changed = False
        for node_id, silence in silence_ms.items():
            node = self._nodes.get(node_id)
            alive = silence is not None and silence < SILENCE_LIMIT_MS
            if node is not None and node_id != self.own.node_id and node.alive != alive:
                node.alive = alive
                changed = True
        return changed

    @property
    def others(self) -> list[str]:
        """The configured nodes but this one."""
        return [name for name in self._voters if name != self.own.node_id]

    def all(self) -> list[NodeInfo]:
        """Return every known node, in the configured order, with all listeners."""
        order = {name: i for i, name in enumerate(self._voters)}
        return sorted(
            self._nodes.values(), key=lambda node: (order.get(node.node_id, len(order)), node.node_id)
        )

    def alive(self, listener: str) -> list[tuple[str, ListenerAddresses]]:
        """Return (node id, addresses in that listener) of the nodes that live, in the configured order."""
        return [(node.node_id, pick(node, listener)) for node in self.all() if node.alive and node.listeners]

    def addresses(self, node_id: str | None, listener: str) -> ListenerAddresses | None:
        """Return a node's addresses as callers of that listener reach it, when they are known."""
        node = self._nodes.get(node_id or "")
        return pick(node, listener) if node is not None and node.listeners else None

    def own_messaging_address(self, listener: str) -> str:
        """Return this node's address for official clients of that listener."""
        addresses = self.addresses(self.own.node_id, listener)
        return addresses.messaging_address if addresses is not None else ""


def pick(node: NodeInfo, listener: str) -> ListenerAddresses:
    """Return the listener of that name, or the node's first."""
    return next((each for each in node.listeners if each.name == listener), node.listeners[0])
