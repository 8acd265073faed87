"""Which nodes lost, or may lose, what they acknowledged. Never more than a minority at a time: beyond that, loss is fair.

In a group with a master that is never the master, and it may be all of the slaves.

A node is hurt from the fault until it votes again after it has fetched everything as a learner; one that only lost power
keeps its log, so until it votes again, and one whose log has a bad byte stays hurt until that is noticed. Damage is
repaired per node, not per range, so the account is per node, too.
"""

from __future__ import annotations

from collections.abc import Sequence

POWER_LOST = "power lost"
EMPTY_DISK = "an empty disk"
OLD_DISK = "its old disk is back"


class Atlas:
    """The account of one run."""

    def __init__(self, names: list[str], master: str = "") -> None:
        self._master = master
        self._limit = len(names) if master else (len(names) - 1) // 2
        self.hurt: dict[str, str] = {}  # node -> what happened to it

    def may_hurt(self, name: str, without_vote: Sequence[str] = ()) -> bool:
        """Tell whether this node may be hurt now."""
        return name not in (*self.hurt, self._master) and len({*self.hurt, *without_vote}) < self._limit

    def note(self, name: str, what: str) -> None:
        """A node was hurt."""
        assert name in self.hurt or self.may_hurt(name)
        # What damaged the log outlives what only cut its end.
        if self.hurt.get(name, POWER_LOST) == POWER_LOST:
            self.hurt[name] = what

    def is_damaged(self, name: str) -> bool:
        """Tell whether bytes may be wrong that this node believes to hold."""
        return self.hurt.get(name, POWER_LOST) not in (POWER_LOST, EMPTY_DISK)

    def recovered(self, name: str) -> None:
        """A node votes again, and its log is not the one that was hurt."""
        self.hurt.pop(name, None)
