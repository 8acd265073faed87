"""Selection of messages for a consumer (D14): expired leases first, then new offsets, fairly across queues.

Owns: reservations of messages that were selected and are not applied yet, per (consumer group, topic, queue).
Must not: change the state; a selection takes effect when its commands are applied.
A FIFO consumer group has one batch in flight per queue: a queue with an open lease yields nothing, except to
a request with the attempt id of that batch, which gets the batch again.
`max_attempts` of a consumer group is enforced here: a message whose leases expired that often is parked
instead of delivered again, while the queue has room for parked messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..errors import ConsumeQueueError
from ..state.commands import (
    PARKED_MESSAGES,
    Command,
    GrantLeases,
    ParkMessages,
    ParkReason,
    QueueGrant,
    SetPositions,
    park_rows,
    position_rows,
)
from ..state.consume_queue import UNIT_DTYPE, ColdRead, ConsumeQueue
from ..state.consumer_groups import ConsumerGroup
from ..state.consumption import ACKED, NEVER, NO_LEASES, PARKED_MAX, RELEASED, Consumption, ConsumptionKey
from ..state.effects import GrantResult
from ..state.machine import BrokerState

#: Maximum of units that a filter scans in one selection, over all queues. A later turn continues.
SCAN_UNITS: Final = 8_192
#: Maximum of units that all selections of one append turn scan, so that the event loop can serve other work.
SCAN_UNITS_PER_TURN: Final = 32_768
#: Number of units that are scanned in one step. A budget is exceeded by less than this.
_SCAN_STEP: Final = 512
#: Maximum of remembered runs of filtered units. The oldest run is dropped, and scanned again if needed.
_MAX_SCANNED_RUNS: Final = 65_536
#: Minimum length of a run of filtered messages that is skipped in the state without a delivery.
SKIP_UNITS: Final = 4_096
#: Maximum of messages that one selection parks; the next one continues. ReceiveWork.size includes their
#: bytes.
MAX_PARKED: Final = 16


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """Request of a consumer for messages of one topic."""

    group_id: int
    topic_id: int
    max_count: int  # messages
    invisible_ms: int  # duration of leases by time
    tags: frozenset[int] | None = None  # hashes (proto.record.hash_text); None: all messages
    session: int = 0  # session that keeps the leases; 0: lease by time
    attempt_id: str = ""  # FIFO consumer groups: a repeated id gets the same batch again
    max_bytes: int = 8 << 20  # limit for the sum of record sizes; at least one message is selected


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to deliver once its grant is applied."""

    queue_id: int
    queue_offset: int
    physical_offset: int  # of the record in the log
    size: int  # bytes of the record in the log
    tag_hash: int
    attempt: int  # from 1
    lease_id: int


@dataclass(slots=True, eq=False)
class GrantPlan:
    """Outcome of a selection.

    `slot` is None if no grant was added to the turn. Then check
    * `repeats`: messages with a valid lease, to be delivered at once (FIFO, same attempt id);
    * `cold`: load each (`raw = await to_thread(files.load, read)`, `state.queues.admit(read, raw)`), then
      select again;
    * `unresolved`: queue ids whose start must be looked up by time: propose SetPositions, then select again;
    * `unfinished`: the filter used up its budget of this turn: select again in a later turn;
    * `parks`: exhausted messages are parked; those behind them can be selected once that is applied.
    Otherwise nothing is deliverable. Commands may still have been added: start positions, skipped runs.
    """

    slot: int | None = None  # place of the grant's result in `effects.results`
    repeats: list[Delivery] = field(default_factory=list)
    cold: list[ColdRead] = field(default_factory=list)
    unresolved: list[int] = field(default_factory=list)
    unfinished: bool = False
    parks: bool = False
    commands: list[Command] = field(default_factory=list)  # added to the turn
    units: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # queue -> offsets, units

    @property
    def is_decided_by_apply(self) -> bool:
        """Tell whether its commands must be applied before the request can continue."""
        return self.slot is not None or self.parks

    def deliveries(self, result: GrantResult) -> list[Delivery]:
        """Return the deliveries of a grant whose result is `effects.results[plan.slot]`."""
        found: list[Delivery] = []
        for queue in result.queues:
            offsets, units = self.units[queue.queue_id]
            places = np.searchsorted(offsets, queue.offsets)
            found += deliveries_of(
                queue.queue_id,
                queue.offsets,
                units[places],
                queue.attempts,
                np.full(len(places), result.lease_id),
            )
        return found


