"""When a node's vote begins to count: first start of a group, and the return of a node that lost its disk (P19).

Pure. The danger is an empty disk under the id of a voter: it forgot its vote and its log, and could help to elect a
leader without acknowledged entries. So:

- A node knows each peer by the incarnation of its data folder, durably (`MemberRecord`); another incarnation under
  the same id is refused unless it says that it comes back as a learner.
- A FRESH node becomes a voter when every other member answered and is fresh too, or already knows its incarnation
  (`may_become_voter`). Before it does, it has stored the incarnations of all of them. Hence whoever voted is known,
  by its incarnation, to every node that could ever meet an empty disk under its id.
- A LEARNER becomes a voter again when it holds everything that was committed when the others had replaced its old
  incarnation, at a term that no voter is ahead of, with its vote bound to that term's leader (`Rejoin`).
- Names may repeat (two clusters on one machine), so a group also has an id, the digest of its members' incarnations
  (`find_group_id`). A node makes it when all members know the same incarnations and none of them has an id; each
  greeting carries both, so whoever could make another one, after a member was replaced, hears of the first instead.
- A group whose majority was lost for ever is made anew from one folder and its copies (group_recovery.py). They are
  FRESH like the members of a new group, but hold the same log and the new group's id from the start. An empty or an
  old folder has not that id: the members refuse it, it does not take the id over from who refuses it, and it does not
  count them as fresh (`may_become_voter`). So what votes first holds the recovered log, and the rules above hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from ..log.identity import Recovery
from ..transport.hello import Hello, Refusal, RefusalKind, Standing
from ..types import LogIndex, NodeId, Term

NO_TERM: Final = Term(0)


@dataclass(slots=True)
class MemberRecord:
    """The incarnations by which this node knows the others. `known` must be durable before anybody is told."""

    group: str
    known: dict[NodeId, int] = field(default_factory=dict)
    recovery: Recovery | None = None  # of this node's folder
    #: Whose folder is the master's to judge, not this slave's: they are taken as they come.
    not_judged: frozenset[NodeId] = frozenset()

    def refusal_of_lost(self, hello: Hello) -> Refusal | None:
        """Return why a node that was left behind when the group was recovered is refused, or None."""
        recovery = self.recovery
        if recovery is None or (hello.standing is Standing.LEARNER and not hello.group_id):
            return None
        if hello.group_id not in (0, recovery.replaced_group_id):
            return None
        # With an id of its own the other node only tells it, by another kind than its own view of two groups, so that
        # both texts are logged. Without one this group decides: it stops.
        kind = RefusalKind.GROUP if hello.group_id else RefusalKind.INCARNATION
        return Refusal(
            kind,
            f"group {self.group} was recovered without the data folder of {hello.node_id} (ledgermq cluster recover), "
            f"after its majority was lost: what stands in that folder, incarnation {hello.incarnation:016x}, is no part "
            "of the group any more. Keep the folder if messages may be in it that are missed, then let the node fetch "
            "everything from the others: ledgermq broker --rejoin",
        )

    def refusal_of(self, hello: Hello, *, vouched: bool = False) -> Refusal | None:
        """Return why the sender is not the node that this one knows, or None. `vouched`: see `is_vouched_for`."""
        known = self.known.get(hello.node_id)
        if not known or known == hello.incarnation or hello.standing is Standing.LEARNER:
            return None
        if hello.node_id in self.not_judged:
            return None
        if vouched and hello.standing is Standing.VOTER:
            return None
        if hello.standing is Standing.FRESH:
            return Refusal(
                RefusalKind.INCARNATION,
                f"{hello.node_id} is a known voter of group {self.group} and its data folder is empty: a node that "
                "forgot its votes must not vote. Give it its data back, or let it fetch everything from the others: "
                "ledgermq broker --rejoin",
            )
        return Refusal(
            RefusalKind.INCARNATION,
            f"{hello.node_id} of group {self.group} has another data folder (incarnation {hello.incarnation:016x}) than it "
            f"is known by ({known:016x}): one of the two is an old copy. If most members say so, it is that of "
            f"{hello.node_id}; else that of who says it. Let that node fetch everything from the others: ledgermq broker "
            "--rejoin",
        )

    def would_change(self, hello: Hello) -> bool:
        """Tell whether the sender's incarnation is new and must be stored before answering."""
        return self.known.get(hello.node_id) != hello.incarnation


@dataclass(slots=True)
class Refusers:
    """The peers that refuse this node's data folder in this run. One of them may hold an old copy itself."""

    me: NodeId
    former: Collection[int]  # incarnations that this node had before
    needed: int  # so many must say it
    known: dict[NodeId, int] = field(default_factory=dict)  # by which incarnation they know this node

    def are_right(self, hello: Hello) -> bool:
        """Take the greeting of a peer that refuses; return whether so many do that this node's folder is the old one."""
        self.known[hello.node_id] = hello.known_incarnations.get(self.me, 0)
        return sum(not self.is_outdated(peer) for peer in self.known) >= self.needed

    def is_outdated(self, peer: NodeId) -> bool:
        """Tell whether a peer knows this node by an incarnation that it had before: then the peer's folder is old."""
        return self.known.get(peer, 0) in self.former


