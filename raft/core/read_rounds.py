"""Reads that a leader confirms with a round of heartbeats before they are answered (thesis 6.4).

Owns: which reads wait, which round is under way. Must not: send. Invariant: a read joins only rounds that
start after it was asked, so the answers of the quorum are newer than the question. No clock is involved: no
lease.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..types import NO_INDEX, LogIndex, NodeId
from .quorum import Majority


@dataclass(frozen=True, slots=True)
class Reader:
    """Origin of a read: this node's shell (`context` is its own object) or a follower (a number)."""

    context: object
    node_id: NodeId | None = None  # the follower; None: this node's shell


@dataclass(slots=True)
class ReadRounds:
    """Waiting reads and the round under way. `number` goes out as the context of heartbeats."""

    number: int = 0  # of the newest round; grows by one with each, and starts again with each lead
    index: LogIndex = NO_INDEX  # commit index when the round began: the answer to its readers
    waiting: list[Reader] = field(default_factory=list)  # in no round yet: the next one is theirs
    asking: list[Reader] = field(default_factory=list)  # of the round under way; empty: there is none
    acks: set[NodeId] = field(default_factory=set)  # who confirmed this round; the leader itself is the first

    def may_start(self) -> bool:
        return bool(self.waiting) and not self.asking

    def start(self, commit_index: LogIndex, self_id: NodeId) -> None:
        """Begin a round for all that wait. Next: send heartbeats with `number`, then count."""
        self.number += 1
        self.index = commit_index
        self.asking, self.waiting = self.waiting, []
        self.acks = {self_id}

    def on_ack(self, node_id: NodeId, number: int) -> None:
        """Note that a node answered a heartbeat of round `number`."""
        if self.asking and number == self.number:
            self.acks.add(node_id)

    def finished(self, quorum: Majority) -> list[Reader]:
        """Return the readers of the round if a quorum confirmed it, and end it."""
        if not self.asking or not quorum.is_reached(self.acks):
            return []
        done, self.asking = self.asking, []
        return done

    def everyone(self) -> Iterable[Reader]:
        """All readers, asked for or waiting, for a leader that steps down."""
        return [*self.asking, *self.waiting]
