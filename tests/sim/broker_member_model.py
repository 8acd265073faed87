"""Queue-exclusive groups in the model of the broker's state: members, owners, epochs."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from .invariants import demand

Key = tuple[int, int]  # topic id, queue id
_ASSIGNMENT = struct.Struct("<IIQI")
_NOBODY = 0xFFFFFFFF


@dataclass(slots=True)
class ConsumerGroup:
    """`members`: name -> (join's entry, log time, topics, the rest). `owners`: queue -> (member, epoch)."""

    members: dict[str, tuple[int, int, tuple[str, ...], tuple[Any, ...]]] = field(default_factory=dict)
    owners: dict[Key, tuple[str, int]] = field(default_factory=dict)


class MemberModel:
    """All consumer groups with members, and every owner that a queue ever had."""

    def __init__(self) -> None:
        self.groups: dict[int, ConsumerGroup] = {}
        self.owned: dict[tuple[int, Key, int], str] = {}  # consumer group, queue, epoch -> owner
        self.newest: dict[tuple[int, Key], int] = {}  # consumer group, queue -> its last epoch

    def join(self, raw: bytes, index: int, stamp: int) -> tuple[int, bool]:
        group_id, timeout, release, count = struct.unpack_from("<IIIH", raw)
        name, allocation, zone, tags, *topics = _texts(raw, 14, 4 + count)
        consumer_group = self.groups.setdefault(group_id, ConsumerGroup())
        joined, at = consumer_group.members[name][:2] if name in consumer_group.members else (index, stamp)
        member = (joined, at, tuple(topics), (allocation, zone, tags, timeout, release))
        changed = consumer_group.members.get(name) != member
        consumer_group.members[name] = member
        return group_id, changed

    def leave(self, raw: bytes, index: int) -> list[bool]:
        group_id, count = struct.unpack_from("<IH", raw)
        consumer_group = self.groups.get(group_id, ConsumerGroup())
        answers = []
        for name in _texts(raw, 6, count):
            answers.append(consumer_group.members.pop(name, None) is not None)
            for key, (owner, _) in consumer_group.owners.items():
                if owner == name:
                    consumer_group.owners[key] = ("", index)
        if not consumer_group.members:
            self.groups.pop(group_id, None)
        return answers

    def assign(self, raw: bytes, index: int, queues: Any) -> list[bool]:
        group_id, count = struct.unpack_from("<IH", raw)
        names = _texts(raw, 6, count)
        at = 6 + sum(2 + len(name.encode()) for name in names)
        consumer_group, answers = self.groups.get(group_id, ConsumerGroup()), []
        for topic, queue, epoch, place in _ASSIGNMENT.iter_unpack(raw[at:]):
            name = "" if place == _NOBODY else names[place]
            known = consumer_group.owners.get((topic, queue), ("", 0))[1]
            good = (topic, queue) in queues and known == epoch and group_id in self.groups
            good = good and (
                not name or (name in consumer_group.members and consumer_group.members[name][0] < index)
            )
            answers.append(good)
            if good:
                self._own(group_id, (topic, queue), name, index)
        return answers

    def may_commit(self, group_id: int, key: Key, topic: str, epoch: int, *, reset: bool) -> bool:
        """Return whether an offset may be moved under an epoch, or (0) without ownership."""
        consumer_group = self.groups.get(group_id, ConsumerGroup())
        owner, current = consumer_group.owners.get(key, ("", 0))
        if epoch:
            return bool(owner) and epoch == current
        return reset or not (owner or any(topic in member[2] for member in consumer_group.members.values()))

    def renew(self, group_id: int, key: Key, index: int) -> None:
        """Renew the epoch after a reset of the offset from outside."""
        consumer_group = self.groups.get(group_id)
        if consumer_group is not None and consumer_group.owners.get(key, ("", 0))[0]:
            self._own(group_id, key, consumer_group.owners[key][0], index)

    def _own(self, group_id: int, key: Key, name: str, index: int) -> None:
        self.groups[group_id].owners[key] = (name, index)
        last = self.newest.get((group_id, key), 0)
        demand(index >= last, f"B epochs: queue {key} of group {group_id} goes from {last} back to {index}")
        self.newest[group_id, key] = index
        if name:
            known = self.owned.setdefault((group_id, key, index), name)
            demand(known == name, f"B epochs: {known} and {name} own {key} of group {group_id} under {index}")

    def remove_topic(self, number: int) -> None:
        for consumer_group in self.groups.values():
            consumer_group.owners = {
                key: owner for key, owner in consumer_group.owners.items() if key[0] != number
            }


def _texts(raw: bytes, at: int, count: int) -> list[str]:
    found = []
    for _ in range(count):
        (size,) = struct.unpack_from("<H", raw, at)
        found.append(raw[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return found
