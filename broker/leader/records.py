"""Collector of the records of SendMessage calls that share a turn: one section per queue, for all senders.

Messages without a message group stay together: each turn uses the next queue of the topic, so that concurrent
messages share one section.
Owns: the records of one turn.   Must not: outlive the turn (the rotation does, see QueueRotation).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.proto.record import SECTION_HEADER_SIZE, SectionKind, encode_section

from ..state.topics import Topic
from ..wire.official import OutgoingRecord, queue_of_group
from .leader_view import Admission, LeaderView, Turn, Verdict


@dataclass(slots=True)
class PlacedRecord:
    """Place of a record."""

    queue_id: int
    offset: int = -1  # queue offset; set when the turn is closed
    verdict: Verdict = Verdict.ACCEPTED  # any other value: the record was refused


@dataclass(slots=True)
class _Section:
    records: list[bytes] = field(default_factory=list)
    placed: list[PlacedRecord] = field(default_factory=list)
    size: int = SECTION_HEADER_SIZE


class QueueRotation:
    """Round-robin choice of a topic's queue for messages without a message group. It outlives turns."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def take(self, topic: Topic) -> int:
        """Return the queue id for this turn."""
        queue_id = self._next.get(topic.topic_id, 0) % topic.queue_count
        self._next[topic.topic_id] = queue_id + 1
        return queue_id


class RecordCollector:
    """Records of one turn."""

    def __init__(self, view: LeaderView, rotation: QueueRotation) -> None:
        self.view = view
        self._rotation = rotation
        self._sections: dict[tuple[int, int], _Section] = {}
        self._chosen: dict[int, int] = {}
        self._by_id: dict[tuple[int, bytes], PlacedRecord] = {}

    def find(self, topic_id: int, message_id: bytes) -> PlacedRecord | None:
        """Return the record with that id, if this turn already has one."""
        return self._by_id.get((topic_id, message_id))

    def add(self, topic: Topic, record: OutgoingRecord, message_group: str) -> PlacedRecord:
        """Add a record. `close` sets its offset."""
        queue_id = self._queue(topic, message_group)
        section = self._sections.setdefault((topic.topic_id, queue_id), _Section())
        data = record.encode(section.size)
        section.size += len(data)
        section.records.append(data)
        placed = PlacedRecord(queue_id)
        section.placed.append(placed)
        self._by_id[topic.topic_id, record.message_id] = placed
        return placed

    def _queue(self, topic: Topic, message_group: str) -> int:
        if message_group:
            return queue_of_group(message_group, topic.queue_count)
        if topic.topic_id not in self._chosen:
            self._chosen[topic.topic_id] = self._rotation.take(topic)
        return self._chosen[topic.topic_id]

    def close(self, turn: Turn) -> None:
        """Add the sections to the turn and set the offset of every record."""
        for (topic_id, queue_id), section in self._sections.items():
            encoded = encode_section(
                SectionKind.RECORDS,
                section.records,
                len(section.records),
                topic_id=topic_id,
                queue_id=queue_id,
            )
            admission: Admission = turn.add_records(encoded)
            for i, placed in enumerate(section.placed):
                placed.verdict = admission.verdict
                placed.offset = admission.base_offset + i
