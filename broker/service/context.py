"""What the services of one node share. Assembled by node.py; services read it, none replaces anything in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ledgermq.proto import route_pb2
from ledgermq.proto.route_pb2 import ListenerAddresses
from ledgermq.raft.folder.group_recovery import PromotionPlan
from ledgermq.raft.node.node import RaftNode

from ..checkpoint.transfer import BrokerStateTransfer
from ..cluster.calls import LeaderCalls
from ..cluster.forwarding import Forwarder
from ..cluster.known_leader import Leadership
from ..cluster.members import Members
from ..cluster.other_broker_groups import OtherGroups
from ..cluster.slaves import SlaveGate
from ..config import BrokerConfig
from ..leader.coordination import Coordination
from ..leader.pipeline import AppendPipeline
from ..leader.recent_deliveries import LeaseHolders, RecentDeliveries
from ..metrics import Metrics
from ..reading.key_index import KeyIndex
from ..reading.live_readers import LiveReaders
from ..reading.log_reader import LogReader
from ..reading.polls import Polls
from ..reading.read_advice import ReadAdvice
from ..refusals import RefusedError
from ..replica import Replica
from .disk_steps import RetentionView
from .sessions import ClientsHere, session_of
from .telemetry import TelemetryStreams


@dataclass(slots=True)
class NodeContext:
    """The parts of a running node."""

    config: BrokerConfig
    raft: RaftNode
    replica: Replica
    pipeline: AppendPipeline
    leadership: Leadership
    members: Members
    others: OtherGroups
    forwarder: Forwarder
    calls: LeaderCalls
    polls: Polls
    reader: LogReader
    transfer: BrokerStateTransfer
    keys: KeyIndex
    telemetry: TelemetryStreams
    clients: ClientsHere
    metrics: Metrics
    deliveries: RecentDeliveries
    coordination: Coordination
    advice: ReadAdvice
    readers: LiveReaders = field(default_factory=LiveReaders)
    holders: LeaseHolders = field(default_factory=LeaseHolders)
    slaves: SlaveGate | None = None  # sync_master: what an answer to a producer waits for besides commit
    promotion: asyncio.Event = field(default_factory=asyncio.Event)  # this node is to become the master
    promoting: str = ""  # what it does before that
    promotion_plan: PromotionPlan | None = None  # what it begins then
    retention: RetentionView = field(default_factory=RetentionView)
    waiting_readers: int = 0
    stopping: bool = False  # long polls end

    @contextmanager
    def waiting_reader(self) -> Iterator[None]:
        """While somebody waits here for entries to become visible, the leader tells at once when commit moves."""
        self.waiting_readers += 1
        if self.waiting_readers == 1:
            self.raft.want_commits(True)
        try:
            yield
        finally:
            self.waiting_readers -= 1
            if self.waiting_readers == 0:
                self.raft.want_commits(False)

    def require_whole_state(self) -> None:
        """Refuse to read from a state whose queues are still being made from the log. Raises: RefusedError."""
        rebuild = self.replica.rebuild
        if rebuild is not None:
            raise RefusedError(
                route_pb2.CATCHING_UP,
                f"{self.config.node_id} makes its queues again from the log (entry {rebuild.applied_index} of"
                f" {rebuild.target}) and serves no reads yet. Ask another node, or again in a moment",
                retryable=True,
                retry_after_ms=500,
            )

    def sign_of_life(self, client_id: str, *, here: bool = True) -> None:
        """A client called; not `here`: at a node that passed its call on, and reports it. Raises: TooManyClientsError."""
        if here:
            self.clients.heard(client_id, time.monotonic())
        self.clients_alive([client_id])

    def clients_alive(self, client_ids: Iterable[str]) -> None:
        """Leader: clients of any node show signs of life."""
        if (view := self.replica.view) is not None:
            now = self.raft.next_timestamp()
            for client_id in client_ids:
                session = session_of(client_id)
                view.session_seen(session, now)
                self.holders.seen(client_id, session)

    def without_master(self) -> str:
        """Return what to say when a group with a master has no leader; "" in a quorum group."""
        reign = self.raft.config.reign
        if reign is None:
            return ""
        return (
            f"the master {reign.master} of group {self.config.group} is away, or not ready yet: this attempt stored nothing. Repeat it; "
            f"it goes on when {reign.master} is back, or when a slave is promoted: ledgermq cluster promote NODE. See: "
            "ledgermq cluster status"
        )

    def leader_addresses(self, listener: str) -> ListenerAddresses | None:
        """Return the leader's addresses as callers of that listener reach it."""
        return self.members.addresses(self.leadership.leader_id, listener)

    def own_messaging_address(self, listener: str) -> str:
        """Return this node's address for official clients of that listener."""
        addresses = self.members.addresses(self.config.node_id, listener)
        return addresses.messaging_address if addresses is not None else ""
