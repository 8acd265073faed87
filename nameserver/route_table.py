"""Route table: what brokers reported about themselves, and the routes that follow from it.

Owns: one record per node, its expiry and suspicion, the leader of each broker group.
Must not: read clocks (callers pass `now` in ms of any monotonic clock), send, know listeners' sockets.
Invariants: `revision` grows with every change visible in an answer, and only then. The view of a broker group
is the one with the highest (term, version), so an old leader never wins over a new one. The nodes of a broker
group belong to one broker group, not to two of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from ledgermq.proto import route_pb2 as pb

from .registrations import MAX_TEXT, Strangers, belongs_to

#: Maximum number of names to compare an unknown one with. 5,000 take a fifth of a second.
_MAX_COMPARED: Final = 5_000

#: Silence in ms after which a node is dropped.
EXPIRY_MS = 10_000
#: Number of broker groups without nodes to remember. One more evicts the one that left first.
MAX_GONE_BROKER_GROUPS = 64

BrokerGroupKey = tuple[str, str]  # cluster, broker group
NodeKey = tuple[str, str, str]  # cluster, broker group, node id


@dataclass(slots=True)
class NodeRecord:
    """Latest report of one node. Times are in ms of the caller's clock."""

    route: pb.GroupRoute  # as registered, with all listeners
    incarnation: str  # of the process; a restart registers anew
    is_leader: bool
    registered_at: int
    heard_at: int  # last registration or beat
    term: int  # newest term from a registration or beat
    leader_id: str  # leader of that term; "" while unknown
    size: int = 0  # bytes of `route`
    suspect_since: int | None = None  # when its stream closed; None: it is not suspect
    knew_leader: bool = False  # it has named a leader in this run

    @property
    def order(self) -> tuple[int, bool, int]:
        """Sort key of views: newest term, then the leader's own report, then newest version."""
        return (self.route.term, self.is_leader, self.route.version)


@dataclass(frozen=True, slots=True)
class DepartedBrokerGroup:
    """Memory of a broker group whose last node has left without being removed."""

    view: pb.GroupRoute  # without leader and topics; none of its nodes is alive
    topics: tuple[pb.TopicInfo, ...]
    heard_at: int  # when its last node was last heard


