"""The route of a topic as the client uses it: frozen values made from a nameserver's answer. Pure."""

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
    log_address: str
    messaging_address: str
    alive: bool
    zone: str = ""  # where it stands, "" when nobody says


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """One broker group. `leader_id` is "" while an election is on."""

    cluster: str
    name: str
    term: int
    leader_id: str
    nodes: tuple[Node, ...]
    writable: bool
    max_message_bytes: int = MAX_BODY_SIZE  # largest body
    max_request_bytes: int = 4 * MAX_BODY_SIZE  # all sections of a produce request
    draining: bool = False  # takes no new messages; when it leaves the route it is gone for good
    group_id: int = 0  # tells it from others of its name; 0 when nobody says
    former_group_ids: tuple[int, ...] = ()  # it had, before it was recovered or a master promoted

    @property
    def leader(self) -> Node | None:
        return self.node(self.leader_id)

    def node(self, node_id: str) -> Node | None:
        """Return a node that has an address in the network of this client."""
        return next((node for node in self.nodes if node.node_id == node_id), None)

    @property
    def zone(self) -> str:
        """Where messages to the group go: the zone of its leader, "" while there is none."""
        return leader.zone if (leader := self.leader) else ""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call to its nodes says, so that another group of its name refuses it."""
        return group_metadata(self.group_id)

    def is_another(self, known: BrokerGroup) -> bool:
        """Tell whether the name and perhaps the address of `known` are now those of a group that has nothing of it."""
        return not are_related(self.group_id, self.former_group_ids, known.group_id, known.former_group_ids)

    @property
    def by_preference(self) -> tuple[Node, ...]:
        """All nodes: the leader, then the living ones, then the rest."""
        return tuple(sorted(self.nodes, key=lambda node: (node.node_id != self.leader_id, not node.alive)))


@dataclass(frozen=True, slots=True)
class TopicInGroup:
    """A topic's queues in one group."""

    group: BrokerGroup
    topic_id: int
    queue_count: int
    readable: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic is. `parts` are sorted by group name."""

    topic: str
    cluster: str
    parts: tuple[TopicInGroup, ...]

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """All queues, group by group."""
        return tuple(
            MessageQueue(self.topic, part.group.name, queue_id)
            for part in self.parts
            for queue_id in range(part.queue_count)
        )

    def part(self, broker_group: str) -> TopicInGroup | None:
        return next((part for part in self.parts if part.group.name == broker_group), None)


def group_of(view: pb.GroupRoute) -> BrokerGroup:
    """Translate one group of a nameserver's answer."""
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
    """Translate the groups of an answer that have the topic; None when none has it."""
    parts = []
    for view in sorted(views, key=lambda each: each.group):
        info = next((each for each in view.topics if each.name == topic), None)
        if info is None:
            continue
        readable = info.permission in (pb.READ, pb.READ_WRITE)
        writable = info.permission in (pb.WRITE, pb.READ_WRITE)
        parts.append(TopicInGroup(group_of(view), info.topic_id, info.queue_count, readable, writable))
    return (
        TopicRoute(topic, cluster or (parts[0].group.cluster if parts else ""), tuple(parts))
        if parts
        else None
    )


def with_lost_parts(route: TopicRoute, known: Sequence[TopicInGroup]) -> list[TopicInGroup]:
    """Return the parts of a route that may be written, and those that it had before and no longer has, by group name."""
    parts = {part.group.name: part for part in known}
    for part in route.parts:
        parts.pop(part.group.name, None)
        if part.writable and part.queue_count:
            parts[part.group.name] = part
    return [parts[name] for name in sorted(parts)]


def no_queue_to_write(route: TopicRoute) -> LedgerMQError:
    """Return the error of a producer that finds no queue in any group, and who could change that."""
    what = f'topic "{route.topic}" has no queue that can be written'
    drained = [part.group.name for part in route.parts if part.group.draining]
    if not drained:
        return LedgerMQError(what, "", f"See: ledgermq topic describe {route.topic}")
    verb = "group is" if len(drained) == 1 else "groups are"
    return LedgerMQError(
        what,
        f"Its broker {verb} drained and take{'s' * (len(drained) == 1)} no new messages: {', '.join(drained)}",
        f"Take one back and repeat it: ledgermq cluster undrain {drained[0]}",
    )
