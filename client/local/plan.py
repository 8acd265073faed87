"""Plan of a local cluster: broker groups, nodes and ports, stored as `cluster.json` in the cluster's folder.

Owns: the file formats, the names of broker groups and nodes, the choice of ports. Must not: start processes,
lock the folder.
Broker groups are g0, g1, ...; nodes are numbered across them (g0: n1 n2 n3, g1: n4 n5 n6), so a node's name
is unique in the cluster, and also names its data folder. A folder with one broker group is written in format
1, which versions from before several broker groups can read. A folder whose broker groups belong to another
folder's cluster (format 3) has no nameserver of its own, and continues the numbers of that cluster.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..errors import UsageError
from . import ports as local_ports
from .ports import NodePorts, PortReservations

_ONE_GROUP: Final = 1
_SEVERAL_GROUPS: Final = 2
_FORMAT: Final = 3  # joined to another cluster

Groups = dict[str, dict[str, NodePorts]]


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """Composition of a local cluster.

    Invariant: all broker groups have the same number of nodes. No two nodes share a name or a port.
    """

    nameserver_port: int  # 0: it joins another cluster
    groups: Groups
    segment_size: str = "64MiB"
    queues_per_topic: int = 4
    joins: str = ""  # nameserver (host:port) of the cluster that the broker groups join; "": their own
    # quorum, async_master or sync_master; with a master it is at first the first node of each broker group
    replication: str = "quorum"

    @property
    def nameserver(self) -> str:
        return self.joins or f"127.0.0.1:{self.nameserver_port}"

    @property
    def nodes(self) -> dict[str, NodePorts]:
        """All nodes, by broker group."""
        return {name: ports for nodes in self.groups.values() for name, ports in nodes.items()}

    @property
    def nodes_per_group(self) -> int:
        return len(next(iter(self.groups.values())))

    def to_json(self) -> str:
        groups = {
            group: {name: asdict(ports) for name, ports in nodes.items()}
            for group, nodes in self.groups.items()
        }
        content: dict[str, Any] = {
            "nameserver_port": self.nameserver_port,
            "segment_size": self.segment_size,
            "queues_per_topic": self.queues_per_topic,
        }
        if self.replication != "quorum":
            content["replication"] = self.replication
        if self.joins:
            content = {"format": _FORMAT, **content, "joins": self.joins, "groups": groups}
        elif list(groups) == ["g0"]:
            content = {"format": _ONE_GROUP, **content, "nodes": groups["g0"]}
        else:
            content = {"format": _SEVERAL_GROUPS, **content, "groups": groups}
        return json.dumps(content, indent=2) + "\n"


def read_plan(path: Path) -> LocalPlan | None:
    """Read `cluster.json`; None if it is missing. Raises: UsageError (it cannot be used)."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        version = found["format"]
        if version in (_ONE_GROUP, _SEVERAL_GROUPS, _FORMAT):
            return _plan_of(found)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}",
            "Nothing was changed",
            "Repair it, or start a new cluster in another folder: ledgermq up --data OTHER",
        ) from error
    raise UsageError(
        f"{path} has format {version}; this version of LedgerMQ knows {_ONE_GROUP} to {_FORMAT}",
        "A newer version wrote it. Nothing was changed",
        "Use that version, or another folder: ledgermq up --data OTHER",
    )


def _plan_of(found: dict[str, Any]) -> LocalPlan:
    stored = {"g0": found["nodes"]} if found["format"] == _ONE_GROUP else found["groups"]
    groups = {
        group: {name: NodePorts(**ports) for name, ports in nodes.items()} for group, nodes in stored.items()
    }
    if not groups or len({len(nodes) for nodes in groups.values()}) > 1 or not all(groups.values()):
        raise ValueError("its broker groups have no nodes, or not the same number of them")
    return LocalPlan(
        found["nameserver_port"],
        groups,
        found["segment_size"],
        found.get("queues_per_topic", 4),
        found["joins"] if found["format"] == _FORMAT else "",
        found.get("replication", "quorum"),
    )


