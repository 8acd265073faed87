"""Bugs of the broker: the real code with one function replaced, in runs where every node has a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ledgermq.broker.checkpoint import layout as checkpoint
from ledgermq.broker.checkpoint import store as checkpoint_store
from ledgermq.broker.leader.coordinator import Coordinator
from ledgermq.broker.leader.leader_view import Admission, LeaderView, Turn, Verdict
from ledgermq.broker.leader.pipeline import AppendPipeline, Flight, _ProducerWork, settle
from ledgermq.broker.leader.selection import Delivery, Selector, _Choice
from ledgermq.broker.official.receive_at_leader import ReceiveWork
from ledgermq.broker.reading.consume_queue_files import ConsumeQueueFiles
from ledgermq.broker.replica import Replica
from ledgermq.broker.state.commands import CommitOffsets, GrantLeases
from ledgermq.broker.state.consumption import Consumption, ConsumptionTable
from ledgermq.broker.state.effects import Effects, GrantResult, RowsResult
from ledgermq.broker.state.machine import BrokerState
from ledgermq.broker.state.memberships import MembershipTable
from ledgermq.proto.record import SectionHeader
from ledgermq.raft.drive.leadership import LeaderDuties
from ledgermq.raft.errors import BusyError
from ledgermq.raft.types import LogIndex, Term

from .mutant_list import patch_mutant


def broker_mutant(name: str, rows: str, what: str, *patches: tuple[Any, str, Any]) -> None:
    """Register a bug of the broker."""
    patch_mutant(name, rows, what, *patches, broker=True)


# --- checkpoints --------------------------------------------------------------------------------------------
_take_snapshot = checkpoint.take_snapshot


def _without_streams(state: BrokerState) -> checkpoint.Snapshot:
    return replace(_take_snapshot(state), streams={})


broker_mutant(
    "ForgetsProducersAtARestart", "B1", "The table of producers' sequences is not in checkpoints.",
    (checkpoint_store, "take_snapshot", _without_streams),
)  # fmt: skip


def _in_the_order_of_a_set(snapshot: checkpoint.Snapshot) -> Iterator[bytes]:
    """Encode positions in the order of a set: by their addresses in this process's memory."""
    keys = {id(found): key for key, found in snapshot.consumption.items()}
    for found in set(snapshot.consumption.values()):
        yield from checkpoint._encode_consumption(replace(snapshot, consumption={keys[id(found)]: found}))


broker_mutant(
    "CheckpointsDependOnTheOrderOfASet", "B1.2", "Positions stand in a checkpoint in the order of a set.",
    (checkpoint, "_ENCODERS", {**checkpoint._ENCODERS, checkpoint.Shard.CONSUMPTION: _in_the_order_of_a_set}),
)  # fmt: skip

broker_mutant(
    "CheckpointsBeforeTheirQueueFiles", "K13", "A checkpoint counts on queue files that are not durable.",
    (ConsumeQueueFiles, "sync", lambda self: None),
)  # fmt: skip


# --- log time -----------------------------------------------------------------------------------------------
_apply = Replica.apply
_grant = ConsumptionTable.grant
_clock: list[int] = [0]


def _apply_by_the_clock(self: Replica, entries: Any) -> None:
    _clock[0] = self._now()
    _apply(self, entries)


def _grant_by_the_clock(self: ConsumptionTable, command: GrantLeases, effects: Effects) -> GrantResult:
    return _grant(self, command, replace(effects, timestamp=_clock[0]))


broker_mutant(
    "LeasesEndByTheLocalClock", "B5.1",
    "The end of a lease is counted from the clock of the node that applies it.",
    (Replica, "apply", _apply_by_the_clock), (ConsumptionTable, "grant", _grant_by_the_clock),
)  # fmt: skip


# --- the leader's view --------------------------------------------------------------------------------------
_abandon = Turn.abandon


def _keep_offsets(self: Turn) -> None:
    self._assigned = []
    _abandon(self)


broker_mutant(
    "KeepsTheOffsetsOfAnAbandonedTurn", "B1.1",
    "Queue offsets of a turn that was refused are not given back.",
    (Turn, "abandon", _keep_offsets),
)  # fmt: skip


