"""Which node of a broker group is read: its leader, a follower that was suggested, any node when there is no leader. Pure.

The rules:
    the leader suggests a follower      read there, if it has an address here and did not fail lately
    a follower suggests the leader      read there again: the backlog fits into the leader's memory, or is gone
    the follower has nothing, is stale,
    refuses or does not answer          back to the leader; suggestions of that node are ignored for a while
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
    """The node that answered last. `stale`: it had no contact to a leader, newer messages may exist elsewhere."""

    node_id: str
    stale: bool


class ReadSource:
    """The choice for one broker group. Ask `next`, then tell what came of it."""

    def __init__(self, group: BrokerGroup) -> None:
        self.tracker = LeaderTracker(group)
        self._follower = ""  # that is read instead of the leader
        self._avoided: dict[str, tuple[float, float]] = {}  # node → (until, for how long the next time)

    @property
    def follower(self) -> str:
        """The follower that is read by suggestion; "" = none."""
        return self._follower

    def next(self) -> tuple[str, int]:
        """Return (address, pause in ms before trying it); ("", pause) when the broker group has no node at all."""
        if self._follower:
            node = self.tracker.group.node(self._follower)
            if node is not None:
                return node.log_address, 0
            self._follower = ""
        return self.tracker.next()

    def answered(self, source: FetchSource, suggested: str, empty: bool, now: float) -> bool:
        """Take note of an answer; return whether the next question is for another node. `empty`: it brought nothing."""
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
        """The node at `address` could not be reached, broke off, refused, or sent damaged bytes."""
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
