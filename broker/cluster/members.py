"""Addresses and liveness of the broker group's nodes, as this node knows them.

The leader learns addresses from the others' reports and liveness from Raft; followers learn both from the
leader's answer. Without a leader the last view stays in use, and a node that reports is known to be alive.
Pure: time comes in as monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ledgermq.proto.route_pb2 import ListenerAddresses, NodeInfo

#: The leader drops a node that was silent for this long from routes and assignments (D17).
SILENCE_LIMIT_MS: Final = 2000

#: An answer written to another node this shortly before that node was lost may not have reached the client.
ON_THE_WAY_SECONDS: Final = 5.0


class Members:
    """The nodes of one broker group. `own` is this node, with all its listeners."""

    def __init__(self, own: NodeInfo, voters: Iterable[str]) -> None:
        self.own = own
        self._voters = tuple(voters)  # ids of the configured nodes
        self._master = ""  # the only node that votes; "": all vote
        self._nodes: dict[str, NodeInfo] = {own.node_id: own}  # nodes with known addresses
        own.alive = own.voter = True

    def set_master(self, master: str) -> None:
        """Set the master of a broker group with one: only it votes."""
        self._master = master
        self.own.voter = self._votes(self.own.node_id)

    def learn(self, node: NodeInfo) -> bool:
        """Store the addresses that a node reports of itself; return whether anything changed. It is alive.

        Only configured nodes are accepted; otherwise anyone who reaches the port could enter the routes.
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
        """Store the leader's view; return whether anything changed. This node's own entry is not replaced."""
        changed = False
        for node in nodes:
            if node.node_id in self.others and self._nodes.get(node.node_id) != node:
                self._nodes[node.node_id] = node
                changed = True
        return changed

    def set_silence(self, silence_ms: Mapping[str, int | None]) -> bool:
        """Judge each node's liveness by its silence in ms (None: never heard); return whether any changed.

        Leader only.
        """
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
        """The configured nodes except this one."""
        return [name for name in self._voters if name != self.own.node_id]

    def all(self) -> list[NodeInfo]:
        """Return every known node with all listeners, in the configured order."""
        order = {name: i for i, name in enumerate(self._voters)}
        return sorted(
            self._nodes.values(), key=lambda node: (order.get(node.node_id, len(order)), node.node_id)
        )

    def alive(self, listener: str) -> list[tuple[str, ListenerAddresses]]:
        """Return (node id, addresses on that listener) of the live nodes, in the configured order."""
        return [(node.node_id, pick(node, listener)) for node in self.all() if node.alive and node.listeners]

    def addresses(self, node_id: str | None, listener: str) -> ListenerAddresses | None:
        """Return a node's addresses on the caller's listener; None while they are not known."""
        node = self._nodes.get(node_id or "")
        return pick(node, listener) if node is not None and node.listeners else None

    def own_messaging_address(self, listener: str) -> str:
        """Return this node's address for official clients on that listener."""
        addresses = self.addresses(self.own.node_id, listener)
        return addresses.messaging_address if addresses is not None else ""


def pick(node: NodeInfo, listener: str) -> ListenerAddresses:
    """Return the listener of that name, or the node's first."""
    return next((each for each in node.listeners if each.name == listener), node.listeners[0])
