"""Retention as a policy: which segments go, and how fast (D8).

Owns: the choice of segments, by age, by need and by what is unread.   Must not: know a clock, a disk, or who leads; times,
sizes and shares come in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.raft.log.segment import SegmentInfo


# --- which segments go ------------------------------------------------------------------------------------------
def age_clock(log_time: int, wall_ms: float) -> int:
    """Return the time (ms) by which the leader that decides judges ages: what is young by one of its clocks is young.

    Log time may have been moved ahead, the wall clock may have been set wrong; neither deletes anything alone.
    """
    return min(log_time, int(wall_ms))


@dataclass(frozen=True, slots=True)
class Expiry:
    """Conditions under which a segment goes.

    It is older than `keep_ms` (by its last entry; `now` is `age_clock`), wholly below index `floor` (the state
    checkpoint), and wholly before offset `protected_from` of the log (None: nothing is protected).
    """

    now: int
    keep_ms: int
    floor: int
    protected_from: int | None = None

    def has_expired(self, segment: SegmentInfo) -> bool:
        """Tell whether its last entry is old enough."""
        return self.now - segment.last_timestamp >= self.keep_ms

    def protects(self, segment: SegmentInfo) -> bool:
        """Tell whether somebody still has to read it."""
        return self.protected_from is not None and segment.end_offset > self.protected_from


def expired_before(segments: Sequence[SegmentInfo], expiry: Expiry) -> SegmentInfo | None:
    """Return the first segment to keep: those before it go. None: nothing may go. The last segment always stays."""
    keep = 0
    for segment in segments[:-1]:
        if not expiry.has_expired(segment) or segment.last_index >= expiry.floor or expiry.protects(segment):
            break
        keep += 1
    return segments[keep] if keep else None


def protected_by(segments: Sequence[SegmentInfo], expiry: Expiry) -> list[SegmentInfo]:
    """Return the segments that would go if nobody had to read them still."""
    return [
        segment
        for segment in segments[:-1]
        if expiry.has_expired(segment) and segment.last_index < expiry.floor and expiry.protects(segment)
    ]


def oldest_before(
    segments: Sequence[SegmentInfo], need: int, floor: int, kept_from: int | None = None
) -> SegmentInfo | None:
    """Return the first segment to keep when the fewest oldest ones go that free `need` bytes, whatever their age.

    `kept_from`: offset of the log from which on a topic keeps what is unread (None: nothing).
    """
    keep, freed = 0, 0
    while keep < len(segments) - 1 and freed < need and segments[keep].last_index < floor:
        if kept_from is not None and segments[keep].end_offset > kept_from:
            break
        keep += 1
        freed = segments[keep].start_offset - segments[0].start_offset
    return segments[keep] if keep else None


# --- how fast ---------------------------------------------------------------------------------------------------
class DeletionPace:
    """How many segments may be unlinked: `rate` per second, without saving up more than a second of it."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._allowed = max(1.0, rate)
        self._last = 0.0

    def take(self, wanted: int, now: float) -> int:
        """Return how many of `wanted` may go at `now` (seconds, never going back)."""
        self._allowed = min(self._allowed + (now - self._last) * self._rate, max(1.0, self._rate))
        self._last = now
        granted = min(wanted, int(self._allowed))
        self._allowed -= granted
        return granted
