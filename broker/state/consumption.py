"""Consumption: positions, leases and parked messages of consumer groups, and their commands (D14).

A `Consumption` is the state of one consumer group in one queue. `position` is one past the last offset that
was granted or skipped. An offset below it is done unless it has a row in `leases` or in `parked`.
Out-of-order acknowledgements therefore need no interval list. `committed` is the offset of the first lease
row, or `position` when there is none. A lease ends when log time reaches its `deadline`; its row stays, and
the message may be leased again. A parked message has a row in `parked` only: it is not delivered until it is
released, and it does not hold `committed` back.

Owns: the state transitions, the table, and the index of client sessions that hold leases (derived, not in
checkpoints).
Must not: choose what to lease or to park (`broker/leader/selection.py`), read clocks, know records. `now` is
the log time of an entry.
Invariants: leases and parked messages are sorted by offset. All of them are below `position`, and no offset
is in both. A Consumption is immutable, so a snapshot can share it.
In a FIFO consumer group, an acknowledged offset behind an open one keeps its row (flag ACKED), because the
whole batch is delivered again. A message that was parked and released (flag RELEASED) belongs to no batch
until it is granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from . import commands as c
from .consume_queue import ConsumeQueues, QueueKey
from .consumer_groups import ConsumerGroupTable
from .effects import CommitResult, Effects, GrantedQueue, GrantResult, Loss, Parked, RowsResult

ConsumptionKey = tuple[int, int, int]  # consumer group id, topic id, queue id
_LeaseCommand = c.Ack | c.ChangeInvisible | c.ReleaseLeases | c.ParkMessages

#: Minimum size of the session index at which sessions without leases are searched and dropped.
SESSIONS_LOOK: Final = 1_000
LEASE_DTYPE: Final = np.dtype(
    [
        ("offset", "<i8"),  # queue offset; unique and ascending
        ("lease_id", "<u8"),  # log index of the grant or of the last change; 0 once it was released
        ("deadline", "<i8"),  # log time (ms) at which it ends; NEVER while it belongs to a session
        ("session", "<u8"),  # client session that holds it; 0: it ends by time
        ("attempt", "<u4"),  # number of deliveries so far, this one included
        ("flags", "<u4"),  # ACKED, RELEASED
    ]
)
#: Deadline of a lease that does not end by time.
NEVER: Final = (1 << 63) - 1
#: Flag: acknowledged, but kept because an offset of the same FIFO batch before it is open.
ACKED: Final = 1
#: Flag: was parked, then released, and not granted again yet.
RELEASED: Final = 2
PARKED_DTYPE: Final = np.dtype(
    [
        ("offset", "<i8"),  # queue offset; unique and ascending
        ("parked_at", "<i8"),  # log time, ms
        ("attempts", "<u4"),  # delivery attempts, the higher of the state's and the consumer's count
        ("reason", "<u4"),  # ParkReason
    ]
)
#: Maximum of parked messages per consumer group and queue. Above it nothing is parked; a failing message is
#: delivered again.
PARKED_MAX: Final = 1024
NO_LEASES: Final = np.empty(0, LEASE_DTYPE)
NO_PARKED: Final = np.empty(0, PARKED_DTYPE)
_NO_OFFSETS: Final = np.empty(0, np.int64)


def locate(leases: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row number of each offset, and whether it has a row (the row number is 0 if not)."""
    if not len(leases):
        return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), bool)
    places = np.searchsorted(leases["offset"], offsets)
    places[places == len(leases)] = 0
    return places, leases["offset"][places] == offsets