def new_plan(
    nodes: int,
    reserved: PortReservations,
    groups: int = 1,
    *,
    free_ports_only: bool = False,
    segment_size: str = "64MiB",
) -> LocalPlan:
    """Reserve ports for a new cluster: the well-known ones, or (`free_ports_only`) any free ones."""
    if free_ports_only:
        nameserver, *ports = reserved.unlisted(1 + 4 * nodes * groups)
        sets = iter([NodePorts(*ports[at : at + 4]) for at in range(0, len(ports), 4)])
        return LocalPlan(nameserver, _numbered(groups, nodes, sets), segment_size)
    numbered = _numbered(groups, nodes, local_ports.node_ports(reserved.take))
    return LocalPlan(local_ports.nameserver_port(reserved.take), numbered, segment_size)


def joining_plan(
    joins: str,
    known_groups: Collection[str],
    known_nodes: Collection[str],
    nodes: int,
    reserved: PortReservations,
    groups: int = 1,
) -> LocalPlan:
    """Reserve ports for further broker groups of the cluster at `joins`, named after those known to it."""
    first_group = 1 + max(
        (number for name in known_groups if (number := _number(name, "g")) >= 0), default=-1
    )
    first_node = 1 + max((number for name in known_nodes if (number := _number(name, "n")) >= 0), default=0)
    ports = local_ports.node_ports(reserved.take)
    numbered = _numbered(groups, nodes, ports, first_group=first_group, first_node=first_node)
    return LocalPlan(0, numbered, joins=joins)


def _number(name: str, prefix: str) -> int:
    """Return the number in a name given here, -1 for other names."""
    digits = name.removeprefix(prefix)
    return int(digits) if name.startswith(prefix) and digits.isascii() and digits.isdecimal() else -1


def with_more_broker_groups(plan: LocalPlan, reserved: PortReservations, groups: int | None) -> LocalPlan:
    """Add broker groups of the same size until there are `groups`, and reserve their ports."""
    known = len(plan.groups)
    taken = {port for ports in plan.nodes.values() for port in ports.all()}
    fresh = (ports for ports in local_ports.node_ports(reserved.take) if not taken & set(ports.all()))
    added = _numbered((groups or known) - known, plan.nodes_per_group, fresh, first_group=known)
    return replace(plan, groups={**plan.groups, **added})


def with_free_ports(plan: LocalPlan, reserved: PortReservations) -> LocalPlan:
    """Keep every free port. A node with a taken port gets the next free set."""
    kept = {name: all(reserved.take(port) for port in ports.all()) for name, ports in plan.nodes.items()}
    nameserver = plan.nameserver_port
    if not plan.joins and not reserved.take(nameserver):
        nameserver = local_ports.nameserver_port(reserved.take)
    taken = {port for ports in plan.nodes.values() for port in ports.all()}
    fresh = (ports for ports in local_ports.node_ports(reserved.take) if not taken & set(ports.all()))
    groups = {
        group: {name: ports if kept[name] else next(fresh) for name, ports in nodes.items()}
        for group, nodes in plan.groups.items()
    }
    return replace(plan, nameserver_port=nameserver, groups=groups)


def _numbered(
    groups: int,
    nodes: int,
    ports: Iterator[NodePorts],
    *,
    first_group: int = 0,
    first_node: int | None = None,
) -> Groups:
    """Name broker groups, and number their nodes across them. Raises: UsageError (not enough ports)."""
    first = 1 + first_group * nodes if first_node is None else first_node
    try:
        return {
            f"g{first_group + group}": {
                f"n{first + group * nodes + each}": _next(ports) for each in range(nodes)
            }
            for group in range(groups)
        }
    except LookupError:
        raise UsageError(
            f"there are not enough free ports for {groups} broker groups of {nodes} nodes",
            "Nothing was started",
            "Start fewer broker groups, or end what listens on the others",
        ) from None


def _next(ports: Iterator[NodePorts]) -> NodePorts:
    for found in ports:
        return found
    raise LookupError
