"""Segment pins: segments that retention must keep for a while for a follower under reset.

Owns: which entries, and for how long. A pin ends when the follower holds the entries that it needs, when it
makes no progress for a minute, or after half an hour in total. A follower that keeps trying then gets no pin
for the same time again. A node that never returns, or never makes progress, must not fill the leader's disk.
Pure: time (monotonic seconds) and the followers' progress are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..types import NO_INDEX, LogIndex, NodeId

IDLE_SECONDS: Final = 60.0
TOTAL_SECONDS: Final = 1800.0


@dataclass(slots=True)
class _Pin:
    first_index: LogIndex  # where the follower's log will begin; it and all later entries are kept
    target_index: LogIndex  # once the follower holds this entry it is no longer far behind
    since: float  # start of the first attempt, in monotonic seconds
    touched: float  # last progress, in monotonic seconds; invariant: not before `since`
    match_index: LogIndex = NO_INDEX

    def is_active(self, now: float) -> bool:
        return now - self.touched < IDLE_SECONDS and now - self.since < TOTAL_SECONDS


class SegmentPins:
    """At most one pin per follower. `clear` drops those of an earlier leadership."""

    def __init__(self) -> None:
        self._pins: dict[NodeId, _Pin] = {}

    def pin(self, node: NodeId, first_index: LogIndex, target_index: LogIndex, now: float) -> None:
        """Keep the entries from `first_index` on for a follower. Repeated attempts share one total time."""
        old = self._pins.get(node)
        since = old.since if old is not None and now - old.since < 2 * TOTAL_SECONDS else now
        self._pins[node] = _Pin(first_index, target_index, since, now)

    def touch(self, node: NodeId, now: float) -> None:
        """Note that the follower made progress."""
        pin = self._pins.get(node)
        if pin is not None:
            pin.touched = now

    def clear(self) -> None:
        """Drop all pins."""
        self._pins.clear()

    def holds(self, node: NodeId, now: float) -> bool:
        """Return whether entries are kept for a follower."""
        return node in self._pins and self._pins[node].is_active(now)

    def keep_from(self, match: Mapping[NodeId, LogIndex], now: float) -> LogIndex | None:
        """Return the first entry to keep; None: any may go. `match`: highest entry known on each follower."""
        needed: list[LogIndex] = []
        for node, pin in list(self._pins.items()):
            index = match.get(node, NO_INDEX)
            if index > pin.match_index:
                pin.match_index, pin.touched = index, now
            if index >= pin.target_index:
                del self._pins[node]
            elif pin.is_active(now):
                needed.append(max(pin.first_index, LogIndex(pin.match_index + 1)))
        return min(needed, default=None)