@dataclass(frozen=True, slots=True, eq=False)
class Consumption:
    """State of one consumer group in one queue. Immutable: every transition returns a new value."""

    #: One past the last offset that was granted or skipped.
    position: int
    #: LEASE_DTYPE. Sorted by offset, all below `position`.
    leases: np.ndarray = field(default_factory=lambda: NO_LEASES)
    #: Messages that retention deleted before they were consumed; 0 again after the next grant or commit.
    lost: int = 0
    #: PARKED_DTYPE. Sorted by offset, all below `position`, disjoint from `leases`; at most PARKED_MAX.
    parked: np.ndarray = field(default_factory=lambda: NO_PARKED)
    #: Cached `next_deadline`; None: not computed yet.
    _next_deadline: int | None = field(default=None, init=False, repr=False)

    @property
    def committed(self) -> int:
        """Offset below which every message is done or parked."""
        return int(self.leases["offset"][0]) if len(self.leases) else self.position

    @property
    def leased_count(self) -> int:
        return int(np.count_nonzero(self.leases["flags"] & ACKED == 0)) if len(self.leases) else 0

    @property
    def next_deadline(self) -> int:
        """Log time (ms) at which the first lease ends; NEVER when none ends by itself."""
        if not len(self.leases):
            return NEVER
        if self._next_deadline is None:  # polls read it far more often than leases change
            open_rows = self.leases["flags"] & ACKED == 0
            soonest = int(self.leases["deadline"][open_rows].min(initial=NEVER))
            object.__setattr__(self, "_next_deadline", soonest)
            return soonest
        return self._next_deadline

    @property
    def last_deadline(self) -> int:
        """Log time (ms) at which the last lease ends; 0 without leases."""
        open_rows = self.leases["flags"] & ACKED == 0
        return int(self.leases["deadline"][open_rows].max(initial=0))

    def expired(self, now: int) -> np.ndarray:
        """Return the rows whose lease has ended."""
        rows: np.ndarray = self.leases[(self.leases["deadline"] <= now) & (self.leases["flags"] & ACKED == 0)]
        return rows

    def grant(
        self, start: int, end: int, offsets: np.ndarray, lease_id: int, deadline: int, session: int, now: int
    ) -> tuple[Consumption, np.ndarray, np.ndarray]:
        """Lease `offsets`.

        An offset below `start` is leased again if its lease has expired. The others are leased for the first
        time, provided that the position is still `start`.
        Returns the new state, the offsets that were granted, and their attempts.
        """
        renewed = offsets[offsets < start]
        places, found = locate(self.leases, renewed)
        ended = (
            (self.leases["deadline"][places] <= now) | (self.leases["flags"][places] & ACKED != 0)
            if len(self.leases)
            else found
        )
        places = places[found & ended]
        fresh = offsets[offsets >= start] if start == self.position else _NO_OFFSETS
        leases = np.empty(len(self.leases) + len(fresh), LEASE_DTYPE)
        leases[: len(self.leases)] = self.leases
        leases[len(self.leases) :] = 0
        leases["offset"][len(self.leases) :] = fresh
        touched = np.concatenate((places, np.arange(len(self.leases), len(leases))))
        leases["attempt"][touched] += 1
        leases["lease_id"][touched] = lease_id
        leases["deadline"][touched] = deadline
        leases["session"][touched] = session
        leases["flags"][touched] = 0
        position = max(self.position, end) if start == self.position else self.position
        lost = 0 if len(touched) else self.lost  # the result of this grant reports the loss
        after = Consumption(position, leases, lost, self.parked)
        return after, leases["offset"][touched], leases["attempt"][touched]

    def acknowledge(
        self, offsets: np.ndarray, lease_ids: np.ndarray, now: int, *, force: bool, fifo: bool
    ) -> tuple[Consumption, np.ndarray]:
        """Finish leases. Returns the new state and, per row, whether it was accepted.

        Accepted: the current lease, unless it has expired and `force` is not set, and an offset that is done
        already (acknowledging twice is allowed). A parked message is refused.
        """
        places, found, current = self._current(offsets, lease_ids)
        accepted = np.where(found, current, (offsets >= 0) & (offsets < self.position))
        if len(self.parked):
            accepted &= ~np.isin(offsets, self.parked["offset"])
        if not found.any():
            return self, accepted
        rows = self.leases[places]
        if not force:
            accepted &= ~found | (rows["deadline"] > now) | (rows["flags"] & ACKED != 0)
        done = places[found & accepted]
        if not len(done):
            return self, accepted
        leases = self.leases.copy()
        leases["flags"][done] |= ACKED
        return self._with(_without_acked(leases, fifo=fifo)), accepted

    def change(
        self, offsets: np.ndarray, lease_ids: np.ndarray, deadlines: np.ndarray, new_id: int, now: int
    ) -> tuple[Consumption, np.ndarray]:
        """Move the deadline of current leases and give them a new id.

        Returns the new state and, per row, whether it was accepted.
        """
        places, found, current = self._current(offsets, lease_ids)
        accepted = found & current
        if accepted.any():
            rows = self.leases[places]
            accepted &= (rows["deadline"] > now) & (rows["flags"] & ACKED == 0)
        if not accepted.any():
            return self, accepted
        leases = self.leases.copy()
        touched = places[accepted]
        leases["deadline"][touched] = deadlines[accepted]
        leases["lease_id"][touched] = new_id
        leases["session"][touched] = 0
        return self._with(leases), accepted

    def release(self, offsets: np.ndarray, lease_ids: np.ndarray, now: int) -> tuple[Consumption, np.ndarray]:
        """End current leases now and do not count the attempt.

        Returns the new state and, per row, whether it was accepted.
        """
        places, found, current = self._current(offsets, lease_ids)
        accepted = found & current
        if accepted.any():
            accepted &= self.leases["flags"][places] & ACKED == 0
        touched = np.unique(places[accepted])
        if not len(touched):
            return self, accepted
        leases = self.leases.copy()
        leases["deadline"][touched] = np.minimum(leases["deadline"][touched], now)
        leases["session"][touched] = 0
        leases["lease_id"][touched] = 0  # no handle fits any more
        leases["attempt"][touched] -= np.minimum(leases["attempt"][touched], 1)
        return self._with(leases), accepted

    def holds(self, offsets: np.ndarray, lease_id: int) -> np.ndarray:
        """Tell which offsets have an open lease with exactly this id."""
        places, _, current = self._current(offsets, np.full(len(offsets), lease_id, np.uint64))
        return current & (self.leases["flags"][places] & ACKED == 0) if len(self.leases) else current

    def end_session(self, session: int, deadline: int) -> Consumption:
        """Let the leases of a session end at `deadline` (log time, ms)."""
        mine = self.leases["session"] == session
        if not mine.any():
            return self
        leases = self.leases.copy()
        leases["deadline"][mine] = deadline
        leases["session"][mine] = 0
        return self._with(leases)

    def advance(self, offset: int) -> Consumption:
        """Mark everything below `offset` as done. `committed` never moves back."""
        if offset <= self.committed:
            return self
        return Consumption(max(self.position, offset), self._from(offset), 0, self.parked)

    def reset(self, offset: int) -> Consumption:
        """Continue at `offset`: drop all leases, and the parked messages at or above it.

        Messages below `offset` stay parked. Everything from `offset` on is delivered again.
        """
        return Consumption(offset, parked=self.parked[self.parked["offset"] < offset])

    def lose(self, begin: int) -> tuple[Consumption, int]:
        """Drop the messages below `begin`, which retention deleted.

        Returns the new state and the number of deleted messages that were parked or not done.
        """
        open_rows = (self.leases["flags"] & ACKED == 0) & (self.leases["offset"] < begin)
        kept = self.parked[self.parked["offset"] >= begin]
        count = int(np.count_nonzero(open_rows)) + max(begin - self.position, 0)
        count += len(self.parked) - len(kept)
        return Consumption(max(self.position, begin), self._from(begin), self.lost + count, kept), count

    # --- parking --------------------------------------------------------------------------------------------
    @property
    def first_needed(self) -> int:
        """Lowest offset that is parked or not done."""
        return min(self.committed, int(self.parked["offset"][0])) if len(self.parked) else self.committed

    def park(self, rows: np.ndarray, reason: int, now: int, *, fifo: bool) -> tuple[Consumption, np.ndarray]:
        """Take leased messages out of delivery. `rows`: PARK_DTYPE.

        Returns the new state and, per row, whether it was accepted. Accepted: current leases, expired or not,
        up to PARKED_MAX. In a FIFO consumer group the attempts of all remaining leases restart at 0: those
        messages were delivered repeatedly only because of the parked ones before them.
        """
        places, found, current = self._current(rows["offset"], rows["lease_id"])
        accepted = found & current
        if accepted.any():
            accepted &= self.leases["flags"][places] & ACKED == 0
            accepted &= np.cumsum(accepted) <= PARKED_MAX - len(self.parked)
        touched, first = np.unique(places[accepted], return_index=True)
        if not len(touched):
            return self, accepted
        parked = np.zeros(len(touched), PARKED_DTYPE)
        parked["offset"] = self.leases["offset"][touched]
        parked["parked_at"] = now
        parked["attempts"] = np.maximum(self.leases["attempt"][touched], rows["attempts"][accepted][first])
        parked["reason"] = reason
        leases = np.delete(self.leases, touched)
        if fifo:
            leases["attempt"] = 0
        left = _without_acked(leases, fifo=fifo)
        return Consumption(self.position, left, self.lost, _sorted(self.parked, parked)), accepted

    def unpark(self, offsets: np.ndarray, now: int) -> tuple[Consumption, np.ndarray]:
        """Make parked messages deliverable again and reset their attempts.

        Returns the new state and, per offset, whether it was parked.
        """
        accepted = np.isin(offsets, self.parked["offset"])
        if not accepted.any():
            return self, accepted
        going = np.isin(self.parked["offset"], offsets)
        back = np.zeros(int(np.count_nonzero(going)), LEASE_DTYPE)
        back["offset"] = self.parked["offset"][going]
        back["deadline"] = now
        back["flags"] = RELEASED
        return Consumption(
            self.position, _sorted(self.leases, back), self.lost, self.parked[~going]
        ), accepted

    def _with(self, leases: np.ndarray) -> Consumption:
        return Consumption(self.position, leases, self.lost, self.parked)

    def _from(self, offset: int) -> np.ndarray:
        """Return the leases from an offset on, without acknowledged rows that no open row precedes."""
        return _without_acked(self.leases[self.leases["offset"] >= offset], fifo=True)

    def _current(
        self, offsets: np.ndarray, lease_ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the row numbers, which offsets have a row, and which rows have the given lease id."""
        places, found = locate(self.leases, offsets)
        current = found & (self.leases["lease_id"][places] == lease_ids) if len(self.leases) else found
        return places, found, current


def _without_acked(leases: np.ndarray, *, fifo: bool) -> np.ndarray:
    """Drop acknowledged rows. FIFO: keep those that an open row of their batch precedes."""
    open_rows = leases["flags"] & ACKED == 0
    if not open_rows.any():
        return NO_LEASES
    if fifo:
        in_batch = leases["flags"] & (ACKED | RELEASED) == 0
        if in_batch.any():
            open_rows[int(in_batch.argmax()) :] = True
    kept: np.ndarray = leases[open_rows]
    return kept


def _sorted(rows: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return the rows of both arrays, sorted by offset."""
    joined = np.concatenate((rows, more))
    return joined[np.argsort(joined["offset"], kind="stable")]


class ConsumptionTable:
    """Consumption by (consumer group, topic, queue). A key is present once it has a position."""

    def __init__(self, queues: ConsumeQueues, consumer_groups: ConsumerGroupTable) -> None:
        self._queues = queues
        self._consumer_groups = consumer_groups
        self._table: dict[ConsumptionKey, Consumption] = {}
        # Keys in which a session may hold leases: a superset, cleaned up by `drop_idle_sessions`.
        self._sessions: dict[int, set[ConsumptionKey]] = {}
        self._look_at = SESSIONS_LOOK  # size of the session index at which it is cleaned up next

    def get(self, key: ConsumptionKey) -> Consumption | None:
        return self._table.get(key)

    def keys_of_consumer_group(self, group_id: int) -> list[ConsumptionKey]:
        """Return the keys of a consumer group, sorted."""
        return sorted(key for key in self._table if key[0] == group_id)

    def drop_idle_sessions(self) -> list[int]:
        """Drop sessions without leases from the index; return the others."""
        held = []
        for session, keys in list(self._sessions.items()):
            keys = {key for key in keys if self._holds(key, session)}
            self._sessions[session] = keys
            if keys:
                held.append(session)
            else:
                del self._sessions[session]
        return held

    def _note_session(self, session: int, key: ConsumptionKey) -> None:
        self._sessions.setdefault(session, set()).add(key)
        if len(self._sessions) >= self._look_at:
            # Most clients end without a lease, and no event reports that.
            self._look_at = max(SESSIONS_LOOK, 2 * len(self.drop_idle_sessions()))

    def _holds(self, key: ConsumptionKey, session: int) -> bool:
        found = self._table.get(key)
        return found is not None and bool((found.leases["session"] == session).any())

    # --- commands -------------------------------------------------------------------------------------------
    def commit(self, command: c.CommitOffsets, fenced: np.ndarray, effects: Effects) -> CommitResult:
        """Move positions except in `fenced` rows (bool per row); see CommitOffsets."""
        accepted = np.zeros(len(command.rows), bool)
        for place, (topic_id, queue_id, offset) in enumerate(command.rows.tolist()):
            queue = self._queues.get(topic_id, queue_id)
            if queue is None or fenced[place]:
                continue
            key, offset = (command.group_id, topic_id, queue_id), min(max(offset, queue.begin), queue.end)
            found = self._table.get(key)
            if found is None:
                self._table[key] = Consumption(offset)
            elif command.reset:
                self._table[key] = found.reset(offset)
            else:
                self._table[key] = found.advance(offset)
            accepted[place] = True
            effects.released.add(key[:2])
        return CommitResult(accepted, fenced)

    def set_positions(self, command: c.SetPositions, effects: Effects) -> RowsResult:
        """Set positions in queues that have none yet."""
        accepted = np.zeros(len(command.rows), bool)
        known = self._consumer_groups.get(command.group_id) is not None
        for place, (topic_id, queue_id, offset) in enumerate(command.rows.tolist()):
            queue = self._queues.get(topic_id, queue_id)
            if queue is not None and known:
                bounded = min(max(offset, queue.begin), queue.end)
                self._table.setdefault((command.group_id, topic_id, queue_id), Consumption(bounded))
                accepted[place] = True
        return RowsResult(accepted)

    def grant(self, command: c.GrantLeases, effects: Effects) -> GrantResult:
        """Lease the offsets that can be leased. The lease id is the index of the entry."""
        now = effects.timestamp
        deadline = NEVER if command.session else now + command.invisible_ms
        granted = []
        for queue in command.queues:
            key = (command.group_id, command.topic_id, queue.queue_id)
            found = self._table.get(key)
            if found is None:
                continue
            self._table[key], offsets, attempts = found.grant(
                queue.start, queue.end, queue.offsets, effects.index, deadline, command.session, now
            )
            if len(offsets):
                begin = self._queues.named(command.topic_id, queue.queue_id).begin if found.lost else 0
                granted.append(GrantedQueue(queue.queue_id, offsets, attempts, found.lost, begin))
                if command.session:
                    self._note_session(command.session, key)
        return GrantResult(effects.index, tuple(granted))

    def acknowledge(self, command: c.Ack, effects: Effects) -> RowsResult:
        """Finish leases; see Ack."""
        accepted, fifo = np.zeros(len(command.rows), bool), self._is_fifo(command.group_id)
        for key, found, places in self._queues_in(command):
            rows = command.rows[places]
            self._table[key], accepted[places] = found.acknowledge(
                rows["offset"], rows["lease_id"], effects.timestamp, force=command.force, fifo=fifo
            )
            if fifo and not len(self._table[key].leases):
                effects.released.add(key[:2])
        return RowsResult(accepted)

    def change(self, command: c.ChangeInvisible, effects: Effects) -> RowsResult:
        """Move the deadline of leases; see ChangeInvisible."""
        accepted, now = np.zeros(len(command.rows), bool), effects.timestamp
        for key, found, places in self._queues_in(command):
            rows = command.rows[places]
            self._table[key], accepted[places] = found.change(
                rows["offset"], rows["lease_id"], rows["invisible_ms"] + now, effects.index, now
            )
        return _released(command, accepted, effects)

    def release(self, command: c.ReleaseLeases, effects: Effects) -> RowsResult:
        """End leases whose messages were never sent to the consumer; see ReleaseLeases."""
        accepted = np.zeros(len(command.rows), bool)
        for key, found, places in self._queues_in(command):
            rows = command.rows[places]
            self._table[key], accepted[places] = found.release(
                rows["offset"], rows["lease_id"], effects.timestamp
            )
        return _released(command, accepted, effects)

    def park(self, command: c.ParkMessages, effects: Effects) -> RowsResult:
        """Take messages out of delivery; see ParkMessages."""
        accepted, fifo = np.zeros(len(command.rows), bool), self._is_fifo(command.group_id)
        for key, found, places in self._queues_in(command):
            after, accepted[places] = found.park(
                command.rows[places], command.reason, effects.timestamp, fifo=fifo
            )
            if count := len(after.parked) - len(found.parked):
                self._table[key] = after
                effects.parked.append(Parked(*key, count, len(after.parked)))
        return _released(command, accepted, effects)  # a FIFO queue continues behind them

    def release_parked(self, command: c.ReleaseParked, effects: Effects) -> RowsResult:
        """Make parked messages deliverable again; see ReleaseParked."""
        accepted = np.zeros(len(command.rows), bool)
        rows = command.rows
        for topic_id, queue_id in sorted({(topic_id, queue_id) for topic_id, queue_id, _ in rows.tolist()}):
            places = np.flatnonzero((rows["topic_id"] == topic_id) & (rows["queue_id"] == queue_id))
            key = (command.group_id, topic_id, queue_id)
            found = self._table.get(key)
            if found is None:
                continue
            self._table[key], accepted[places] = found.unpark(rows["offset"][places], effects.timestamp)
            if accepted[places].any():
                effects.released.add(key[:2])
        return RowsResult(accepted)

    def _queues_in(self, command: _LeaseCommand) -> Iterator[tuple[ConsumptionKey, Consumption, np.ndarray]]:
        """Yield (key, state, row numbers) of each queue in which the consumer group has a position."""
        ids = command.rows["queue_id"]
        for queue_id in np.unique(ids).tolist():
            key = (command.group_id, command.topic_id, queue_id)
            found = self._table.get(key)
            if found is not None:
                yield key, found, np.flatnonzero(ids == queue_id)

    def _is_fifo(self, group_id: int) -> bool:
        consumer_group = self._consumer_groups.get(group_id)
        return consumer_group is not None and consumer_group.fifo

    def session_lost(self, command: c.SessionLost, effects: Effects) -> None:
        """Let the leases of a session end; see SessionLost."""
        for key in sorted(self._sessions.pop(command.session, ())):
            found = self._table.get(key)
            if found is not None:
                self._table[key] = found.end_session(command.session, effects.timestamp + command.grace_ms)
                effects.released.add(key[:2])

    def trim(self, begins: Mapping[QueueKey, int], effects: Effects) -> None:
        """Drop the messages below the new begin offsets, and report losses in `effects`.

        No acknowledgement is expected for a deleted message.
        """
        if not begins:
            return
        for key, found in sorted(self._table.items(), key=lambda item: item[0]):
            begin = begins.get(key[1:])
            if begin is not None and found.first_needed < begin:
                self._table[key], count = found.lose(begin)
                effects.released.add(key[:2])  # the consumer group continues at the new begin
                if count:
                    effects.losses.append(Loss(*key, count, begin))

    def remove_consumer_group(self, group_id: int) -> None:
        self._remove(lambda key: key[0] == group_id)

    def remove_topic(self, topic_id: int) -> None:
        self._remove(lambda key: key[1] == topic_id)

    def _remove(self, unwanted: Callable[[ConsumptionKey], bool]) -> None:
        for key in [key for key in self._table if unwanted(key)]:
            del self._table[key]

    # --- checkpoints ----------------------------------------------------------------------------------------
    def copy(self) -> dict[ConsumptionKey, Consumption]:
        return dict(self._table)

    def restore(self, table: dict[ConsumptionKey, Consumption]) -> None:
        self._table = table
        self._sessions = {}
        for key, found in table.items():
            for session in np.unique(found.leases["session"]).tolist():
                if session:
                    self._sessions.setdefault(session, set()).add(key)


def _released(command: _LeaseCommand, accepted: np.ndarray, effects: Effects) -> RowsResult:
    """Return the result of a command that makes messages deliverable again: wake the polls."""
    if accepted.any():
        effects.released.add((command.group_id, command.topic_id))
    return RowsResult(accepted)
