"""Retention policy: the segments to delete, and the rate (D8).

Owns: the choice of segments by age, by required space, by unread and by held messages. What consumers,
holders of holds and nodes that start over still need arrives as limits (`protection.py`,
`raft/reset/sender.py`).   Must not: know a clock, a disk, or the leader; times, sizes and shares come in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.raft.log.segment import SegmentInfo


# --- choice of segments ---------------------------------------------------------------------------------
def age_clock(log_time: int, wall_ms: float) -> int:
    """Return the time (ms) that the leader compares ages with: the lower of both clocks.

    Log time may have been moved ahead, and the wall clock may be set wrong. Neither alone deletes anything.
    """
    return min(log_time, int(wall_ms))


@dataclass(frozen=True, slots=True)
class Expiry:
    """Conditions for deleting a segment. All of them must hold."""

    now: int  # ms, from `age_clock`
    keep_ms: int  # minimum age of the segment's last entry
    floor: int  # the segment must end below this index: the state checkpoint covers it
    protected_from: int | None = None  # the segment must end before this physical offset; None: no limit

    def has_expired(self, segment: SegmentInfo) -> bool:
        """Tell whether its last entry is old enough."""
        return self.now - segment.last_timestamp >= self.keep_ms

    def protects(self, segment: SegmentInfo) -> bool:
        """Tell whether it has messages that a consumer group, or the holder of a hold, has yet to read."""
        return self.protected_from is not None and segment.end_offset > self.protected_from


def expired_before(segments: Sequence[SegmentInfo], expiry: Expiry) -> SegmentInfo | None:
    """Return the first segment to keep; None: none may be deleted. The last segment always stays."""
    keep = 0
    for segment in segments[:-1]:
        if not expiry.has_expired(segment) or segment.last_index >= expiry.floor or expiry.protects(segment):
            break
        keep += 1
    return segments[keep] if keep else None


def protected_by(segments: Sequence[SegmentInfo], expiry: Expiry) -> list[SegmentInfo]:
    """Return the segments that only the protection of messages keeps from being deleted."""
    return [
        segment
        for segment in segments[:-1]
        if expiry.has_expired(segment) and segment.last_index < expiry.floor and expiry.protects(segment)
    ]


def held_from(segments: Sequence[SegmentInfo], expiry: Expiry, held: int, max_bytes: int) -> int:
    """Return the physical offset from which on holds keep the log: `held`, or as much later as needed.

    They keep at most `max_bytes` of what would be deleted without them (0: no limit). `expiry`: without them.
    """
    first_kept = expired_before(segments, expiry)
    if not max_bytes or first_kept is None:
        return held
    kept = 0
    for segment in reversed(segments):
        if segment.end_offset <= held:
            break
        if segment.start_offset < first_kept.start_offset:
            kept += segment.end_offset - segment.start_offset
            if kept > max_bytes:
                return segment.end_offset
    return held


def oldest_before(
    segments: Sequence[SegmentInfo], need: int, floor: int, kept_from: int | None = None
) -> SegmentInfo | None:
    """Return the first segment to keep after deleting the oldest ones, as few as free `need` bytes.

    Their age does not matter. `floor`: as in Expiry. `kept_from`: physical offset from which on a topic keeps
    unread messages; None: no limit. None: none may be deleted.
    """
    keep, freed = 0, 0
    while keep < len(segments) - 1 and freed < need and segments[keep].last_index < floor:
        if kept_from is not None and segments[keep].end_offset > kept_from:
            break
        keep += 1
        freed = segments[keep].start_offset - segments[0].start_offset
    return segments[keep] if keep else None


# --- rate -----------------------------------------------------------------------------------------------
class DeletionPace:
    """Token bucket for unlinking: `rate` segments per second, burst of one second (at least one segment)."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._allowed = max(1.0, rate)
        self._last = 0.0

    def take(self, wanted: int, now: float) -> int:
        """Return how many of `wanted` segments may be unlinked at `now` (monotonic seconds)."""
        self._allowed = min(self._allowed + (now - self._last) * self._rate, max(1.0, self._rate))
        self._last = now
        granted = min(wanted, int(self._allowed))
        self._allowed -= granted
        return granted
