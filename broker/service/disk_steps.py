"""Disk use in steps, and what a node does and reports at each step (D8).

    above 75 %   expired segments are deleted at once, not only at their time of day
    above 85 %   the oldest segments are deleted, expired or not, except for what a topic keeps unread
    above 90 %   messages are refused
    above 95 %   everything that writes is refused, except what frees space

The first three limits are settings (`limits_of`). Hysteresis: a step holds until the use is 2 points below
its limit.
Owns: the limits, the hysteresis, the texts of refusals.   Must not: read a clock or a disk; sizes and shares
come in as arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class DiskStep(IntEnum):
    """How full the disk is; each step includes the effects of the ones before it."""

    NORMAL = 0
    DELETE_EXPIRED = 1
    DELETE_OLDEST = 2
    REFUSE_MESSAGES = 3
    REFUSE_WRITES = 4

    @property
    def text(self) -> str:
        """Text for `ledgermq cluster status`."""
        return _STEP_TEXTS[self]


_STEP_TEXTS: Final = {
    DiskStep.NORMAL: "",
    DiskStep.DELETE_EXPIRED: "expired messages are deleted at once",
    DiskStep.DELETE_OLDEST: "the oldest messages are deleted, expired or not",
    DiskStep.REFUSE_MESSAGES: "messages are refused",
    DiskStep.REFUSE_WRITES: "all writes are refused, except what frees space",
}
Limits = Mapping[DiskStep, float]


def limits_of(delete_expired: float = 75, delete_oldest: float = 85, refuse_messages: float = 90) -> Limits:
    """Return the share of the disk at which each step begins, from ascending percentages below 95."""
    return {
        DiskStep.DELETE_EXPIRED: delete_expired / 100,
        DiskStep.DELETE_OLDEST: delete_oldest / 100,
        DiskStep.REFUSE_MESSAGES: refuse_messages / 100,
        DiskStep.REFUSE_WRITES: 0.95,  # the rest is for elections, checkpoints, and what frees space
    }


LIMITS: Final = limits_of()
#: A step ends when the use is this far below its limit.
MARGIN: Final = 0.02


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes used of `limit` bytes; `full`: a write met a full disk, whatever the sizes say."""

    used: int
    limit: int
    full: bool = False

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit else 0.0


def next_step(step: DiskStep, share: float, *, full: bool = False, limits: Limits = LIMITS) -> DiskStep:
    """Return the step that holds now; `step` held before. A full disk refuses at least messages."""
    reached = DiskStep.NORMAL
    for each, limit in limits.items():
        if share > (limit - MARGIN if each <= step else limit):
            reached = each
    return max(reached, DiskStep.REFUSE_MESSAGES) if full else reached


class DiskWatch:
    """Tracks the step of one node's disk. Pure: sizes come in, a step and texts come out."""

    def __init__(self, node_id: str, folder: str, limits: Limits = LIMITS) -> None:
        self._node_id = node_id
        self._limits = limits
        self._folder = folder
        self.step = DiskStep.NORMAL
        self.use = Use(0, 0)
        self.hold = ""  # text: which topic keeps the log from being deleted, and what to do

    def look(self, use: Use) -> bool:
        """Note the use; return whether the step changed."""
        before, self.use = self.step, use
        self.step = next_step(before, use.share, full=use.full, limits=self._limits)
        return self.step is not before

    @property
    def refusal(self) -> str:
        """Text that says why messages are refused; "" when they are accepted."""
        return self._sentence("messages", DiskStep.REFUSE_MESSAGES)

    @property
    def write_refusal(self) -> str:
        """Text that says why all writes are refused; "" when they are accepted."""
        return self._sentence("all writes", DiskStep.REFUSE_WRITES)

    def _sentence(self, what: str, step: DiskStep) -> str:
        if self.step < step:
            return ""
        use, limit = self.use, self._limits[step]
        return (
            f"{self._node_id} refuses {what}: its disk is {'full' if use.full else f'{use.share:.0%} used'} "
            f"({use.used:,} of {use.limit:,} bytes at {self._folder}; the limit is {limit:.0%}). It goes on "
            f"below {limit - MARGIN:.0%}. {self.hold or 'Free space: ledgermq admin clean, or more disk'}"
        )


@dataclass(slots=True)
class RetentionView:
    """State of a node's retention, for status and metrics."""

    step: DiskStep = DiskStep.NORMAL
    use: Use = Use(0, 0)
    going: int = 0  # segments whose deletion was decided and is not finished
    #: Step of the fullest node of the broker group, as its leader knows it.
    fullest: DiskStep = DiskStep.NORMAL
    protected_segments: int = 0  # expired segments that are kept for consumer groups and holds
    protected_bytes: int = 0  # their size
    held_bytes: int = 0  # size of those that are kept for holds only
    protected_for: str = ""  # for whom the oldest one is kept, and the setting in parentheses
    hold: str = ""  # text: what a topic keeps from being deleted on a nearly full disk

    @property
    def protection(self) -> str:
        """Text that says which segments are kept and for which consumer group; "" when none are."""
        if self.hold or not self.protected_segments:
            return self.hold
        return (
            f"{self.protected_segments} expired segments ({self.protected_bytes:,} bytes) "
            f"have not been consumed and are kept for {self.protected_for}"
        )


def hindering_share(own: float, others: Sequence[float], voters: int) -> float:
    """Return the disk use that limits the broker group's ability to commit.

    It is the leader's own use, or that at which too many full disks leave no majority with room, if
    higher. `others`: shares of the followers that are in contact.
    """
    if voters == 1:
        return own  # a master commits alone, however full its slaves are
    blocking = voters - voters // 2  # this many full disks leave less than a majority
    shares = sorted((own, *others), reverse=True)
    return max(own, shares[blocking - 1]) if len(shares) >= blocking else own


def bytes_to_free(use: Use, share: float, limits: Limits = LIMITS) -> int:
    """Return the bytes to free until DELETE_OLDEST ends. At least 1 when full.

    `share` may be that of a fuller node.
    """
    over = share - (limits[DiskStep.DELETE_OLDEST] - MARGIN)
    return max(int(over * use.limit), 1 if use.full else 0)
