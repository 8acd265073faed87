"""Replicated state machine: applies committed entries (D12).

Owns: topics, queues, consumer groups, consumption, memberships, deduplication, batches that are
written exactly once, holds, and the order in which entries change them.
Must not: know a clock, a file, or the callers that wait for a result.
Invariants: the same entries produce the same state on every node, byte for byte in checkpoints. The only time
is the timestamp of the entry. The base offset of a section is the end of its queue.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from ledgermq.proto.entry import HEADER_SIZE, Buffer, EntryHeader, EntryKind
from ledgermq.proto.record import (
    BATCH_WRITE_EPOCH,
    FLAGS_WORD,
    ID_WORDS,
    MESSAGE_ID_OFFSET,
    SECTION_HEADER_SIZE,
    RecordFlags,
    RecordWords,
    SectionHeader,
    SectionKind,
    walk_commands,
    walk_sections,
)

from ..errors import DivergedError
from . import commands as c
from .backlog import missed
from .batch_writes import BatchWrites
from .codecs import decode
from .consume_queue import ColdRead, ConsumeQueue, ConsumeQueues, QueueKey, record_starts, units_of
from .consumer_groups import ConsumerGroupTable
from .consumption import ConsumptionTable
from .dedup import MessageIds, ProducerStreams
from .effects import (
    AppliedSection,
    CommandResult,
    CommitResult,
    ConsumerGroupResult,
    Effects,
    HoldLoss,
    HoldResult,
    ModeResult,
    RowsResult,
    TopicResult,
)
from .holds import Holds
from .memberships import MembershipTable
from .topics import Topic, TopicTable

_FLAGS: Final = struct.Struct("<H")
_ONE_ORIGINAL: Final = np.ones(1, bool)
_ONE_COPY: Final = np.zeros(1, bool)
_COPY_FLAG: Final = int(RecordFlags.COPY)
_COPY: Final = np.uint64(_COPY_FLAG)


class BrokerState:
    """Replicated state of a broker group: everything that survives a failover."""

    def __init__(self) -> None:
        self.topics = TopicTable()
        self.groups = ConsumerGroupTable()
        self.queues = ConsumeQueues()
        self.consumption = ConsumptionTable(self.queues, self.groups)
        self.memberships = MembershipTable()
        self.streams = ProducerStreams()
        self.message_ids = MessageIds()
        self.batch_writes = BatchWrites()
        self.holds = Holds()
        self.applied_index = 0  # index of the last applied entry; grows by one per entry
        self.applied_term = 0  # its term
        self.timestamp = 0  # its log time (ms); never decreases
        self.log_start_index = 1  # first entry that retention left; never decreases
        self.log_start_offset = 0  # physical offset of that entry
        self.feature_level = 0  # never decreases (D23)
        self.mode = c.BrokerGroupMode.ACTIVE
        self.mode_since = 0  # log time (ms) of the last change of mode; 0 while active

    def apply(self, header: EntryHeader, payload: memoryview) -> Effects:
        """Apply the next committed entry. Raises: StateError (the node must stop), CorruptError."""
        if header.index != self.applied_index + 1:
            raise DivergedError(f"the next entry to apply is {self.applied_index + 1}", header.index)
        if header.timestamp < self.timestamp:
            raise DivergedError(f"its log time {header.timestamp} is before {self.timestamp}", header.index)
        effects = Effects(header.index, header.term, header.timestamp)
        self.timestamp = header.timestamp
        if header.kind is EntryKind.RECORDS:
            for position, section in walk_sections(payload, header.section_count):
                start = position + SECTION_HEADER_SIZE
                body = payload[start : start + section.size]
                if section.kind is SectionKind.RECORDS:
                    physical_offset = header.physical_offset + HEADER_SIZE + start
                    effects.sections.append(self._apply_records(section, body, physical_offset, header.index))
                else:
                    for command_type, version, raw in walk_commands(body, section.count):
                        command = decode(command_type, version, raw, header.index)
                        effects.results.append(_APPLY[type(command)](self, command, effects))
        self.applied_index = header.index
        self.applied_term = header.term
        return effects

    # --- records --------------------------------------------------------------------------------------------
    def _apply_records(
        self, section: SectionHeader, body: memoryview, physical_offset: int, index: int
    ) -> AppliedSection:
        topic_id, queue_id, base = section.topic_id, section.queue_id, section.base_queue_offset
        queue = self.queues.get(topic_id, queue_id)
        if queue is None:
            if self.topics.was_deleted(topic_id):
                return AppliedSection(topic_id, queue_id, base, section.count, gone=True)
            raise DivergedError(f"there is no queue {queue_id} of topic id {topic_id}", index)
        if base != queue.end:
            raise DivergedError(
                f"queue {queue_id} of topic id {topic_id} ends at {queue.end}, the section begins at {base}",
                index,
            )
        starts = record_starts(body, section.count)
        self.queues.append(queue, units_of(body, starts, physical_offset))
        if not section.producer_id:
            ids, wanted = message_ids(body, starts)
            self.message_ids.record(topic_id, queue_id, base, ids, wanted, self.timestamp)
        elif not self._is_of_part(section, base):
            key, epoch = (section.producer_id, topic_id, queue_id), section.producer_epoch
            self.streams.record(key, epoch, section.base_sequence, section.count, base, self.timestamp)
        return AppliedSection(topic_id, queue_id, base, section.count)

    def _is_of_part(self, section: SectionHeader, base: int) -> bool:
        """Record a section of a part of a batch, and tell whether it is one.

        An older leader admitted any epoch of a producer. Those are recorded as it recorded them: the same
        entries make the same state.
        """
        key = (section.producer_id, section.topic_id)
        return bool(section.producer_epoch & BATCH_WRITE_EPOCH) and self.batch_writes.record(
            key, section.queue_id, base, section.count, self.timestamp
        )

    # --- commands -------------------------------------------------------------------------------------------
    def _create_topic(self, command: c.CreateTopic, effects: Effects) -> CommandResult:
        topic, created = self.topics.create(command, effects.index, effects.timestamp)
        if created:
            for queue_id in range(topic.queue_count):
                self.queues.add(ConsumeQueue((topic.topic_id, queue_id), topic.folder))
            effects.topics_changed = True
        return TopicResult(topic, created)

    def _delete_topic(self, command: c.DeleteTopic, effects: Effects) -> CommandResult:
        topic = self.topics.delete(command.topic_id)
        if topic is not None:
            self.queues.remove_topic(topic.topic_id, topic.queue_count)
            self.consumption.remove_topic(topic.topic_id)
            self.streams.remove_topic(topic.topic_id)
            self.batch_writes.remove_topic(topic.topic_id)
            self.holds.remove_topic(topic.topic_id)
            effects.members_changed |= set(self.memberships.remove_topic(topic.topic_id))
            effects.topics_changed = True
            effects.deleted_topics.append(topic)
        return TopicResult(topic, topic is not None)

    def _delete_consumer_group(self, command: c.DeleteConsumerGroup, effects: Effects) -> CommandResult:
        consumer_group = self.groups.delete(command.group_id)
        if consumer_group is not None:
            self.consumption.remove_consumer_group(consumer_group.group_id)
            if self.memberships.remove_consumer_group(consumer_group.group_id):
                effects.members_changed.add(consumer_group.group_id)
        return ConsumerGroupResult(consumer_group, consumer_group is not None)

    def _commit_offsets(self, command: c.CommitOffsets, effects: Effects) -> CommandResult:
        if self.groups.get(command.group_id) is None:
            return CommitResult(np.zeros(len(command.rows), bool), np.zeros(len(command.rows), bool))
        fenced = self.memberships.fenced(command, self.topics)
        result = self.consumption.commit(command, fenced, effects)
        if self.memberships.renew(command, result.accepted, effects.index):
            effects.members_changed.add(command.group_id)
        return result

    def _evict(self, command: c.EvictDedup, effects: Effects) -> CommandResult:
        self.message_ids.evict(command.ids_before)
        self.streams.evict(command.streams_before)
        return None

    def _begin_batch(self, command: c.BeginBatch, effects: Effects) -> CommandResult:
        if self.topics.get(command.topic_id) is None:
            return TopicResult(None, False)
        return self.batch_writes.begin(command, effects.index, effects.timestamp)

    def _set_hold(self, command: c.SetHold, effects: Effects) -> CommandResult:
        if self.topics.get(command.topic_id) is None:
            return HoldResult(False, None)
        queues = (
            (self.queues.get(command.topic_id, queue_id), offset)
            for queue_id, offset in command.rows.tolist()
        )
        rows = [(queue.key[1], offset, queue.begin) for queue, offset in queues if queue is not None]
        return HoldResult(True, self.holds.set(command.topic_id, command.name, rows, effects.timestamp))

    def _release_hold(self, command: c.ReleaseHold, effects: Effects) -> CommandResult:
        released = self.holds.release(command.topic_id, command.name)
        return HoldResult(self.topics.get(command.topic_id) is not None, {} if released else None)

    def _log_start(self, command: c.LogStart, effects: Effects) -> CommandResult:
        if command.index > self.log_start_index:
            self.log_start_index = command.index
            self.log_start_offset = command.physical_offset
        self._trim(command.rows, effects)
        effects.log_start = command
        return None

    def _trim(self, rows: np.ndarray, effects: Effects) -> None:
        """Move the begin of queues to the offsets in `rows`, never back and never past their end."""
        begins: dict[QueueKey, int] = {}
        for topic_id, queue_id, begin in rows.tolist():
            queue = self.queues.get(topic_id, queue_id)
            if queue is not None and begin > queue.begin:
                before, queue.begin = queue.begin, min(begin, queue.end)
                begins[queue.key] = queue.begin
                effects.hold_losses += (
                    HoldLoss(topic_id, name, queue_id, count, is_first)
                    for name, count, is_first in self.holds.deleted(queue.key, before, queue.begin)
                )
        self.consumption.trim(begins, effects)
        effects.trimmed += begins

    def _change_topic(
        self, command: c.SetTopicRetention | c.SetTopicKeepUnread, effects: Effects
    ) -> CommandResult:
        topic, changed = self.topics.change(index=effects.index, **asdict(command))
        effects.topics_changed |= changed
        return TopicResult(topic, changed)

    def _feature_level(self, command: c.FeatureLevel, effects: Effects) -> CommandResult:
        self.feature_level = max(self.feature_level, command.level)
        return None

    def _set_mode(self, command: c.SetBrokerGroupMode, effects: Effects) -> CommandResult:
        changed = command.mode is not self.mode
        if changed and command.if_consumed:
            left = tuple(missed(self, command.consumers))
            if left or self.mode is c.BrokerGroupMode.ACTIVE:
                return ModeResult(self.mode, self.mode_since, False, left)
        if changed:
            self.mode = command.mode
            self.mode_since = 0 if command.mode is c.BrokerGroupMode.ACTIVE else effects.timestamp
            effects.topics_changed = True
        return ModeResult(self.mode, self.mode_since, changed)

    # --- members of queue-exclusive consumer groups ---------------------------------------------------------
    def _join(self, command: c.JoinConsumerGroup, effects: Effects) -> CommandResult:
        consumer_group = self.groups.get(command.group_id)
        if consumer_group is None:
            return ConsumerGroupResult(None, False)
        changed = self.memberships.join(command, effects.index, effects.timestamp)
        if changed:
            effects.members_changed.add(command.group_id)
        return ConsumerGroupResult(consumer_group, changed)

    def _leave(self, command: c.LeaveConsumerGroup, effects: Effects) -> CommandResult:
        effects.members_changed.add(command.group_id)
        return RowsResult(self.memberships.leave(command, effects.index))

    def _assign(self, command: c.AssignQueues, effects: Effects) -> CommandResult:
        effects.members_changed.add(command.group_id)
        keys = zip(command.rows["topic_id"].tolist(), command.rows["queue_id"].tolist(), strict=True)
        there = [self.queues.get(*key) is not None for key in keys]
        return RowsResult(self.memberships.assign(command, effects.index, there))

    # --- reading --------------------------------------------------------------------------------------------
    def queue_begin(self, topic_id: int, queue_id: int) -> int:
        """Return the first stored queue offset. Raises: QueueNotFoundError."""
        return self.queues.named(topic_id, queue_id).begin

    def queue_end(self, topic_id: int, queue_id: int) -> int:
        """Return one past the last visible queue offset. Raises: QueueNotFoundError."""
        return self.queues.named(topic_id, queue_id).end

    def committed_offset(self, group_id: int, topic_id: int, queue_id: int) -> int | None:
        """Return the first offset that the consumer group has not finished; None: it has no position."""
        found = self.consumption.get((group_id, topic_id, queue_id))
        return None if found is None else found.committed

    def leased_count(self, group_id: int, topic_id: int, queue_id: int) -> int:
        """Return the number of messages delivered and not acknowledged."""
        found = self.consumption.get((group_id, topic_id, queue_id))
        return 0 if found is None else found.leased_count

    def lost_count(self, group_id: int, topic_id: int, queue_id: int) -> int:
        """Return the number of messages that retention deleted since the last grant or commit, unconsumed."""
        found = self.consumption.get((group_id, topic_id, queue_id))
        return 0 if found is None else found.lost

    def parked_count(self, group_id: int, topic_id: int, queue_id: int) -> int:
        """Return the number of messages that are parked for the consumer group."""
        found = self.consumption.get((group_id, topic_id, queue_id))
        return 0 if found is None else len(found.parked)

    def consumed_topics(self, group_id: int) -> list[int]:
        """Return the ids of the topics in which the consumer group has a position."""
        return sorted({topic_id for _, topic_id, _ in self.consumption.keys_of_consumer_group(group_id)})

    def queues_of(self, topic: Topic) -> list[ConsumeQueue]:
        """Return the queues of a topic, ordered by id."""
        return [self.queues.named(topic.topic_id, queue_id) for queue_id in range(topic.queue_count)]

    def log_start_command(
        self, index: int, physical_offset: int, known: dict[QueueKey, int]
    ) -> c.LogStart | ColdRead:
        """Return the command that lets the log begin at entry `index`, or a read that must be done first.

        After the read, call again. For retention on the leader. `physical_offset`: that of the entry. `known`
        collects the begins found so far across calls, because the block cache does not hold the units of all
        queues.
        """
        rows = []
        for queue in sorted(self.queues, key=lambda queue: queue.key):
            begin = known.get(queue.key)
            if begin is None:
                found = self.queues.first_at_or_behind(queue, physical_offset)
                if isinstance(found, ColdRead):
                    return found
                begin = known[queue.key] = found
            if begin > queue.begin:
                rows.append((*queue.key, begin))
        return c.LogStart(index, physical_offset, c.position_rows(rows))


def message_ids(body: Buffer, starts: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Return the concatenated 16-byte ids of the records at `starts`, and a bool per record: not a copy."""
    if len(starts) == 1:  # fast path: array operations cost more than one record
        start = int(starts[0])
        (flags,), at = _FLAGS.unpack_from(body, start + 8 * FLAGS_WORD), start + MESSAGE_ID_OFFSET
        return bytes(body[at : at + 16]), _ONE_COPY if flags & _COPY_FLAG else _ONE_ORIGINAL
    words = RecordWords(body, starts)
    ids = np.stack([words.column(word) for word in ID_WORDS], axis=1)
    return ids.tobytes(), words.column(FLAGS_WORD) & _COPY == 0