def deliveries_of(
    queue_id: int, offsets: np.ndarray, units: np.ndarray, attempts: np.ndarray, lease_ids: np.ndarray
) -> list[Delivery]:
    """Return deliveries from columns of equal length; `units`: UNIT_DTYPE."""
    columns = zip(offsets.tolist(), units.tolist(), attempts.tolist(), lease_ids.tolist(), strict=True)
    return [
        Delivery(queue_id, offset, physical_offset, size, tag_hash, attempt, lease_id)
        for offset, (physical_offset, size, tag_hash), attempt, lease_id in columns
    ]


@dataclass(slots=True)
class ScanBudget:
    """Number of units that filters may still scan in one turn."""

    left: int = field(default_factory=lambda: SCAN_UNITS_PER_TURN)

    @property
    def is_spent(self) -> bool:
        return self.left <= 0


@dataclass(slots=True)
class Reservation:
    """Reservations of all undecided turns in one queue for one consumer group."""

    position: int | None = None  # position after these turns; None: they do not move it
    offsets: set[int] = field(default_factory=set)  # offsets of reserved expired leases
    turns: int = 0  # number of reservations; at 0 it is dropped
    grants: int = 0  # number of reservations that belong to a grant


@dataclass(slots=True)
class Taken:
    """Reservation of one selection in one queue, released when its turn is decided."""

    key: ConsumptionKey
    offsets: list[int]  # reserved expired leases
    position_before: int | None  # `Reservation.position` before it, for `undo`
    position: int | None  # position expected in the state after the turn; None: not moved
    is_grant: bool


