"""Choice of the node that should serve a reader with a large backlog (A5.14 of the seeds). Pure.

The newest part of the log is read from memory. A reader with a larger backlog causes disk reads, and evicts
from the page cache what the other readers need. The leader therefore suggests a follower, which has the same
log. The follower suggests the leader again once the backlog is half of what fits into memory. The gap between
the two limits prevents readers from moving back and forth.
It is only a suggestion: no reader is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ledgermq.raft.node_status import PeerStatus


class ReadAdvice:
    """Advice of one node. `in_memory_bytes`: size of the log's end that is assumed to be in memory."""

    def __init__(self, in_memory_bytes: int, *, enabled: bool = True) -> None:
        self.in_memory_bytes = in_memory_bytes
        self._enabled = enabled
        self._turn = 0

    def follower(self, backlog: int, peers: Callable[[], Iterable[PeerStatus]]) -> str:
        """Return the follower to which a reader of the leader should move; "": it should stay.

        `backlog`: bytes of log from its position to the end. Followers take turns. A follower that is behind
        by more than half of `in_memory_bytes` is not suggested.
        """
        if not self._enabled or backlog <= self.in_memory_bytes:
            return ""
        fit = [peer.node_id for peer in peers() if self._can_serve(peer)]
        self._turn += 1
        return str(fit[self._turn % len(fit)]) if fit else ""

    def _can_serve(self, peer: PeerStatus) -> bool:
        return (
            peer.role in ("follower", "learner")
            and peer.connected
            and not peer.repairing
            and peer.behind_bytes is not None
            and peer.behind_bytes <= self.in_memory_bytes // 2
        )

    def has_caught_up(self, backlog: int) -> bool:
        """Tell whether a reader of a follower should return to the leader."""
        return backlog <= self.in_memory_bytes // 2
