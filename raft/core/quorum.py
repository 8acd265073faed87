"""Majorities: which nodes are enough.

Owns: the arithmetic. Must not: know which nodes are alive, or decide what is committed (`commit_rule.py`).
Invariant: any two majorities share a voter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..types import LogIndex, NodeId


class Majority:
    """More than half of the voters."""

    __slots__ = ("_need", "voters")

    def __init__(self, voters: Collection[NodeId]) -> None:
        self.voters = frozenset(voters)  # all nodes whose votes and copies count
        self._need = len(self.voters) // 2 + 1  # so two majorities share at least one voter

    def is_reached(self, nodes: Collection[NodeId]) -> bool:
        """Tell whether these nodes are enough."""
        return len(self.voters.intersection(nodes)) >= self._need

    def is_lost(self, refusals: Collection[NodeId]) -> bool:
        """Tell whether the voters without these refusals are too few."""
        return len(self.voters.difference(refusals)) < self._need

    def committed_index(self, match: Mapping[NodeId, LogIndex]) -> LogIndex:
        """Return the highest index that a majority holds. A voter without a value holds nothing."""
        zero = LogIndex(0)
        values = sorted([match.get(voter, zero) for voter in self.voters])
        return values[-self._need] if values else zero
