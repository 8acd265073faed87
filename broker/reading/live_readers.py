"""Open fetch streams of this node and their positions; known only while a stream is open.

Consumers that store no progress here (broadcast consumers, pull consumers that never commit) are visible
nowhere else. Before a broker group is removed, the operator is told which of them are behind.
Owns: the last request of each stream.   Must not: cost a fetch more than storing a reference; decide
anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ledgermq.proto.log_pb2 import FetchRequest

from ..state.backlog import consumers_by_topic
from ..state.machine import BrokerState

_MOST_POSITIONS: Final = 20_000  # maximum of positions per query; streams beyond it are left out


@dataclass(slots=True, eq=False)
class LiveReader:
    """An open stream."""

    consumer_group: str  # "": none, or an older client that does not send it
    request: FetchRequest | None = None  # the last request, with the reader's positions


@dataclass(slots=True)
class LiveReading:
    """A consumer group that reads a topic without progress stored here."""

    consumer_group: str
    topic: str
    streams: int = 0  # that are behind
    behind: int = 0  # messages that the slowest of its streams has not fetched


class LiveReaders:
    """Open fetch streams. Call `open` for each; the connection limits bound their number."""

    def __init__(self) -> None:
        self._open: set[LiveReader] = set()

    @contextmanager
    def open(self, consumer_group: str) -> Iterator[LiveReader]:
        """Register a stream inside the block. Set `request` of the yielded reader for each request."""
        reader = LiveReader(consumer_group)
        self._open.add(reader)
        try:
            yield reader
        finally:
            self._open.remove(reader)

    def unseen(self, state: BrokerState) -> list[LiveReading]:
        """Return the readers that are behind and unknown to `progress`, by consumer group and topic."""
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
        return sorted(found.values(), key=lambda each: (each.consumer_group, each.topic))

    def _add(
        self,
        found: dict[tuple[str, int], LiveReading],
        reader: LiveReader,
        behind: dict[int, int],
        state: BrokerState,
        counted: dict[int, set[int]],
    ) -> None:
        consumer_group = state.groups.find(reader.consumer_group) if reader.consumer_group else None
        for topic_id, count in behind.items():
            topic = state.topics.get(topic_id)
            if topic is None or (
                consumer_group is not None and consumer_group.group_id in counted.get(topic_id, ())
            ):
                continue
            key = reader.consumer_group, topic_id
            known = found.setdefault(key, LiveReading(reader.consumer_group, topic.name))
            known.streams += 1
            known.behind = max(known.behind, count)
