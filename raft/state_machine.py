"""What the replicated state machine above Raft must offer, and what a proposal gives back.

All calls come on the event-loop thread. A state machine that raises faults its node: replicas that differ are
worse than a replica that stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ledgermq.proto.entry import EntryHeader

from .types import LogIndex, NodeId, Term


class StateMachine(Protocol):
    """The broker's side of the seam."""

    @property
    def last_applied_index(self) -> LogIndex:
        """Index up to which the state is already built when the node starts (0 = nothing)."""

    def apply(self, entries: Sequence[tuple[EntryHeader, memoryview]]) -> None:
        """Apply committed entries, in order, each once. The payload views are valid only during the call.

        All kinds come here (no-ops and configurations with their payload) so that the index is contiguous.
        """

    def on_leader_ready(self, term: Term, timestamp: int) -> None:
        """This node leads and its no-op of `term` is applied; `timestamp` is log time in ms."""

    def on_leader_lost(self, term: Term) -> None:
        """This node no longer leads `term`. Its undecided proposals fail with ProposalLostError."""

    def on_leader_changed(self, leader_id: NodeId | None, term: Term) -> None:
        """Another leader is known (or none)."""


@dataclass(slots=True, eq=False)
class Proposal:
    """An entry on its way. `committed` ends with None, or ProposalLostError: outcome unknown."""

    header: EntryHeader
    committed: asyncio.Future[None]

    @property
    def index(self) -> LogIndex:
        return LogIndex(self.header.index)

    @property
    def term(self) -> Term:
        return Term(self.header.term)

    @property
    def physical_offset(self) -> int:
        return self.header.physical_offset

    @property
    def timestamp(self) -> int:
        """Log time in ms since the epoch."""
        return self.header.timestamp
