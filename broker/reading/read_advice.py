"""Who should serve a reader that is far behind (A5.14 of the seeds). Pure.

What was written last is read from memory; a reader whose backlog is larger than that costs its node's disk, and pushes what the
others read out of memory. So the leader suggests a follower to it, which has the same log, and the follower suggests the leader
when half of what fits is left. Between the two limits nobody is moved, so a reader does not go to and fro.
A suggestion is all that it is: nobody is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ledgermq.raft.node_status import PeerStatus


class ReadAdvice:
    """The advice of one node. `in_memory_bytes`: how much of the log's end is taken to be in memory."""

    def __init__(self, in_memory_bytes: int, *, enabled: bool = True) -> None:
        self.in_memory_bytes = in_memory_bytes
        self._enabled = enabled
        self._turn = 0

    def follower(self, backlog: int, peers: Callable[[], Iterable[PeerStatus]]) -> str:
        """Return the follower that a reader of the leader should go to, "" = it should stay.

        `backlog`: bytes of log from what it reads next to the end. Followers take turns. One that is behind by more than half of
        what fits in memory has not enough to offer.
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
        """Tell whether a reader of a follower should go back to the leader."""
        return backlog <= self.in_memory_bytes // 2
