"""What this node says of its group: to nameservers (GroupRoute) and to `ledgermq cluster status` (GetStatusResponse)."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version

from ledgermq.proto import admin_pb2, nameserver_pb2, route_pb2
from ledgermq.raft.status import PeerStatus

from ..reading.live_readers import Reading
from ..service.context import NodeContext
from ..state.commands import BrokerGroupMode
from ..state.topics import Topic
from .promotion_claims import to_proto


def topic_info(topic: Topic, *, writable: bool = True) -> route_pb2.TopicInfo:
    """Return a topic as it stands in routes."""
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


def group_route(context: NodeContext) -> route_pb2.GroupRoute:
    """Return all that this node knows of its group."""
    state = context.replica.state
    active = state.mode is BrokerGroupMode.ACTIVE
    reign = context.raft.config.reign
    return route_pb2.GroupRoute(
        cluster=context.config.cluster,
        group=context.config.group,
        term=context.raft.term,
        leader_id=context.leadership.leader_id or "",
        nodes=context.members.all(),
        topics=[topic_info(topic, writable=active) for topic in state.topics],
        version=state.applied_index,
        writable=active and not context.replica.produce_refusal,
        mode=route_pb2.BrokerGroupMode.Name(int(state.mode)),
        max_message_bytes=context.config.max_message_bytes,
        max_request_bytes=min(context.pipeline.max_request_bytes, 0xFFFFFFFF),
        replication=context.config.replication,
        master_id=reign.master if reign is not None else "",
        generation=reign.generation if reign is not None else 0,
        group_id=context.raft.group_id,
        former_group_ids=context.raft.former_group_ids,
    )


def registration(context: NodeContext, incarnation: str) -> nameserver_pb2.RegisterRequest:
    """Return the registration of this node."""
    return nameserver_pb2.RegisterRequest(
        node_id=context.config.node_id,
        incarnation=incarnation,
        route=group_route(context),
        is_leader=context.leadership.ready,
        knows_group_ids=True,
    )


def beat(context: NodeContext) -> nameserver_pb2.HeartbeatBeat:
    """Return a heartbeat of this node."""
    return nameserver_pb2.HeartbeatBeat(
        cluster=context.config.cluster,
        group=context.config.group,
        node_id=context.config.node_id,
        term=context.raft.term,
        leader_id=context.leadership.leader_id or "",
        group_id=context.raft.group_id,
    )


def package_version() -> str:
    """Return the installed version of LedgerMQ."""
    try:
        return version("ledgermq")
    except PackageNotFoundError:
        return "unknown"


def status(
    context: NodeContext, listener: str, started: float, *, readers: bool = False
) -> admin_pb2.GetStatusResponse:
    """Return this node's own view. `started`: monotonic seconds; `readers`: also who reads here and stores no progress."""
    raft, refusal = context.raft.status(), context.replica.produce_refusal
    retention, log, slaves = context.retention, context.raft.log, context.slaves
    first = log.header_nowait(log.first_index) if log.first_index <= log.last_index else None
    return admin_pb2.GetStatusResponse(
        cluster=context.config.cluster,
        group=context.config.group,
        node_id=context.config.node_id,
        role=raft.role,
        term=raft.term,
        term_age_ms=raft.since_ms,
        leader_id=raft.leader_id or "",
        leader=context.leader_addresses(listener),
        voters=raft.voters,
        voters_in_contact=raft.voters_reachable if raft.role == "leader" else 0,
        flush=raft.flush,
        nodes=[_node_status(context, peer, listener, leads=raft.role == "leader") for peer in raft.peers],
        produce_refused=bool(refusal),
        produce_refused_reason=refusal,
        version=package_version(),
        incarnation=f"{raft.incarnation:016x}",
        first_index=raft.first_index,
        log_bytes=raft.log_bytes,
        uptime_ms=int((time.monotonic() - started) * 1000),
        log_start_ms=first.timestamp if first is not None else 0,
        log_start_offset=log.first_offset,
        disk_step=retention.step,
        disk_step_text=retention.step.text,
        disk_used_bytes=retention.use.used,
        disk_limit_bytes=retention.use.limit,
        max_store_bytes=context.config.max_store_bytes,
        clock_offset_ms=raft.clock_offset_ms,
        timer_lateness_ms=raft.timer_lateness_ms,
        heartbeat_lateness_ms=raft.heartbeat_lateness_ms,
        election_timeout_ms=raft.election_timeout_ms,
        election_timeout_added_ms=raft.election_timeout_added_ms,
        segments_going=retention.going,
        protection=retention.protection,
        held_back=raft.held_back,
        mode=route_pb2.BrokerGroupMode.Name(int(context.replica.state.mode)),
        mode_since_ms=context.replica.state.mode_since,
        replication=raft.replication,
        master_id=raft.master,
        generation=raft.generation,
        last_index=raft.last_index,
        last_term=raft.last_term,
        promoting=context.promoting,
        slaves_needed=slaves.needed if slaves is not None else 0,
        slaves_in_contact=slaves.in_contact if slaves is not None else 0,
        readers=[_live_reading(each) for each in context.readers.unseen(context.replica.state)]
        if readers
        else [],
        claims=[to_proto(claim) for claim in context.raft.storage.identity.claims],
    )


def _live_reading(each: Reading) -> admin_pb2.LiveReading:
    return admin_pb2.LiveReading(group=each.group, topic=each.topic, streams=each.streams, behind=each.behind)


def _node_status(
    context: NodeContext, peer: PeerStatus, listener: str, *, leads: bool
) -> admin_pb2.NodeStatus:
    own = peer.node_id == context.config.node_id
    raft = context.raft
    unreachable = leads and not own and not peer.connected
    return admin_pb2.NodeStatus(
        node_id=peer.node_id,
        role="unreachable" if unreachable else peer.role,
        addresses=context.members.addresses(peer.node_id, listener),
        durable_index=peer.durable_index or 0,
        commit_index=(raft.commit_index if own else peer.commit_index) or 0,
        applied_index=raft.applied_index if own else 0,
        behind_bytes=peer.behind_bytes or 0,
        fsync_p99_ms=peer.fsync_p99_ms or 0.0,
        disk_used_ratio=peer.disk_used_ratio or 0.0,
        last_contact_ms=peer.last_contact_ms or 0,
        state=_state(peer, leads=leads),
        refused=peer.refused,
        log_check=_log_check(context) if own else None,
    )


def _state(peer: PeerStatus, *, leads: bool) -> str:
    # Only the leader's refusal keeps a node out of the group.
    if peer.repairing:
        return peer.repairing
    if peer.refused_lately and leads:
        return "refused"
    return "catching up" if peer.catching_up else ""


def _log_check(context: NodeContext) -> admin_pb2.LogCheck:
    counts = context.raft.care.repair.counts
    return admin_pb2.LogCheck(
        read_bytes=counts.read_bytes,
        passes=counts.passes,
        found=counts.found,
        repaired=counts.repaired,
        last=counts.last,
    )
