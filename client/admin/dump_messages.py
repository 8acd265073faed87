"""Messages in dumps, read without a cluster.

Owns: which records of the dumped log belong to a topic. A record names the topic that it was sent to, so
messages are found even if their topic was deleted later. Must not: print.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.dumped_log import DumpedLog
from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, EntryKind
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.record import (
    SECTION_HEADER_SIZE,
    SectionHeader,
    SectionKind,
    decode_record,
    record_positions,
    walk_sections,
)

from ..message import MessageQueue, MessageView


@dataclass(frozen=True, slots=True)
class DumpedMessage:
    """A message with its log entry. Successive topics of one name have different ids."""

    message: MessageView
    topic_id: int
    index: int
    committed: bool  # False: the dumped node was stopped, and did not know whether it was committed


@dataclass(slots=True)
class DumpedTopic:
    """The messages of one topic in dumps, in the order they were stored. Times are log time, ms."""

    dumped: DumpedLog
    topic: str
    begin_ms: int = 0
    end_ms: int = 0  # exclusive; 0: unbounded
    unreadable: int = 0  # damaged sections in intact entries
    _names: dict[int, str] = field(default_factory=dict)  # topic names by id

    def messages(self) -> Iterator[DumpedMessage]:
        """Yield the messages. Raises: OSError. Afterwards `dumped.reading` tells what could not be read."""
        self._names = {
            queue.topic_id: queue.topic for log in self.dumped.logs for queue in log.manifest.queues
        }
        for header, raw in self.dumped.entries(self.dumped.base.base):
            if self.end_ms and header.timestamp >= self.end_ms:
                return
            if header.kind is EntryKind.RECORDS and header.timestamp >= self.begin_ms:
                yield from self._of_entry(header, raw)

    def _of_entry(self, header: EntryHeader, raw: bytes) -> Iterator[DumpedMessage]:
        payload = memoryview(raw)[HEADER_SIZE : HEADER_SIZE + header.payload_size]
        try:
            for position, section in walk_sections(payload, header.section_count):
                start = position + SECTION_HEADER_SIZE
                if section.kind is SectionKind.RECORDS:
                    yield from self._of_section(header, section, payload[start : start + section.size])
        except LayoutError:
            self.unreadable += 1

    def _of_section(
        self, header: EntryHeader, section: SectionHeader, body: memoryview
    ) -> Iterator[DumpedMessage]:
        positions = record_positions(body, section.count).tolist()
        if not positions or self._topic_of(section.topic_id, body, positions[0]) != self.topic:
            return
        queue = MessageQueue(self.topic, self.dumped.logs[0].manifest.group, section.queue_id)
        committed = header.index <= self.dumped.commit_index
        for number, position in enumerate(positions):
            view = MessageView(body, position, queue, section.base_queue_offset + number, header.timestamp)
            yield DumpedMessage(view, section.topic_id, header.index, committed)

    def _topic_of(self, topic_id: int, body: memoryview, position: int) -> str:
        """Return the name of a topic: from the dumped node's state, else from its first record."""
        if topic_id not in self._names:
            try:
                record = v2.Message.FromString(bytes(decode_record(body, position).rest_run))
            except DecodeError:
                return ""
            self._names[topic_id] = record.topic.name
        return self._names[topic_id]
