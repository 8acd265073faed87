"""Limits on registrations: printable names, callable addresses, and a bounded total size.

Every client that reaches the port can register. Its data goes to every other client, into logs and onto
terminals.
Owns: the checks. Must not: know what is registered (callers say how much).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ledgermq.proto import nameserver_pb2 as ns
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.foreign_text import safe_text

#: Bytes of one registration. 5,000 topics with the longest names take 0.8 MB.
MAX_REGISTRATION: Final = 8 << 20
#: Bytes of all registrations together, and their maximum number.
MAX_REGISTERED: Final = 64 << 20
MAX_NODES: Final = 1000
#: Topics per broker group; brokers have the same limit (`max_topics`). Every change rebuilds a view of all of
#: them.
MAX_TOPICS: Final = 100_000
#: Maximum length of a name, id or address in characters.
MAX_TEXT: Final = 255
#: Maximum number of queues of a topic in a broker group. Brokers and clients iterate over them.
_MAX_QUEUES: Final = 1024
_HINT: Final = "A broker of LedgerMQ never says so"


def problem_of(request: ns.RegisterRequest) -> str:
    """Return why a registration is refused; "" if it is acceptable."""
    route = request.route
    if not (request.node_id and route.cluster and route.group):
        return "a registration needs cluster, group and node id. This is a defect of the broker: report it."
    if len(route.topics) > MAX_TOPICS:
        return f"{len(route.topics):,} topics in one registration; at most {MAX_TOPICS:,} are taken. {_HINT}"
    for what, text in _texts(request):
        if problem := text_problem(what, text):
            return problem
    for topic in route.topics:
        if topic.queue_count > _MAX_QUEUES:
            return (
                f"topic {topic.name} has {topic.queue_count} queues; at most {_MAX_QUEUES} are taken. {_HINT}"
            )
    for node in route.nodes:
        for listener in node.listeners:
            for address in (listener.messaging_address, listener.log_address):
                if address and not _is_address(address):
                    return f"the address {address} of {node.node_id} is not host:port. {_HINT}"
    return ""


def text_problem(what: str, text: str) -> str:
    """Return why a name, id or address cannot be passed on to others; "" if it can."""
    if len(text) > MAX_TEXT:
        return f"{what} {safe_text(text, 60)} is longer than {MAX_TEXT} characters. {_HINT}"
    if not text.isprintable():
        return f"{what} {safe_text(text, 100)} has a character that cannot be printed. {_HINT}"
    return ""


def _texts(request: ns.RegisterRequest) -> Iterator[tuple[str, str]]:
    route = request.route
    yield from (
        ("the cluster", route.cluster), ("the broker group", route.group), ("the node id", request.node_id),
        ("the incarnation", request.incarnation), ("the leader id", route.leader_id),
        ("the master id", route.master_id), ("the replication", route.replication),
    )  # fmt: skip
    for topic in route.topics:
        yield "the topic", topic.name
    for node in route.nodes:
        yield from (("the node id", node.node_id), ("the zone", node.zone))
        for listener in node.listeners:
            yield "the listener", listener.name
            yield "the address", listener.messaging_address
            yield "the address", listener.log_address


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16


@dataclass(frozen=True, slots=True)
class Room:
    """Total of what may be registered."""

    nodes: int = MAX_NODES  # number of nodes
    size: int = MAX_REGISTERED  # bytes of all registrations

    def problem(self, nodes: int, size: int, new: pb.GroupRoute) -> str:
        """Return why one more registration does not fit; "" if it does. `nodes` and `size` exclude it."""
        if nodes >= self.nodes:
            return (
                f"{nodes} nodes are registered here, the limit (max_nodes of the nameserver). Nodes that are "
                "silent are dropped; stop those that nobody needs, or raise max_nodes. This node goes on "
                "asking"
            )
        if size + new.ByteSize() > self.size:
            return (
                f"what is registered here has {size} bytes, this registration {new.ByteSize()} more; the "
                f"limit is {self.size} (max_registered_bytes of the nameserver). Delete topics that nobody "
                "needs, or raise it. This node goes on asking"
            )
        return ""
