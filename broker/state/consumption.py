"""Consumption table: positions, leases and parked messages of all consumer groups, and their commands (D14).

Owns: the table, and the index of client sessions that hold leases (derived, not in checkpoints).
Must not: choose what to lease, read clocks, know records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from .commands import (
    Ack,
    ChangeInvisible,
    CommitOffsets,
    GrantLeases,
    ParkMessages,
    ReleaseLeases,
    ReleaseParked,
    SessionLost,
    SetPositions,
)
from .consume_queue import ConsumeQueues, QueueKey
from .consumer_groups import GroupTable
from .effects import CommitResult, Effects, GrantedQueue, GrantResult, Loss, Parked, RowsResult
from .leases import NEVER, Consumption

ConsumptionKey = tuple[int, int, int]  # consumer group id, topic id, queue id
_LeaseCommand = Ack | ChangeInvisible | ReleaseLeases | ParkMessages

#: Minimum size of the session index at which sessions without leases are searched and dropped.
SESSIONS_LOOK: Final = 1_000


class ConsumptionTable:
    """Consumption by (consumer group, topic, queue). A key is present once it has a position."""

    def __init__(self, queues: ConsumeQueues, consumer_groups: GroupTable) -> None:
        self._queues = queues
        self._consumer_groups = consumer_groups
        self._table: dict[ConsumptionKey, Consumption] = {}
        # Keys in which a session may hold leases: a superset, cleaned up by `sessions`.
        self._sessions: dict[int, set[ConsumptionKey]] = {}
        self._look_at = SESSIONS_LOOK  # size of the session index at which it is cleaned up next

    def get(self, key: ConsumptionKey) -> Consumption | None:
        return self._table.get(key)

    def keys_of_consumer_group(self, group_id: int) -> list[ConsumptionKey]:
        """Return the keys of a consumer group, sorted."""
        return sorted(key for key in self._table if key[0] == group_id)

    def sessions(self) -> list[int]:
        """Return the sessions that hold leases, and drop the others from the index."""
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
            self._look_at = max(SESSIONS_LOOK, 2 * len(self.sessions()))

    def _holds(self, key: ConsumptionKey, session: int) -> bool:
        found = self._table.get(key)
        return found is not None and bool((found.leases["session"] == session).any())

    # --- commands -------------------------------------------------------------------------------------------
    def commit(self, command: CommitOffsets, fenced: np.ndarray, effects: Effects) -> CommitResult:
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

    def set_positions(self, command: SetPositions, effects: Effects) -> RowsResult:
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

    def grant(self, command: GrantLeases, effects: Effects) -> GrantResult:
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

    def acknowledge(self, command: Ack, effects: Effects) -> RowsResult:
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

    def change(self, command: ChangeInvisible, effects: Effects) -> RowsResult:
        """Move the deadline of leases; see ChangeInvisible."""
        accepted, now = np.zeros(len(command.rows), bool), effects.timestamp
        for key, found, places in self._queues_in(command):
            rows = command.rows[places]
            self._table[key], accepted[places] = found.change(
                rows["offset"], rows["lease_id"], rows["invisible_ms"] + now, effects.index, now
            )
        return _released(command, accepted, effects)

    def release(self, command: ReleaseLeases, effects: Effects) -> RowsResult:
        """End leases whose messages were never sent to the consumer; see ReleaseLeases."""
        accepted = np.zeros(len(command.rows), bool)
        for key, found, places in self._queues_in(command):
            rows = command.rows[places]
            self._table[key], accepted[places] = found.release(
                rows["offset"], rows["lease_id"], effects.timestamp
            )
        return _released(command, accepted, effects)

    def park(self, command: ParkMessages, effects: Effects) -> RowsResult:
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

    def release_parked(self, command: ReleaseParked, effects: Effects) -> RowsResult:
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

    def session_lost(self, command: SessionLost, effects: Effects) -> None:
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
