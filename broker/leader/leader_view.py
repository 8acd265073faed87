"""What only the leader knows: queue offsets and leases that are proposed but not applied yet (D13, D14, D15).

Volatile: built when the node has applied the no-op of its term, thrown away when it no longer leads. One `Turn`
collects what becomes one entry:

    turn = view.open_turn(token)              # token: what a waiting duplicate shall wait for (a future)
    admission = turn.add_records(section)     # retries recognised, offset assigned, section sealed
    slot = turn.add_command(command)          # effects.results[slot] after apply
    plan = turn.grant(request, now)           # selects messages, reserves them, adds the commands
    parts, section_count = turn.close()
    proposal = node.propose(parts, section_count)   # raises: turn.abandon()
    turn.bind(proposal.index)
    ...  effects = state.apply(header, payload); view.on_applied(header.index)

Turns must be closed and bound in the order in which they were opened; an open turn must not be abandoned after a later one was
bound. When leadership is lost, drop the view and fail what waits with *unknown*.
Must not: change the state, read clocks (`now` is log time, ms), hold what is applied.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

import numpy as np

from ledgermq.proto.entry import HEADER_SIZE, Buffer
from ledgermq.proto.record import (
    SECTION_HEADER_SIZE,
    SectionHeader,
    SectionKind,
    decode_section,
    encode_section,
    seal_section,
)
from ledgermq.proto.values import value

from ..state.codecs import encode
from ..state.commands import (
    BrokerGroupMode,
    Command,
    DeleteTopic,
    EvictDedup,
    GrantLeases,
    SessionLost,
    SetBrokerGroupMode,
)
from ..state.consume_queue import QueueKey, record_starts
from ..state.dedup import MessageIds, StreamKey
from ..state.machine import BrokerState, message_ids
from .filter_watch import FilterWatch
from .grant_plan import Delivery, GrantPlan, ReceiveRequest
from .selection import ScanBudget, Selector, Taken

__all__ = [
    "Admission",
    "Delivery",
    "GrantPlan",
    "KnownMessage",
    "LeaderView",
    "ReceiveRequest",
    "Turn",
    "Verdict",
]

#: A session that was not seen for so long is lost; also the grace that a new leader gives.
SESSION_TIMEOUT_MS: Final = 15_000
#: How long message ids and silent streams are remembered.
MESSAGE_ID_WINDOW_MS: Final = 120_000
STREAM_WINDOW_MS: Final = 3_600_000
#: Streams that are remembered at most; whoever makes up producer ids makes one with each.
MAX_STREAMS: Final = 100_000
#: Messages parked by one look at all that nobody asks for: 98 KB of rows fit into the smallest entry of a group.
_MAX_OVERDUE: Final = 4_096
#: How often the windows are looked at, and what nobody asks for.
_EVICTION_PERIOD_MS: Final = 15_000


class Verdict(Enum):
    ACCEPTED = "accepted"  # in this turn
    # Stored before; `base_offset` is that of the first copy (-1: too long ago to know)
    DUPLICATE = "duplicate"
    PENDING = "pending"  # the first copy is in `turn`, undecided: wait for it, then answer with `base_offset`
    SEQUENCE_GAP = "sequence_gap"  # also: an unknown stream must begin at 0
    STALE_EPOCH = "stale_epoch"
    TOPIC_GONE = "topic_gone"  # no topic of that id
    QUEUE_NOT_FOUND = "queue_not_found"
    TOO_MANY_STREAMS = "too_many_streams"  # it would begin one more than are remembered
    DRAINING = "draining"  # it is new, and the broker group takes no new messages


@value
class Admission:
    """What became of a section. `expected_sequence` is set with SEQUENCE_GAP."""

    verdict: Verdict
    base_offset: int = -1
    turn: Turn | None = None
    expected_sequence: int = 0


@value
class KnownMessage:
    """A message id that was seen: where it is, and the turn that decides when it is not applied yet."""

    queue_id: int
    offset: int
    turn: Turn | None


@value
class _PendingBatch:
    """A batch of a stream that is proposed and not applied."""

    turn: Turn
    epoch: int
    base_sequence: int
    count: int
    base_offset: int


class Turn:
    """What one append turn collects for one entry. `token` is whatever the shell wants waiters to wait for."""

    def __init__(self, view: LeaderView, token: object) -> None:
        self._view = view
        self.token = token
        self.index = 0  # of the entry, after `bind`
        self.size = 0  # bytes of payload so far
        self._records_size = 0  # of them, those of records: their sections come first in the payload
        self._sections: list[Buffer] = []  # each in one piece, or header and body
        self._section_count = 0
        self._commands: list[bytes] = []
        self._assigned: list[tuple[QueueKey, int]] = []
        self._streams: list[StreamKey] = []
        self._ids: list[bytes] = []
        self._taken: list[Taken] = []
        self._deleting: list[int] = []
        self.scan = ScanBudget()  # of all filters of this turn
        self._closings = 0  # commands that end the taking of messages

    @property
    def is_empty(self) -> bool:
        return not self._section_count and not self._commands

    def add_records(
        self, section: bytearray, body: Buffer = b"", header: SectionHeader | None = None
    ) -> Admission:
        """Admit one RECORDS section (its structure and checksum are checked already) and seal it in place.

        With `body`, `section` is its first 64 bytes only, and `header` what they say.
        """
        header = decode_section(section) if header is None else header
        admission = self._view._judge(header)
        if admission.verdict is not Verdict.ACCEPTED:
            return admission
        key = (header.topic_id, header.queue_id)
        base = self._view._assign(key, header.count)
        self._assigned.append((key, header.count))
        if header.producer_id:
            stream = (header.producer_id, *key)
            self._view._streams.setdefault(stream, deque()).append(
                _PendingBatch(self, header.producer_epoch, header.base_sequence, header.count, base)
            )
            self._streams.append(stream)
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
        elif isinstance(command, SetBrokerGroupMode) and command.mode is not BrokerGroupMode.ACTIVE:
            self._view._closings += 1
            self._closings += 1
        raw = encode(command) if raw is None else raw
        self.size += len(raw) + (0 if self._commands else SECTION_HEADER_SIZE)
        self._commands.append(raw)
        return len(self._commands) - 1

    def grant(self, request: ReceiveRequest, now: int) -> GrantPlan:
        """Select messages for a consumer at log time `now` (ms), reserve them and add the commands."""
        plan, taken = self._view.selector.choose(request, now, self.scan)
        self._taken += taken
        for command in plan.commands:
            slot = self.add_command(command)
            if isinstance(command, GrantLeases) and any(len(queue.offsets) for queue in command.queues):
                plan.slot = slot
        return plan

    def close(self) -> tuple[list[Buffer], int]:
        """Return (parts, section count) for `propose`; ([], 0) when there is nothing to propose. Call it once."""
        parts, count = self._sections, self._section_count
        self._sections = []  # the log keeps the bytes; duplicates may make this turn live much longer
        if self._commands:
            section = encode_section(SectionKind.COMMANDS, self._commands, len(self._commands))
            seal_section(section, base_queue_offset=-1, entry_distance=HEADER_SIZE + sum(map(len, parts)))
            parts.append(section)
            count += 1
        return parts, count

    def bind(self, index: int) -> None:
        """The entry was proposed with this index."""
        self.index = index
        self._view._turns.append(self)

    def abandon(self) -> None:
        """Nothing was proposed: give back offsets and reservations. Only the newest turn can be abandoned."""
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
        """The entry is applied: the state knows now."""
        for stream in self._streams:
            self._view._streams[stream].popleft()
        self._view.selector.settle(self._taken)
        self._forget()

    def _forget(self) -> None:
        view = self._view
        view._closings -= self._closings
        self._closings = 0
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


class LeaderView:
    """Pending offsets, retries and reservations of the leader of one term."""

    def __init__(self, state: BrokerState, term: int, timestamp: int, max_streams: int = MAX_STREAMS) -> None:
        """`timestamp`: log time (ms) at which the no-op was applied; sessions get 15 s of grace from there."""
        self._state = state
        self._max_streams = max_streams
        self.term = term
        self.selector = Selector(state)
        self.filters = FilterWatch()
        self._since = timestamp
        self._turns: deque[Turn] = deque()  # proposed, in the order of their indexes
        self._next_offsets: dict[QueueKey, int] = {}  # of queues with undecided records
        self._streams: dict[StreamKey, deque[_PendingBatch]] = {}
        self._ids: dict[bytes, KnownMessage] = {}
        self._deleting: set[int] = set()  # topics whose deletion is proposed
        self._closings = 0  # proposed commands that end the taking of messages
        self._sessions: dict[int, int] = {}  # session → log time when it was last seen
        self._next_eviction = timestamp + _EVICTION_PERIOD_MS

    def open_turn(self, token: object = None) -> Turn:
        """Begin to collect an entry."""
        return Turn(self, token)

    def on_applied(self, index: int) -> None:
        """Forget what the applied entry decided. Call after `state.apply` of every entry, own or not."""
        while self._turns and self._turns[0].index <= index:
            self._turns.popleft()._settle()

    def next_offset(self, topic_id: int, queue_id: int) -> int:
        """Queue offset that the next accepted record gets. Raises: QueueNotFoundError."""
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
        admission = self._judge_sequence(header) if header.producer_id else Admission(Verdict.ACCEPTED)
        return admission if self.takes_messages else _when_closed(header, admission)

    @property
    def takes_messages(self) -> bool:
        """Tell whether new messages are taken: from the proposal of a drain on they are not, until it is taken back."""
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

    def _has_all_streams(self) -> bool:
        """Tell whether as many streams as may be are remembered, or will be when what is under way is applied."""
        applied, pending = self._state.streams, self._streams
        if len(applied) + len(pending) < self._max_streams:
            return False
        return len(applied) + sum(applied.get(key) is None for key in pending) >= self._max_streams

    def find_message(self, topic_id: int, message_id: bytes) -> KnownMessage | None:
        """Find a MessagingService message by its 16-byte id, applied or pending: a retry gets the first one's result."""
        pending = self._ids.get(MessageIds.key(topic_id, message_id))
        if pending is not None:
            return pending
        found = self._state.message_ids.find(topic_id, message_id)
        return None if found is None else KnownMessage(*found, turn=None)

    # --- consumers ------------------------------------------------------------------------------------------
    def has_deliverable(self, request: ReceiveRequest, now: int) -> bool:
        """Tell cheaply whether `grant` could find something (it may still find nothing: filters)."""
        return self.selector.has_deliverable(request, now)

    def next_expiry(self, group_id: int, topic_id: int) -> int | None:
        """Log time (ms) when the next lease of the group in the topic ends by itself; None: none does."""
        return self.selector.next_expiry(group_id, topic_id)

    def session_seen(self, session: int, now: int) -> None:
        """A client session is alive at log time `now`."""
        self._sessions[session] = now

    def session_closed(self, session: int) -> None:
        """A client said goodbye: its leases are reported lost by the next `housekeeping`."""
        self._sessions[session] = self._since - SESSION_TIMEOUT_MS

    def housekeeping(self, now: int) -> list[Command]:
        """Return the commands that are due at log time `now`: lost sessions, deduplication windows, messages that failed

        for the last time and that nobody asks for. Often none.

        Call about once a second and propose what comes; what was not proposed comes again.
        """
        due: list[Command] = []
        held = set(self._state.consumption.sessions())
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
            due += self.selector.overdue(now, _MAX_OVERDUE)
        return due


def _when_closed(header: SectionHeader, admission: Admission) -> Admission:
    """What was stored before is still recognised; a section that is not, or comes behind one that is not, is refused for good."""
    behind_a_gap = (
        admission.verdict is Verdict.SEQUENCE_GAP and header.base_sequence > admission.expected_sequence
    )
    if admission.verdict is Verdict.ACCEPTED or behind_a_gap:
        return Admission(Verdict.DRAINING)
    return admission
