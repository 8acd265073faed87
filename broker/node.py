"""Broker node: assembles Raft, state, pipeline and services, opens the ports, and closes everything in order.

Owns: the lifetime of all parts.   Must not: contain logic of its own.
Stop: refuse new calls, drain calls in progress, transfer leadership, flush, mark a clean stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc

from ledgermq.proto.route_pb2 import ListenerAddresses, NodeInfo
from ledgermq.raft.config import Member, RaftConfig
from ledgermq.raft.core.reign import Replication
from ledgermq.raft.disk.files import FileSystem, RealFileSystem, make_private
from ledgermq.raft.errors import NotLeaderError, TransferFailedError
from ledgermq.raft.folder.group_recovery import PromotionPlan
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.peer_tls import NO_TLS, PeerTls, load_peer_tls
from ledgermq.raft.ports.counts import PortCounts
from ledgermq.raft.repair.scrub_plan import ScrubPlan
from ledgermq.raft.types import NodeId

from .admin.admin_service import AdminService, transfer_leadership
from .admin.broker_group_mode import BrokerGroupModes
from .admin.broker_group_view import BrokerGroupView, NodeStatus
from .admin.changes import ConsumerGroupChanges, TopicChanges
from .admin.deliveries import Deliveries, tell_parked
from .admin.dump_call import Dumps
from .admin.message_search import MessageQueries
from .admin.promotion import Promotions
from .admin.promotion_claims import GenerationClaims, PromotionProgress
from .admin.topic_holds import TopicHolds
from .checkpoint.queue_check import QueueCheck
from .checkpoint.schedule import Checkpointing
from .checkpoint.store import CheckpointStore
from .checkpoint.transfer import BrokerStateTransfer
from .cluster.forwarding import Forwarder
from .cluster.known_leader import Leadership
from .cluster.lane_server import forwarded_calls_handler
from .cluster.leader_calls import LeaderCalls
from .cluster.members import Members
from .cluster.other_broker_groups import OtherBrokerGroups
from .cluster.registration import Registration
from .cluster.slaves import SlaveGate
from .config import BrokerConfig, split_address
from .errors import ConsumeQueueError
from .leader.coordination import Coordination
from .leader.pipeline import AppendPipeline
from .leader.releases import LeaseHolders, RecentDeliveries
from .metrics import Metrics
from .native.batches import Batches
from .native.consumer_offsets import ConsumerOffsets
from .native.fetch import Fetches, SectionReads, Suggestions
from .native.log_service import FetchStreams, LogService
from .native.membership import Memberships
from .native.produce import ProduceStreams
from .official.acknowledge import Acknowledgements
from .official.give_backs import tell_leader
from .official.grants_for_followers import GrantService
from .official.messaging_service import MessagingService
from .official.receive_at_follower import GrantedReceives, OwnLog, UnclaimedGrants
from .official.receive_at_leader import LeaderReceives, Selections
from .official.send import Sends
from .official.topic_answers import TopicAnswers
from .ports.http import Routes
from .ports.listeners import Handlers, Listeners, PortError, check_port
from .ports.port_policy import port_policy
from .reading.consume_queue_files import ConsumeQueueFiles
from .reading.key_index import KeyIndex
from .reading.key_runs import Builds
from .reading.live_readers import LiveReaders
from .reading.log_reader import LogReader, QueueReader
from .reading.memory import usable_memory
from .reading.polls import CommitWatch, Polls
from .reading.read_advice import ReadAdvice
from .replica import Replica
from .retention.keeper import Retention
from .retention.topic_retention import TopicRetention
from .service.answers import LeaderHandlers, Refusals, Serve
from .service.broker_group_identity import BrokerGroupIdentity
from .service.creation import Creation
from .service.features import SUPPORTED, Features
from .service.peers import Peers
from .service.probes import Probes, readings, starting
from .service.read_barrier import ReadBarrier
from .service.sessions import ClientsHere, SignsOfLife
from .service.shutdown import Shutdown
from .service.telemetry import TelemetryStreams
from .service.trace_topic import TraceTopic
from .state.commands import BrokerGroupMode
from .state.effects import Effects

logger = logging.getLogger(__name__)

#: Time (seconds) for calls in progress to end at a stop.
DRAIN_SECONDS: Final = 1.0


def raft_config(config: BrokerConfig) -> RaftConfig:
    """Return the configuration of the Raft node."""
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
        tls=peer_tls(config),
    )


def peer_tls(config: BrokerConfig) -> PeerTls:
    """Return what the settings say of TLS between nodes. Raises: PeerCertificateError."""
    files = (config.peer_tls_certificate, config.peer_tls_private_key, config.peer_tls_ca)
    certificate, private_key, authority = files
    if config.peer_tls == "plaintext" or certificate is None or private_key is None or authority is None:
        return NO_TLS
    own_host = split_address(config.peers[config.node_id])[0] if config.peers else ""
    return load_peer_tls(
        certificate, private_key, authority, own_host, takes_plaintext=config.peer_tls == "both"
    )


def own_info(config: BrokerConfig) -> NodeInfo:
    """Return the information that this node reports about itself."""
    listeners = [
        ListenerAddresses(
            name=each.name, messaging_address=each.messaging_advertise, log_address=each.log_advertise
        )
        for each in config.listener
    ]
    return NodeInfo(node_id=config.node_id, listeners=listeners, zone=config.zone, alive=True, voter=True)


def read_advice(config: BrokerConfig) -> ReadAdvice:
    """Return the advice that moves readers with a large backlog to a follower."""
    in_memory = config.access_message_in_memory_max_bytes
    if not in_memory:
        in_memory = usable_memory() * config.access_message_in_memory_max_ratio // 100
    return ReadAdvice(in_memory, enabled=config.follower_reads)


def slave_gate(config: BrokerConfig, raft: RaftNode) -> SlaveGate | None:
    """Return the gate that an answer to a producer passes after commit; None: there is none."""
    if config.replication != "sync_master":
        return None
    return SlaveGate(raft, config.min_insync_slaves, config.slave_timeout_ms, config.election_timeout_ms[0])


def promise_of(config: BrokerConfig) -> str:
    """Return a warning about settings that guarantee less than their names suggest; "": none."""
    if config.replication != "sync_master" or config.flush == "sync":
        return ""
    return (
        f"replication sync_master with flush {config.flush}: a confirmed message is in the memory of the"
        f" master and of {config.min_insync_slaves} more, not on their disks; when all of these lose power"
        " it is lost. To have it on disk set flush = sync on every node"
    )


class BrokerNode:
    """A broker node. Call `await start()`, `ready_line()`, `await wait_fatal()`, `await stop()`."""

    def __init__(
        self, config: BrokerConfig, *, files: FileSystem | None = None, http: PortCounts | None = None
    ) -> None:
        """`http`: counters of the port that serves `routes`, for the metrics."""
        self.config = config
        self.node_id = config.node_id
        self._metrics = Metrics()
        self._leadership = Leadership(config.node_id)
        self._polls = Polls(config.max_poll_queues)
        files = files or RealFileSystem()  # tests pass one with injected faults
        self._files = files
        queue_files = ConsumeQueueFiles(files, config.data_dir / "consumequeue")
        self._store = CheckpointStore(files, config.data_dir / "checkpoint", queue_files)
        self._replica = Replica(self._store, self._leadership, self._polls, config.max_producer_streams)
        self._checkpointing = Checkpointing(
            self._replica,
            self._store,
            durable_index=lambda: self._raft.storage.statistics().flushed_index,
            log_end=lambda: self._raft.log.end_offset,
            on_failed=lambda reason: self._raft.fail(reason),
            fault=lambda: self._raft.fault,
        )
        self._transfer = BrokerStateTransfer(files, self._store, self._replica, self._checkpointing)
        self._members = Members(own_info(config), config.voters)
        self._others = OtherBrokerGroups(config.cluster, config.group, config.nameservers)
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
            pipeline,
            self._raft.next_timestamp,
            lambda index: self._raft.log.header_nowait(index),
            self,
            lambda command: tell_leader(self._calls, self._replica.releases, command),
        )
        self._is_assembled = False
        self._pipeline = pipeline
        self._unclaimed = UnclaimedGrants(self._replica.releases, self._metrics)
        self._forwarder = Forwarder(config.node_id, config.voters, self._unclaimed.take, raft.tls)
        self._calls = LeaderCalls(
            self._leadership, self._forwarder, lambda result: self._metrics.forwards.labels(result).inc()
        )
        self._shutdown = Shutdown(self._polls)
        self._promotion = PromotionProgress()
        self._deliveries = RecentDeliveries()
        self._clients = ClientsHere(config.max_clients)
        self._listeners = Listeners(config.listener, port_policy(config), self._raft.metrics.ports)
        self._started = self._serves = False

    # --- start and stop -------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Start all parts. Raises: RaftError, PortError; nothing is left running then."""
        self._check_ports()
        if warning := promise_of(self.config):
            logger.warning("%s node=%s", warning, self.node_id)
        await asyncio.to_thread(make_private, self.config.data_dir)
        await self._raft.start()
        self._started = True
        self._assemble()
        self._peers.start()
        self._checkpointing.start()
        self._queue_check.start()
        self._keys.start()
        self._retention.start()
        self._topic_retention.start()
        await self._listeners.start(self._client_handlers)
        self._registration.start()
        self._others.start()
        self._serves = True

    def routes(self) -> Routes:
        """Return the current routes of the HTTP port, also while the folder is opened or the log repaired."""
        if self._serves:
            return self._probes.routes()
        return starting(self._raft.starting or "opens its ports", self._metrics)

    def _check_ports(self) -> None:
        """Check that all ports are free before anything is opened. Raises: PortError."""
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
        del addresses["http_bind"]  # already open: this process answers probes on it
        for key, address in addresses.items():
            check_port(key, address)

    def _assemble(self) -> None:
        """Create the parts that need the running Raft node, each after those that it uses."""
        config, raft, replica, pipeline = self.config, self._raft, self._replica, self._pipeline
        leadership, members, metrics, polls = self._leadership, self._members, self._metrics, self._polls
        calls, clients, forwarder = self._calls, self._clients, self._forwarder
        if (reign := raft.config.reign) is not None:
            members.set_master(reign.master)

        # Parts that the services share
        repair = raft.care.damage_at_read
        builds = Builds(raft.log, self._files, config.data_dir / "keyindex", repair)
        self._keys = keys = KeyIndex(builds, lambda: raft.applied_index)
        slaves = slave_gate(config, raft)
        reader = LogReader(raft.log, repair)
        queues = QueueReader(replica, reader)
        commits = CommitWatch(raft)
        barrier = ReadBarrier(raft, replica, leadership)
        creation = Creation(config, replica, pipeline, leadership)
        self._features = features = Features(config, raft, replica, pipeline, leadership)
        identity = BrokerGroupIdentity(config, raft)
        refusals = Refusals(raft, leadership, members, metrics)
        leader_handlers = LeaderHandlers(calls, identity, refusals)
        holders, readers = LeaseHolders(), LiveReaders()
        signs_of_life = SignsOfLife(clients, raft, replica, holders, time.monotonic)
        self._coordination = coordination = Coordination(
            replica, pipeline, leadership, config.zone, queues.offset_at_time
        )
        view = BrokerGroupView(config, raft, replica, pipeline, leadership, members)
        self._registration = registration = Registration(
            config.nameservers,
            lambda: view.registration(f"{raft.status().incarnation:016x}"),
            view.beat,
            lambda: replica.state.mode is BrokerGroupMode.REMOVED,
        )

        # Parts that maintain files
        self._retention = retention = Retention(
            config, raft, replica, pipeline, leadership, self._checkpointing, metrics,
            disk_use=lambda: self._files.disk_use(config.data_dir), on_change=registration.changed,
        )  # fmt: skip
        self._topic_retention = TopicRetention(
            config, raft, replica, pipeline, leadership, queues, retention.view
        )
        self._queue_check = QueueCheck(
            replica,
            raft.log,
            ScrubPlan(config.scrub_bytes_per_second, config.scrub_interval_hours * 3600),
            raft.care.repair.counts,
            rewrite=self._checkpointing.rewrite,
            repair_log=repair,
            on_failed=raft.fail,
        )

        # The service for official clients, and the one that grants leases to followers
        selections = Selections(raft, replica, pipeline, polls, leadership, queues)
        at_leader = LeaderReceives(
            config, replica, creation, selections, self._deliveries, holders, reader, members, metrics
        )
        own_log = OwnLog(replica, reader, polls, commits)
        self._at_follower = GrantedReceives(config, forwarder, replica.releases, own_log, metrics)
        self._messaging = MessagingService(
            calls,
            signs_of_life,
            refusals,
            Sends(config, pipeline, creation, slaves, metrics),
            at_leader,
            self._at_follower,
            Acknowledgements(config.group, replica, pipeline, holders, features),
            TopicAnswers(config.group, replica, creation, members, self._others),
            TelemetryStreams(clients, signs_of_life, replica, config.max_message_bytes),
        )
        grants = GrantService(replica, at_leader, reader, calls, leader_handlers, signs_of_life, refusals)

        # The service for our own clients
        sections = SectionReads(replica, queues, raft, leadership, metrics)
        suggestions = Suggestions(read_advice(config), raft, replica, leadership, metrics)
        fetches = Fetches(sections, suggestions, raft, leadership, polls, commits, self._shutdown)
        self._log = LogService(
            leader_handlers,
            ProduceStreams(config, raft, pipeline, leadership, slaves, identity, refusals, metrics),
            FetchStreams(fetches, readers, identity, refusals),
            ConsumerOffsets(replica, pipeline, creation, barrier, queues),
            Memberships(coordination, leadership, replica, creation, identity, refusals),
            Batches(replica, pipeline, barrier, features),
            identity,
            refusals,
        )

        # The service for operators
        claims = GenerationClaims(config, raft, forwarder, self._promotion)
        modes = BrokerGroupModes(config, replica, pipeline, identity, features)
        topics = TopicChanges(config, replica, pipeline, creation, features)
        consumer_groups = ConsumerGroupChanges(replica, pipeline, creation, queues)
        deliveries = Deliveries(raft, replica, pipeline, reader, holders)
        holds = TopicHolds(config, raft, replica, pipeline, barrier, features)
        changes: dict[str, Serve] = {
            "CreateTopic": topics.create,
            "UpdateTopic": topics.update,
            "DeleteTopic": topics.delete,
            "SetHold": holds.set,
            "ReleaseHold": holds.release,
            "CreateGroup": consumer_groups.create,
            "DeleteGroup": consumer_groups.delete,
            "ResetOffsets": consumer_groups.reset_offsets,
            "GetDeliveries": deliveries.get,
            "ReleaseParked": deliveries.release,
            "TransferLeadership": partial(transfer_leadership, config, raft),
            "Clean": retention.clean,
            "SetBrokerGroupMode": modes.set,
        }
        self._admin = AdminService(
            leader_handlers,
            changes,
            replica,
            barrier,
            modes,
            holds,
            refusals,
            NodeStatus(
                config, raft, replica, pipeline, members, slaves, retention.view, self._promotion, readers
            ),
            Promotions(config, raft, replica, forwarder, claims, self._promotion),
            claims,
            MessageQueries(raft, replica, reader, keys, barrier),
            Dumps(config, raft, replica, self._transfer),
        )

        # Reports to other nodes, and probes
        self._peers = Peers(
            members,
            leadership,
            forwarder,
            lambda: clients.report(time.monotonic()),
            signs_of_life.alive,
            self._check_contact,
            registration.changed,
        )
        metrics.add_readings(*readings(raft, replica, pipeline, polls, retention.view, keys))
        self._probes = Probes(raft, replica, pipeline, leadership, self._shutdown, metrics)

        leadership.add_listener(self._on_leadership)
        trace_topic = TraceTopic(replica, pipeline, leadership, self._shutdown, wanted=config.trace_topic)
        for begin_to_lead in (features.remember, trace_topic.on_leadership, coordination.on_leadership):
            leadership.add_listener(begin_to_lead)
            begin_to_lead()  # the node may lead already
        self._is_assembled = True
        services = (self._peers.handler(), self._messaging.handlers(""), self._admin.handlers(""))
        streams = (self._log.handlers(""), forwarded_calls_handler(self._handlers.named), grants.handler())
        self._handlers.set([*services, *streams])

    async def stop(self) -> None:
        """Transfer leadership, refuse new calls, drain, close all parts."""
        if not self._started:
            return
        await self._registration.stop()
        await self._others.stop()
        await self._raft_hand_over()
        self._coordination.stop()
        self._shutdown.begin()
        await self._listeners.stop(DRAIN_SECONDS)
        await self._peers.stop()
        await self._at_follower.stop()
        await self._retention.stop()
        await self._topic_retention.stop()
        await self._forwarder.close()
        await self._keys.stop()
        await self._queue_check.stop()
        await self._checkpointing.stop()
        await self._raft.stop(transfer=True)
        self._replica.close()

    async def _raft_hand_over(self) -> None:
        """Transfer leadership first, so that calls in progress are forwarded to the new leader."""
        if not self._raft.is_leader or len(self._raft.config.voters) == 1:
            return
        try:
            leader = await self._raft.transfer_leadership()
            logger.info("lead handed over to=%s", leader)
        except (TransferFailedError, NotLeaderError) as error:
            logger.warning("lead not handed over reason=%s", error)

    @property
    def fault(self) -> str | None:
        """Reason why this node must stop; None: no fault."""
        return self._raft.fault

    async def wait_fatal(self) -> str:
        """Wait for a fault; return its reason."""
        return await self._raft.wait_fatal()

    async def wait_reset(self) -> None:
        """Wait for a reset: a new node with the leader's state must replace this one on its folder (D8)."""
        await self._raft.reset_decided.wait()

    async def wait_promotion(self) -> None:
        """Wait until this node is to be stopped and promoted (promotion.py)."""
        await self._promotion.decided.wait()

    @property
    def promotion_plan(self) -> PromotionPlan | None:
        """Promotion to run on the folder after the stop; None: none, or another node was promoted."""
        return None if self._raft.is_left_behind else self._promotion.plan

    def ready_line(self) -> str:
        """Return the line with all addresses, printed when the process is ready."""
        config, first = self.config, self.config.listener[0]
        return (
            f"ready node={config.node_id} group={config.group} messaging={first.messaging_bind} "
            f"log={first.log_bind} raft={config.raft_bind} http={config.http_bind}"
        )

    # --- callbacks of the parts -----------------------------------------------------------------------------
    def _client_handlers(self, listener: str) -> tuple[Handlers, Handlers]:
        return (
            [self._log.handlers(listener), self._admin.handlers(listener)],
            [self._messaging.handlers(listener)],
        )

    def _check_contact(self) -> dict[str, int | None]:
        """Release deliveries that disconnected members may not have forwarded.

        Returns the time (ms) since the last contact with each member.
        """
        peers = self._raft.status().peers
        for peer in peers:
            if not peer.connected and peer.node_id != self.node_id:
                for command in self._deliveries.node_lost(str(peer.node_id), time.monotonic()):
                    self._replica.releases.propose(command)
        return {str(peer.node_id): 0 if peer.connected else peer.last_contact_ms for peer in peers}

    def _on_leadership(self) -> None:
        self._forwarder.leader_changed(self._leadership.leader_id)
        self._registration.changed()

    # --- ReplicaObserver ------------------------------------------------------------------------------------
    def on_effects(self, effects: Effects) -> None:
        """Notify the parts that follow entries; those applied before the parts exist do not matter."""
        if not self._is_assembled or effects.is_plain:
            return
        if effects.topics_changed:
            self._registration.changed()
        if effects.parked and self._leadership.ready:
            tell_parked(self._replica.state, effects.parked)
        self._coordination.on_effects(effects)
        self._checkpointing.on_effects(effects)
        self._retention.on_effects(effects)

    def on_housekeeping(self) -> None:
        """Do the leader's periodic work, about once a second."""
        if self._is_assembled:
            self._features.remember()

    def on_queue_damage(self, error: ConsumeQueueError) -> None:
        """Rebuild a damaged queue file that a reader found; during start, the damage ends the start."""
        if self._is_assembled:
            self._queue_check.report(error)
        else:
            self._raft.fail(str(error))

    async def queue_rebuilt(self, error: ConsumeQueueError) -> bool:
        """Wait for the rebuild of a damaged queue file; return whether it can be read again."""
        return self._is_assembled and await self._queue_check.rebuilt(error)


@dataclass(frozen=True, slots=True)
class _Method(grpc.HandlerCallDetails):
    method: str


class _LateHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Handlers of the Raft port. It opens before the services exist; `set` adds them later."""

    def __init__(self) -> None:
        self._handlers: list[Any] = []
        self._named: dict[str, Any] = {}

    def set(self, handlers: list[Any]) -> None:
        self._handlers = handlers

    def named(self, method: str) -> Any:
        """Return the handler of "/service/method"; None: there is none."""
        if method not in self._named and (found := self.service(_Method(method))) is not None:
            self._named[method] = found
        return self._named.get(method)

    def service(self, details: Any) -> Any:
        """Return the handler of a call; None: there is none (yet)."""
        for handler in self._handlers:
            found = handler.service(details)
            if found is not None:
                return found
        return None
