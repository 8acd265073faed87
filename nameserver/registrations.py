"""Checks of registrations: printable names, callable addresses, total size, matching broker group ids.

Every client that reaches the port can register. Its data goes to every other client, into logs and onto
terminals.
Owns: the checks, a bounded list of nodes refused because of their broker group id.
Must not: know what is registered (callers say how much), read clocks (callers pass `now` in ms), send.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ledgermq.proto import nameserver_pb2 as ns
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.foreign_text import safe_text
from ledgermq.proto.group_ids import are_related

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
#: Maximum number of refused nodes to remember, and for how many ms after their last attempt.
MAX_STRANGERS: Final = 64
SHOWN_MS: Final = 10_000
_HINT: Final = "A broker of LedgerMQ never says so"


def problem_of(request: ns.RegisterRequest) -> str:
    """Return why a registration is refused; "" if it is acceptable."""
    route = request.route
    if not (request.node_id and route.cluster and route.group):
        return "a registration needs cluster, broker group and node id: a defect of the broker, report it."
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
                f"{nodes} nodes are registered here, the limit (max_nodes of the nameserver). Silent nodes "
                "are dropped; stop those that are not needed, or raise max_nodes. This node goes on asking"
            )
        if size + new.ByteSize() > self.size:
            return (
                f"what is registered here has {size} bytes, this registration {new.ByteSize()} more; the "
                f"limit is {self.size} (max_registered_bytes of the nameserver). Delete topics that are not "
                "needed, or raise it. This node goes on asking"
            )
        return ""


def belongs_to(one: pb.GroupRoute, other: pb.GroupRoute, told: Iterable[pb.GroupRoute] = ()) -> bool:
    """Return whether two nodes that name the same broker group belong to the same one, as far as they and
    `told` know.

    The id differs between generations of a broker group that was recovered, or in which a master was
    promoted. The later generation names the earlier one. A node that joined the later one without data does
    not know the earlier one.
    """
    if are_related(one.group_id, one.former_group_ids, other.group_id, other.former_group_ids):
        return True
    ids = {one.group_id, other.group_id}
    return any(each.group_id in ids and not ids.isdisjoint(each.former_group_ids) for each in told)


class Strangers:
    """Nodes that tried to register under the name of a broker group that is not theirs."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str, int], tuple[int, pb.NodeInfo]] = {}

    def note(self, node_id: str, route: pb.GroupRoute, now: int) -> bool:
        """Record a refused node.

        Returns whether to log it: it was not refused lately, and the list is not full.
        """
        self._drop_old(now)
        key = (route.cluster, route.group, node_id, route.group_id)
        is_new = self._seen.pop(key, None) is None and len(self._seen) < MAX_STRANGERS
        info = next((each for each in route.nodes if each.node_id == node_id), pb.NodeInfo(node_id=node_id))
        self._seen[key] = now, info
        while len(self._seen) > MAX_STRANGERS:
            del self._seen[next(iter(self._seen))]
        return is_new

    def lately(self, cluster: str, listener: str, now: int) -> list[ns.Stranger]:
        """Return the nodes of `cluster` ("": of all) that were refused lately, with the addresses of a
        listener.
        """
        self._drop_old(now)
        return [
            ns.Stranger(
                cluster=its_cluster,
                group=broker_group,
                node_id=node_id,
                group_id=group_id,
                log_address=_log_address(info.listeners, listener),
            )
            for (its_cluster, broker_group, node_id, group_id), (_, info) in sorted(
                self._seen.items(), key=lambda item: item[0]
            )
            if cluster in ("", its_cluster)
        ]

    def _drop_old(self, now: int) -> None:
        for key in [key for key, (seen, _) in self._seen.items() if now - seen >= SHOWN_MS]:
            del self._seen[key]


def _log_address(listeners: Iterable[pb.ListenerAddresses], name: str) -> str:
    known = list(listeners)
    chosen = next((each for each in known if each.name == name), known[0] if known else None)
    return chosen.log_address if chosen is not None else ""


def refusal_of_stranger(node_id: str, route: pb.GroupRoute, rivals: Iterable[str]) -> pb.Refusal:
    """Return the refusal for a node that registers under the name of a broker group to which it does not
    belong.
    """
    broker_group = f'broker group "{route.group}" of cluster "{route.cluster}"'
    return pb.Refusal(
        code=pb.OTHER_GROUP,
        message=(
            f"{node_id} belongs to another {broker_group} than the one that is registered here, with "
            f"{', '.join(rivals)}: two broker groups were made under one name. No client is sent to "
            f"{node_id}. Stop it, or the others; the one that is to stay beside the other needs a name of "
            "its own, which it gets when it is made. This node goes on asking"
        ),
        retryable=True,
    )
