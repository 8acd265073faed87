"""Quorums: which nodes are enough. Pluggable, so that a membership change needs no rewrite (thesis 4.3).

Owns: the arithmetic. Must not: know which nodes are alive, or decide what is committed (`commit_rule.py`).
Invariant: any two quorums of one kind share a voter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ..types import LogIndex, NodeId


class Quorum(Protocol):
    """A set of voters and a rule."""

    @property
    def voters(self) -> frozenset[NodeId]:
        """All nodes whose votes and copies count."""

    def is_reached(self, nodes: Collection[NodeId]) -> bool:
        """Tell whether these nodes are enough."""

    def is_lost(self, refusals: Collection[NodeId]) -> bool:
        """Tell whether the voters without these refusals are too few."""

    def committed_index(self, match: Mapping[NodeId, LogIndex]) -> LogIndex:
        """Return the highest index that a quorum holds. A voter without a value holds nothing."""


class Majority:
    """More than half of the voters."""

    __slots__ = ("_need", "voters")

    def __init__(self, voters: Collection[NodeId]) -> None:
        self.voters = frozenset(voters)
        self._need = len(self.voters) // 2 + 1  # so two majorities share at least one voter

    def is_reached(self, nodes: Collection[NodeId]) -> bool:
        return len(self.voters.intersection(nodes)) >= self._need

    def is_lost(self, refusals: Collection[NodeId]) -> bool:
        return len(self.voters.difference(refusals)) < self._need

    def committed_index(self, match: Mapping[NodeId, LogIndex]) -> LogIndex:
        zero = LogIndex(0)
        values = sorted([match.get(voter, zero) for voter in self.voters])
        return values[-self._need] if values else zero


class Joint:
    """Two majorities at once, during a change from one set of voters to another."""

    __slots__ = ("_new", "_old")

    def __init__(self, old: Quorum, new: Quorum) -> None:
        self._old = old
        self._new = new

    @property
    def voters(self) -> frozenset[NodeId]:
        return self._old.voters | self._new.voters

    def is_reached(self, nodes: Collection[NodeId]) -> bool:
        return self._old.is_reached(nodes) and self._new.is_reached(nodes)

    def is_lost(self, refusals: Collection[NodeId]) -> bool:
        return self._old.is_lost(refusals) or self._new.is_lost(refusals)

    def committed_index(self, match: Mapping[NodeId, LogIndex]) -> LogIndex:
        return min(self._old.committed_index(match), self._new.committed_index(match))