def _judge_pending_only(self: LeaderView, header: SectionHeader) -> Admission:
    pending = self._streams.get((header.producer_id, header.topic_id, header.queue_id))
    for batch in pending or ():
        if (batch.epoch, batch.base_sequence) == (header.producer_epoch, header.base_sequence):
            return Admission(Verdict.PENDING, batch.base_offset, batch.turn)
    return Admission(Verdict.ACCEPTED)


broker_mutant(
    "KnowsOnlyItsOwnProducers", "B1",
    "A retry is recognised while its first copy is pending on this leader, not later.",
    (LeaderView, "_judge_sequence", _judge_pending_only),
)  # fmt: skip


def _by_the_view_alone(self: LeaderView) -> bool:
    return not self._closings


broker_mutant(
    "ForgetsADrainWhenItIsApplied", "B8",
    "A leader refuses messages while a drain is under way, and takes them again after it.",
    (LeaderView, "takes_messages", property(_by_the_view_alone)),
)  # fmt: skip

_on_leader_ready = Replica.on_leader_ready
_kept_views: WeakKeyDictionary[Replica, LeaderView] = WeakKeyDictionary()


def _ready_with_the_old_view(self: Replica, term: Term, timestamp: int) -> None:
    view = _kept_views.get(self)
    _on_leader_ready(self, term, timestamp)
    if view is not None:
        self.view = view
        self._pipeline.on_leader(view)
    assert self.view is not None
    _kept_views[self] = self.view


broker_mutant(
    "LeadsAgainWithItsOldView", "B2",
    "A leader that returns goes on with the offsets that it had reserved before.",
    (Replica, "on_leader_ready", _ready_with_the_old_view),
)  # fmt: skip


def _ready_at_once(self: LeaderDuties, term: Term, noop_index: LogIndex, applied_index: LogIndex) -> None:
    self._noop_index = noop_index
    self.applied(noop_index)


broker_mutant(
    "ServesBeforeItsNoopIsApplied", "B1.3", "A new leader serves before it has applied what it inherited.",
    (LeaderDuties, "gained", _ready_at_once),
)  # fmt: skip


# --- answers ------------------------------------------------------------------------------------------------
_on_decided = AppendPipeline._on_decided


def _lost_is_stored(self: AppendPipeline, flight: Flight, future: asyncio.Future[None]) -> None:
    if future.exception() is not None:
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
    _on_decided(self, flight, future)


broker_mutant(
    "AcknowledgesWhatMayBeLost", "B3",
    "The outcome of an entry whose leader was deposed is taken for success.",
    (AppendPipeline, "_on_decided", _lost_is_stored),
)  # fmt: skip

_fail = _ProducerWork.fail


def _say_refused(self: _ProducerWork, error: Exception) -> None:
    _fail(self, BusyError(str(error)))


broker_mutant(
    "UnknownIsToldAsRefused", "B7", "An entry whose outcome is unknown is reported as refused.",
    (_ProducerWork, "fail", _say_refused),
)  # fmt: skip


# --- delivery -----------------------------------------------------------------------------------------------
_place_receive = ReceiveWork.place


def _deliver_when_chosen(self: ReceiveWork, flight: Flight, now: int) -> None:
    _place_receive(self, flight, now)
    plan = self._plan
    if plan is not None and plan.slot is not None:
        lease_id = flight.turn._view._state.applied_index + 1
        found = [
            Delivery(queue_id, offset, place, size, tag, 1, lease_id)
            for queue_id, (offsets, units) in plan.units.items()
            for offset, (place, size, tag) in zip(offsets.tolist(), units.tolist(), strict=True)
        ]
        settle(self.future, (plan, found))


broker_mutant(
    "DeliversBeforeTheGrantIsCommitted", "B6",
    "Messages leave when they are chosen, not when their grant is applied.",
    (ReceiveWork, "place", _deliver_when_chosen), (ReceiveWork, "on_applied", lambda self, flight,
    effects: None),
)  # fmt: skip

broker_mutant(
    "NeverDeliversAgain", "B3", "A message whose lease has ended is not chosen again.",
    (_Choice, "_take_expired", lambda self, queue: None),
)  # fmt: skip


