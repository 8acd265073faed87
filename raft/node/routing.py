"""Routing between the parts of a node: events of the core, and what arrives through the streams.

Owns: which part receives what, and in which order. Must not: judge any of it, or make decisions. A defect on
the way faults the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ledgermq.proto.entry import Buffer

from ..core.machine import RaftCore
from ..core.outputs import (
    BecameLeader,
    CaughtUp,
    Event,
    Faulted,
    FollowerBehind,
    FollowerLostEntries,
    LeaderChanged,
    ReadReady,
    ResetOffered,
    SteppedDown,
    TransferAborted,
)
from ..drive.applier import Applier
from ..drive.driver import Driver
from ..drive.leadership import LeaderDuties
from ..drive.read_batcher import ReadBatcher
from ..drive.voting_rights import VotingRights
from ..errors import DamagedLogError
from ..metrics import RaftMetrics
from ..repair.care import LogCare
from ..reset.decision import Resets
from ..transport.hello import Hello, Refusal, RefusalKind
from ..transport.stream_kind import StreamKind
from ..types import NodeId
from .status_view import StatusView


@dataclass(frozen=True, slots=True)
class CoreEvents:
    """The driver's DriverOwner, from its start on. `fail` ends the node."""

    core: RaftCore
    applier: Applier
    leadership: LeaderDuties
    reads: ReadBatcher
    rights: VotingRights
    resets: Resets
    view: StatusView
    care: LogCare
    fail: Callable[[str], None]

    def on_event(self, event: Event) -> None:
        """Tell the state machine, and log what happened."""
        match event:
            case BecameLeader(term=term, noop_index=noop):
                self.leadership.gained(term, noop, self.applier.applied_index)
            case SteppedDown(term=term):
                self.leadership.lost(term)
            case LeaderChanged(leader_id=leader, term=term):
                self.view.role_changed()
                self.leadership.changed(leader, term)
                self.resets.leader_changed(leader, term)
                self.rights.advance()
            case TransferAborted(to=to):
                self.leadership.transfer_failed(f"{to} did not take over in time")
            case FollowerBehind() | FollowerLostEntries():
                self.leadership.follower_in_trouble(event, self.core.first_index)
            case ResetOffered():
                self.resets.offered(event)
            case CaughtUp():
                self.rights.advance()
            case Faulted(reason=reason):
                self.fail(reason)

    def on_read(self, read: ReadReady) -> None:
        """Answer a read-index request."""
        self.reads.ready(read)

    def on_read_aborted(self, context: object) -> None:
        """Fail a read-index request."""
        self.reads.aborted(context)

    def on_fault(self, reason: str) -> None:
        """Latch a fault."""
        self.fail(reason)

    def on_damage(self, error: DamagedLogError) -> None:
        """Repair a damaged range that could not be sent to a peer."""
        self.care.damage_for_peer(error)


@dataclass(frozen=True, slots=True)
class PeerGate:
    """The transport's Gate, from `listen` on."""

    core: RaftCore
    driver: Driver
    rights: VotingRights
    leadership: LeaderDuties
    view: StatusView
    metrics: RaftMetrics

    def hello(self, to: NodeId | None) -> Hello:
        """Return the greeting of this node."""
        return self.rights.hello(to, *self.view.report())

    async def admit(self, hello: Hello) -> Refusal | None:
        """Judge a peer's greeting. Raises: OSError."""
        return await self.rights.admit(hello)

    def on_frame(self, peer: NodeId, kind: StreamKind, frame: Buffer) -> None:
        """Handle a frame of a peer."""
        try:
            self.view.heard(peer)
            news = self.driver.on_frame(peer, frame)
            if news is not None:
                self.rights.learn(news)
        except Exception as error:  # noqa: BLE001 (a bug of ours, of any kind)
            self.driver.defect(f"handling a message of {peer}", error)

    def on_refused(self, peer: NodeId, refusal: Refusal, hello: Hello) -> None:
        """Handle a peer that does not know this node's data folder. If most peers agree, this node must stop.

        A peer that is not known to be in the same broker group has no say: the ports of two may be mixed up.
        """
        if refusal.kind is RefusalKind.INCARNATION and self.rights.group_id in (0, hello.group_id):
            self.rights.weigh_refusal(peer, refusal, hello)

    def on_other_generation(self, hello: Hello) -> None:
        """Handle a peer of another generation. Its greeting shows whether this node was superseded."""
        self.rights.look_at_generation(hello)

    def on_link_up(self, peer: NodeId, kind: StreamKind) -> None:
        """Note that a stream is ready."""
        self.metrics.gauge("ledgermq_raft_peer_connected", peer, kind.value.lower()).set(1)
        if kind is StreamKind.CONTROL:
            with self.driver.defects_fault(f"the connection to {peer}"):
                self.rights.note_accepted(peer)
                self.leadership.link_changed(peer, gone=False)
                if not self.driver.closed:
                    self.driver.feed(self.core.link_up, peer)

    def on_link_lost(self, peer: NodeId, kind: StreamKind, *, gone: bool) -> None:
        """Pass the hint to the core, which decides what a broken connection means."""
        self.metrics.gauge("ledgermq_raft_peer_connected", peer, kind.value.lower()).set(0)
        if kind is StreamKind.CONTROL and not self.driver.closed:
            with self.driver.defects_fault(f"the end of the connection to {peer}"):
                self.driver.feed(self.core.link_down, peer, gone)
                if gone:
                    self.leadership.link_changed(peer, gone=True)

    def on_link_stuck(self, peer: NodeId, kind: StreamKind) -> None:
        """Note that a stream made no progress. The core is not told: the peer may be healthy, and lead."""
        self.metrics.gauge("ledgermq_raft_peer_connected", peer, kind.value.lower()).set(0)
        self.metrics.counter("ledgermq_raft_streams_stuck_total", peer, kind.value.lower()).inc()
        if kind is StreamKind.APPEND and not self.driver.closed:
            self.leadership.stream_stuck()

    def on_damaged(self, peer: NodeId | None) -> None:
        """Count a frame that was corrupted on the way."""
        self.metrics.counter("ledgermq_raft_messages_dropped_total", "damaged").inc()
