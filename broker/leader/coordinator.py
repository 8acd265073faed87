"""Coordinator of one queue-exclusive consumer group on the leader: revokes and assigns queues (D14).

The target is an allocation (allocation.py) for the current members and topics. It is computed anew only when
one of them changes. A queue that moves between two live members is revoked first: its owner has `release_ms`
to commit its final offset and to report `released`. Then, or at the deadline, the other member gets the
queue, which ends the epoch of the first. Queues that do not move are never touched. A member without a sign
of life for its session timeout is removed.

Owns: signs of life, revocations, undecided proposals. A new leader starts without them: members and owners
are in the state, and each member has one session timeout to report.
Must not: read a clock. Time comes in as ms of any monotonic clock.
Invariant: at most one proposal per queue is undecided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ..state.commands import (
    NO_OWNER,
    AssignQueues,
    LeaveConsumerGroup,
    SetPositions,
    assignment_rows,
    position_rows,
)
from ..state.consume_queue import QueueKey
from ..state.machine import BrokerState
from ..state.memberships import ConsumerGroupMember, ConsumerGroupMembership, Ownership
from ..state.topics import Topic
from .allocation import STICKY, STRATEGIES, Owners, Subscriber, TopicQueues, allocate

#: Maximum of rows per command: with the names of members it must fit into a broker group's smallest entry.
ROWS_MAX: Final = 1024
#: Maximum of warnings that a member is sent.
WARNINGS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class StartsByTime:
    """A wish for positions at the first offsets stored at or after a time, to be proposed as SetPositions."""

    group_id: int
    keys: tuple[QueueKey, ...]
    timestamp_ms: int


#: Result of `decide`. The caller proposes each and then reports it with `settled`.
Wish = LeaveConsumerGroup | AssignQueues | SetPositions | StartsByTime


@dataclass(frozen=True, slots=True)
class MemberView:
    """Information for one member."""

    owned: tuple[tuple[QueueKey, int], ...]  # queues with their epochs, revoked ones included
    revoked: tuple[tuple[QueueKey, int], ...]  # the part of `owned` that the member must release
    members: int  # number of members
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Revocation:
    """Revocation of one ownership."""

    epoch: int  # of the revoked ownership
    deadline: int  # ms; then the queue is assigned to the next owner in any case
    released: bool = False  # the owner has committed its final offset and stopped


class Coordinator:
    """Coordinator of one consumer group.

    Report events to it. Call `decide` after every change and when `is_due`, and propose the wishes.
    """

    def __init__(self, group_id: int, state: BrokerState, zone: str, now: int) -> None:
        """`zone`: zone of this node. `now` (ms): start of its lead, or of the first membership."""
        self._group_id = group_id
        self._state = state
        self._zone = zone
        # Time (ms) of the last sign of life, by member.
        self._heard: dict[str, int] = dict.fromkeys(self._membership.members, now)
        self._orderly: dict[str, bool] = {}  # members that said whether they keep the order of a queue
        self._leaving: set[str] = set()  # members that asked to leave
        self._removing: set[str] = set()  # members whose removal is proposed
        self._busy: set[QueueKey] = set()  # queues with an undecided proposal
        self._revocations: dict[QueueKey, _Revocation] = {}
        self._target: Owners = {}  # wanted owner of each queue
        self._target_for: tuple[object, ...] = ()  # input of the allocation that gave `_target`
        self._owned_by: dict[str, list[QueueKey]] = {}  # queues by owner, sorted
        self._owned_for: object = None  # owners from which `_owned_by` was built
        self._texts: tuple[str, ...] = ()  # warnings
        self._next = now  # ms; next time at which `decide` is due without an event

    @property
    def _membership(self) -> ConsumerGroupMembership:
        return self._state.memberships.get(self._group_id) or ConsumerGroupMembership()

    # --- events ---------------------------------------------------------------------------------------------
    def heard(self, name: str, now: int) -> None:
        """Record a sign of life of a member. The start and the end of its stream count as one, too."""
        self._heard[name] = now

    def leave(self, name: str) -> None:
        """Record that a member leaves. Call `decide` next."""
        self._leaving.add(name)

    def came(self, name: str, now: int) -> None:
        """Record that a member joins or returns, which cancels an earlier `leave`."""
        self._leaving.discard(name)
        self._heard[name] = now

    def keeps_order(self, name: str, orderly: bool) -> None:
        """Record whether a member keeps the order of a queue. Call `decide` next."""
        self._orderly[name] = orderly

    def released(self, name: str, rows: Iterable[tuple[QueueKey, int]]) -> None:
        """Record queues (with epochs) that a member released after it committed their final offsets.

        Call `decide` next.
        """
        for key, epoch in rows:
            if self._membership.of(key) == Ownership(name, epoch):
                known = self._revocations.get(key)
                if known is None or known.epoch != epoch:
                    known = self._revocations[key] = _Revocation(epoch, self._next)
                known.released = True

    def settled(self, wish: Wish) -> None:
        """Record that a wish was applied or failed. The next `decide` repeats it if it is still needed."""
        if isinstance(wish, LeaveConsumerGroup):
            self._removing.difference_update(wish.members)
        elif isinstance(wish, StartsByTime):
            self._busy.difference_update(wish.keys)
        else:
            ids = wish.rows[["topic_id", "queue_id"]].tolist()
            self._busy.difference_update(ids)

    def is_due(self, now: int) -> bool:
        """Tell whether a deadline has passed, so that `decide` is due without an event."""
        return now >= self._next

    # --- decisions ------------------------------------------------------------------------------------------
    def decide(self, now: int) -> list[Wish]:
        """Return the commands to propose at time `now` (ms), in order."""
        membership = self._membership
        wishes: list[Wish] = []
        if gone := self._gone(membership, now):
            wishes.append(LeaveConsumerGroup(self._group_id, gone))
            self._removing.update(gone)
        target = self._wanted(membership)
        moves: dict[QueueKey, str] = {}
        for key in [*target, *(key for key in membership.owners if key not in target)]:
            if key not in self._busy and self._moves(key, target.get(key, ""), membership, now):
                moves[key] = target.get(key, "")
        for key in [key for key in self._revocations if key not in membership.owners]:
            del self._revocations[key]
        self._texts = self._warnings(membership)
        self._next = min(self._deadlines(membership), default=now + 60_000)
        self._busy.update(moves)
        return wishes + self._proposals(moves, membership)

    def _gone(self, membership: ConsumerGroupMembership, now: int) -> tuple[str, ...]:
        self._heard = {name: self._heard.get(name, now) for name in membership.members}
        self._orderly = {name: each for name, each in self._orderly.items() if name in membership.members}
        self._leaving &= membership.members.keys()
        self._removing &= membership.members.keys()
        return tuple(
            name
            for name, member in sorted(membership.members.items())
            if name not in self._removing
            and (name in self._leaving or now >= self._heard[name] + member.session_timeout_ms)
        )

    def _deadlines(self, membership: ConsumerGroupMembership) -> Iterable[int]:
        for name, member in membership.members.items():
            if name not in self._removing:
                yield self._heard[name] + member.session_timeout_ms
        for key, revocation in self._revocations.items():
            if key not in self._busy:
                yield revocation.deadline

    def _moves(self, key: QueueKey, wanted: str, membership: ConsumerGroupMembership, now: int) -> bool:
        """Tell whether to assign a queue now. If not, start or cancel its revocation."""
        owner = membership.of(key)
        if not owner.member:
            return bool(wanted)
        if owner.member in self._removing:
            return False  # the removal of the owner frees it
        known = self._revocations.get(key)
        if known is not None and known.epoch != owner.epoch:
            known = None
        if owner.member == wanted:
            if known is not None and known.released:
                return True  # the owner has stopped consuming: a new epoch makes it continue
            self._revocations.pop(key, None)
            return False
        if known is None:
            deadline = now + membership.members[owner.member].release_ms
            known = self._revocations[key] = _Revocation(owner.epoch, deadline)
        return known.released or now >= known.deadline

    def _wanted(self, membership: ConsumerGroupMembership) -> Owners:
        """Return the allocation for these members and topics. It is stable while owners converge to it."""
        topics = self._topics(membership)
        staying = frozenset(membership.members.keys() - self._removing)
        key = (membership.members, topics, staying)
        if self._target_for[1:] != key[1:] or self._target_for[0] is not key[0]:
            members = [membership.members[name] for name in sorted(staying)]
            self._target = allocate(
                _strategy(membership),
                [Subscriber(each.name, frozenset(each.topics), each.zone) for each in members],
                [
                    TopicQueues(each.name, tuple((each.topic_id, i) for i in range(each.queue_count)))
                    for each in topics
                ],
                {at: owner.member for at, owner in membership.owners.items()},
                self._zone,
            )
            self._target_for = key
        return self._target

    def _topics(self, membership: ConsumerGroupMembership) -> tuple[Topic, ...]:
        found = (self._state.topics.find(name) for name in sorted(membership.subscribed))
        return tuple(topic for topic in found if topic is not None)

    def _proposals(self, moves: Mapping[QueueKey, str], membership: ConsumerGroupMembership) -> list[Wish]:
        """Return the commands for these moves. A queue without a position gets one first."""
        new = [
            key
            for key, name in moves.items()
            if name and self._state.consumption.get((self._group_id, *key)) is None
        ]
        unplaced = set(new)
        ready = [key for key in moves if key not in unplaced]
        wishes = self._starts(new, membership)
        for start in range(0, len(ready), ROWS_MAX):
            part = ready[start : start + ROWS_MAX]
            names = sorted({moves[key] for key in part} - {""})
            places = {"": NO_OWNER} | {name: place for place, name in enumerate(names)}
            rows = [(*key, membership.of(key).epoch, places[moves[key]]) for key in part]
            wishes.append(AssignQueues(self._group_id, tuple(names), assignment_rows(rows)))
        return wishes

    def _starts(self, keys: list[QueueKey], membership: ConsumerGroupMembership) -> list[Wish]:
        """Return the commands that set start positions in queues without one.

        In a topic that is younger than the oldest membership, the consumer group starts at the queues' begin.
        """
        consumer_group = self._state.groups.get(self._group_id)
        if consumer_group is None or not keys:
            return []
        if consumer_group.start.timestamp_ms is not None:
            return [
                StartsByTime(
                    self._group_id, tuple(keys[at : at + ROWS_MAX]), consumer_group.start.timestamp_ms
                )
                for at in range(0, len(keys), ROWS_MAX)
            ]
        latest, rows = str(consumer_group.start) == "latest", []
        since = min(member.joined_at for member in membership.members.values())
        for key in keys:
            queue, topic = self._state.queues.named(*key), self._state.topics.get(key[0])
            new = topic is not None and topic.created_at > since
            rows.append((*key, queue.end if latest and not new else queue.begin))
        return [
            SetPositions(self._group_id, position_rows(rows[at : at + ROWS_MAX]))
            for at in range(0, len(rows), ROWS_MAX)
        ]

    # --- information for members ----------------------------------------------------------------------------
    def view(self, name: str) -> MemberView | None:
        """Return the information for a member; None: it is not a member."""
        membership = self._membership
        if name not in membership.members:
            return None
        if self._owned_for is not membership.owners:
            owned_by: defaultdict[str, list[QueueKey]] = defaultdict(list)
            for key in sorted(membership.owners):
                owned_by[membership.owners[key].member].append(key)
            self._owned_by, self._owned_for = owned_by, membership.owners
        owned = [(key, membership.owners[key].epoch) for key in self._owned_by.get(name, ())]
        revoked = [(key, epoch) for key, epoch in owned if self._is_revoked(key, epoch)]
        return MemberView(tuple(owned), tuple(revoked), len(membership.members), self._texts)

    def _is_revoked(self, key: QueueKey, epoch: int) -> bool:
        known = self._revocations.get(key)
        return known is not None and known.epoch == epoch

    def _warnings(self, membership: ConsumerGroupMembership) -> tuple[str, ...]:
        """Return warnings: members with settings that differ from the oldest member's, and unknown topics."""
        members = membership.by_age()
        consumer_group = self._state.groups.get(self._group_id)
        name = consumer_group.name if consumer_group is not None else ""
        found = [text for member in members[1:] for text in self._differences(name, member, members[0])]
        found += [
            f'topic "{name}" does not exist in this broker group; its queues are given out when it does'
            for name in sorted(membership.subscribed)
            if self._state.topics.find(name) is None
        ]
        if len(found) > WARNINGS_MAX:
            found[WARNINGS_MAX - 1 :] = [f"and {len(found) - WARNINGS_MAX + 1} more warnings like these"]
        return tuple(found)

    def _differences(
        self, consumer_group: str, member: ConsumerGroupMember, oldest: ConsumerGroupMember
    ) -> Iterable[str]:
        members = f'members of consumer group "{consumer_group}"'
        if set(member.topics) != set(oldest.topics):
            yield (
                f'{members} subscribe to different topics: "{member.name}" to {_listed(member.topics)}, '
                f'"{oldest.name}" to {_listed(oldest.topics)}. The queues of a topic go to those that '
                "subscribe to it"
            )
        mine, other = _filters(member), _filters(oldest)
        if differing := sorted(topic for topic in mine.keys() & other if mine[topic] != other[topic]):
            yield (
                f'{members} filter differently: "{member.name}" by {_chosen(mine, differing)}, '
                f'"{oldest.name}" by {_chosen(other, differing)}. What the filter of a queue\'s owner leaves '
                "out, the consumer group never gets"
            )
        orderly = self._orderly.get(member.name), self._orderly.get(oldest.name)
        if None not in orderly and orderly[0] != orderly[1]:
            first, second = (member, oldest) if orderly[0] else (oldest, member)
            yield (
                f'{members} differ in orderly: "{first.name}" keeps the order of a queue, "{second.name}" '
                "does not. Messages of a queue are handled in order only while an orderly member owns it"
            )
        if (member.allocation or STICKY) != (oldest.allocation or STICKY):
            yield (
                f'{members} differ in allocation: "{member.name}" asks for {member.allocation or STICKY}; '
                f'the oldest member, "{oldest.name}", decides: {oldest.allocation or STICKY}'
            )


def _strategy(membership: ConsumerGroupMembership) -> str:
    """Return the strategy of the oldest member, or the default if this build does not know it."""
    wanted = membership.by_age()[0].allocation if membership.members else STICKY
    return wanted if wanted in STRATEGIES else STICKY


def _filters(member: ConsumerGroupMember) -> dict[str, str]:
    """Return the tag expression of each topic; a filter of another form counts for every topic."""
    topics, found, rest = sorted(member.topics), dict[str, str](), member.filter
    for topic, following in pairwise([*topics, ""]):
        if not rest.startswith(f"{topic}: "):
            return found or dict.fromkeys(topics, member.filter or "*")
        found[topic], _, behind = rest.removeprefix(f"{topic}: ").partition(f"; {following}: ")
        rest = f"{following}: {behind}"
    return found


def _chosen(filters: Mapping[str, str], topics: Iterable[str]) -> str:
    return f'"{"; ".join(f"{topic}: {filters[topic]}" for topic in topics)}"'


def _listed(topics: Iterable[str]) -> str:
    return ", ".join(sorted(topics)) or "nothing"