def _go_back(self: Consumption, offset: int) -> Consumption:
    return Consumption(offset, self.leases[self.leases["offset"] >= offset], parked=self.parked)


broker_mutant(
    "OffsetsGoBack", "B5", "A late commit of an old offset sets the position of a consumer group back.",
    (Consumption, "advance", _go_back),
)  # fmt: skip

_commit = ConsumptionTable.commit


def _commit_without_release(
    self: ConsumptionTable, command: CommitOffsets, fenced: np.ndarray, effects: Effects
) -> RowsResult:
    before = self.copy()
    result = _commit(self, command, fenced, effects)
    if command.reset:
        for topic_id, queue_id, _ in command.rows.tolist():
            key = (command.group_id, topic_id, queue_id)
            if key in before and key in self._table:
                position = self._table[key].position
                self._table[key] = replace(before[key], position=max(position, before[key].position))
    return result


broker_mutant(
    "ResetsKeepLeases", "B5.2",
    "Leases outlive a reset of the consumer group's position, and positions never go back.",
    (ConsumptionTable, "commit", _commit_without_release),
)  # fmt: skip

# --- parking ------------------------------------------------------------------------------------------------
_grant_leases = Consumption.grant


def _grant_without_counting(self: Consumption, *arguments: Any) -> tuple[Consumption, np.ndarray, np.ndarray]:
    after, offsets, attempts = _grant_leases(self, *arguments)
    leases = after.leases.copy()
    leases["attempt"][np.isin(leases["offset"], offsets)] = 1
    return replace(after, leases=leases), offsets, np.minimum(attempts, 1)


broker_mutant(
    "CountsNoAttempts", "B5.5", "Every delivery of a message is its first one.",
    (Consumption, "grant", _grant_without_counting),
)  # fmt: skip


def _none_is_exhausted(self: Selector, consumer_group: Any, found: Consumption, now: int) -> np.ndarray:
    return found.leases[:0]


broker_mutant(
    "NeverParks", "B5.5", "A message that failed for the last time is delivered again.",
    (Selector, "exhausted", _none_is_exhausted),
)  # fmt: skip

_park = Consumption.park


def _park_and_keep(
    self: Consumption, rows: np.ndarray, reason: int, now: int, *, fifo: bool
) -> tuple[Consumption, np.ndarray]:
    after, accepted = _park(self, rows, reason, now, fifo=fifo)
    return replace(after, leases=self.leases), accepted


broker_mutant(
    "DeliversWhatIsParked", "B5.5",
    "A parked message keeps its lease, so it comes again when that has ended.",
    (Consumption, "park", _park_and_keep),
)  # fmt: skip


def _unpark_and_forget(self: Consumption, offsets: np.ndarray, now: int) -> tuple[Consumption, np.ndarray]:
    accepted = np.isin(offsets, self.parked["offset"])
    return replace(self, parked=self.parked[~np.isin(self.parked["offset"], offsets)]), accepted


broker_mutant(
    "ForgetsWhatIsReleased", "B5.5", "A parked message that is released is taken for done.",
    (Consumption, "unpark", _unpark_and_forget),
)  # fmt: skip


def _whoever_knows(self: Selector, consumer_group: Any, found: Consumption, now: int) -> np.ndarray:
    level, self._state.feature_level = self._state.feature_level, 99
    try:
        return _exhausted(self, consumer_group, found, now)
    finally:
        self._state.feature_level = level


_exhausted = Selector.exhausted

broker_mutant(
    "ParksBeforeEveryNodeKnowsHow", "B5.5",
    "A leader parks messages below the feature level of its broker group.",
    (Selector, "exhausted", _whoever_knows),
)  # fmt: skip


# --- queue-exclusive groups ---------------------------------------------------------------------------------
broker_mutant(
    "FencesNobody", "B5.3", "Offsets that a former owner of a queue commits are taken.",
    (MembershipTable, "fenced", lambda self, command, topics: np.zeros(len(command.rows), bool)),
)  # fmt: skip

broker_mutant(
    "DecidesAboutAQueueOnce", "B5.4",
    "A queue for which something was proposed once is not decided about again.",
    (Coordinator, "settled", lambda self, wish: None),
)  # fmt: skip
