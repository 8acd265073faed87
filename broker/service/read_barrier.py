"""Linearizable reads (read-index) on any node: they see everything committed before they began."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ledgermq.raft.errors import NotLeaderError
from ledgermq.raft.node.raft_node import RaftNode

from ..cluster.known_leader import Leadership
from ..replica import Replica

#: How long a read that accepts a stale answer waits for a leader, s: longer than most elections.
STALE_AFTER_S: Final = 1.5


@dataclass(eq=False, repr=False)
class ReadBarrier:
    """Waits until this node's state is fresh enough to be read."""

    _raft: RaftNode
    _replica: Replica
    _leadership: Leadership

    async def wait(self, remaining: float | None) -> None:
        """Return when this node has applied everything that was committed before the call.

        `remaining`: seconds. Raises: NotLeaderError (no leader answered in time), NodeStoppedError,
        RefusedError (a rebuild runs).
        """
        self._replica.require_whole_state()
        end = time.monotonic() + min(remaining if remaining is not None else 5.0, 5.0) - 0.2
        while True:
            try:
                await self.catch_up()
                return
            except NotLeaderError:
                if time.monotonic() >= end:
                    raise
            await self._leadership.wait_change(min(0.05, max(end - time.monotonic(), 0)))

    async def wait_or_stale(self, remaining: float | None) -> bool:
        """Wait as long as most elections take; return whether the state may be stale. Raises: as `wait`."""
        try:
            await self.wait(min(remaining or STALE_AFTER_S, STALE_AFTER_S))
        except NotLeaderError:
            return True
        return False

    async def catch_up(self) -> None:
        """Do what `wait` does, with one attempt. Raises: NotLeaderError, NodeStoppedError."""
        await self._raft.wait_applied(await self._raft.read_index())
