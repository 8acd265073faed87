"""What the state machine must offer so that a follower can be reset to its state (D8).

Raft moves the state as bytes and does not know what they mean. The state may be that of an entry above the base of the
log that it comes with: then the state machine says so (`needs_entries_to`), takes the entries between the two when they
are applied, and is whole from that entry on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from ..folder.reset_install import ResetPlan
from ..types import LogIndex


class OutgoingState(Protocol):
    """A state that is being sent. `size` is the sum of the pieces, in bytes."""

    @property
    def index(self) -> LogIndex: ...

    @property
    def size(self) -> int: ...

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes, in pieces of at most 256 KiB. Raises: StateTransferError."""

    def close(self) -> None:
        """Give back what it holds open."""


class StateTransfer(Protocol):
    """The state machine's side of a reset."""

    @property
    def needs_entries_to(self) -> LogIndex:
        """Asked after `StateMachine.last_applied_index`: the state is not whole before this entry is applied (0: it is)."""

    @property
    def counts_on_log_to(self) -> LogIndex:
        """Asked then, too: this node's log must hold the entries up to here, applied or not (0: what is applied tells)."""

    async def open(self, first_index: LogIndex) -> OutgoingState:
        """Leader: return a durable state that includes everything applied now, and nothing of entries < `first_index`
        that it still needs from the log. Raises: StateTransferError (try again later)."""

    def install(self, staged: Path, plan: ResetPlan) -> None:
        """Follower, before anything else is opened: replace this node's state by the one in the file `staged`.

        Blocking, durable on return, and repeatable. Raises: OSError.
        """
