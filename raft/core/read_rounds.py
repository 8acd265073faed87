"""Reads that a leader confirms with a round of heartbeats before they are answered (thesis 6.4).

Owns: which reads wait, which round is under way. Must not: send. Invariant: a read joins only rounds that start
after it was asked, so the quorum's answers are newer than the question. No clock is involved: no lease.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..types import NO_INDEX, LogIndex, NodeId
from .quorum import Quorum


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asked: this node's shell (`context` is its own object) or a follower (`node_id`, a number)."""

    context: object
    node_id: NodeId | None = None


@dataclass(slots=True)
class ReadRounds:
    """Waiting reads and the round under way. `number` goes out as the context of heartbeats."""

    number: int = 0
    index: LogIndex = NO_INDEX
    waiting: list[Reader] = field(default_factory=list)
    asking: list[Reader] = field(default_factory=list)
    acks: set[NodeId] = field(default_factory=set)

    def may_start(self) -> bool:
        return bool(self.waiting) and not self.asking

    def start(self, commit_index: LogIndex, self_id: NodeId) -> None:
        """Begin a round for all that wait. Next: send heartbeats with `number`, then count."""
        self.number += 1
        self.index = commit_index
        self.asking, self.waiting = self.waiting, []
        self.acks = {self_id}

    def on_ack(self, node_id: NodeId, number: int) -> None:
        """Note that a voter answered heartbeat `number`."""
        if self.asking and number == self.number:
            self.acks.add(node_id)

    def finished(self, quorum: Quorum) -> list[Reader]:
        """Return the readers of the round if a quorum confirmed it, and end it."""
        if not self.asking or not quorum.is_reached(self.acks):
            return []
        done, self.asking = self.asking, []
        return done

    def everyone(self) -> Iterable[Reader]:
        """All readers, asked for or waiting, for a leader that steps down."""
        return [*self.asking, *self.waiting]