class Selector:
    """Selects and reserves messages. One per leader view."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._reserved: dict[ConsumptionKey, Reservation] = {}
        self._rotation: dict[tuple[int, int], int] = {}  # (consumer group id, topic id) -> first queue to try
        # Filtered runs that are not in the state yet: [start, stop) holds nothing for these tags.
        self._scanned: OrderedDict[tuple[ConsumptionKey, frozenset[int]], tuple[int, int]] = OrderedDict()
        self._attempt_ids: dict[ConsumptionKey, str] = {}  # attempt id of the last grant in the queue

    # --- availability ---------------------------------------------------------------------------------------
    def _position(self, key: ConsumptionKey) -> int | None:
        """Return the first new offset, counting undecided turns; None: the consumer group has no position."""
        reserved = self._reserved.get(key)
        if reserved is not None and reserved.position is not None:
            return reserved.position
        found = self._state.consumption.get(key)
        return None if found is None else found.position

    def has_deliverable(self, request: ReceiveRequest, now: int) -> bool:
        """Tell whether `choose` may find messages."""
        topic = self._state.topics.get(request.topic_id)
        consumer_group = self._state.groups.get(request.group_id)
        if topic is None or consumer_group is None:
            return False
        for queue in self._state.queues_of(topic):
            key = (consumer_group.group_id, *queue.key)
            found, position = self._state.consumption.get(key), self._position(key)
            if position is None:
                return True
            if consumer_group.fifo and found is not None and len(found.leases):
                if found.last_deadline <= now or self.repeats(key, request.attempt_id):
                    return True
                continue
            if found is not None and found.next_deadline <= now:
                return True
            if self.first_unseen(key, request.tags, position) < queue.end:
                return True
        return False

    def next_expiry(self, group_id: int, topic_id: int) -> int | None:
        """Return the log time (ms) of the next lease expiry; FIFO: of a queue's last. May be in the past."""
        topic, consumer_group = self._state.topics.get(topic_id), self._state.groups.get(group_id)
        if topic is None or consumer_group is None:
            return None
        soonest = NEVER
        for queue_id in range(topic.queue_count):
            found = self._state.consumption.get((group_id, topic_id, queue_id))
            if found is not None and len(found.leases):
                soonest = min(soonest, found.last_deadline if consumer_group.fifo else found.next_deadline)
        return None if soonest == NEVER else soonest

    # --- selection ------------------------------------------------------------------------------------------
    def choose(
        self, request: ReceiveRequest, now: int, budget: ScanBudget | None = None
    ) -> tuple[GrantPlan, list[Taken]]:
        """Select and reserve messages. Propose the commands of the plan together, in order.

        `budget`: scan budget of the whole turn. A plan that it limits is `unfinished`.

        Raises: ConsumeQueueError (nothing is reserved then).
        """
        plan, taken = GrantPlan(), list[Taken]()
        topic = self._state.topics.get(request.topic_id)
        consumer_group = self._state.groups.get(request.group_id)
        if topic is None or consumer_group is None:
            return plan, taken
        queues = self._state.queues_of(topic)
        self._resolve_starts(consumer_group, queues, plan, taken)
        if plan.unresolved:
            return plan, taken
        turn = self._rotation.get((consumer_group.group_id, topic.topic_id), 0) % len(queues)
        self._rotation[consumer_group.group_id, topic.topic_id] = turn + 1
        choice = _Choice(self, request, consumer_group, plan, now, budget or ScanBudget())
        try:
            choice.run(queues[turn:] + queues[:turn])
        except ConsumeQueueError:
            self.undo(taken)
            raise
        taken += self._reserve(choice)
        if parked := choice.parked():
            plan.commands.append(parked)
            plan.parks = True
        grants = tuple(grant for grant in choice.grants() if len(grant.offsets) or choice.worth_writing)
        if grants:
            plan.commands.append(
                GrantLeases(
                    consumer_group.group_id, topic.topic_id, request.invisible_ms, grants, request.session
                )
            )
        return plan, taken

    def _resolve_starts(
        self,
        consumer_group: ConsumerGroup,
        queues: Sequence[ConsumeQueue],
        plan: GrantPlan,
        taken: list[Taken],
    ) -> None:
        """Set the start of a consumer group in queues in which it has no position."""
        new = [queue for queue in queues if self._position((consumer_group.group_id, *queue.key)) is None]
        if not new:
            return
        if consumer_group.start.timestamp_ms is not None:
            plan.unresolved = [queue.key[1] for queue in new]
            return
        latest = str(consumer_group.start) == "latest"
        rows = [(*queue.key, queue.end if latest else queue.begin) for queue in new]
        plan.commands.append(SetPositions(consumer_group.group_id, position_rows(rows)))
        for topic_id, queue_id, offset in rows:
            taken.append(
                self._take((consumer_group.group_id, topic_id, queue_id), [], offset, is_grant=False)
            )

    def _reserve(self, choice: _Choice) -> list[Taken]:
        taken = []
        for key, part in choice.parts.items():
            if part.touched:
                offsets = part.renewed + part.parked["offset"].tolist()
                taken.append(self._take(key, offsets, part.reserved_end, is_grant=True))
                if part.renewed or len(part.fresh):
                    self._attempt_ids[key] = choice.request.attempt_id
        return taken

    def _take(
        self, key: ConsumptionKey, offsets: list[int], position: int | None, *, is_grant: bool
    ) -> Taken:
        reserved = self._reserved.setdefault(key, Reservation())
        taken = Taken(key, offsets, reserved.position, position, is_grant)
        reserved.offsets.update(offsets)
        reserved.turns += 1
        reserved.grants += is_grant
        if position is not None:
            reserved.position = position
        return taken

    def undo(self, taken: Sequence[Taken]) -> None:
        """Release the reservations of the newest turn, which was not proposed."""
        for item in reversed(taken):
            self._reserved[item.key].position = item.position_before
        self._give_back(taken)

    def settle(self, taken: Sequence[Taken]) -> None:
        """Release the reservations of an applied turn.

        If the position in the state is not the expected one, a reset or retention was applied first.
        Undecided grants from the old position will grant nothing new, so later selections start from the
        state.
        """
        self._give_back(taken)
        expected = {item.key: item.position for item in taken if item.position is not None}
        for key, position in expected.items():
            reserved, found = self._reserved.get(key), self._state.consumption.get(key)
            if reserved is not None and (found is None or found.position != position):
                reserved.position = None

    def _give_back(self, taken: Sequence[Taken]) -> None:
        for item in taken:
            reserved = self._reserved[item.key]
            reserved.offsets.difference_update(item.offsets)
            reserved.turns -= 1
            reserved.grants -= item.is_grant
            if not reserved.turns:
                del self._reserved[item.key]

    # --- parking --------------------------------------------------------------------------------------------
    def exhausted(self, consumer_group: ConsumerGroup, found: Consumption, now: int) -> np.ndarray:
        """Return the leases to park: expired at the maximum of attempts, and within PARKED_MAX.

        FIFO: only the first of a batch. Those behind it were delivered repeatedly because of it.
        """
        if self._state.feature_level < PARKED_MESSAGES:
            return found.leases[:0]  # older nodes stop at an unknown command
        if consumer_group.fifo:
            rows = found.leases[found.leases["flags"] & ACKED == 0][:1]
            rows = rows[: int(found.last_deadline <= now)]
        else:
            rows = found.expired(now)
        ended: np.ndarray = rows[rows["attempt"] >= consumer_group.max_attempts][
            : PARKED_MAX - len(found.parked)
        ]
        return ended

    def overdue(self, now: int, most: int) -> list[ParkMessages]:
        """Return commands that park up to `most` exhausted messages, also without a request for them."""
        rows: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
        for (group_id, topic_id, queue_id), found in sorted(
            self._state.consumption.copy().items(), key=lambda item: item[0]
        ):
            consumer_group = self._state.groups.get(group_id)
            if consumer_group is None or found.next_deadline > now or most <= 0:
                continue
            ended = self.exhausted(consumer_group, found, now)[:most]
            most -= len(ended)
            if len(ended):
                rows.setdefault((group_id, topic_id), []).extend(_park_rows(queue_id, ended))
        return [ParkMessages(*key, park_rows(found), ParkReason.ATTEMPTS) for key, found in rows.items()]

    # --- for _Choice ----------------------------------------------------------------------------------------
    def view(self, key: ConsumptionKey) -> tuple[Consumption | None, Reservation | None, int]:
        """Return the applied state, the reservation, and the first new offset."""
        return self._state.consumption.get(key), self._reserved.get(key), self._position(key) or 0

    def repeats(self, key: ConsumptionKey, attempt_id: str) -> bool:
        return bool(attempt_id) and self._attempt_ids.get(key) == attempt_id

    def is_granting(self, key: ConsumptionKey) -> bool:
        """Tell whether an undecided turn has a grant to the consumer group in this queue."""
        reserved = self._reserved.get(key)
        return reserved is not None and reserved.grants > 0

    def first_unseen(self, key: ConsumptionKey, tags: frozenset[int] | None, position: int) -> int:
        """Return `position`, or the end of a run around it that is known to hold nothing for `tags`."""
        if tags is None:
            return position
        start, stop = self._scanned.get((key, tags), (0, 0))
        return stop if start <= position <= stop else position

    def note_unwanted(self, key: ConsumptionKey, tags: frozenset[int] | None, start: int, stop: int) -> None:
        """Remember that [start, stop) holds nothing for `tags`; the state does not skip it yet."""
        if tags is not None:
            self._scanned[key, tags] = (start, stop)
            self._scanned.move_to_end((key, tags))
            if len(self._scanned) > _MAX_SCANNED_RUNS:
                self._scanned.popitem(last=False)

    def lookup(self, queue: ConsumeQueue, offset: int, count: int) -> np.ndarray | ColdRead:
        return self._state.queues.lookup(*queue.key, offset, count)