def is_vouched_for(theirs: Hello, hellos: Mapping[NodeId, Hello], member_count: int) -> bool:
    """Tell whether a majority of voters, the sender among them, knows the sender by the incarnation it tells.

    Whoever votes had stored a replacement before the replaced node could vote. So a learner that knows another one takes
    it: its disk may be one from before. A voter that does has an old copy of its folder. `hellos` as for
    `may_become_voter`.
    """
    if theirs.standing is not Standing.VOTER:
        return False
    sender = theirs.node_id
    voters = [h for node, h in hellos.items() if node != sender and h.standing is Standing.VOTER]
    knowing = sum(h.known_incarnations.get(sender) == theirs.incarnation for h in voters)
    return 2 * (knowing + 1) > member_count  # the sender is one of them


def may_become_voter(
    me: NodeId, incarnation: int, others: Iterable[NodeId], hellos: dict[NodeId, Hello], group_id: int = 0
) -> bool:
    """Tell whether a FRESH node may vote from now on: the rule at the top of this module.

    `hellos` are the latest greetings, each of an incarnation that is already stored durably here; `group_id` is what
    this node knows.
    """
    for other in others:
        hello = hellos.get(other)
        if hello is None:
            return False
        alike = hello.standing is Standing.FRESH and hello.group_id == group_id
        if not alike and hello.known_incarnations.get(me) != incarnation:
            return False
    return True


def group_id_of(cluster_id: str, group: str, incarnations: dict[NodeId, int]) -> int:
    """Return the id of a group that was made by these members (64 bits, never 0)."""
    named = [cluster_id, group, *(f"{node}={number:016x}" for node, number in sorted(incarnations.items()))]
    return int.from_bytes(blake2b("\0".join(named).encode()).digest()[:8]) or 1


def find_group_id(
    mine: Hello, others: Collection[NodeId], hellos: dict[NodeId, Hello], *, may_make: bool = True
) -> int:
    """Return the id of this node's group, which does not know it yet; 0: it cannot be told yet.

    An id that a peer has is taken over, but only after all of them were heard, none has another, and all who have it
    know this node: who refuses it is of another group. Store it durably before telling it, and let the member record not change in between. `hellos` as for `may_become_voter`.
    Not `may_make`: only take over (a slave asks nobody but its master).
    """
    heard = [hellos[other] for other in others if other in hellos]
    if len(heard) < len(others):
        return 0
    ids = known_group_ids(heard)
    if ids:
        known = all(h.known_incarnations.get(mine.node_id) == mine.incarnation for h in heard if h.group_id)
        return ids.pop() if len(ids) == 1 and known else 0
    if not may_make:
        return 0
    views = [_incarnations(hello, {mine.node_id, *others}) for hello in (mine, *heard)]
    if any(view != views[0] for view in views) or len(views[0]) <= len(others):
        return 0
    return group_id_of(mine.cluster_id, mine.group, views[0])


def known_group_ids(hellos: Iterable[Hello]) -> set[int]:
    """Return the group ids that the senders know: more than one when groups with the same names are mixed up."""
    return {hello.group_id for hello in hellos if hello.group_id}


def _incarnations(hello: Hello, members: Collection[NodeId]) -> dict[NodeId, int]:
    """Return the incarnations of the members, the sender among them, as the sender knows them."""
    known = {**hello.known_incarnations, hello.node_id: hello.incarnation}
    return {node: number for node, number in known.items() if node in members and number}


@dataclass(slots=True)
class Rejoin:
    """A learner's way back to its vote. Feed it greetings and the read-index of the leader, then ask."""

    me: NodeId
    incarnation: int
    others: frozenset[NodeId]
    target: LogIndex | None = None  # commit index of the leader after all others had replaced the incarnation
    min_term: Term = NO_TERM  # highest term that any of them reported by then

    def is_known_to_all(self, hellos: dict[NodeId, Hello]) -> bool:
        """Tell whether every other member stored the new incarnation; only then ask the leader for `target`."""
        return all(
            (hello := hellos.get(other)) is not None
            and hello.known_incarnations.get(self.me) == self.incarnation
            for other in self.others
        )

    def aim(self, target: LogIndex, hellos: dict[NodeId, Hello]) -> None:
        """Fix what must be held: the leader's read index, and the terms reported until now."""
        self.target = target
        self.min_term = Term(max((hellos[other].term for other in self.others), default=0))

    def is_done(
        self,
        *,
        durable: LogIndex,
        commit: LogIndex,
        term: Term,
        leader: NodeId | None,
        voted_for: NodeId | None,
    ) -> bool:
        """Tell whether the learner may vote again. All arguments are its own, and durable."""
        return (
            self.target is not None
            and durable >= self.target
            and commit >= self.target
            and term >= self.min_term
            and leader is not None
            and voted_for == leader
        )