class RouteTable:
    """Routes of all broker groups of all clusters.

    Every method that may change a view bumps `revision` if it did.
    """

    def __init__(self, expiry_ms: int = EXPIRY_MS) -> None:
        self.expiry_ms = expiry_ms
        self.revision = 0  # number of changes visible in an answer
        self.strangers = Strangers()  # nodes that were refused
        self._nodes: dict[NodeKey, NodeRecord] = {}
        self._gone: dict[BrokerGroupKey, DepartedBrokerGroup] = {}

    # --- what brokers say -----------------------------------------------------------------------------------

    def rivals(self, route: pb.GroupRoute) -> list[str]:
        """Return the registered nodes of another broker group with the same name.

        `route` must not be registered beside them.
        """
        records = dict(self._records((route.cluster, route.group)))
        told = [record.route for record in records.values()]
        return sorted(
            node_id for node_id, record in records.items() if not belongs_to(record.route, route, told)
        )

    def make_way(self, route: pb.GroupRoute, is_leader: bool) -> bool:
        """Forget the rivals of a leader if none of them ever named a leader.

        Returns whether they were forgotten.

        A single left-over node of another broker group must not keep a whole one out just because it
        registered first.
        """
        broker_group = (route.cluster, route.group)
        keys = [(*broker_group, node_id) for node_id in self.rivals(route)]
        if not is_leader or any(self._nodes[key].knew_leader for key in keys):
            return False
        before = self._shown(broker_group)
        for key in keys:
            del self._nodes[key]  # not `_forget`: their broker group has not left, it is refused
        self._bump_if_changed(broker_group, before)
        return True

    def knows_id(self, cluster: str, broker_group: str) -> bool:
        """Return whether a registered node has reported the id of that broker group."""
        return any(record.route.group_id for _, record in self._records((cluster, broker_group)))

    def registered(self, besides: NodeKey) -> tuple[int, int]:
        """Return the number of registered nodes except one, and the bytes of their registrations."""
        sizes = [record.size for key, record in self._nodes.items() if key != besides]
        return len(sizes), sum(sizes)

    def register(
        self, node_id: str, incarnation: str, route: pb.GroupRoute, is_leader: bool, now: int
    ) -> bool:
        """Store a full registration. Returns whether a view changed.

        An older registration of a broker group never hides a newer one. Requires that there are no `rivals`,
        or that they made way.
        """
        key = (route.cluster, route.group, node_id)
        before = self._shown(key[:2])
        known = self._nodes.get(key)
        term, leader_id = route.term, route.leader_id
        if known is not None and known.incarnation == incarnation and known.term > term:
            term, leader_id = known.term, known.leader_id  # a beat has already brought newer information
        knew_leader = bool(leader_id) or (
            known is not None and known.incarnation == incarnation and known.knew_leader
        )
        self._nodes[key] = NodeRecord(
            route,
            incarnation,
            is_leader,
            now,
            now,
            term,
            leader_id,
            route.ByteSize(),
            knew_leader=knew_leader,
        )
        gone = self._gone.pop(key[:2], None)
        if gone is not None and not route.master_id and belongs_to(gone.view, route):
            # A slave that asks for its master, which is away.
            route.master_id, route.generation = gone.view.master_id, gone.view.generation
        return self._bump_if_changed(key[:2], before)

    def take_back(self, node_id: str, incarnation: str, route: pb.GroupRoute) -> bool:
        """Forget what a node reported before it knew its broker group id. Returns whether a view changed."""
        key = (route.cluster, route.group, node_id)
        record = self._nodes.get(key)
        if record is None or record.incarnation != incarnation:
            return False
        before = self._shown(key[:2])
        del self._nodes[key]  # not `_forget`: its rivals are registered
        return self._bump_if_changed(key[:2], before)

    def beat(
        self,
        cluster: str,
        broker_group: str,
        node_id: str,
        term: int,
        leader_id: str,
        now: int,
        group_id: int = 0,
    ) -> bool:
        """Handle a heartbeat. Returns False if the node is unknown and must register again."""
        record = self._record((cluster, broker_group, node_id), group_id)
        if record is None:
            return False
        before = self._shown((cluster, broker_group))
        record.heard_at = now
        record.suspect_since = None
        if (term, bool(leader_id)) >= (record.term, bool(record.leader_id)):
            record.term, record.leader_id = term, leader_id
            record.knew_leader |= bool(leader_id)
        self._bump_if_changed((cluster, broker_group), before)
        return True

    def suspect(self, cluster: str, broker_group: str, node_id: str, now: int, group_id: int = 0) -> bool:
        """Mark a node as suspect because its stream closed: it is not shown as alive until heard again.

        Returns whether a view changed.
        """
        record = self._record((cluster, broker_group, node_id), group_id)
        if record is None:
            return False
        before = self._shown((cluster, broker_group))
        record.suspect_since = now
        return self._bump_if_changed((cluster, broker_group), before)

    def unregister(self, cluster: str, broker_group: str, node_id: str, group_id: int = 0) -> bool:
        """Forget a node that says goodbye. Returns whether a view changed."""
        if self._record((cluster, broker_group, node_id), group_id) is None:
            return False
        before = self._shown((cluster, broker_group))
        self._forget((cluster, broker_group, node_id))
        return self._bump_if_changed((cluster, broker_group), before)

    def remove(self, cluster: str, broker_group: str, node_id: str, group_id: int = 0) -> bool:
        """Forget a whole broker group that has left the cluster for good, as one of its nodes reports.

        Returns whether a view changed. A node that was away when its broker group was restored reports the
        same. So while another node of it lives and takes messages, only the reporting node is forgotten.
        Nothing is forgotten if another broker group now has the name.
        """
        route = pb.GroupRoute(cluster=cluster, group=broker_group, group_id=group_id)
        if self.rivals(route):
            return False
        if any(
            key[:2] == (cluster, broker_group)
            and key[2] != node_id
            and record.suspect_since is None
            and record.route.mode == pb.MODE_ACTIVE
            for key, record in self._nodes.items()
        ):
            return self.unregister(cluster, broker_group, node_id, group_id)
        before = self._shown((cluster, broker_group))
        for key in [key for key in self._nodes if key[:2] == (cluster, broker_group)]:
            del self._nodes[key]
        self._gone.pop((cluster, broker_group), None)
        return self._bump_if_changed((cluster, broker_group), before)

    def nodes_of(self, cluster: str, broker_group: str) -> list[str]:
        """Return the ids of the registered nodes of a broker group, including suspect ones."""
        return sorted(node_id for node_id, _ in self._records((cluster, broker_group)))

    def forget(self, cluster: str, broker_group: str) -> bool:
        """Forget a broker group without registered nodes that is lost for good.

        Returns whether it was remembered.

        A node that comes back after all registers like one of a new broker group.
        """
        assert not self.nodes_of(cluster, broker_group), "it lives"
        return self._gone.pop((cluster, broker_group), None) is not None

    def expire(self, now: int) -> list[NodeKey]:
        """Drop the nodes that were silent for `expiry_ms`, and return them."""
        gone = [key for key, record in self._nodes.items() if now - record.heard_at >= self.expiry_ms]
        for key in gone:
            before = self._shown(key[:2])
            self._forget(key)
            self._bump_if_changed(key[:2], before)
        return gone

    def _forget(self, key: NodeKey) -> None:
        """Forget a node. If it was the last of its broker group, remember that it was here."""
        if key not in self._nodes:
            return
        broker_group = key[:2]
        view = self._view(broker_group, None)
        heard_at = self._nodes.pop(key).heard_at
        if any(True for _ in self._records(broker_group)):
            return
        topics = tuple(view.topics)
        view.leader_id = ""
        del view.topics[:]
        for node in view.nodes:
            node.alive = False
        self._gone[broker_group] = DepartedBrokerGroup(view, topics, heard_at)
        while len(self._gone) > MAX_GONE_BROKER_GROUPS:
            del self._gone[next(iter(self._gone))]

    def master(self, cluster: str, broker_group: str) -> tuple[int, str]:
        """Return (generation, master id) of a broker group as far as its nodes reported it; (0, "") without a
        master.
        """
        records = dict(self._records((cluster, broker_group)))
        if records:
            return _master(records)
        gone = self._gone.get((cluster, broker_group))
        return (gone.view.generation, gone.view.master_id) if gone is not None else (0, "")

    # --- what clients ask -----------------------------------------------------------------------------------

    def clusters(self) -> list[str]:
        """Return the names of all known clusters."""
        return sorted({cluster for cluster, _, _ in self._nodes})

    def the_cluster(self, cluster: str) -> str:
        """Return `cluster`, or the only known one if it is "".

        Returns "" if that is ambiguous or nothing is known.
        """
        known = self.clusters()
        return cluster or (known[0] if len(known) == 1 else "")

    def broker_groups(self, cluster: str, listener: str | None = "") -> list[pb.GroupRoute]:
        """Return the views of all broker groups of `cluster`, with the addresses of one listener (None: of
        all).
        """
        names = sorted({broker_group for each, broker_group, _ in self._nodes if each == cluster})
        return [self._view((cluster, name), listener) for name in names]

    def gone_broker_groups(self, cluster: str, listener: str = "") -> list[pb.GroupRoute]:
        """Return the broker groups of `cluster` ("": of all) whose last node has left, as they were then.

        Clients never get them.
        """
        views = []
        for gone in self.remembered(cluster):
            view = pb.GroupRoute()
            view.CopyFrom(gone.view)
            for node in view.nodes:
                _keep_listener(node, listener)
            views.append(view)
        return views

    def remembered(self, cluster: str) -> list[DepartedBrokerGroup]:
        """Return the memory of the broker groups that `gone_broker_groups` returns, in the same order."""
        return [self._gone[key] for key in sorted(self._gone) if cluster in ("", key[0])]

    def route(self, cluster: str, topic: str, listener: str = "") -> list[pb.GroupRoute]:
        """Return the broker groups that have `topic`, each with that topic only; empty if none has it."""
        return [view for view in self.broker_groups(cluster, listener) if keep_topics(view, {topic})]

    def similar_topics(self, cluster: str, topic: str) -> list[str]:
        """Return up to three known topic names similar to `topic`."""
        if len(topic) > MAX_TEXT:
            return []
        known = {info.name for view in self.broker_groups(cluster) for info in view.topics}
        if len(known) > _MAX_COMPARED:
            return []
        return get_close_matches(topic, sorted(known), n=3, cutoff=0.6)

    # --- views ----------------------------------------------------------------------------------------------

    def _record(self, key: NodeKey, group_id: int) -> NodeRecord | None:
        """Return a node's record; None if it belongs to another node of that name, with another broker group
        id or none so far.
        """
        record = self._nodes.get(key)
        if record is None or record.route.group_id in (0, group_id):
            return record
        return None

    def _records(self, key: BrokerGroupKey) -> Iterator[tuple[str, NodeRecord]]:
        return ((node_id, record) for (c, g, node_id), record in self._nodes.items() if (c, g) == key)

    def _shown(self, key: BrokerGroupKey) -> bytes:
        """Return the broker group as an answer with all listeners would show it, for comparison."""
        if not any(True for _ in self._records(key)):
            return b""
        return self._view(key, None).SerializeToString(deterministic=True)

    def _bump_if_changed(self, key: BrokerGroupKey, before: bytes) -> bool:
        changed = self._shown(key) != before
        self.revision += changed
        return changed

    def _view(self, key: BrokerGroupKey, listener: str | None) -> pb.GroupRoute:
        """Merge the reports of a broker group's nodes. `listener` None keeps all listeners."""
        records = dict(self._records(key))
        _, best = max(records.items(), key=lambda item: (item[1].order, item[0]))
        view = pb.GroupRoute(
            cluster=key[0], group=key[1], version=best.route.version, writable=best.route.writable,
            max_message_bytes=best.route.max_message_bytes, max_request_bytes=best.route.max_request_bytes,
            mode=best.route.mode, group_id=best.route.group_id, former_group_ids=_former_group_ids(records,
            best),
            replication=best.route.replication,
        )  # fmt: skip
        view.term, view.leader_id = _leader(records)
        view.generation, view.master_id = _master(records)
        view.topics.extend(sorted(best.route.topics, key=lambda info: info.name))
        infos = {info.node_id: info for info in best.route.nodes}
        for node_id in sorted(infos.keys() | records.keys()):
            view.nodes.append(_node(node_id, infos.get(node_id), records.get(node_id), best, listener))
        return view