@dataclass(slots=True)
class _Part:
    """Part of a selection in one queue."""

    start: int  # position of the consumer group before it
    end: int  # position after it; [start, end) without `fresh` is skipped
    renewed: list[int] = field(default_factory=list)  # offsets below `start` with expired leases
    parked: np.ndarray = field(default_factory=lambda: NO_LEASES)  # leases to park
    fresh: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # offsets in [start, end)
    skipped: int = 0  # number of offsets in [start, end) that are not in `fresh`
    reserved_end: int | None = None  # position to reserve; None: it does not move

    @property
    def touched(self) -> bool:
        return bool(self.renewed or len(self.parked)) or self.reserved_end is not None


class _Choice:
    """One selection in progress."""

    def __init__(
        self,
        selector: Selector,
        request: ReceiveRequest,
        consumer_group: ConsumerGroup,
        plan: GrantPlan,
        now: int,
        budget: ScanBudget,
    ) -> None:
        self._selector = selector
        self.request = request
        self._consumer_group = consumer_group
        self._plan = plan
        self._now = now
        self._count = max(1, request.max_count)
        self._bytes = request.max_bytes
        self._tags = None if request.tags is None else np.array(sorted(request.tags), np.int64)
        self._budget = budget
        self._scan_left = SCAN_UNITS
        self._parks_left = MAX_PARKED
        self.parts: dict[ConsumptionKey, _Part] = {}
        self.worth_writing = False

    def run(self, queues: Sequence[ConsumeQueue]) -> None:
        for queue in queues:
            if self._consumer_group.fifo:
                self._take_fifo(queue)
            else:
                self._take_expired(queue)
        if not self._consumer_group.fifo:
            for queue in queues:
                self._take_new(queue)
        self.worth_writing = any(part.skipped >= SKIP_UNITS for part in self.parts.values())
        for key, part in self.parts.items():
            if part.skipped and not len(part.fresh) and not self.worth_writing:
                self._selector.note_unwanted(key, self.request.tags, part.start, part.end)
                part.reserved_end = None  # kept in memory only; the next grant moves the position past it
                part.end = part.start

    @property
    def _open(self) -> bool:
        return self._count > 0 and self._bytes > 0

    def grants(self) -> list[QueueGrant]:
        """Return the grants to propose."""
        grants = []
        for (_, _, queue_id), part in self.parts.items():
            if part.renewed or part.end > part.start:
                offsets = np.concatenate((np.array(part.renewed, np.int64), part.fresh))
                grants.append(QueueGrant(queue_id, part.start, part.end, offsets))
        return grants

    def parked(self) -> ParkMessages | None:
        """Return the command that parks exhausted messages; None: there are none."""
        rows = [row for (_, _, queue), part in self.parts.items() for row in _park_rows(queue, part.parked)]
        if not rows:
            return None
        return ParkMessages(
            self._consumer_group.group_id, self.request.topic_id, park_rows(rows), ParkReason.ATTEMPTS
        )

    def _part(self, queue: ConsumeQueue) -> _Part:
        key = (self._consumer_group.group_id, *queue.key)
        if key not in self.parts:
            position = self._selector.view(key)[2]
            self.parts[key] = _Part(position, position)
        return self.parts[key]

    # --- expired leases -------------------------------------------------------------------------------------
    def _take_expired(self, queue: ConsumeQueue) -> None:
        found, reserved, _ = self._selector.view((self._consumer_group.group_id, *queue.key))
        if not self._open or found is None or found.next_deadline > self._now:
            return
        rows = found.expired(self._now)
        if reserved is not None and reserved.offsets:
            rows = rows[~np.isin(rows["offset"], list(reserved.offsets))]
        if len(parked := self._park(queue, found, reserved)):
            rows = rows[~np.isin(rows["offset"], parked)]
        self._renew(queue, rows[: self._count])

    def _park(
        self, queue: ConsumeQueue, found: Consumption, reserved: Reservation | None = None
    ) -> np.ndarray:
        """Select exhausted messages to park, up to the limit. Return the offsets of all of them."""
        rows = self._selector.exhausted(self._consumer_group, found, self._now)
        offsets: np.ndarray = rows["offset"]
        if reserved is not None and reserved.offsets:
            rows = rows[~np.isin(rows["offset"], list(reserved.offsets))]
        rows = rows[: self._parks_left]
        if len(rows):
            self._part(queue).parked = rows
            self._parks_left -= len(rows)
        return offsets

    def _renew(self, queue: ConsumeQueue, rows: np.ndarray) -> None:
        """Select expired leases again, up to the limits."""
        units = self._units_at(queue, rows["offset"])
        if units is None or not len(rows):
            return
        part = self._part(queue)
        keep = self._within_bytes(units)
        part.renewed += rows["offset"][:keep].tolist()
        self._add_units(queue, rows["offset"][:keep], units[:keep])

    def _units_at(self, queue: ConsumeQueue, offsets: np.ndarray) -> np.ndarray | None:
        """Return the units at sorted offsets; None: a cold read was added to the plan."""
        parts = []
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        for run in np.split(offsets, breaks):
            if not len(run):
                continue
            found = self._selector.lookup(queue, int(run[0]), len(run))
            if isinstance(found, ColdRead):
                self._plan.cold.append(found)
                return None
            parts.append(found)
        return np.concatenate(parts) if parts else np.empty(0, UNIT_DTYPE)

    # --- new offsets ----------------------------------------------------------------------------------------
    def _take_new(self, queue: ConsumeQueue) -> None:
        """Select new offsets of a queue and skip those that the filter excludes."""
        key = (self._consumer_group.group_id, *queue.key)
        part = self._part(queue)
        at = first = max(queue.begin, self._selector.first_unseen(key, self.request.tags, part.start))
        part.skipped = first - part.start
        while self._open and at < queue.end:
            if self._tags is not None and (self._scan_left <= 0 or self._budget.is_spent):
                self._plan.unfinished = True
                break
            count = self._count if self._tags is None else _SCAN_STEP
            units = self._selector.lookup(queue, at, count)
            if isinstance(units, ColdRead):
                self._plan.cold.append(units)
                break
            self._scan_left -= len(units)
            self._budget.left -= len(units) if self._tags is not None else 0
            at = self._take_units(queue, part, units, at)
        if at > part.start:
            part.end = part.reserved_end = at

    def _take_units(self, queue: ConsumeQueue, part: _Part, units: np.ndarray, at: int) -> int:
        """Select from the units at offset `at` those that match; return the first offset not processed."""
        if self._tags is None:
            wanted = np.arange(len(units))
        else:
            wanted = np.flatnonzero(np.isin(units["tag_hash"], self._tags))
        chosen = wanted[: self._count]
        chosen = chosen[: self._within_bytes(units[chosen])]
        # Stop at the first match that did not fit. All units before it are selected or do not match.
        stop = at + (len(units) if len(chosen) == len(wanted) else int(wanted[len(chosen)]))
        offsets = chosen + at
        part.fresh = np.concatenate((part.fresh, offsets))
        part.skipped += stop - at - len(chosen)
        self._add_units(queue, offsets, units[chosen])
        return stop

    # --- FIFO -----------------------------------------------------------------------------------------------
    def _take_fifo(self, queue: ConsumeQueue) -> None:
        """Select from a queue that has at most one batch in flight."""
        key = (self._consumer_group.group_id, *queue.key)
        found = self._selector.view(key)[0]
        if not self._open or self._selector.is_granting(key):
            return
        if found is None or not len(found.leases):
            self._take_new(queue)
            return
        rows = found.leases
        if bool(((rows["flags"] & ACKED == 0) & (rows["deadline"] > self._now)).any()):
            if self._selector.repeats(key, self.request.attempt_id):
                self._repeat(queue, _standing(rows[rows["flags"] & (ACKED | RELEASED) == 0], self._now))
            return
        if len(self._park(queue, found)):
            return  # the next selection delivers the rest of the batch
        self._renew(queue, rows[: self._count])

    def _repeat(self, queue: ConsumeQueue, rows: np.ndarray) -> None:
        units = self._units_at(queue, rows["offset"])
        if units is not None:
            self._plan.repeats += deliveries_of(
                queue.key[1], rows["offset"], units, rows["attempt"], rows["lease_id"]
            )
            self._count -= len(rows)

    # --- bounds ---------------------------------------------------------------------------------------------
    def _within_bytes(self, units: np.ndarray) -> int:
        """Return how many units fit into the byte limit, at least one per selection. Ends it when full."""
        total = np.cumsum(units["size"], dtype=np.int64)
        fitting = int(np.searchsorted(total, self._bytes, side="right"))
        if fitting < len(units):
            fitting = max(fitting, 0 if self._plan.units else 1)
            self._bytes = 0
        return fitting

    def _add_units(self, queue: ConsumeQueue, offsets: np.ndarray, units: np.ndarray) -> None:
        """Count selected messages against the limits, and keep their units for the delivery."""
        if not len(offsets):
            return
        self._count -= len(offsets)
        self._bytes -= int(units["size"].sum(dtype=np.int64))
        known = self._plan.units.get(queue.key[1])
        if known is not None:
            offsets = np.concatenate((known[0], offsets))
            units = np.concatenate((known[1], units))
        self._plan.units[queue.key[1]] = (offsets, units)


def _park_rows(queue_id: int, leases: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Return rows of ParkMessages for leases of a queue; attempts 0: the state's count applies."""
    pairs = zip(leases["offset"].tolist(), leases["lease_id"].tolist(), strict=True)
    return [(queue_id, offset, lease_id, 0) for offset, lease_id in pairs]


def _standing(rows: np.ndarray, now: int) -> np.ndarray:
    """Return the rows before the first one whose lease has ended (released or moved).

    That message can no longer be acknowledged, and those behind it must not be delivered before it: all of
    them are delivered again when the whole batch has ended.
    """
    ended = rows["deadline"] <= now
    return rows[: int(ended.argmax())] if ended.any() else rows
