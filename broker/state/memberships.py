"""Members of queue-exclusive consumer groups, and the owner and epoch of each queue (D14).

Within a consumer group, a queue has at most one owner. The epoch of its ownership is the index of the entry
that last changed it, so it grows with every change. A commit with an outdated epoch is refused.
Owns: members and owners by consumer group.   Must not: choose owners (allocation.py), know offsets, read
clocks.
Invariants: an owner is a member. The epochs of a queue only grow. Values are replaced, never modified, so a
snapshot of the table is a shallow copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from .commands import NO_OWNER, AssignQueues, CommitOffsets, JoinConsumerGroup, LeaveConsumerGroup
from .consume_queue import QueueKey
from .topics import TopicTable


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """A consumer in a queue-exclusive consumer group. Its settings are those of the last join."""

    name: str
    joined: int  # log index at which it joined first; decides its age
    joined_at: int  # log time (ms) of that entry
    topics: tuple[str, ...]
    allocation: str
    zone: str
    filter: str
    session_timeout_ms: int
    release_ms: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """Ownership of a queue."""

    member: str  # "": the queue has no owner
    epoch: int  # index of the entry that last changed it; 0: it never had an owner


_UNTOUCHED: Final = Ownership("", 0)


@dataclass(frozen=True, slots=True)
class ConsumerGroupMembership:
    """Members and queue owners of one consumer group with members."""

    members: Mapping[str, ConsumerGroupMember] = field(default_factory=dict)  # by name
    # Queues that were assigned at least once. Invariant: each owner is in `members` or "".
    owners: Mapping[QueueKey, Ownership] = field(default_factory=dict)

    def of(self, key: QueueKey) -> Ownership:
        """Return the ownership of a queue; epoch 0: it never had an owner."""
        return self.owners.get(key, _UNTOUCHED)

    @property
    def subscribed(self) -> set[str]:
        """Names of the topics that members subscribe to, whether they exist or not."""
        return {name for member in self.members.values() for name in member.topics}

    def by_age(self) -> list[ConsumerGroupMember]:
        """Return the members, oldest first."""
        return sorted(self.members.values(), key=lambda member: (member.joined, member.name))

    def queues_of(self, member: str) -> list[QueueKey]:
        """Return the queues that a member owns, sorted."""
        return sorted(key for key, owner in self.owners.items() if owner.member == member)


_EMPTY: Final = ConsumerGroupMembership()


class MembershipTable:
    """Memberships of all consumer groups that have members, by consumer group id."""

    def __init__(self) -> None:
        self._memberships: dict[int, ConsumerGroupMembership] = {}

    def get(self, group_id: int) -> ConsumerGroupMembership | None:
        return self._memberships.get(group_id)

    def group_ids(self) -> list[int]:
        """Return the ids of consumer groups that have members, sorted."""
        return sorted(self._memberships)

    # --- commands -------------------------------------------------------------------------------------------
    def join(self, command: JoinConsumerGroup, index: int, timestamp: int) -> bool:
        """Add a member or update its settings; return whether that changed anything."""
        membership = self._memberships.get(command.group_id, _EMPTY)
        known = membership.members.get(command.member)
        joined, joined_at = (known.joined, known.joined_at) if known is not None else (index, timestamp)
        member = ConsumerGroupMember(
            command.member, joined, joined_at, command.topics, command.allocation, command.zone,
            command.filter, command.session_timeout_ms, command.release_ms,
        )  # fmt: skip
        if member == known:
            return False
        self._memberships[command.group_id] = replace(
            membership, members={**membership.members, member.name: member}
        )
        return True

    def leave(self, command: LeaveConsumerGroup, index: int) -> np.ndarray:
        """Remove members; return a bool per name: it was a member. The last one takes all epochs along."""
        membership = self._memberships.get(command.group_id, _EMPTY)
        left = set(command.members)
        members = {name: member for name, member in membership.members.items() if name not in left}
        if members:
            owners = {
                key: Ownership("", index) if owner.member in left else owner
                for key, owner in membership.owners.items()
            }
            self._memberships[command.group_id] = ConsumerGroupMembership(members, owners)
        else:
            self._memberships.pop(command.group_id, None)
        return np.array([name in membership.members for name in command.members], bool)

    def assign(self, command: AssignQueues, index: int, there: Sequence[bool]) -> np.ndarray:
        """Assign queues to members; return a bool per row: accepted. `there`: per row, the queue exists."""
        accepted = np.zeros(len(command.rows), bool)
        membership = self._memberships.get(command.group_id)
        if membership is None:
            return accepted
        owners = dict(membership.owners)
        for place, (topic_id, queue_id, epoch, owner) in enumerate(command.rows.tolist()):
            known = owners.get((topic_id, queue_id), _UNTOUCHED)
            if not there[place] or known.epoch != epoch:
                continue
            name = command.members[owner] if owner < len(command.members) else ""
            # A member that joined in this very entry was unknown to the leader, and its epoch might not be
            # unique.
            if owner == NO_OWNER or (name in membership.members and membership.members[name].joined < index):
                owners[topic_id, queue_id] = Ownership(name, index)
                accepted[place] = True
        self._memberships[command.group_id] = replace(membership, owners=owners)
        return accepted

    def fenced(self, command: CommitOffsets, topics: TopicTable) -> np.ndarray:
        """Return a bool per row of a commit: the committer must not move the offset of that queue."""
        membership = self._memberships.get(command.group_id, _EMPTY)
        fenced = np.zeros(len(command.rows), bool)
        if command.epochs is None and membership is _EMPTY:
            return fenced
        epochs = command.epochs.tolist() if command.epochs is not None else [0] * len(command.rows)
        subscribed: set[str] | None = None  # computed on demand: it walks all members
        for place, (topic_id, queue_id, _) in enumerate(command.rows.tolist()):
            owner = membership.of((topic_id, queue_id))
            if epochs[place]:
                fenced[place] = owner.epoch != epochs[place] or not owner.member
            elif not command.reset:
                topic = topics.get(topic_id)
                subscribed = membership.subscribed if subscribed is None else subscribed
                fenced[place] = bool(owner.member) or (topic is not None and topic.name in subscribed)
        return fenced

    def renew(self, command: CommitOffsets, accepted: np.ndarray, index: int) -> bool:
        """Give owners a new epoch in queues that were reset without one; return whether anything changed."""
        membership = self._memberships.get(command.group_id)
        if membership is None or not command.reset:
            return False
        epochs = command.epochs.tolist() if command.epochs is not None else [0] * len(command.rows)
        owners = dict(membership.owners)
        for (topic_id, queue_id, _), taken, epoch in zip(
            command.rows.tolist(), accepted.tolist(), epochs, strict=True
        ):
            known = owners.get((topic_id, queue_id), _UNTOUCHED)
            if taken and not epoch and known.member:
                owners[topic_id, queue_id] = Ownership(known.member, index)
        changed = owners != membership.owners
        if changed:
            self._memberships[command.group_id] = replace(membership, owners=owners)
        return changed

    def remove_consumer_group(self, group_id: int) -> bool:
        """Drop a deleted consumer group; return whether it had members."""
        return self._memberships.pop(group_id, None) is not None

    def remove_topic(self, topic_id: int) -> list[int]:
        """Drop the queues of a deleted topic; return the ids of the affected consumer groups."""
        touched = []
        for group_id, membership in sorted(self._memberships.items()):
            owners = {key: owner for key, owner in membership.owners.items() if key[0] != topic_id}
            if len(owners) != len(membership.owners):
                self._memberships[group_id] = replace(membership, owners=owners)
                touched.append(group_id)
        return touched

    # --- checkpoints ----------------------------------------------------------------------------------------
    def copy(self) -> dict[int, ConsumerGroupMembership]:
        return dict(self._memberships)

    def restore(self, memberships: dict[int, ConsumerGroupMembership]) -> None:
        self._memberships = memberships
