"""Drives one RaftCore: its log, its clock, its peers, and the state machine above it.

(interface first; the body follows)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from ledgermq.proto.entry import Buffer

from .config import Member, RaftConfig
from .state_machine import Proposal, StateMachine
from .status import RaftStatus
from .types import LogIndex, NodeId, Term


class RaftNode:
    """One member of one broker group. Every method must be called on the event-loop thread."""

    def __init__(
        self,
        config: RaftConfig,
        state_machine: StateMachine,
        *,
        on_fatal: Callable[[str], None] | None = None,
        rpc_handlers: Sequence[grpc.GenericRpcHandler] = (),  # served on the Raft port for other nodes
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Open the data folder, recover, listen, connect. Raises: RaftError subclasses that say what to do."""

    async def stop(self, *, transfer: bool = True) -> None:
        """Hand over the lead when `transfer`, then flush, mark a clean stop, close everything."""

    async def wait_fatal(self) -> str:
        """Wait until the node faults; return why. The process must then exit non-zero."""
        raise NotImplementedError

    def propose(self, parts: list[Buffer], section_count: int) -> Proposal:
        """Append one RECORDS entry. Sync, never waits.

        Raises: NotLeaderError, BusyError, TransferringError, EntryTooLargeError: nothing was appended.
        """
        raise NotImplementedError

    def next_timestamp(self) -> int:
        """Log time (ms) that a proposal made now would get."""
        raise NotImplementedError

    def next_physical_offset(self, payload_size: int) -> int:
        """Where the entry of a proposal made now would start."""
        raise NotImplementedError

    async def read_index(self) -> LogIndex:
        """Return an index that, once applied, includes everything committed before the call. Any node may ask.

        Raises: NotLeaderError.
        """
        raise NotImplementedError

    async def wait_applied(self, index: LogIndex) -> None:
        """Return when `applied_index >= index`. Raises: NodeStoppedError."""

    async def transfer_leadership(self, to: NodeId | None = None) -> NodeId:
        """Hand the lead to `to` (None = the best follower); return the new leader. Raises: NotLeaderError, TransferFailedError."""
        raise NotImplementedError

    def status(self) -> RaftStatus:
        raise NotImplementedError

    commit_index: LogIndex
    applied_index: LogIndex
    last_index: LogIndex
    first_index: LogIndex
    term: Term
    role: str
    leader_id: NodeId | None
    is_leader: bool
    is_leader_ready: bool  # the no-op of this term is applied
    voters: tuple[Member, ...]
