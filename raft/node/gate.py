"""Gate of the transport: routes what arrives through a node's streams, and answers for the node.

Owns: the routing: frames to the driver, greetings to the voting rights, lost connections to the core and to a
leadership transfer.
Must not: judge any of it. A defect on the way faults the node.
"""

from __future__ import annotations

from ledgermq.proto.entry import Buffer

from ..core.machine import RaftCore
from ..drive.driver import Driver
from ..drive.leadership import LeaderDuties
from ..drive.voting_rights import VotingRights
from ..metrics import RaftMetrics
from ..transport.hello import Hello, Refusal, RefusalKind
from ..transport.out_stream import StreamKind
from ..types import NodeId
from .status_view import StatusView


class PeerGate:
    """Given to the transport when it begins to listen."""

    def __init__(
        self,
        core: RaftCore,
        driver: Driver,
        rights: VotingRights,
        leadership: LeaderDuties,
        view: StatusView,
        metrics: RaftMetrics,
    ) -> None:
        self._core = core
        self._driver = driver
        self._rights = rights
        self._leadership = leadership
        self._view = view
        self._metrics = metrics

    def hello(self, to: NodeId | None) -> Hello:
        """Return the greeting of this node."""
        return self._rights.hello(to, *self._view.report())

    async def admit(self, hello: Hello) -> Refusal | None:
        """Judge a peer's greeting. Raises: OSError."""
        return await self._rights.admit(hello)

    def on_frame(self, peer: NodeId, kind: StreamKind, frame: Buffer) -> None:
        """Handle a frame of a peer."""
        try:
            self._view.heard(peer)
            news = self._driver.on_frame(peer, frame)
            if news is not None:
                self._rights.learn(news)
        except Exception as error:  # noqa: BLE001 (a bug of ours, of any kind)
            self._driver.defect(f"handling a message of {peer}", error)

    def on_refused(self, peer: NodeId, refusal: Refusal, hello: Hello) -> None:
        """Handle a peer that does not know this node's data folder. If most peers agree, this node must stop.

        A peer that is not known to be in the same broker group has no say: the ports of two may be mixed up.
        """
        if refusal.kind is RefusalKind.INCARNATION and self._rights.group_id in (0, hello.group_id):
            self._rights.weigh_refusal(peer, refusal, hello)

    def on_other_generation(self, hello: Hello) -> None:
        """Handle a peer of another generation. Its greeting shows whether this node was superseded."""
        self._rights.look_at_generation(hello)

    def on_link_up(self, peer: NodeId, kind: StreamKind) -> None:
        """Note that a stream is ready."""
        self._metrics.gauge("ledgermq_raft_peer_connected", peer, kind.value.lower()).set(1)
        if kind is StreamKind.CONTROL:
            with self._driver.defects_fault(f"the connection to {peer}"):
                self._rights.note_accepted(peer)
                self._leadership.link_changed(peer, gone=False)
                if not self._driver.closed:
                    self._driver.settle()
                    self._core.link_up(peer)
                    self._driver.pump()

    def on_link_lost(self, peer: NodeId, kind: StreamKind, *, gone: bool) -> None:
        """Pass the hint to the core, which decides what a broken connection means."""
        self._metrics.gauge("ledgermq_raft_peer_connected", peer, kind.value.lower()).set(0)
        if kind is StreamKind.CONTROL and not self._driver.closed:
            with self._driver.defects_fault(f"the end of the connection to {peer}"):
                self._driver.settle()
                self._core.link_down(peer, gone)
                self._driver.pump()
                if gone:
                    self._leadership.link_changed(peer, gone=True)

    def on_link_stuck(self, peer: NodeId, kind: StreamKind) -> None:
        """Note that a stream made no progress. The core is not told: the peer may be healthy, and lead."""
        self._metrics.gauge("ledgermq_raft_peer_connected", peer, kind.value.lower()).set(0)
        self._metrics.counter("ledgermq_raft_streams_stuck_total", peer, kind.value.lower()).inc()
        if kind is StreamKind.APPEND and not self._driver.closed:
            self._leadership.stream_stuck()

    def on_damaged(self, peer: NodeId | None) -> None:
        """Count a frame that was corrupted on the way."""
        self._metrics.counter("ledgermq_raft_messages_dropped_total", "damaged").inc()
