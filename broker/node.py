"""One broker node: assembles Raft, state, pipeline and services, opens the ports, and closes all in order.

Owns: the life of all parts. Must not: hold logic of its own.
Stop: no new calls, drain what is under way, hand over the lead, flush, mark a clean stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Final

import grpc

from ledgermq.proto.route_pb2 import ListenerAddresses, NodeInfo
from ledgermq.raft.config import Member, RaftConfig
from ledgermq.raft.core.reign import Replication
from ledgermq.raft.disk.files import FileSystem, RealFileSystem, make_private
from ledgermq.raft.errors import NotLeaderError, TransferFailedError
from ledgermq.raft.folder.group_recovery import PromotionPlan
from ledgermq.raft.node.node import RaftNode
from ledgermq.raft.ports.counts import PortCounts
from ledgermq.raft.repair.scrub_plan import ScrubPlan
from ledgermq.raft.types import NodeId

from .admin import broker_group_view as group_view
from .admin.deliveries import tell_parked
from .admin.service import AdminService
from .checkpoint.queue_check import QueueCheck
from .checkpoint.schedule import Checkpointing
from .checkpoint.store import CheckpointStore
from .checkpoint.transfer import BrokerStateTransfer
from .cluster.calls import LeaderCalls
from .cluster.forwarding import Forwarder
from .cluster.known_leader import Leadership
from .cluster.lane_server import forwarded_calls_handler
from .cluster.members import Members
from .cluster.other_broker_groups import OtherGroups
from .cluster.registration import Registration
from .cluster.slaves import SlaveGate
from .config import BrokerConfig
from .errors import ConsumeQueueError
from .leader.coordination import Coordination
from .leader.pipeline import AppendPipeline
from .leader.recent_deliveries import RecentDeliveries
from .metrics import Metrics
from .native.fetch import offset_at_time
from .native.log_service import LogService
from .official.grants_for_followers import GrantService
from .official.service import MessagingService
from .ports.http import Routes
from .ports.listeners import Handlers, Listeners, PortError, check_port
from .ports.policy import port_policy
from .reading.consume_queue_files import ConsumeQueueFiles
from .reading.key_index import KeyIndex
from .reading.key_runs import Builds
from .reading.log_reader import LogReader
from .reading.memory import usable_memory
from .reading.polls import Polls
from .reading.read_advice import ReadAdvice
from .replica import Replica
from .retention.keeper import Retention
from .retention.topics import TopicRetention
from .service.context import NodeContext
from .service.features import SUPPORTED, FeatureMemory
from .service.peers import Peers
from .service.probes import Probes, starting
from .service.sessions import ClientsHere
from .service.telemetry import TelemetryStreams
from .service.trace_topic import TraceTopic
from .state.commands import BrokerGroupMode
from .state.effects import Effects

logger = logging.getLogger(__name__)

#: Seconds that calls under way get at a stop.
DRAIN_SECONDS: Final = 1.0
DEFAULT_GROUP_POLICY: Final = (False, 17)


def raft_config(config: BrokerConfig) -> RaftConfig:
    """Return the settings of the consensus layer."""
    return RaftConfig(
        cluster_id=config.cluster,
        group=config.group,
        node_id=NodeId(config.node_id),
        members=tuple(Member(NodeId(name), address) for name, address in config.voters.items()),
        data_dir=config.data_dir,
        bind=config.raft_bind,
        rejoin=config.rejoin,
        segment_size=config.segment_size,
        flush=config.flush,
        direct_write_bytes=config.direct_write_bytes,
        replication=Replication(config.replication),
        master=config.master,
        heartbeat_ms=config.heartbeat_ms,
        election_ms_min=config.election_timeout_ms[0],
        election_ms_max=config.election_timeout_ms[1],
        scrub_bytes_per_second=config.scrub_bytes_per_second,
        scrub_interval_s=config.scrub_interval_hours * 3600,
        feature_level=SUPPORTED,
    )


def own_info(config: BrokerConfig) -> NodeInfo:
    """Return this node as it reports itself."""
    listeners = [
        ListenerAddresses(
            name=each.name, messaging_address=each.messaging_advertise, log_address=each.log_advertise
        )
        for each in config.listener
    ]
    return NodeInfo(node_id=config.node_id, listeners=listeners, zone=config.zone, alive=True, voter=True)


def read_advice(config: BrokerConfig) -> ReadAdvice:
    """Return who is told to read from a follower."""
    in_memory = config.access_message_in_memory_max_bytes
    if not in_memory:
        in_memory = usable_memory() * config.access_message_in_memory_max_ratio // 100
    return ReadAdvice(in_memory, enabled=config.follower_reads)


def slave_gate(config: BrokerConfig, raft: RaftNode) -> SlaveGate | None:
    """Return what an answer to a producer waits for besides commit."""
    if config.replication != "sync_master":
        return None
    return SlaveGate(
        raft, config.min_insync_slaves, config.slave_timeout_ms, contact_ms=config.election_timeout_ms[0]
    )


def promise_of(config: BrokerConfig) -> str:
    """Return what to say of settings that promise less than their names do; "" = nothing."""
    if config.replication != "sync_master" or config.flush == "sync":
        return ""
    return (
        f"replication sync_master with flush {config.flush}: a confirmed message is in the memory of the master and of"
        f" {config.min_insync_slaves} more, not on their disks; when all of these lose power it is lost. To have it on disk set"
        " flush = sync on every node"
    )


class BrokerNode:
    """Use: `await start()`, `ready_line()`, `await wait_fatal()`, `await stop()`."""

    def __init__(
        self, config: BrokerConfig, *, files: FileSystem | None = None, http: PortCounts | None = None
    ) -> None:
        """`http`: the counts of the port that serves `routes`, for the metrics."""
        self.config = config
        self.node_id = config.node_id
        self._metrics = Metrics()
        self._leadership = Leadership(config.node_id)
        self._polls = Polls(config.max_poll_queues)
        files = files or RealFileSystem()  # a test may bring a disk that fails or forgets
        self._files = files
        queue_files = ConsumeQueueFiles(files, config.data_dir / "consumequeue")
        self._store = CheckpointStore(files, config.data_dir / "checkpoint", queue_files)
        self._replica = Replica(self._store, self._leadership, self._polls)
        self._replica.max_streams = config.max_producer_streams
        self._transfer = BrokerStateTransfer(files, self._store, self._replica)
        self._members = Members(own_info(config), config.voters)
        self._others = OtherGroups(config.cluster, config.group, config.nameservers)
        self._forwarder = Forwarder(config.node_id, config.voters)
        self._handlers = _LateHandlers()
        raft = raft_config(config)
        self._raft = RaftNode(
            raft,
            self._replica,
            state_transfer=self._transfer,
            rpc_handlers=(self._handlers,),
            files=files,
            registry=self._metrics.registry,
        )
        if http is not None:
            self._raft.metrics.ports.include(http)
        pipeline = AppendPipeline(self._raft, raft.max_entry_size, self._metrics.commit_seconds.observe)
        self._replica.attach(
            pipeline, self._raft.next_timestamp, lambda index: self._raft.log.header_nowait(index)
        )
        self._queue_check: QueueCheck | None = None
        self._replica.on_damage = self._on_queue_damage
        self._pipeline = pipeline
        self._telemetry = TelemetryStreams(
            self._group_policy,
            lambda client_id: self._context.sign_of_life(client_id),
            lambda client_id: self._clients.stream_ended(client_id),
            config.max_message_bytes,
            config.max_clients,
        )
        self._clients = ClientsHere(self._telemetry.client_ids, config.max_clients)
        self._listeners = Listeners(config.listener, port_policy(config), self._raft.metrics.ports)
        self._started = self._serves = False
        self._context: NodeContext

    # --- life -----------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Start everything. Raises: RaftError, PortError; nothing is left running then."""
        self._check_ports()
        if warning := promise_of(self.config):
            logger.warning("%s node=%s", warning, self.node_id)
        await asyncio.to_thread(make_private, self.config.data_dir)
        await self._raft.start()
        self._started = True
        self._assemble()
        self._peers.start()
        self._checkpointing.start()
        assert self._queue_check is not None
        self._queue_check.start()
        self._context.keys.start()
        self._retention.start()
        self._topic_retention.start()
        await self._listeners.start(self._client_handlers)
        self._registration.start()
        self._others.start()
        self._serves = True

    def routes(self) -> Routes:
        """Return what the HTTP port answers now: also while the node opens its folder, or its log is repaired."""
        if self._serves:
            return self._probes.routes()
        return starting(self._raft.starting or "opens its ports", self._metrics)

    def _check_ports(self) -> None:
        """Name the port that is taken, before anything is opened. Raises: PortError."""
        addresses = {"http_bind": self.config.http_bind}
        for each in self.config.listener:
            addresses |= {
                f"listener {each.name} messaging_bind": each.messaging_bind,
                f"listener {each.name} log_bind": each.log_bind,
            }
        taken: dict[str, str] = {}
        for key, address in [*addresses.items(), ("raft_bind", self.config.raft_bind)]:
            if address in taken and not address.endswith(":0"):
                raise PortError(key, address, f"{taken[address]} has the same address")
            taken[address] = key
        del addresses["http_bind"]  # open already: this process answers probes there
        for key, address in addresses.items():
            check_port(key, address)

    def _assemble(self) -> None:
        """Build what stands on the running Raft node."""
        if (reign := self._raft.config.reign) is not None:
            self._members.set_master(reign.master)
        self._context = self._make_context()
        self._make_keepers()
        self._messaging = MessagingService(self._context)
        self._log = LogService(self._context)
        self._admin = AdminService(self._context, self._retention.clean)
        self._peers = Peers(
            self._members,
            self._leadership,
            self._forwarder,
            lambda: self._clients.report(time.monotonic()),
            self._context.clients_alive,
            self._silence_ms,
            self._changed,
        )
        self._registration = Registration(
            self.config.nameservers,
            lambda: group_view.registration(self._context, f"{self._raft.status().incarnation:016x}"),
            lambda: group_view.beat(self._context),
            lambda: self._replica.state.mode is BrokerGroupMode.REMOVED,
        )
        self._probes = Probes(self._context)
        self._leadership.add_listener(self._on_leadership)
        remember_features = FeatureMemory(self._context).remember
        self._replica.chores.append(remember_features)
        for begin_to_lead in (
            remember_features,
            TraceTopic(self._context).on_leadership,
        ):
            self._leadership.add_listener(begin_to_lead)
            begin_to_lead()  # it may lead already
        self._replica.observe(self._on_effects)
        self._context.coordination.attach()
        self._handlers.set(
            [
                self._peers.handler(),
                self._messaging.handlers(""),
                self._admin.handlers(""),
                self._log.handlers(""),
                forwarded_calls_handler(self._handlers.named),
                GrantService(self._context).handler(),
            ]
        )

    def _make_keepers(self) -> None:
        """Make what looks after the files: checkpoints, retention, the check of queue files."""
        self._checkpointing = Checkpointing(
            self._replica,
            self._store,
            durable_index=lambda: self._raft.storage.statistics().flushed_index,
            log_end=lambda: self._raft.log.end_offset,
            on_failed=self._raft.fail,
            fault=lambda: self.fault,
        )
        self._transfer.attach(self._checkpointing)
        self._retention = Retention(
            self._context,
            disk_use=lambda: self._files.disk_use(self.config.data_dir),
            checkpoint_now=self._checkpointing.write_now,
            floor=lambda: self._checkpointing.floor,
            on_change=self._changed,
        )
        self._topic_retention = TopicRetention(self._context)
        self._queue_check = QueueCheck(
            self._replica,
            self._raft.log,
            ScrubPlan(self.config.scrub_bytes_per_second, self.config.scrub_interval_hours * 3600),
            self._raft.care.repair.counts,
            rewrite=self._checkpointing.rewrite,
            repair_log=self._raft.care.damage_at_read,
            on_failed=self._raft.fail,
        )
        self._replica.rebuilt = self._queue_check.rebuilt

    def _make_context(self) -> NodeContext:
        """Gather what the services of this node share."""
        return NodeContext(
            config=self.config,
            raft=self._raft,
            replica=self._replica,
            pipeline=self._pipeline,
            leadership=self._leadership,
            members=self._members,
            others=self._others,
            forwarder=self._forwarder,
            calls=LeaderCalls(
                self._leadership,
                self._forwarder,
                lambda result: self._metrics.forwards.labels(result).inc(),
            ),
            polls=self._polls,
            reader=LogReader(self._raft.log, self._raft.care.damage_at_read),
            transfer=self._transfer,
            keys=self._key_index(),
            telemetry=self._telemetry,
            clients=self._clients,
            metrics=self._metrics,
            deliveries=RecentDeliveries(),
            coordination=Coordination(
                self._replica,
                self._pipeline,
                self._leadership,
                self.config.zone,
                lambda *where: offset_at_time(self._context, *where),
            ),
            advice=read_advice(self.config),
            slaves=slave_gate(self.config, self._raft),
        )

    def _key_index(self) -> KeyIndex:
        folder, repair = self.config.data_dir / "keyindex", self._raft.care.damage_at_read
        builds = Builds(self._raft.log, self._files, folder, repair)
        index = KeyIndex(builds, lambda: self._raft.applied_index)
        self._replica.observe(index.on_effects)
        return index

    async def stop(self) -> None:
        """Refuse new calls, drain, hand over the lead, close everything."""
        if not self._started:
            return
        await self._registration.stop()
        await self._others.stop()
        await self._raft_hand_over()
        self._context.stopping = True
        self._context.coordination.stop()
        self._polls.wake_all()
        await self._listeners.stop(DRAIN_SECONDS)
        await self._peers.stop()
        await self._messaging.stop()
        await self._retention.stop()
        await self._topic_retention.stop()
        await self._forwarder.close()
        await self._context.keys.stop()
        if self._queue_check is not None:
            await self._queue_check.stop()
        await self._checkpointing.stop()
        await self._raft.stop(transfer=True)
        self._replica.close()

    async def _raft_hand_over(self) -> None:
        """Hand over the lead first, so that calls under way are forwarded to the new leader instead of failing."""
        if not self._raft.is_leader or len(self._raft.config.voters) == 1:
            return
        try:
            leader = await self._raft.transfer_leadership()
            logger.info("lead handed over to=%s", leader)
        except (TransferFailedError, NotLeaderError) as error:
            logger.warning("lead not handed over reason=%s", error)

    @property
    def fault(self) -> str | None:
        """Why this node must not go on; None = it is well."""
        return self._raft.fault

    async def wait_fatal(self) -> str:
        """Wait for a fault; return why."""
        return await self._raft.wait_fatal()

    async def wait_reset(self) -> None:
        """Wait until this node is to be replaced by another one on the same folder, with the leader's state (D8)."""
        await self._raft.reset_decided.wait()

    async def wait_promotion(self) -> None:
        """Wait until this node is to be stopped and promoted (promotion.py)."""
        await self._context.promotion.wait()

    @property
    def promotion_plan(self) -> PromotionPlan | None:
        """What this node's folder begins when it has stopped; None: nothing, or another node was promoted meanwhile."""
        return None if self._raft.is_left_behind else self._context.promotion_plan

    def ready_line(self) -> str:
        """Return the line that tells whoever started the process where everything is."""
        config, first = self.config, self.config.listener[0]
        return (
            f"ready node={config.node_id} group={config.group} messaging={first.messaging_bind} "
            f"log={first.log_bind} raft={config.raft_bind} http={config.http_bind}"
        )

    # --- what the parts ask and tell ------------------------------------------------------------------------
    def _client_handlers(self, listener: str) -> tuple[Handlers, Handlers]:
        return (
            [self._log.handlers(listener), self._admin.handlers(listener)],
            [self._messaging.handlers(listener)],
        )

    def _group_policy(self, name: str) -> tuple[bool, int]:
        group = self._replica.state.groups.find(name)
        return (group.fifo, group.max_attempts) if group is not None else DEFAULT_GROUP_POLICY

    def _silence_ms(self) -> dict[str, int | None]:
        peers = self._raft.status().peers
        for peer in peers:
            if not peer.connected and peer.node_id != self.node_id:
                self._release_undelivered(str(peer.node_id))
        return {str(peer.node_id): 0 if peer.connected else peer.last_contact_ms for peer in peers}

    def _release_undelivered(self, node_id: str) -> None:
        """A node is gone: what it may not have passed on is delivered again."""
        for command in self._context.deliveries.node_lost(node_id, time.monotonic()):
            self._replica.releases.propose(command)

    def _changed(self) -> None:
        self._registration.changed()

    def _on_queue_damage(self, error: ConsumeQueueError) -> None:
        """A reader met a damaged queue file: rebuild it; before the node runs that ends the start."""
        if self._queue_check is not None:
            self._queue_check.report(error)
        else:
            self._raft.fail(str(error))

    def _on_leadership(self) -> None:
        self._forwarder.leader_changed(self._leadership.leader_id)
        self._registration.changed()

    def _on_effects(self, effects: Effects) -> None:
        if effects.topics_changed:
            self._registration.changed()
        if effects.parked and self._leadership.ready:
            tell_parked(self._context, effects.parked)


@dataclass(frozen=True, slots=True)
class _Method(grpc.HandlerCallDetails):
    method: str


class _LateHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Handlers of the Raft port: it opens before the services exist, and they are set when they do."""

    def __init__(self) -> None:
        self._handlers: list[Any] = []
        self._named: dict[str, Any] = {}

    def set(self, handlers: list[Any]) -> None:
        self._handlers = handlers

    def named(self, method: str) -> Any:
        """Return the handler of "/service/method", None when there is none."""
        if method not in self._named and (found := self.service(_Method(method))) is not None:
            self._named[method] = found
        return self._named.get(method)

    def service(self, details: Any) -> Any:
        """Return the handler of a call, None when there is none (yet)."""
        for handler in self._handlers:
            found = handler.service(details)
            if found is not None:
                return found
        return None
