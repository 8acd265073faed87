"""Segments that retention must leave alone for a while: a follower that is being reset starts from them.

Owns: how far, and how long. A pin ends when the follower holds the entries that it needs, when it makes no progress
for a minute, or after half an hour in all; a follower that keeps trying then gets none for as long again. A node that
never comes back, or never gets anywhere, must not fill the leader's disk.
Pure: the time (monotonic seconds) and the followers' progress come in.
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
    first_index: LogIndex  # the follower's log will begin here
    target_index: LogIndex  # and it is no longer far behind when it holds this entry
    since: float
    touched: float
    match_index: LogIndex = NO_INDEX

    def is_active(self, now: float) -> bool:
        return now - self.touched < IDLE_SECONDS and now - self.since < TOTAL_SECONDS


class SegmentPins:
    """At most one pin per follower; those of a former lead are dropped with `clear`."""

    def __init__(self) -> None:
        self._pins: dict[NodeId, _Pin] = {}

    def pin(self, node: NodeId, first_index: LogIndex, target_index: LogIndex, now: float) -> None:
        """Keep the entries from `first_index` for a follower. A repeated attempt does not get more time in all."""
        old = self._pins.get(node)
        since = old.since if old is not None and now - old.since < 2 * TOTAL_SECONDS else now
        self._pins[node] = _Pin(first_index, target_index, since, now)

    def touch(self, node: NodeId, now: float) -> None:
        """The follower took something."""
        pin = self._pins.get(node)
        if pin is not None:
            pin.touched = now

    def clear(self) -> None:
        """Keep nothing."""
        self._pins.clear()

    def holds(self, node: NodeId, now: float) -> bool:
        """Tell whether entries are kept for a follower."""
        return node in self._pins and self._pins[node].is_active(now)

    def keep_from(self, match: Mapping[NodeId, LogIndex], now: float) -> LogIndex | None:
        """Return the first entry that must stay, None: all may go. `match`: what each follower is known to hold."""
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
