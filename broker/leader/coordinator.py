"""What the leader does for one queue-exclusive group: who must hand over what, and when it is taken away (D14).

Wanted is an allocation (allocation.py) for the members and topics that there are; it stays as it is until one of them
changes. A queue that goes from one living member to another is revoked first: its owner has `release_ms` to commit its
final offset and to say `released`; then, or at the deadline, the other one gets it, and with that the epoch of the first
ends. Queues that do not move are never touched. A member that is silent for its session timeout is taken out.

Owns: signs of life, revocations, what is proposed and not decided yet. A new leader begins anew: members and owners are in the
state, and everybody has one session timeout to come.
Must not: read a clock; time comes in as ms, of a clock that need not be anybody else's.
Invariant: for each queue at most one proposal is under way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..state.commands import NOBODY, AssignQueues, LeaveGroup, SetPositions, assignment_rows, position_rows
from ..state.consume_queue import QueueKey
from ..state.machine import BrokerState
from ..state.memberships import GroupMember, GroupMembership, Ownership
from ..state.topics import Topic
from .allocation import STICKY, STRATEGIES, Owners, Subscriber, TopicQueues, allocate

#: Rows of one command: it must fit into the smallest entry that a group may have, with the names of the members.
ROWS_MAX: Final = 1024
WARNINGS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class StartsByTime:
    """Wanted: the first offsets stored at or after a time, to be proposed as SetPositions."""

    group_id: int
    keys: tuple[QueueKey, ...]
    timestamp_ms: int


#: What `decide` wants done; each is to be reported as `settled`.
Wish = LeaveGroup | AssignQueues | SetPositions | StartsByTime


@dataclass(frozen=True, slots=True)
class MemberView:
    """What a member is told. `owned` holds what is `revoked`, too; each with its epoch."""

    owned: tuple[tuple[QueueKey, int], ...]
    revoked: tuple[tuple[QueueKey, int], ...]
    members: int
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Revocation:
    """Of one ownership: until when it may be handed over, and whether it was."""

    epoch: int
    deadline: int
    released: bool = False


class Coordinator:
    """Use: tell it what happens; `decide` after every change and when `is_due`; propose what it wishes."""

    def __init__(self, group_id: int, state: BrokerState, zone: str, now: int) -> None:
        """`zone`: that of this node. `now`: ms, when this node took the group over, or the group got its first member."""
        self._group_id = group_id
        self._state = state
        self._zone = zone
        self._heard: dict[str, int] = dict.fromkeys(self._membership.members, now)
        self._leaving: set[str] = set()
        self._removing: set[str] = set()  # proposed
        self._busy: set[QueueKey] = set()  # a proposal for it is under way
        self._revocations: dict[QueueKey, _Revocation] = {}
        self._target: Owners = {}
        self._target_for: tuple[object, ...] = ()
        self._owned_by: dict[str, list[QueueKey]] = {}
        self._owned_for: object = None
        self._texts: tuple[str, ...] = ()  # warnings
        self._next = now  # ms, when something is due

    @property
    def _membership(self) -> GroupMembership:
        return self._state.memberships.get(self._group_id) or GroupMembership()

    # --- what happens ---------------------------------------------------------------------------------------
    def heard(self, name: str, now: int) -> None:
        """A member gave a sign of life; also: its stream began or ended, and its time to come back begins."""
        self._heard[name] = now

    def leave(self, name: str) -> None:
        """A member goes by itself: `decide` then."""
        self._leaving.add(name)

    def came(self, name: str, now: int) -> None:
        """A member comes, perhaps back: what it said when it left counts no longer."""
        self._leaving.discard(name)
        self._heard[name] = now

    def released(self, name: str, rows: Iterable[tuple[QueueKey, int]]) -> None:
        """A member hands over queues (with epochs), whose final offsets are committed: `decide` then."""
        for key, epoch in rows:
            if self._membership.of(key) == Ownership(name, epoch):
                known = self._revocations.get(key)
                if known is None or known.epoch != epoch:
                    known = self._revocations[key] = _Revocation(epoch, self._next)
                known.released = True

    def settled(self, wish: Wish) -> None:
        """A wish was applied, or was not and is forgotten: what is still wanted is decided anew."""
        if isinstance(wish, LeaveGroup):
            self._removing.difference_update(wish.members)
        elif isinstance(wish, StartsByTime):
            self._busy.difference_update(wish.keys)
        else:
            ids = wish.rows[["topic_id", "queue_id"]].tolist()
            self._busy.difference_update(ids)

    def is_due(self, now: int) -> bool:
        """Tell whether time alone makes a difference."""
        return now >= self._next

    # --- what to do -----------------------------------------------------------------------------------------
    def decide(self, now: int) -> list[Wish]:
        """Return what to propose, in this order, now (ms)."""
        membership = self._membership
        wishes: list[Wish] = []
        if gone := self._gone(membership, now):
            wishes.append(LeaveGroup(self._group_id, gone))
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

    def _gone(self, membership: GroupMembership, now: int) -> tuple[str, ...]:
        self._heard = {name: self._heard.get(name, now) for name in membership.members}
        self._leaving &= membership.members.keys()
        self._removing &= membership.members.keys()
        return tuple(
            name
            for name, member in sorted(membership.members.items())
            if name not in self._removing
            and (name in self._leaving or now >= self._heard[name] + member.session_timeout_ms)
        )

    def _deadlines(self, membership: GroupMembership) -> Iterable[int]:
        for name, member in membership.members.items():
            if name not in self._removing:
                yield self._heard[name] + member.session_timeout_ms
        for key, revocation in self._revocations.items():
            if key not in self._busy:
                yield revocation.deadline

    def _moves(self, key: QueueKey, wanted: str, membership: GroupMembership, now: int) -> bool:
        """Tell whether a queue is to be assigned now; begin or take back its revocation else."""
        owner = membership.of(key)
        if not owner.member:
            return bool(wanted)
        if owner.member in self._removing:
            return False  # it is nobody's in a moment
        known = self._revocations.get(key)
        if known is not None and known.epoch != owner.epoch:
            known = None
        if owner.member == wanted:
            if known is not None and known.released:
                return True  # it stopped there: a new epoch tells it to go on
            self._revocations.pop(key, None)
            return False
        if known is None:
            deadline = now + membership.members[owner.member].release_ms
            known = self._revocations[key] = _Revocation(owner.epoch, deadline)
        return known.released or now >= known.deadline

    def _wanted(self, membership: GroupMembership) -> Owners:
        """The allocation for these members and topics; it does not change while owners come nearer to it."""
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

    def _topics(self, membership: GroupMembership) -> tuple[Topic, ...]:
        found = (self._state.topics.find(name) for name in sorted(membership.subscribed))
        return tuple(topic for topic in found if topic is not None)

    def _proposals(self, moves: Mapping[QueueKey, str], membership: GroupMembership) -> list[Wish]:
        """A queue without a position gets that first; then it is decided anew."""
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
            places = {"": NOBODY} | {name: place for place, name in enumerate(names)}
            rows = [(*key, membership.of(key).epoch, places[moves[key]]) for key in part]
            wishes.append(AssignQueues(self._group_id, tuple(names), assignment_rows(rows)))
        return wishes

    def _starts(self, keys: list[QueueKey], membership: GroupMembership) -> list[Wish]:
        """Where the group begins in queues that it never consumed from; a topic younger than the group's members: at its begin."""
        group = self._state.groups.get(self._group_id)
        if group is None or not keys:
            return []
        if group.start.timestamp_ms is not None:
            return [
                StartsByTime(self._group_id, tuple(keys[at : at + ROWS_MAX]), group.start.timestamp_ms)
                for at in range(0, len(keys), ROWS_MAX)
            ]
        latest, rows = str(group.start) == "latest", []
        since = min(member.joined_at for member in membership.members.values())
        for key in keys:
            queue, topic = self._state.queues.named(*key), self._state.topics.get(key[0])
            new = topic is not None and topic.created_at > since
            rows.append((*key, queue.end if latest and not new else queue.begin))
        return [
            SetPositions(self._group_id, position_rows(rows[at : at + ROWS_MAX]))
            for at in range(0, len(rows), ROWS_MAX)
        ]

    # --- what members are told ------------------------------------------------------------------------------
    def view(self, name: str) -> MemberView | None:
        """Return what to tell a member; None: it is none (any more)."""
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

    def _warnings(self, membership: GroupMembership) -> tuple[str, ...]:
        """Who subscribes otherwise than the oldest member, and which topics are not here."""
        members = membership.by_age()
        found = [text for member in members[1:] for text in _differences(member, members[0])]
        found += [
            f'topic "{name}" does not exist in this broker group; its queues are given out when it does'
            for name in sorted(membership.subscribed)
            if self._state.topics.find(name) is None
        ]
        if len(found) > WARNINGS_MAX:
            found[WARNINGS_MAX - 1 :] = [f"and {len(found) - WARNINGS_MAX + 1} more warnings like these"]
        return tuple(found)


def _strategy(membership: GroupMembership) -> str:
    """The oldest member decides; one that this build does not know is the default."""
    wanted = membership.by_age()[0].allocation if membership.members else STICKY
    return wanted if wanted in STRATEGIES else STICKY


def _differences(member: GroupMember, oldest: GroupMember) -> Iterable[str]:
    if set(member.topics) != set(oldest.topics):
        yield (
            f'members subscribe differently: "{member.name}" to {_listed(member.topics)}, "{oldest.name}" to '
            f"{_listed(oldest.topics)}. The queues of a topic go to those that subscribe to it"
        )
    if member.filter != oldest.filter:
        yield (
            f'members filter differently: "{member.name}" by "{member.filter or "*"}", "{oldest.name}" by '
            f'"{oldest.filter or "*"}". What the filter of a queue\'s owner leaves out, the group never gets'
        )
    if (member.allocation or STICKY) != (oldest.allocation or STICKY):
        yield (
            f'"{member.name}" asks for allocation {member.allocation or STICKY}; the oldest member, "{oldest.name}", '
            f"decides: {oldest.allocation or STICKY}"
        )


def _listed(topics: Iterable[str]) -> str:
    return ", ".join(sorted(topics)) or "nothing"
