"""Resets of a node: from a leader's state (D8), or after a promotion that superseded it (succession.py).

Handles both sides of a reset: what this node sends while it leads, what it fetches while it follows.

Owns: nothing of its own. Without a state machine that can transfer its state nothing is sent or fetched, and
a follower that fell behind retention stays there.
"""

from __future__ import annotations

from collections.abc import Callable

from ..config import RaftConfig
from ..core.machine import RaftCore
from ..core.outputs import ResetOffered
from ..disk.files import FileSystem
from ..drive.driver import Driver, RaftTransport
from ..drive.voting_rights import VotingRights
from ..log.commit_log import CommitLog
from ..transport.hello import Hello
from ..types import LogIndex, NodeId, Term
from .receiver import ResetReceiver
from .sender import ResetSender
from .state_transfer import StateTransfer
from .succession import Succession


class Resets:
    """`on_decided`: this node must be restarted from its folder. `fail`: it must stop."""

    def __init__(
        self,
        config: RaftConfig,
        files: FileSystem,
        core: RaftCore,
        log: CommitLog,
        driver: Driver,
        transport: RaftTransport,
        rights: VotingRights,
        transfer: StateTransfer | None,
        *,
        hello: Callable[[NodeId], Hello],
        on_decided: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        self._node_id = config.node_id
        self._sender: ResetSender | None = None
        self._receiver: ResetReceiver | None = None
        self.succession = Succession(config, core, driver, transport, rights, on_decided, fail)
        if transfer is None:
            return
        self._sender = ResetSender(core, log, transfer, rights.admit, config.node_id)
        transport.serve_also(self._sender.handler())
        self._receiver = ResetReceiver(
            config, files, core, hello=hello, settle=driver.settle, on_decided=on_decided, fail=fail
        )

    def is_resetting(self, node: NodeId) -> bool:
        """Return whether this node resets a follower (`node`), or is itself being reset."""
        if node == self._node_id:
            return self._receiver is not None and self._receiver.is_fetching
        return self._sender is not None and self._sender.is_resetting(node)

    def limit_deletion(self, index: LogIndex) -> LogIndex:
        """Return the index below which the log may be deleted, at most the `index` that retention wants."""
        kept = self._sender.keep_from() if self._sender is not None else None
        return index if kept is None else min(index, kept)

    def offered(self, offer: ResetOffered) -> None:
        """Handle the leader's offer of its state."""
        if self._receiver is not None:
            self._receiver.offered(offer)

    def leader_changed(self, leader: NodeId | None, term: Term) -> None:
        """Note that another leader is known, or none."""
        if self._receiver is not None:
            self._receiver.leader_changed(leader, term)

    async def close(self) -> None:
        """Stop sending and fetching."""
        await self.succession.close()
        if self._receiver is not None:
            await self._receiver.close()
