"""Interface that a state machine offers so that a follower can be reset to its state (D8).

Raft moves the state as bytes without interpreting them. The state may include entries above the base of the
log that it comes with. The state machine then reports it (`needs_entries_to`), receives the entries in
between as they are applied, and is complete from that entry on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from ..folder.reset_install import ResetPlan
from ..types import LogIndex


class OutgoingState(Protocol):
    """A state being sent. `size` is the sum of the pieces, in bytes."""

    @property
    def index(self) -> LogIndex: ...

    @property
    def size(self) -> int: ...

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes, in pieces of at most 256 KiB. Raises: StateTransferError."""

    def close(self) -> None:
        """Release what it holds open."""


class StateTransfer(Protocol):
    """State machine's side of a reset."""

    @property
    def needs_entries_to(self) -> LogIndex:
        """Entry that must be applied to complete the state (0: none). Read after `StateMachine.load`."""

    @property
    def counts_on_log_to(self) -> LogIndex:
        """Last entry that the log must hold (0: the applied one). Read after `StateMachine.load`."""

    async def open(self, first_index: LogIndex) -> OutgoingState:
        """Leader: return a durable state that includes everything applied now.

        It needs no log entries < `first_index`. Raises: StateTransferError (retry later).
        """

    def install(self, staged: Path, plan: ResetPlan) -> None:
        """Follower, before anything else is opened: replace this node's state by the one in the file
        `staged`.

        Blocking, durable on return, repeatable. Raises: OSError.
        """
