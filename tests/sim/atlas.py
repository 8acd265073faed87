"""Account of the nodes that lost, or may lose, acknowledged entries.

At any time these are at most a minority: losing data beyond that is legitimate. In a broker group with a
master the master is never among them, and all of the slaves may be.

A node is hurt from the fault until it votes again after fetching everything as a learner. A node that only
lost power keeps its log, so it is hurt until it votes again. A node with a bad byte in its log stays hurt
until that is noticed. Damage is repaired per node, not per range, so the account is per node too.
"""

from __future__ import annotations

from collections.abc import Sequence

POWER_LOST = "power lost"
EMPTY_DISK = "an empty disk"
OLD_DISK = "its old disk is back"


class Atlas:
    """Account of one run."""

    def __init__(self, names: list[str], master: str = "") -> None:
        self._master = master
        self._limit = len(names) if master else (len(names) - 1) // 2
        self.hurt: dict[str, str] = {}  # node -> what happened to it

    def may_hurt(self, name: str, without_vote: Sequence[str] = ()) -> bool:
        """Return whether this node may be hurt now."""
        return name not in (*self.hurt, self._master) and len({*self.hurt, *without_vote}) < self._limit

    def note(self, name: str, what: str) -> None:
        """Record that a node was hurt."""
        assert name in self.hurt or self.may_hurt(name)
        # Damage to the log outlives a mere loss of its end.
        if self.hurt.get(name, POWER_LOST) == POWER_LOST:
            self.hurt[name] = what

    def is_damaged(self, name: str) -> bool:
        """Return whether this node may trust bytes that are wrong."""
        return self.hurt.get(name, POWER_LOST) not in (POWER_LOST, EMPTY_DISK)

    def recovered(self, name: str) -> None:
        """Record that a node votes again, with a log other than the hurt one."""
        self.hurt.pop(name, None)
