"""Which filters the consumers of a group name for a topic under leases, so that it can be said when they differ.

What the filter of one consumer leaves out is passed over for its whole group: the others never get it. Members of
queue-exclusive groups are warned by their coordinator.

Owns: the filters that were named lately, at the node that leads. Must not: refuse anything, read clocks.
Invariant: bounded in groups and topics, and in filters of each.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

#: A filter that nobody named for so long, ms of log time, is out of use.
IN_USE_MS: Final = 300_000
#: What has been said is said again after so long.
SAID_AGAIN_MS: Final = 60_000
MAX_WATCHED: Final = 4096
MAX_FILTERS: Final = 8
_MAX_TEXT: Final = 80

Tags = frozenset[int] | None  # hashes; None: everything


@dataclass(slots=True)
class _Watched:
    #: By the hash of the tags, which may be very many: text, and when named last.
    filters: OrderedDict[int | None, tuple[str, int]] = field(default_factory=OrderedDict)
    said_at: int = -SAID_AGAIN_MS


class FilterWatch:
    """Use: `look` at each receive."""

    def __init__(self) -> None:
        self._watched: OrderedDict[tuple[int, int], _Watched] = OrderedDict()  # by group and topic id

    def look(self, group_id: int, topic_id: int, tags: Tags, text: str, now: int) -> list[str]:
        """Note the filter of a receive; return those that are in use when they differ and it is time to say so."""
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
