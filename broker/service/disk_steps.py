"""How full the disk is, in steps, and what a node says about it (D8).

    above 75 %   expired segments go at once, not only at their time of day
    above 85 %   the oldest segments go, expired or not, up to what a topic keeps that is unread
    above 90 %   messages are refused
    above 95 %   everything that writes is refused, except what frees space

The first three are settings (`limits_of`). A step that was reached holds until the use is 2 points below its limit, so that
nothing flutters at the edge.
Owns: the limits, the hysteresis, the sentences of refusals.   Must not: know a clock or a disk; sizes and shares come in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class DiskStep(IntEnum):
    """How full the disk is; each step includes what the ones before it do."""

    NORMAL = 0
    DELETE_EXPIRED = 1
    DELETE_OLDEST = 2
    REFUSE_MESSAGES = 3
    REFUSE_WRITES = 4

    @property
    def text(self) -> str:
        """What a person reads in `ledgermq cluster status`."""
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
    """Return the share of the disk above which each step begins, of per cents that ascend below 95."""
    return {
        DiskStep.DELETE_EXPIRED: delete_expired / 100,
        DiskStep.DELETE_OLDEST: delete_oldest / 100,
        DiskStep.REFUSE_MESSAGES: refuse_messages / 100,
        DiskStep.REFUSE_WRITES: 0.95,  # what is left is for elections, checkpoints, and what frees space
    }


LIMITS: Final = limits_of()
#: A step ends when the use is so far below its limit.
MARGIN: Final = 0.02


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes used of `limit` bytes; `full`: a write met a full disk, whatever the numbers say."""

    used: int
    limit: int
    full: bool = False

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit else 0.0


def next_step(step: DiskStep, share: float, *, full: bool = False, limits: Limits = LIMITS) -> DiskStep:
    """Return the step that holds now; `step` held before. A full disk refuses messages at least."""
    reached = DiskStep.NORMAL
    for each, limit in limits.items():
        if share > (limit - MARGIN if each <= step else limit):
            reached = each
    return max(reached, DiskStep.REFUSE_MESSAGES) if full else reached


class DiskWatch:
    """Follows the steps of one node's disk. Pure: sizes come in, a step and sentences come out."""

    def __init__(self, node_id: str, folder: str, limits: Limits = LIMITS) -> None:
        self._node_id = node_id
        self._limits = limits
        self._folder = folder
        self.step = DiskStep.NORMAL
        self.use = Use(0, 0)
        self.hold = ""  # who keeps the log from being deleted, and what to do; a sentence

    def look(self, use: Use) -> bool:
        """Note the use; return whether the step changed."""
        before, self.use = self.step, use
        self.step = next_step(before, use.share, full=use.full, limits=self._limits)
        return self.step is not before

    @property
    def refusal(self) -> str:
        """Why messages are refused; "" when they are taken."""
        return self._sentence("messages", DiskStep.REFUSE_MESSAGES)

    @property
    def write_refusal(self) -> str:
        """Why everything that writes is refused; "" when it is not."""
        return self._sentence("all writes", DiskStep.REFUSE_WRITES)

    def _sentence(self, what: str, step: DiskStep) -> str:
        if self.step < step:
            return ""
        use, limit = self.use, self._limits[step]
        return (
            f"{self._node_id} refuses {what}: its disk is {'full' if use.full else f'{use.share:.0%} used'} "
            f"({use.used:,} of {use.limit:,} bytes at {self._folder}; the limit is {limit:.0%}). It goes on below "
            f"{limit - MARGIN:.0%}. {self.hold or 'Free space: ledgermq admin clean, or more disk'}"
        )


@dataclass(slots=True)
class RetentionView:
    """What a node's retention says of itself, for status and metrics."""

    step: DiskStep = DiskStep.NORMAL
    use: Use = Use(0, 0)
    going: int = 0  # segments that are to be unlinked, or are being unlinked
    protected_segments: int = 0  # expired ones that somebody still has to read
    protected_bytes: int = 0
    protected_for: str = ""  # group and topic that hold the oldest of them, and the setting in parentheses
    hold: str = ""  # what a topic keeps from being deleted on a nearly full disk; a sentence

    @property
    def protection(self) -> str:
        """What is kept for whom, for people; "" when nothing is."""
        if self.hold or not self.protected_segments:
            return self.hold
        return (
            f"{self.protected_segments} expired segments ({self.protected_bytes:,} bytes) have not been consumed and are kept for "
            f"{self.protected_for}"
        )


def hindering_share(own: float, others: Sequence[float], voters: int) -> float:
    """Return the use at which a group can hardly commit: the leader's own, or that of so many that a majority lacks room.

    `others`: shares of the followers that are in contact.
    """
    if voters == 1:
        return own  # a master commits alone, however full its slaves are
    blocking = voters - voters // 2  # so many full disks leave less than a majority
    shares = sorted((own, *others), reverse=True)
    return max(own, shares[blocking - 1]) if len(shares) >= blocking else own


def bytes_to_free(use: Use, share: float, limits: Limits = LIMITS) -> int:
    """Return how much must go until DELETE_OLDEST ends; `share` may be that of a fuller node. At least 1 when full."""
    over = share - (limits[DiskStep.DELETE_OLDEST] - MARGIN)
    return max(int(over * use.limit), 1 if use.full else 0)