_Apply = Callable[[BrokerState, Any, Effects], CommandResult]
_APPLY: Final[dict[type, _Apply]] = {
    c.CreateTopic: BrokerState._create_topic,
    c.DeleteTopic: BrokerState._delete_topic,
    c.CreateConsumerGroup: lambda state, command, effects: ConsumerGroupResult(
        *state.groups.create(command, effects.index)
    ),
    c.DeleteConsumerGroup: BrokerState._delete_consumer_group,
    c.CommitOffsets: BrokerState._commit_offsets,
    c.SetPositions: lambda state, command, effects: state.consumption.set_positions(command, effects),
    c.GrantLeases: lambda state, command, effects: state.consumption.grant(command, effects),
    c.Ack: lambda state, command, effects: state.consumption.acknowledge(command, effects),
    c.ChangeInvisible: lambda state, command, effects: state.consumption.change(command, effects),
    c.ReleaseLeases: lambda state, command, effects: state.consumption.release(command, effects),
    c.SessionLost: lambda state, command, effects: state.consumption.session_lost(command, effects),
    c.EvictDedup: BrokerState._evict,
    c.LogStart: BrokerState._log_start,
    c.TrimQueues: lambda state, command, effects: state._trim(command.rows, effects),
    c.SetTopicRetention: BrokerState._change_topic,
    c.SetTopicKeepUnread: BrokerState._change_topic,
    c.FeatureLevel: BrokerState._feature_level,
    c.JoinConsumerGroup: BrokerState._join,
    c.LeaveConsumerGroup: BrokerState._leave,
    c.AssignQueues: BrokerState._assign,
    c.SetBrokerGroupMode: BrokerState._set_mode,
    c.ParkMessages: lambda state, command, effects: state.consumption.park(command, effects),
    c.BeginBatch: BrokerState._begin_batch,
    c.FinishBatch: lambda state, command, effects: state.batch_writes.finish(command, effects.timestamp),
    c.ForgetBatches: lambda state, command, effects: state.batch_writes.forget(command.before),
    c.SetHold: BrokerState._set_hold,
    c.ReleaseHold: BrokerState._release_hold,
    c.ReleaseParked: lambda state, command, effects: state.consumption.release_parked(command, effects),
}
