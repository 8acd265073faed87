"""Who reads the log of this node through an open fetch stream, and how far; known while the stream is open.

Consumers that store no progress here (broadcast ones, pull consumers that never commit) are seen nowhere else: before the
broker group goes for good a person is told of those that are behind.
Owns: the last request of each stream. Must not: cost a fetch more than to keep it; decide anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ledgermq.proto.log_pb2 import FetchRequest

from ..state.backlog import consumers_by_topic
from ..state.machine import BrokerState

_MOST_POSITIONS: Final = 20_000  # that are looked at for one question; the streams behind them are left out


@dataclass(slots=True, eq=False)
class LiveReader:
    """An open stream."""

    consumer_group: str  # "": of none, or of an older version, which does not tell
    request: FetchRequest | None = None  # the last one: it says how far the reader is


@dataclass(slots=True)
class LiveReading:
    """A consumer group in a topic of which it stores no progress here."""

    group: str
    topic: str
    streams: int = 0
    behind: int = 0  # messages that the last of its streams has not fetched


class LiveReaders:
    """`open` for each stream; the connection limits bound how many there are."""

    def __init__(self) -> None:
        self._open: set[LiveReader] = set()

    @contextmanager
    def open(self, consumer_group: str) -> Iterator[LiveReader]:
        """While the stream is open; set `request` of what it gives with each one."""
        reader = LiveReader(consumer_group)
        self._open.add(reader)
        try:
            yield reader
        finally:
            self._open.remove(reader)

    def unseen(self, state: BrokerState) -> list[LiveReading]:
        """Return those that are behind and of which `progress` knows nothing, by group and topic."""
        counted = consumers_by_topic(state)
        found: dict[tuple[str, int], LiveReading] = {}
        room = _MOST_POSITIONS
        for reader in self._open:
            positions = reader.request.positions if reader.request is not None else ()
            room -= len(positions)
            if room < 0:
                break
            behind: dict[int, int] = {}
            for each in positions:
                queue = state.queues.get(each.topic_id, each.queue_id)
                if queue is not None and each.offset < queue.end:
                    left = queue.end - max(each.offset, queue.begin)
                    behind[each.topic_id] = behind.get(each.topic_id, 0) + left
            self._add(found, reader, behind, state, counted)
        return sorted(found.values(), key=lambda each: (each.group, each.topic))

    def _add(
        self,
        found: dict[tuple[str, int], LiveReading],
        reader: LiveReader,
        behind: dict[int, int],
        state: BrokerState,
        counted: dict[int, set[int]],
    ) -> None:
        group = state.groups.find(reader.consumer_group) if reader.consumer_group else None
        for topic_id, count in behind.items():
            topic = state.topics.get(topic_id)
            if topic is None or (group is not None and group.group_id in counted.get(topic_id, ())):
                continue
            key = reader.consumer_group, topic_id
            known = found.setdefault(key, LiveReading(reader.consumer_group, topic.name))
            known.streams += 1
            known.behind = max(known.behind, count)