def keep_topics(view: pb.GroupRoute, topics: set[str]) -> bool:
    """Remove all other topics from `view`. Returns whether any is left."""
    kept = [info for info in view.topics if info.name in topics]
    del view.topics[:]
    view.topics.extend(kept)
    return bool(kept)


def _former_group_ids(records: dict[str, NodeRecord], best: NodeRecord) -> list[int]:
    """Return the ids before that of the best view. A node that came without data knows none."""
    told = [best, *(records[node_id] for node_id in sorted(records))]
    return list(
        dict.fromkeys(
            former
            for record in told
            if record.route.group_id == best.route.group_id
            for former in record.route.former_group_ids
        )
    )


def _leader(records: dict[str, NodeRecord]) -> tuple[int, str]:
    """Return (term, leader id) of the highest term; no leader while that node is suspect."""
    term = max(record.term for record in records.values())
    named = {record.leader_id for record in records.values() if record.term == term and record.leader_id}
    leader_id = min(named, default="")
    leader = records.get(leader_id)
    if leader is not None and leader.suspect_since is not None:
        leader_id = ""
    return term, leader_id


def _master(records: dict[str, NodeRecord]) -> tuple[int, str]:
    """Return (generation, master id) as the latest generation reports it; (0, "") without a master."""
    return max((record.route.generation, record.route.master_id) for record in records.values())


def _node(
    node_id: str, told: pb.NodeInfo | None, own: NodeRecord | None, best: NodeRecord, listener: str | None
) -> pb.NodeInfo:
    """Merge the best view of a node with the node's own report. Its own addresses win."""
    own_info = next((info for info in own.route.nodes if info.node_id == node_id), None) if own else None
    info = pb.NodeInfo(node_id=node_id)
    info.CopyFrom(own_info or told or info)
    info.node_id = node_id
    if told is not None:
        info.voter = told.voter
    if own is None:
        info.alive = told is not None and told.alive
    elif own.suspect_since is not None:
        # Its stream to this nameserver closed. A later report of the leader that it lives takes precedence.
        info.alive = (
            told is not None and told.alive and best is not own and best.registered_at > own.suspect_since
        )
    else:
        info.alive = True
    if listener is not None:
        _keep_listener(info, listener)
    return info


def _keep_listener(info: pb.NodeInfo, listener: str) -> None:
    """Keep the addresses of the listener of that name, else of the first one."""
    chosen = next((each for each in info.listeners if each.name == listener), None)
    kept = [chosen] if chosen is not None else list(info.listeners[:1])
    del info.listeners[:]
    info.listeners.extend(kept)
