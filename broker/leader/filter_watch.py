"""Detection of consumers in one consumer group that receive from a topic with different filters.

A message that the filter of one consumer excludes is skipped for the whole consumer group: the others never
get it. Members of queue-exclusive consumer groups are warned by their coordinator.

Owns: the recently used filters, on the leader.   Must not: refuse anything, read clocks.
Invariant: the number of (consumer group, topic) pairs and of filters per pair is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

#: A filter that was not used for so long (ms of log time) no longer counts.
IN_USE_MS: Final = 300_000
#: Minimum time (ms of log time) between two warnings about the same pair.
SAID_AGAIN_MS: Final = 60_000
#: Maximum of (consumer group, topic) pairs.
MAX_WATCHED: Final = 4096
#: Maximum of filters per pair.
MAX_FILTERS: Final = 8
_MAX_TEXT: Final = 80

Tags = frozenset[int] | None  # hashes; None: everything


@dataclass(slots=True)
class _Watched:
    #: Hash of the set of tags (None: no filter) -> text, log time (ms) of its last use. Least recently used
    #: first.
    filters: OrderedDict[int | None, tuple[str, int]] = field(default_factory=OrderedDict)
    said_at: int = -SAID_AGAIN_MS  # log time (ms) of the last warning


class FilterWatch:
    """Recently used filters. Call `look` for each receive."""

    def __init__(self) -> None:
        # By (consumer group id, topic id), least recently used first.
        self._watched: OrderedDict[tuple[int, int], _Watched] = OrderedDict()

    def look(self, group_id: int, topic_id: int, tags: Tags, text: str, now: int) -> list[str]:
        """Record the filter of a receive; return the differing filters in use if a warning is due."""
        key = group_id, topic_id
        known = self._watched.get(key)
        if known is None:
            known = self._watched[key] = _Watched()
            if len(self._watched) > MAX_WATCHED:
                self._watched.popitem(last=False)
        self._watched.move_to_end(key)
        which = None if tags is None else hash(tags)
        known.filters[which] = repr(text.strip()[:_MAX_TEXT] or "*")[:_MAX_TEXT], now
        known.filters.move_to_end(which)
        if len(known.filters) > MAX_FILTERS or next(iter(known.filters.values()))[1] <= now - IN_USE_MS:
            known.filters.popitem(last=False)
        if len(known.filters) < 2 or now - known.said_at < SAID_AGAIN_MS:
            return []
        found = sorted(text for text, named in known.filters.values() if named > now - IN_USE_MS)
        if len(found) < 2:
            return []
        known.said_at = now
        return found
