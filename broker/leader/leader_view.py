"""Leader's view: queue offsets and leases that are proposed but not applied yet (D13, D14, D15).

Volatile: built when the node has applied the no-op of its term, and dropped when it stops leading. One `Turn`
collects the contents of one entry:

    turn = view.open_turn(token)              # token: a duplicate waits for it
    admission = turn.add_records(section)     # recognises retries, assigns the offset, seals the section
    slot = turn.add_command(command)          # effects.results[slot] after apply
    plan = turn.grant(request, now)           # selects messages, reserves them, adds the commands
    parts, section_count = turn.close()
    proposal = node.propose(parts, section_count)   # raises: turn.abandon()
    turn.bind(proposal.index)
    ...  effects = state.apply(header, payload); view.on_applied(header.index)

Turns must be closed and bound in the order in which they were opened. An open turn must not be abandoned
after a later one was bound. When leadership is lost, drop the view and fail waiting requests with *unknown*.
Must not: change the state, read clocks (`now` is log time, ms), hold applied data.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from ledgermq.proto.entry import HEADER_SIZE, Buffer
from ledgermq.proto.record import (
    BATCH_WRITE_EPOCH,
    SECTION_HEADER_SIZE,
    SectionHeader,
    SectionKind,
    decode_section,
    encode_section,
    seal_section,
)
from ledgermq.proto.values import value

from ..state.batch_writes import ENDED_FORGOTTEN_AFTER_MS, FORGOTTEN_AFTER_MS, MAX_SPANS
from ..state.codecs import encode
from ..state.commands import (
    BeginBatch,
    BrokerGroupMode,
    Command,
    DeleteTopic,
    EndJob,
    EvictDedup,
    ForgetBatches,
    GrantLeases,
    SessionLost,
    SetBrokerGroupMode,
)
from ..state.consume_queue import QueueKey, record_starts
from ..state.dedup import MessageIds, StreamKey
from ..state.effects import PartKey
from ..state.machine import BrokerState, message_ids
from .selection import GrantPlan, ReceiveRequest, ScanBudget, Selector, Taken

#: A session without a sign of life for so long is lost. A new leader grants the same time to all sessions.
SESSION_TIMEOUT_MS: Final = 15_000
#: Deduplication windows: of message ids, and of streams without new batches.
MESSAGE_ID_WINDOW_MS: Final = 120_000
STREAM_WINDOW_MS: Final = 3_600_000
#: Place of the queue id in the key of a part's undecided sections: their sequence spans all queues.
_ALL_QUEUES: Final = -1
#: Span of a part in a queue: writer, topic id, queue id.
SpanKey = tuple[int, int, int]
#: Maximum of streams that are kept: a client that invents producer ids creates one with each.
MAX_STREAMS: Final = 100_000
#: Maximum of unrequested messages that one pass parks: its 98 KB of rows fit into a broker group's smallest
#: entry.
_MAX_OVERDUE: Final = 4_096
#: Period at which the windows are evicted and exhausted messages that no consumer requests are parked.
_EVICTION_PERIOD_MS: Final = 15_000

#: A filter that was not used for so long (ms of log time) no longer counts.
IN_USE_MS: Final = 300_000
#: Minimum time (ms of log time) between two warnings about the same pair.
SAID_AGAIN_MS: Final = 60_000
#: Maximum of (consumer group, topic) pairs.
MAX_WATCHED: Final = 4096
#: Maximum of filters per pair.
MAX_FILTERS: Final = 8
_MAX_TEXT: Final = 80


class Verdict(Enum):
    ACCEPTED = "accepted"  # part of this turn
    # stored before; `base_offset` is that of the first copy (-1: older than the window, unknown)
    DUPLICATE = "duplicate"
    PENDING = "pending"  # the first copy is in `turn`, undecided: wait for it, then answer with `base_offset`
    SEQUENCE_GAP = "sequence_gap"  # also for an unknown stream that does not begin at 0
    STALE_EPOCH = "stale_epoch"  # the stream has a newer epoch
    TOPIC_GONE = "topic_gone"  # no topic with that id, or its deletion is proposed
    QUEUE_NOT_FOUND = "queue_not_found"
    TOO_MANY_STREAMS = "too_many_streams"  # it would start a stream beyond the maximum
    TOO_MANY_SPANS = "too_many_spans"  # it would store into a queue that its part has no room to remember
    BATCH_CHANGING = "batch_changing"  # a command that may end the attempt is proposed: ask again
    DRAINING = "draining"  # a new section, and the broker group refuses new messages


@value
class Admission:
    """Result of adding a section to a turn."""

    verdict: Verdict
    base_offset: int = -1  # queue offset of the first record: ACCEPTED, DUPLICATE, PENDING
    turn: Turn | None = None  # ACCEPTED, PENDING: the turn that holds the records
    expected_sequence: int = 0  # SEQUENCE_GAP: the next sequence number of the stream


@value
class KnownMessage:
    """Place of a known message id."""

    queue_id: int
    offset: int
    turn: Turn | None  # the undecided turn that holds it; None: it is applied


@value
class _PendingBatch:
    """Batch of a stream that is proposed but not applied."""

    turn: Turn
    epoch: int
    base_sequence: int
    count: int
    base_offset: int


class Turn:
    """Contents of one future entry, and its reservations in the view."""

    def __init__(self, view: LeaderView, token: object) -> None:
        self._view = view
        self.token = token  # opaque here: the shell lets duplicates wait for it
        self.index = 0  # of the entry, after `bind`
        self.size = 0  # bytes of payload so far
        self._records_size = 0  # bytes of record sections, which come first in the payload
        self._sections: list[Buffer] = []  # each as one buffer, or as header and body
        self._section_count = 0
        self._commands: list[bytes] = []
        self._assigned: list[tuple[QueueKey, int]] = []  # queue, number of offsets assigned
        self._streams: list[StreamKey] = []  # one per pending batch
        self._ids: list[bytes] = []  # pending message ids
        self._taken: list[Taken] = []  # reservations of the selector
        self._deleting: list[int] = []  # topics that its commands delete
        self._changing: list[PartKey | None] = []  # parts that it begins or ends; None: it forgets some
        self._opening: list[SpanKey] = []  # spans that its sections of parts make; one per section
        self.scan = ScanBudget()  # shared by all filters of this turn
        self._closings = 0  # its commands that make the broker group refuse messages

    def add_records(
        self, section: bytearray, body: Buffer = b"", header: SectionHeader | None = None
    ) -> Admission:
        """Admit one RECORDS section and seal it in place. Its structure and checksum must be verified
        already.

        With `body`, `section` is the 64-byte section header only, and `header` its decoded form.
        """
        header = decode_section(section) if header is None else header
        admission = self._view._judge(header)
        if admission.verdict is not Verdict.ACCEPTED:
            return admission
        key = (header.topic_id, header.queue_id)
        base = self._view._assign(key, header.count)
        self._assigned.append((key, header.count))
        if header.producer_id:
            stream = _stream_key(header)
            self._view._streams.setdefault(stream, deque()).append(
                _PendingBatch(self, header.producer_epoch, header.base_sequence, header.count, base)
            )
            self._streams.append(stream)
            if self._view._is_new_span(header):
                self._view._opening[_span_key(header)] += 1
                self._opening.append(_span_key(header))
        else:
            self._remember_ids(header, body or memoryview(section)[SECTION_HEADER_SIZE:], base)
        seal_section(section, base_queue_offset=base, entry_distance=HEADER_SIZE + self._records_size)
        self._sections.append(section)
        if body:
            self._sections.append(body)
        self._section_count += 1
        self._records_size += header.total_size
        self.size += header.total_size
        return Admission(Verdict.ACCEPTED, base, self)

    def _remember_ids(self, header: SectionHeader, body: Buffer, base: int) -> None:
        ids, originals = message_ids(body, record_starts(body, header.count))
        for i in np.flatnonzero(originals).tolist():
            key = MessageIds.key(header.topic_id, ids[16 * i : 16 * i + 16])
            self._view._ids[key] = KnownMessage(header.queue_id, base + i, self)
            self._ids.append(key)

    def add_command(self, command: Command, raw: bytes | None = None) -> int:
        """Add a command, `raw` when it is encoded already; return its place in `effects.results`."""
        if isinstance(command, DeleteTopic) and command.topic_id not in self._view._deleting:
            self._view._deleting.add(command.topic_id)
            self._deleting.append(command.topic_id)
        elif isinstance(command, BeginBatch | EndJob | ForgetBatches):
            changing = self._view._changed_by(command)
            self._view._changing.update(changing)
            self._changing += changing
        elif isinstance(command, SetBrokerGroupMode) and command.mode is not BrokerGroupMode.ACTIVE:
            self._view._closings += 1
            self._closings += 1
        raw = encode(command) if raw is None else raw
        self.size += len(raw) + (0 if self._commands else SECTION_HEADER_SIZE)
        self._commands.append(raw)
        return len(self._commands) - 1

    def grant(self, request: ReceiveRequest, now: int) -> GrantPlan:
        """Select messages for a consumer at log time `now` (ms), reserve them and add their commands."""
        plan, taken = self._view.selector.choose(request, now, self.scan)
        self._taken += taken
        for command in plan.commands:
            slot = self.add_command(command)
            if isinstance(command, GrantLeases) and any(len(queue.offsets) for queue in command.queues):
                plan.slot = slot
        return plan

    def close(self) -> tuple[list[Buffer], int]:
        """Return (parts, section count) for `propose`; ([], 0): nothing to propose. Call it once."""
        parts, count = self._sections, self._section_count
        self._sections = []  # the log keeps the bytes; waiting duplicates may keep this turn alive for longer
        if self._commands:
            section = encode_section(SectionKind.COMMANDS, self._commands, len(self._commands))
            seal_section(section, base_queue_offset=-1, entry_distance=HEADER_SIZE + sum(map(len, parts)))
            parts.append(section)
            count += 1
        return parts, count

    def bind(self, index: int) -> None:
        """Record the index with which the entry was proposed."""
        self.index = index
        self._view._turns.append(self)

    def abandon(self) -> None:
        """Return offsets and reservations of a turn that was not proposed. It must be the newest one."""
        view = self._view
        for key, count in reversed(self._assigned):
            view._next_offsets[key] -= count
        for stream in reversed(self._streams):
            pending = view._streams[stream].pop()
            assert pending.turn is self, "only the newest turn can be abandoned"
        view.selector.undo(self._taken)
        view._deleting.difference_update(self._deleting)
        self._forget()

    def _settle(self) -> None:
        """Drop the reservations of an applied entry: the state has its effects."""
        for stream in self._streams:
            self._view._streams[stream].popleft()
        self._view.selector.settle(self._taken)
        self._forget()

    def _forget(self) -> None:
        view = self._view
        view._closings -= self._closings
        self._closings = 0
        view._changing -= Counter(self._changing)
        self._changing = []
        view._opening -= Counter(self._opening)
        self._opening = []
        for key in self._ids:
            known = view._ids.get(key)
            if known is not None and known.turn is self:
                del view._ids[key]
        for stream in self._streams:
            if not view._streams.get(stream, True):
                del view._streams[stream]
        for queue_key, _ in self._assigned:
            queue = view._state.queues.get(*queue_key)
            if queue is None or view._next_offsets.get(queue_key) == queue.end:
                view._next_offsets.pop(queue_key, None)


@dataclass(slots=True)
class _Watched:
    # Hash of the set of tags (None: no filter) -> text, log time (ms) of its last use. Oldest use first.
    filters: OrderedDict[int | None, tuple[str, int]] = field(default_factory=OrderedDict)
    said_at: int = -SAID_AGAIN_MS  # log time (ms) of the last warning


class FilterWatch:
    """Recently used filters, to detect consumers of one consumer group that use different ones for a topic.

    A message that the filter of one consumer excludes is skipped for the whole consumer group: the others
    never get it. Members of queue-exclusive consumer groups are warned by their coordinator. The number of
    (consumer group, topic) pairs and of filters per pair is bounded. Call `look` for each receive.
    """

    def __init__(self) -> None:
        # By (consumer group id, topic id), least recently used first.
        self._watched: OrderedDict[tuple[int, int], _Watched] = OrderedDict()

    def look(
        self, group_id: int, topic_id: int, tags: frozenset[int] | None, text: str, now: int
    ) -> list[str]:
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


class LeaderView:
    """Pending offsets, batches, message ids and reservations of the leader of one term."""

    def __init__(
        self,
        state: BrokerState,
        term: int,
        timestamp: int,
        max_streams: int = MAX_STREAMS,
        max_spans: int = MAX_SPANS,
    ) -> None:
        """`timestamp`: log time (ms) of the applied no-op; sessions have 15 s of grace from then on."""
        self._state = state
        self._max_streams = max_streams
        self._max_spans = max_spans
        self.term = term
        self.selector = Selector(state)
        self.filters = FilterWatch()
        self._since = timestamp
        self._turns: deque[Turn] = deque()  # proposed and not applied, ordered by index
        # Next offset of each queue with undecided records. Invariant: at or above the applied end of the
        # queue.
        self._next_offsets: dict[QueueKey, int] = {}
        self._streams: dict[StreamKey, deque[_PendingBatch]] = {}  # undecided batches, oldest first
        self._ids: dict[bytes, KnownMessage] = {}  # undecided message ids
        self._deleting: set[int] = set()  # topics whose deletion is proposed
        self._closings = 0  # proposed commands that make the broker group refuse messages
        # Parts that proposed commands begin or end; None: one forgets some. All counts are above 0.
        self._changing: Counter[PartKey | None] = Counter()
        self._opening: Counter[SpanKey] = Counter()  # spans that undecided sections make; all above 0
        self._sessions: dict[int, int] = {}  # session -> log time (ms) of its last sign of life
        self._next_eviction = timestamp + _EVICTION_PERIOD_MS  # log time, ms

    def open_turn(self, token: object = None) -> Turn:
        """Open a turn that collects one entry."""
        return Turn(self, token)

    def on_applied(self, index: int) -> None:
        """Drop the turns that the applied entry decided. Call after `state.apply` of every entry."""
        while self._turns and self._turns[0].index <= index:
            self._turns.popleft()._settle()

    def next_offset(self, topic_id: int, queue_id: int) -> int:
        """Return the queue offset of the next accepted record. Raises: QueueNotFoundError."""
        pending = self._next_offsets.get((topic_id, queue_id))
        return self._state.queue_end(topic_id, queue_id) if pending is None else pending

    def _assign(self, key: QueueKey, count: int) -> int:
        base = self.next_offset(*key)
        self._next_offsets[key] = base + count
        return base

    # --- retries --------------------------------------------------------------------------------------------
    def _judge(self, header: SectionHeader) -> Admission:
        if header.topic_id in self._deleting or self._state.topics.get(header.topic_id) is None:
            return Admission(Verdict.TOPIC_GONE)
        if self._state.queues.get(header.topic_id, header.queue_id) is None:
            return Admission(Verdict.QUEUE_NOT_FOUND)
        if not header.producer_id:
            admission = Admission(Verdict.ACCEPTED)
        elif header.producer_epoch & BATCH_WRITE_EPOCH:
            admission = self._judge_part(header)
        else:
            admission = self._judge_sequence(header)
        return admission if self.takes_messages else _when_closed(header, admission)

    @property
    def takes_messages(self) -> bool:
        """Tell whether new messages are accepted: not from the proposal of a drain until its end."""
        return not self._closings and self._state.mode is BrokerGroupMode.ACTIVE

    def _judge_sequence(self, header: SectionHeader) -> Admission:
        """Compare a batch with the newest one of its stream, applied or not."""
        key = (header.producer_id, header.topic_id, header.queue_id)
        pending, applied = self._streams.get(key), self._state.streams.get(key)
        if pending:
            epoch, expected = pending[-1].epoch, pending[-1].base_sequence + pending[-1].count
        elif applied is not None:
            epoch, expected = applied.epoch, applied.next_sequence
        else:
            epoch, expected = header.producer_epoch, 0
            if self._has_all_streams():
                return Admission(Verdict.TOO_MANY_STREAMS)
        if header.producer_epoch < epoch:
            return Admission(Verdict.STALE_EPOCH)
        if header.producer_epoch > epoch:
            expected = 0
        if header.base_sequence == expected:
            return Admission(Verdict.ACCEPTED)
        if header.base_sequence > expected or header.producer_epoch > epoch:
            return Admission(Verdict.SEQUENCE_GAP, expected_sequence=expected)
        for batch in pending or ():
            if (batch.epoch, batch.base_sequence) == (header.producer_epoch, header.base_sequence):
                if batch.count == header.count:
                    return Admission(Verdict.PENDING, batch.base_offset, batch.turn)
                return Admission(Verdict.SEQUENCE_GAP, expected_sequence=expected)
        if applied is not None and applied.epoch == header.producer_epoch:
            offset = applied.find(header.base_sequence, header.count)
            if offset is not None:
                return Admission(Verdict.DUPLICATE, offset)
        return Admission(Verdict.SEQUENCE_GAP, expected_sequence=expected)

    def _judge_part(self, header: SectionHeader) -> Admission:
        """Compare a section of a batch with what its part has stored or is storing.

        What is proposed counts here: after a BeginBatch in the log no section of the attempt before may
        follow.
        """
        key = (header.producer_id, header.topic_id)
        if self._changing and (key in self._changing or None in self._changing):
            return Admission(Verdict.BATCH_CHANGING)
        part = self._state.batch_writes.part(key)
        if part is None or part.epoch != header.producer_epoch or part.finished:
            return Admission(Verdict.STALE_EPOCH)
        pending = self._streams.get(_stream_key(header), ())
        expected = pending[-1].base_sequence + pending[-1].count if pending else part.count
        if header.base_sequence == expected:
            has_room = not self._is_new_span(header) or self._has_room_for_span(header)
            return Admission(Verdict.ACCEPTED if has_room else Verdict.TOO_MANY_SPANS)
        if header.base_sequence + header.count <= part.count:
            return Admission(Verdict.DUPLICATE)
        for batch in pending:
            if (batch.base_sequence, batch.count) == (header.base_sequence, header.count):
                return Admission(Verdict.PENDING, batch.base_offset, batch.turn)
        return Admission(Verdict.SEQUENCE_GAP, expected_sequence=expected)

    def _changed_by(self, command: BeginBatch | EndJob | ForgetBatches) -> list[PartKey | None]:
        """Return the parts whose sections a proposed command holds up; None: those of all parts."""
        if isinstance(command, BeginBatch):
            return [(command.writer, command.topic_id)]
        if isinstance(command, ForgetBatches):
            return [None]
        job = self._state.batch_writes.jobs.get(command.job)
        proposed = [key for key in self._changing if key is not None]  # one of these may become a part of it
        return [*dict.fromkeys([*(job.parts if job is not None else ()), *proposed])]

    def _is_new_span(self, header: SectionHeader) -> bool:
        """Tell whether a section is the first one of its part in its queue, as far as is applied."""
        if not header.producer_epoch & BATCH_WRITE_EPOCH:
            return False
        part = self._state.batch_writes.part((header.producer_id, header.topic_id))
        return part is not None and all(span[0] != header.queue_id for span in part.spans)

    def _has_room_for_span(self, header: SectionHeader) -> bool:
        """Tell whether the state may remember one more span, counting those of undecided sections."""
        if _span_key(header) in self._opening:
            return True
        return self._state.batch_writes.span_count + len(self._opening) < self._max_spans

    def _has_all_streams(self) -> bool:
        """Tell whether the maximum of streams is reached, counting undecided batches."""
        applied, pending = self._state.streams, self._streams
        if len(applied) + len(pending) < self._max_streams:
            return False
        return len(applied) + sum(applied.get(key) is None for key in pending) >= self._max_streams

    def find_message(self, topic_id: int, message_id: bytes) -> KnownMessage | None:
        """Find a MessagingService message by its 16-byte id, applied or pending.

        A retry gets the result of the first copy.
        """
        pending = self._ids.get(MessageIds.key(topic_id, message_id))
        if pending is not None:
            return pending
        found = self._state.message_ids.find(topic_id, message_id)
        return None if found is None else KnownMessage(*found, turn=None)

    # --- consumers ------------------------------------------------------------------------------------------
    def session_seen(self, session: int, now: int) -> None:
        """Record that a client session is alive at log time `now` (ms)."""
        self._sessions[session] = now

    def session_closed(self, session: int) -> None:
        """Record that a client closed its session: the next `housekeeping` ends its leases."""
        self._sessions[session] = self._since - SESSION_TIMEOUT_MS

    def housekeeping(self, now: int) -> list[Command]:
        """Return the commands that are due at log time `now` (ms), often none.

        They end lost sessions, evict deduplication windows, and park exhausted messages that no consumer
        requests. Call about once a second and propose the result; a command that was not proposed is returned
        again.
        """
        due: list[Command] = []
        held = set(self._state.consumption.drop_idle_sessions())
        for session in sorted(held):
            if now - self._sessions.setdefault(session, self._since) >= SESSION_TIMEOUT_MS:
                due.append(SessionLost(session))
        for session in [name for name, seen in self._sessions.items() if now - seen >= SESSION_TIMEOUT_MS]:
            if session not in held:
                del self._sessions[session]
        if now >= self._next_eviction:
            self._next_eviction = now + _EVICTION_PERIOD_MS
            ids, streams = now - MESSAGE_ID_WINDOW_MS, now - STREAM_WINDOW_MS
            oldest_id, oldest_stream = self._state.message_ids.oldest(), self._state.streams.oldest()
            if (oldest_id is not None and oldest_id < ids) or (
                oldest_stream is not None and oldest_stream < streams
            ):
                due.append(EvictDedup(ids, streams))
            jobs, limits = (
                self._state.batch_writes,
                (now - FORGOTTEN_AFTER_MS, now - ENDED_FORGOTTEN_AFTER_MS),
            )
            oldest_jobs = zip((jobs.oldest(), jobs.oldest(ended=True)), limits, strict=True)
            if any(oldest is not None and oldest < limit for oldest, limit in oldest_jobs):
                due.append(ForgetBatches(*limits))
            due += self.selector.overdue(now, _MAX_OVERDUE)
        return due


def _stream_key(header: SectionHeader) -> StreamKey:
    """Return the key under which the undecided sections of a producer, or of a part, are kept."""
    of_part = header.producer_epoch & BATCH_WRITE_EPOCH
    return header.producer_id, header.topic_id, _ALL_QUEUES if of_part else header.queue_id


def _span_key(header: SectionHeader) -> SpanKey:
    return header.producer_id, header.topic_id, header.queue_id


def _when_closed(header: SectionHeader, admission: Admission) -> Admission:
    """Return the admission while new messages are refused.

    Duplicates are still recognised. A new section, or one behind a gap, is refused with DRAINING.
    """
    behind_a_gap = (
        admission.verdict is Verdict.SEQUENCE_GAP and header.base_sequence > admission.expected_sequence
    )
    if admission.verdict is Verdict.ACCEPTED or behind_a_gap:
        return Admission(Verdict.DRAINING)
    return admission
