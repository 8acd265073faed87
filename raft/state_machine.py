"""Interface of the replicated state machine above Raft, and the result of a proposal.

All calls come on the event-loop thread. An exception from the state machine faults its node: a stopped
replica is better than diverging replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ledgermq.proto.entry import EntryHeader

from .types import LogIndex, NodeId, Term


class StateMachine(Protocol):
    """State machine that Raft drives. The broker implements it."""

    def load(self) -> LogIndex:
        """Read the state once. Returns the index up to which it is built (0: nothing).

        Called in a thread, perhaps repeatedly.
        """

    def apply(self, entries: Sequence[tuple[EntryHeader, memoryview]]) -> None:
        """Apply committed entries, in order, each exactly once.

        The payload views are valid only during the call.

        All kinds are passed (no-ops and configurations with their payload) so that the indexes have no gaps.
        """

    def on_leader_ready(self, term: Term, timestamp: int) -> None:
        """Handle that this node leads and its no-op of `term` is applied. `timestamp` is log time in ms."""

    def on_leader_lost(self, term: Term) -> None:
        """Handle that this node no longer leads `term`.

        Its undecided proposals fail with ProposalLostError.
        """

    def on_leader_changed(self, leader_id: NodeId | None, term: Term) -> None:
        """Handle that another leader is known (or none)."""


@dataclass(slots=True, eq=False)
class Proposal:
    """A proposed entry. `committed` resolves to None, or fails with ProposalLostError: outcome unknown."""

    header: EntryHeader  # index, term and timestamp as appended
    committed: asyncio.Future[None]

    @property
    def index(self) -> LogIndex:
        return LogIndex(self.header.index)

    @property
    def timestamp(self) -> int:
        """Log time in ms since the epoch."""
        return self.header.timestamp
