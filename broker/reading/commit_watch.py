"""Count of readers on this node that wait for entries to become visible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledgermq.raft.node.raft_node import RaftNode


class CommitWatch:
    """While a reader waits, the leader reports commits to this node at once, not with its next heartbeat."""

    def __init__(self, raft: RaftNode) -> None:
        self._raft = raft
        self._waiting = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the caller as waiting inside the block."""
        self._waiting += 1
        if self._waiting == 1:
            self._raft.want_commits(True)
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._raft.want_commits(False)
