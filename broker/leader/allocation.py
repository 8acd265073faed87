"""Allocation of queues to the members of a queue-exclusive consumer group (D14).

Pure and deterministic, so a new leader continues the allocation of the previous one. The queues of a topic go
to its subscribers. Subscribers of a topic get equal numbers of its queues, plus or minus one.

* `sticky` (the default): in addition, the totals of members that subscribe to the same topics differ by at
  most one. A member keeps its queues as far as this allows. A join therefore moves queues to the new member
  only, whereas `average` moves the queues of nearly all members. (With three or more topics, both rules
  together may force one or two queues from one old member to another; this happens in some 3 % of random
  consumer groups.)
* `average`: members by name, each gets a run of adjacent queues, like RocketMQ's
  AllocateMessageQueueAveragely.
* `circle`: members by name, queues in turn, like AllocateMessageQueueAveragelyByCircle.
* `consistent-hash`: a queue goes to the next member on a hash ring. Not balanced; a join or leave moves only
  the queues of the member that joins or leaves.
* `same-zone`: `sticky` among the members in the zone of the leader; for a topic without such subscribers,
  among all.

Owns: these strategies.   Must not: know the state, or when an allocation is carried out.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

from ..state.consume_queue import QueueKey

STICKY: Final = "sticky"
#: Number of points per member on the hash ring. With RocketMQ's 10, one of five members often gets twice its
#: share.
RING_PLACES: Final = 64


@dataclass(frozen=True, slots=True)
class Subscriber:
    """The properties of a member that matter for allocation."""

    name: str
    topics: frozenset[str]
    zone: str = ""


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """Queues of a topic, in order."""

    name: str
    queues: tuple[QueueKey, ...]


Owners = dict[QueueKey, str]
_Choose = Callable[[Sequence[Subscriber], Sequence[TopicQueues], Mapping[QueueKey, str]], Owners]


def allocate(
    strategy: str,
    members: Iterable[Subscriber],
    topics: Iterable[TopicQueues],
    owned: Mapping[QueueKey, str],
    zone: str = "",
) -> Owners:
    """Return the owner of every queue that has a subscriber.

    `strategy`: one of STRATEGIES. `owned`: current owners, who need not be members. `zone`: zone of the
    queues.
    """
    ordered = sorted(members, key=lambda member: member.name)
    wanted = sorted(topics, key=lambda topic: topic.queues)
    if strategy == "same-zone":
        near = [member for member in ordered if member.zone == zone]
        ordered, strategy = _nearest(ordered, near, wanted), STICKY
    return STRATEGIES[strategy](ordered, wanted, owned)


def _nearest(
    members: Sequence[Subscriber], near: Sequence[Subscriber], topics: Sequence[TopicQueues]
) -> list[Subscriber]:
    """Return the members; far ones keep only topics without a near subscriber."""
    close = {topic.name for topic in topics if any(topic.name in member.topics for member in near)}
    kept = {member.name for member in near}
    return [
        member if member.name in kept else Subscriber(member.name, member.topics - close, member.zone)
        for member in members
    ]


def _subscribers(members: Sequence[Subscriber], topic: TopicQueues) -> list[str]:
    return [member.name for member in members if topic.name in member.topics]


def _average(
    members: Sequence[Subscriber], topics: Sequence[TopicQueues], _owned: Mapping[QueueKey, str]
) -> Owners:
    owners: Owners = {}
    for topic in topics:
        names, queues = _subscribers(members, topic), iter(topic.queues)
        for name, share in zip(names, _shares(len(topic.queues), len(names)), strict=True):
            owners.update(dict.fromkeys(islice(queues, share), name))
    return owners


def _shares(queues: int, members: int) -> list[int]:
    """Return the number of queues of each member; the first ones get one more if there is a remainder."""
    return [queues // members + (place < queues % members) for place in range(members)] if members else []


def _circle(
    members: Sequence[Subscriber], topics: Sequence[TopicQueues], _owned: Mapping[QueueKey, str]
) -> Owners:
    owners: Owners = {}
    for topic in topics:
        owners.update(zip(topic.queues, cycle(_subscribers(members, topic)), strict=False))
    return owners


def _place(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, person=b"ring").digest(), "big")


def _consistent_hash(
    members: Sequence[Subscriber], topics: Sequence[TopicQueues], _owned: Mapping[QueueKey, str]
) -> Owners:
    owners: Owners = {}
    places = {member.name: [_place(f"{member.name}#{i}") for i in range(RING_PLACES)] for member in members}
    for topic in topics:
        ring = sorted((place, name) for name in _subscribers(members, topic) for place in places[name])
        for key in topic.queues if ring else ():
            at = bisect_left(ring, (_place(f"{topic.name}#{key[1]}"), ""))
            owners[key] = ring[at % len(ring)][1]
    return owners


class _Sticky:
    """A sticky allocation in progress: the queues of each member per topic, and its total."""

    def __init__(self, members: Sequence[Subscriber], owned: Mapping[QueueKey, str]) -> None:
        self._members = members
        self._owned = owned
        self._topics: list[tuple[list[str], dict[str, list[QueueKey]]]] = []  # subscribers, queues by owner
        self._sums: Counter[str] = Counter()

    def run(self, topics: Sequence[TopicQueues]) -> Owners:
        for topic in topics:
            if names := _subscribers(self._members, topic):
                self._keep(names, topic)
        for names, queues in self._topics:
            self._share(names, queues)
        moved = True
        while moved:  # terminates: each move reduces the sum of the squared totals
            moved = False
            for names, queues in self._topics:
                moved |= self._even_out(names, queues)
        return {key: name for names, queues in self._topics for name in names for key in queues[name]}

    def _keep(self, names: list[str], topic: TopicQueues) -> None:
        """Start with the current owners; queues without an eligible owner go to ""."""
        queues: defaultdict[str, list[QueueKey]] = defaultdict(list)
        eligible = set(names)
        for key in topic.queues:
            owner = self._owned.get(key, "")
            queues[owner if owner in eligible else ""].append(key)
        for name in names:
            self._sums[name] += len(queues[name])
        self._topics.append((names, queues))

    def _share(self, names: list[str], queues: dict[str, list[QueueKey]]) -> None:
        """Balance one topic. The remainder goes to members with most of its queues, then the lowest total."""
        total = sum(map(len, queues.values()))
        order = sorted(names, key=lambda name: (-len(queues[name]), self._sums[name], name))
        shares = dict(zip(order, _shares(total, len(names)), strict=True))
        free = queues.pop("", [])
        for name in names:
            free += queues[name][shares[name] :]
            self._sums[name] += shares[name] - len(queues[name])
            del queues[name][shares[name] :]
        rest = iter(sorted(free))
        for name in names:
            queues[name] += islice(rest, shares[name] - len(queues[name]))

    def _even_out(self, names: list[str], queues: dict[str, list[QueueKey]]) -> bool:
        """Move a queue to a member with fewer, of the topic and in total; return whether one moved."""
        most = max(len(queues[name]) for name in names)
        rich = max(
            (name for name in names if len(queues[name]) == most), key=lambda name: (self._sums[name], name)
        )
        poor = min(
            (name for name in names if len(queues[name]) < most),
            key=lambda name: (self._sums[name], name),
            default=rich,
        )
        if self._sums[rich] - self._sums[poor] < 2:
            return False
        # Prefer a queue that `rich` does not own yet.
        key = max(queues[rich], key=lambda key: (self._owned.get(key) != rich, key))
        queues[rich].remove(key)
        queues[poor].append(key)
        self._sums[rich] -= 1
        self._sums[poor] += 1
        return True


def _sticky(
    members: Sequence[Subscriber], topics: Sequence[TopicQueues], owned: Mapping[QueueKey, str]
) -> Owners:
    return _Sticky(members, owned).run(topics)


STRATEGIES: Final[Mapping[str, _Choose]] = {
    STICKY: _sticky,
    "average": _average,
    "circle": _circle,
    "consistent-hash": _consistent_hash,
    "same-zone": _sticky,
}
