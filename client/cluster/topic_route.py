"""Topic route: immutable values built from a nameserver's answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.call_metadata import group_metadata
from ledgermq.proto.group_ids import are_related
from ledgermq.proto.record import MAX_BODY_SIZE

from ..errors import LedgerMQError
from ..message import MessageQueue


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its addresses (host:port) in the network of this client."""

    node_id: str
    log_address: str  # LogService and AdminService
    messaging_address: str  # official protocol; "" without one
    alive: bool  # as the nameserver sees it
    zone: str = ""  # location of the node, "" if not configured


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """One broker group. `leader_id` is "" during an election."""

    cluster: str
    name: str
    term: int
    leader_id: str
    nodes: tuple[Node, ...]
    writable: bool
    max_message_bytes: int = MAX_BODY_SIZE  # largest body
    max_request_bytes: int = 4 * MAX_BODY_SIZE  # all sections of a produce request
    draining: bool = False  # takes no new messages; once it leaves the route it is gone for good
    group_id: int = 0  # tells it from other broker groups of the same name; 0: unknown
    former_group_ids: tuple[int, ...] = ()  # its ids before it was recovered or a master was promoted

    @property
    def leader(self) -> Node | None:
        return self.node(self.leader_id)

    def node(self, node_id: str) -> Node | None:
        """Return a node that has an address in the network of this client."""
        return next((node for node in self.nodes if node.node_id == node_id), None)

    @property
    def zone(self) -> str:
        """Zone in which messages to the broker group arrive: that of its leader; "" without a leader."""
        return leader.zone if (leader := self.leader) else ""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of calls to its nodes. Another broker group of the same name refuses them."""
        return group_metadata(self.group_id)

    def is_another(self, known: BrokerGroup) -> bool:
        """Tell whether this is an unrelated broker group that took the name of `known`."""
        return not are_related(self.group_id, self.former_group_ids, known.group_id, known.former_group_ids)

    @property
    def by_preference(self) -> tuple[Node, ...]:
        """All nodes: the leader, then live nodes, then the rest."""
        return tuple(sorted(self.nodes, key=lambda node: (node.node_id != self.leader_id, not node.alive)))


@dataclass(frozen=True, slots=True)
class TopicInBrokerGroup:
    """Queues of a topic in one broker group."""

    group: BrokerGroup
    topic_id: int
    queue_count: int
    readable: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Location of a topic. `parts` are sorted by the name of the broker group."""

    topic: str
    cluster: str
    parts: tuple[TopicInBrokerGroup, ...]

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """All queues, by broker group."""
        return tuple(
            MessageQueue(self.topic, part.group.name, queue_id)
            for part in self.parts
            for queue_id in range(part.queue_count)
        )

    def part(self, broker_group: str) -> TopicInBrokerGroup | None:
        return next((part for part in self.parts if part.group.name == broker_group), None)

    def replaces(self, former: TopicRoute) -> bool:
        """Tell whether a broker group of the former route was replaced by another one of its name."""
        pairs = ((part, former.part(part.group.name)) for part in self.parts)
        return any(before is not None and part.group.is_another(before.group) for part, before in pairs)


def group_of(view: pb.GroupRoute) -> BrokerGroup:
    """Translate one broker group of a nameserver's answer."""
    nodes = []
    for info in view.nodes:
        listener = info.listeners[0] if info.listeners else pb.ListenerAddresses()
        nodes.append(
            Node(info.node_id, listener.log_address, listener.messaging_address, info.alive, info.zone)
        )
    return BrokerGroup(
        view.cluster,
        view.group,
        view.term,
        view.leader_id,
        tuple(n for n in nodes if n.log_address),
        view.writable,
        view.max_message_bytes or MAX_BODY_SIZE,
        view.max_request_bytes or 4 * MAX_BODY_SIZE,
        view.mode != pb.MODE_ACTIVE,
        view.group_id,
        tuple(view.former_group_ids),
    )


def route_of(topic: str, cluster: str, views: list[pb.GroupRoute]) -> TopicRoute | None:
    """Translate the broker groups in an answer that have the topic; None if there are none."""
    parts = []
    for view in sorted(views, key=lambda each: each.group):
        info = next((each for each in view.topics if each.name == topic), None)
        if info is None:
            continue
        readable = info.permission in (pb.READ, pb.READ_WRITE)
        writable = info.permission in (pb.WRITE, pb.READ_WRITE)
        parts.append(TopicInBrokerGroup(group_of(view), info.topic_id, info.queue_count, readable, writable))
    return (
        TopicRoute(topic, cluster or (parts[0].group.cluster if parts else ""), tuple(parts))
        if parts
        else None
    )


def with_lost_parts(route: TopicRoute, known: Sequence[TopicInBrokerGroup]) -> list[TopicInBrokerGroup]:
    """Return the writable parts of a route and its lost former parts, sorted by broker group."""
    parts = {part.group.name: part for part in known}
    for part in route.parts:
        parts.pop(part.group.name, None)
        if part.writable and part.queue_count:
            parts[part.group.name] = part
    return [parts[name] for name in sorted(parts)]


def no_queue_to_write(route: TopicRoute) -> LedgerMQError:
    """Return the error of a producer without a writable queue. It says who can change that."""
    what = f'topic "{route.topic}" has no queue that can be written'
    drained = [part.group.name for part in route.parts if part.group.draining]
    if not drained:
        return LedgerMQError(what, "", f"See: ledgermq topic describe {route.topic}")
    verb = "group is" if len(drained) == 1 else "groups are"
    return LedgerMQError(
        what,
        f"Its broker {verb} drained and take{'s' * (len(drained) == 1)} "
        f"no new messages: {', '.join(drained)}",
        f"Take one back and repeat it: ledgermq cluster undrain {drained[0]}",
    )
