"""History of topics and consumer groups according to the log, to find the position for a restore.

Pure. Owns: names of deleted topics and consumer groups. Must not: apply anything else of an entry.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, EntryKind
from ledgermq.proto.errors import CorruptError
from ledgermq.proto.record import SECTION_HEADER_SIZE, SectionKind, walk_commands, walk_sections

from ..errors import UnknownCommandError
from ..state import commands as c
from ..state.codecs import decode
from ..state.consumer_groups import ConsumerGroupTable
from ..state.topics import TopicTable

#: Most events that are remembered; the newest are kept.
MAX_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An operation on a topic or consumer group. `timestamp` is log time (ms)."""

    index: int  # of the entry with the command
    timestamp: int
    what: str  # for people; ends with " was created" for a creation only

    @property
    def is_loss(self) -> bool:
        """Whether the operation removed something that a restore could bring back."""
        return not self.what.endswith(" was created")


@dataclass(slots=True)
class LogHistory:
    """Collects events. Pass it every entry after its initial state (empty: from the log's first entry on)."""

    topics: TopicTable = field(default_factory=TopicTable)
    consumer_groups: ConsumerGroupTable = field(default_factory=ConsumerGroupTable)
    state_index: int = 0  # the initial tables include the entries up to here
    events: list[LogEvent] = field(default_factory=list)

    def take(self, header: EntryHeader, raw: bytes) -> None:
        """Read the commands of an entry. Commands that cannot be decoded are skipped."""
        if header.kind is not EntryKind.RECORDS or header.index <= self.state_index:
            return
        payload = memoryview(raw)[HEADER_SIZE : HEADER_SIZE + header.payload_size]
        with suppress(CorruptError):
            for position, section in walk_sections(payload, header.section_count):
                if section.kind is SectionKind.COMMANDS:
                    start = position + SECTION_HEADER_SIZE
                    self._take_commands(header, payload[start : start + section.size], section.count)

    def _take_commands(self, header: EntryHeader, body: memoryview, count: int) -> None:
        for command_type, version, payload in walk_commands(body, count):
            with suppress(UnknownCommandError):
                if what := self._what(decode(command_type, version, payload, header.index), header):
                    self.events.append(LogEvent(header.index, header.timestamp, what))
                    del self.events[:-MAX_EVENTS]

    def _what(self, command: c.Command, header: EntryHeader) -> str:
        if isinstance(command, c.CreateTopic):
            _, created = self.topics.create(command, header.index, header.timestamp)
            return f"topic {command.name} was created" if created else ""
        if isinstance(command, c.DeleteTopic):
            topic = self.topics.delete(command.topic_id)
            return f"topic {topic.name} was deleted" if topic else ""
        if isinstance(command, c.CreateConsumerGroup):
            _, created = self.consumer_groups.create(command, header.index)
            return f"consumer group {command.name} was created" if created else ""
        if isinstance(command, c.DeleteConsumerGroup):
            consumer_group = self.consumer_groups.delete(command.group_id)
            return f"consumer group {consumer_group.name} was deleted" if consumer_group else ""
        if isinstance(command, c.CommitOffsets) and command.reset:
            consumer_group = self.consumer_groups.get(command.group_id)
            return f"consumer group {consumer_group.name} was reset" if consumer_group else ""
        return ""
