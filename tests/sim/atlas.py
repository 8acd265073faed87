"""Which nodes lost, or may lose, what they acknowledged. Never more than a minority at a time: beyond that, loss is fair.

A node is hurt from the fault until it votes again: by refetching everything as a learner. Damage is repaired per node,
not per range, so the account is per node, too.
"""

from __future__ import annotations


class Atlas:
    """The account of one run."""

    def __init__(self, names: list[str]) -> None:
        self._limit = (len(names) - 1) // 2
        self.hurt: dict[str, str] = {}  # node -> what happened to it

    def may_hurt(self, name: str) -> bool:
        """Tell whether this node may be hurt now."""
        return name not in self.hurt and len(self.hurt) < self._limit

    def note(self, name: str, what: str) -> None:
        """A node was hurt."""
        assert name in self.hurt or self.may_hurt(name)
        self.hurt[name] = what

    def recovered(self, name: str) -> None:
        """A node votes again."""
        self.hurt.pop(name, None)
