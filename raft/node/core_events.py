"""Core events: passes each event of the core to the parts that it concerns (the driver's DriverOwner).

Owns: who receives which event, and in which order. Must not: feed the core, or make decisions itself.
"""

from __future__ import annotations

from collections.abc import Callable

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
from ..drive.leadership import LeaderDuties
from ..drive.read_batcher import ReadBatcher
from ..drive.voting_rights import VotingRights
from ..errors import DamagedLogError
from ..repair.care import LogCare
from ..reset.decision import Resets
from .status_view import StatusView


class CoreEvents:
    """Given to the driver when it starts. `fail` ends the node."""

    def __init__(
        self,
        core: RaftCore,
        applier: Applier,
        leadership: LeaderDuties,
        reads: ReadBatcher,
        rights: VotingRights,
        resets: Resets,
        view: StatusView,
        care: LogCare,
        fail: Callable[[str], None],
    ) -> None:
        self._core = core
        self._applier = applier
        self._leadership = leadership
        self._reads = reads
        self._rights = rights
        self._resets = resets
        self._view = view
        self._care = care
        self._fail = fail

    def on_event(self, event: Event) -> None:
        """Tell the state machine, and log what happened."""
        match event:
            case BecameLeader(term=term, noop_index=noop):
                self._leadership.gained(term, noop, self._applier.applied_index)
            case SteppedDown(term=term):
                self._leadership.lost(term)
            case LeaderChanged(leader_id=leader, term=term):
                self._view.role_changed()
                self._leadership.changed(leader, term)
                self._resets.leader_changed(leader, term)
                self._rights.advance()
            case TransferAborted(to=to):
                self._leadership.transfer_failed(f"{to} did not take over in time")
            case FollowerBehind() | FollowerLostEntries():
                self._leadership.follower_in_trouble(event, self._core.first_index)
            case ResetOffered():
                self._resets.offered(event)
            case CaughtUp():
                self._rights.advance()
            case Faulted(reason=reason):
                self._fail(reason)

    def on_read(self, read: ReadReady) -> None:
        """Answer a read-index request."""
        self._reads.ready(read)

    def on_read_aborted(self, context: object) -> None:
        """Fail a read-index request."""
        self._reads.aborted(context)

    def on_fault(self, reason: str) -> None:
        """Latch a fault."""
        self._fail(reason)

    def on_damage(self, error: DamagedLogError) -> None:
        """Repair a damaged range that could not be sent to a peer."""
        self._care.damage_for_peer(error)
