"""This node's view of its broker group: for nameservers (GroupRoute), and for `ledgermq cluster status`."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from google.protobuf.message import Message

from ledgermq.proto import admin_pb2, nameserver_pb2, route_pb2
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.node_status import PeerStatus, RaftStatus

from ..cluster.known_leader import Leadership
from ..cluster.members import Members
from ..cluster.slaves import SlaveGate
from ..config import BrokerConfig
from ..leader.pipeline import AppendPipeline
from ..reading.live_readers import LiveReaders, LiveReading
from ..replica import Replica
from ..service.disk_steps import RetentionView
from ..state.commands import BrokerGroupMode
from ..state.topics import Topic
from .promotion_claims import PromotionProgress, to_proto


def topic_info(topic: Topic, *, writable: bool = True) -> route_pb2.TopicInfo:
    """Return a topic's entry for routes."""
    return route_pb2.TopicInfo(
        name=topic.name,
        topic_id=topic.topic_id,
        queue_count=topic.queue_count,
        permission=route_pb2.READ_WRITE if writable else route_pb2.READ,
        message_type=route_pb2.TopicMessageType.Name(int(topic.message_type)),
        version=topic.version,
        retention_ms=topic.retention_ms,
        keep_unread=topic.keep_unread,
    )


@dataclass(eq=False, repr=False)
class BrokerGroupView:
    """This node's reports about its broker group to nameservers."""

    _config: BrokerConfig
    _raft: RaftNode
    _replica: Replica
    _pipeline: AppendPipeline
    _leadership: Leadership
    _members: Members

    def group_route(self) -> route_pb2.GroupRoute:
        """Return the route of this broker group, as this node knows it."""
        state = self._replica.state
        active = state.mode is BrokerGroupMode.ACTIVE
        reign = self._raft.config.reign
        return route_pb2.GroupRoute(
            cluster=self._config.cluster,
            group=self._config.group,
            term=self._raft.term,
            leader_id=self._leadership.leader_id or "",
            nodes=self._members.all(),
            topics=[topic_info(topic, writable=active) for topic in state.topics],
            version=state.applied_index,
            writable=active and not self._pipeline.produce_refusal,
            mode=route_pb2.BrokerGroupMode.Name(int(state.mode)),
            max_message_bytes=self._config.max_message_bytes,
            max_request_bytes=min(self._pipeline.max_request_bytes, 0xFFFFFFFF),
            replication=self._config.replication,
            master_id=reign.master if reign is not None else "",
            generation=reign.generation if reign is not None else 0,
            group_id=self._raft.group_id,
            former_group_ids=self._raft.former_group_ids,
        )

    def registration(self, incarnation: str) -> nameserver_pb2.RegisterRequest:
        """Return the registration of this node."""
        return nameserver_pb2.RegisterRequest(
            node_id=self._config.node_id,
            incarnation=incarnation,
            route=self.group_route(),
            is_leader=self._leadership.ready,
            knows_group_ids=True,
        )

    def beat(self) -> nameserver_pb2.HeartbeatBeat:
        """Return a heartbeat of this node."""
        return nameserver_pb2.HeartbeatBeat(
            cluster=self._config.cluster,
            group=self._config.group,
            node_id=self._config.node_id,
            term=self._raft.term,
            leader_id=self._leadership.leader_id or "",
            group_id=self._raft.group_id,
        )


def package_version() -> str:
    """Return the installed version of LedgerMQ."""
    try:
        return version("ledgermq")
    except PackageNotFoundError:
        return "unknown"


@dataclass(eq=False, repr=False)
class NodeStatus:
    """This node's view of itself and its broker group, for operators (GetStatusResponse)."""

    _config: BrokerConfig
    _raft: RaftNode
    _replica: Replica
    _pipeline: AppendPipeline
    _members: Members
    _slaves: SlaveGate | None
    _retention: RetentionView
    _promotion: PromotionProgress
    _readers: LiveReaders
    _started: float = field(default_factory=time.monotonic, init=False)

    def status(self, listener: str, *, readers: bool = False) -> admin_pb2.GetStatusResponse:
        """Return this node's view. `readers`: also report live readers that store no progress."""
        raft, refusal = self._raft.status(), self._pipeline.produce_refusal
        retention, log, slaves = self._retention, self._raft.log, self._slaves
        first = log.header_nowait(log.first_index) if log.first_index <= log.last_index else None
        told = _passed_on(raft, admin_pb2.GetStatusResponse) | {"incarnation": f"{raft.incarnation:016x}"}
        return admin_pb2.GetStatusResponse(
            **told,
            leader=self._members.addresses(raft.leader_id, listener),
            voters_in_contact=raft.voters_reachable if raft.role == "leader" else 0,
            nodes=[self._node_status(raft, peer, listener) for peer in raft.peers],
            produce_refused=bool(refusal),
            produce_refused_reason=refusal,
            version=package_version(),
            uptime_ms=int((time.monotonic() - self._started) * 1000),
            log_start_ms=first.timestamp if first is not None else 0,
            log_start_offset=log.first_offset,
            disk_step=retention.step,
            disk_step_text=retention.step.text,
            disk_used_bytes=retention.use.used,
            disk_limit_bytes=retention.use.limit,
            max_store_bytes=self._config.max_store_bytes,
            segments_going=retention.going,
            protection=retention.protection,
            mode=route_pb2.BrokerGroupMode.Name(int(self._replica.state.mode)),
            mode_since_ms=self._replica.state.mode_since,
            promoting=self._promotion.doing,
            slaves_needed=slaves.needed if slaves is not None else 0,
            slaves_in_contact=slaves.in_contact if slaves is not None else 0,
            readers=[_live_reading(each) for each in self._readers.unseen(self._replica.state)]
            if readers
            else [],
            claims=[to_proto(claim) for claim in self._raft.storage.identity.claims],
        )

    def _node_status(self, raft: RaftStatus, peer: PeerStatus, listener: str) -> admin_pb2.NodeStatus:
        """Return what `raft` knows of a member; for this node, all its own status fields, too."""
        own, leads = peer.node_id == raft.node_id, raft.role == "leader"
        told = _passed_on(peer, admin_pb2.NodeStatus)
        if own:
            told |= _passed_on(raft, admin_pb2.NodeStatus)
        elif leads and not peer.connected:
            told["role"] = "unreachable"
        return admin_pb2.NodeStatus(
            **told,
            addresses=self._members.addresses(peer.node_id, listener),
            state=_state(peer, leads=leads),
        )


def _passed_on(status: RaftStatus | PeerStatus, message: type[Message]) -> dict[str, Any]:
    """Return the fields of `status` that `message` also has, without those that are None (unknown)."""
    known = message.DESCRIPTOR.fields_by_name
    told = {field.name: getattr(status, field.name) for field in fields(status) if field.name in known}
    if "log_check" in told:
        told["log_check"] = asdict(told["log_check"])
    return {name: value for name, value in told.items() if value is not None}


def _live_reading(each: LiveReading) -> admin_pb2.LiveReading:
    return admin_pb2.LiveReading(
        group=each.consumer_group, topic=each.topic, streams=each.streams, behind=each.behind
    )


def _state(peer: PeerStatus, *, leads: bool) -> str:
    # Only the leader's refusal keeps a node out of the broker group.
    if peer.repairing:
        return peer.repairing
    if peer.refused_lately and leads:
        return "refused"
    return "catching up" if peer.catching_up else ""
