"""Read source: the node of a broker group to fetch from. Pure.

The leader, a suggested follower, or any node when there is no leader. Rules:
    the leader suggests a follower      read there, if it has an address here and did not fail recently
    a follower suggests the leader      return there: the backlog fits into the leader's memory, or is gone
    the follower has nothing, is stale,
    refuses or does not answer          return to the leader; ignore suggestions of that node for a while
    the leader does not answer          every node in turn, until one does
Owns: the choice. Must not: do I/O, read clocks (`now` is monotonic seconds).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cluster.leader_tracker import LeaderTracker
from ..cluster.topic_route import BrokerGroup
from ..pauses import AVOID_S, LONGEST_AVOID_S


@dataclass(frozen=True, slots=True)
class FetchSource:
    """The node that answered last. `stale`: it had no contact to a leader; others may have newer messages."""

    node_id: str
    stale: bool


class ReadSource:
    """The choice for one broker group. Call `next`, then report the result."""

    def __init__(self, broker_group: BrokerGroup) -> None:
        self.tracker = LeaderTracker(broker_group)
        self._follower = ""  # follower that is read instead of the leader, or ""
        self._avoided: dict[str, tuple[float, float]] = {}  # node → (until, next duration), s

    @property
    def follower(self) -> str:
        """The suggested follower that is read; "": none."""
        return self._follower

    def next(self) -> tuple[str, int]:
        """Return (address, pause before trying it, ms); ("", pause) when the broker group has no node."""
        if self._follower:
            node = self.tracker.group.node(self._follower)
            if node is not None:
                return node.log_address, 0
            self._follower = ""
        return self.tracker.next()

    def answered(self, source: FetchSource, suggested: str, empty: bool, now: float) -> bool:
        """Note an answer; return whether the next request is for another node. `empty`: without messages."""
        self.tracker.succeeded()
        if not (empty or source.stale):
            self._avoided.pop(source.node_id, None)
        if self._follower:
            if suggested == source.node_id or not (suggested or source.stale or empty):
                return False
            self._follower = ""
            if source.stale or not suggested:
                self._avoid(source.node_id, now)
            return True
        node = self.tracker.group.node(suggested)
        if node is None or suggested == source.node_id or self._is_avoided(suggested, now):
            return False
        if suggested == self.tracker.group.leader_id:
            self.tracker.hint(node.log_address)
        else:
            self._follower = suggested
        return True

    def failed(self, address: str, now: float) -> None:
        """The node at `address` was unreachable, broke off, refused, or sent damaged bytes."""
        self.tracker.failed(address)
        self._follower = ""
        for node in self.tracker.group.nodes:
            if node.log_address == address:
                self._avoid(node.node_id, now)

    def _avoid(self, node_id: str, now: float) -> None:
        _, seconds = self._avoided.get(node_id, (0.0, AVOID_S))
        self._avoided[node_id] = (now + seconds, min(2 * seconds, LONGEST_AVOID_S))

    def _is_avoided(self, node_id: str, now: float) -> bool:
        return node_id in self._avoided and now < self._avoided[node_id][0]
