"""Rules for when a vote counts: first start of a broker group, return of a node without its disk (P19).

Pure. The danger is an empty disk under the id of a voter. Such a node forgot its vote and its log, and could
help to elect a leader that lacks acknowledged entries. Therefore:

- A node durably knows each peer by the incarnation of its data folder (`MemberRecord`). It refuses another
  incarnation under the same id unless that peer says that it returns as a learner.
- A FRESH node becomes a voter once every other member has answered, and each is fresh too or already knows
  the node's incarnation (`may_become_voter`). Before that it has stored the incarnations of all of them. So
  every node that could ever meet an empty disk under a voter's id knows that voter by its incarnation.
- A LEARNER becomes a voter again once three conditions hold (`Rejoin`). It holds everything that was
  committed by the time the others had replaced its old incarnation. No voter is ahead of its term. Its vote
  is bound to that term's leader.
- Names may repeat (two clusters on one machine). A broker group therefore also has an id, the digest of its
  members' incarnations (`find_group_id`). A node computes it when all members know the same incarnations and
  none has an id yet. Every greeting carries both. So a node that could compute another id, after a member was
  replaced, learns the first one instead.
- A broker group that lost its majority for good is recreated from one folder and its copies
  (group_recovery.py). These are FRESH, like the members of a new broker group, but start with the same log
  and the new id. An empty or old folder lacks that id. The members refuse it, it does not take the id over
  from a node that refuses it, and it does not count them as fresh (`may_become_voter`). So the first voters
  hold the recovered log, and the rules above apply.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from ..log.identity import Recovery
from ..transport.hello import Hello, Refusal, RefusalKind, Standing
from ..types import NO_TERM, LogIndex, NodeId, Term


@dataclass(slots=True)
class MemberRecord:
    """Incarnations by which this node knows the others.

    `known` must be durable before any greeting reports it.
    """

    broker_group: str  # for the texts of refusals
    # invariant: durable before any greeting reports it
    known: dict[NodeId, int] = field(default_factory=dict)
    recovery: Recovery | None = None  # how this node's folder was recovered; None: never
    #: Members that only the master may judge, not this slave. Their folders are accepted as they are.
    not_judged: frozenset[NodeId] = frozenset()

    def refusal_of_lost(self, hello: Hello) -> Refusal | None:
        """Return why a node that the recovery of the broker group left out is refused, or None."""
        recovery = self.recovery
        if recovery is None or (hello.standing is Standing.LEARNER and not hello.group_id):
            return None
        if hello.group_id not in (0, recovery.replaced_group_id):
            return None
        # A node with an id of its own is only told, with a kind that differs from its own view of two broker
        # groups, so that both texts are logged. For a node without an id this side decides: the node stops.
        kind = RefusalKind.GROUP if hello.group_id else RefusalKind.INCARNATION
        return Refusal(
            kind,
            f"broker group {self.broker_group} was recovered without the data folder of {hello.node_id} "
            "(ledgermq cluster recover), after its majority was lost: what stands in that folder, "
            f"incarnation {hello.incarnation:016x}, is no part of the broker group any more. Keep the folder "
            "if messages may be in it that are missed, then let the node fetch everything from the others: "
            "ledgermq broker --rejoin",
        )

    def refusal_of(self, hello: Hello, *, vouched: bool = False) -> Refusal | None:
        """Return why the sender is not the node known under its id, or None.

        `vouched`: see `is_vouched_for`.
        """
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
                f"{hello.node_id} is a known voter of broker group {self.broker_group} and its data folder "
                "is empty: a node that forgot its votes must not vote. Give it its data back, or let it "
                "fetch everything from the others: ledgermq broker --rejoin",
            )
        return Refusal(
            RefusalKind.INCARNATION,
            f"{hello.node_id} of broker group {self.broker_group} has another data folder (incarnation "
            f"{hello.incarnation:016x}) than it is known by ({known:016x}): one of the two is an old copy. "
            f"If most members say so, it is that of {hello.node_id}; else that of who says it. Let that node "
            "fetch everything from the others: ledgermq broker --rejoin",
        )

    def would_change(self, hello: Hello) -> bool:
        """Return whether the sender's incarnation is new and must be stored before answering."""
        return self.known.get(hello.node_id) != hello.incarnation


@dataclass(slots=True)
class Refusers:
    """Peers that refuse this node's data folder in this run. Any of them may itself hold an old copy."""

    me: NodeId
    former: Collection[int]  # earlier incarnations of this node
    needed: int  # number of refusals that count as proof
    # the incarnation by which each peer knows this node
    known: dict[NodeId, int] = field(default_factory=dict)

    def are_right(self, hello: Hello) -> bool:
        """Record the greeting of a peer that refuses this node.

        Returns whether enough peers do, so that this node's folder must be the old one.
        """
        self.known[hello.node_id] = hello.known_incarnations.get(self.me, 0)
        return sum(not self.is_outdated(peer) for peer in self.known) >= self.needed

    def is_outdated(self, peer: NodeId) -> bool:
        """Return whether a peer knows this node by an earlier incarnation.

        The peer's own folder is old then.
        """
        return self.known.get(peer, 0) in self.former


def is_vouched_for(theirs: Hello, hellos: Mapping[NodeId, Hello], member_count: int) -> bool:
    """Return whether a majority of voters, including the sender, knows the sender by the incarnation it
    reports.

    A voter had stored a replacement before the replaced node could vote. So a learner that knows another
    incarnation accepts this one: its own disk may be older. A voter in that situation has an old copy of its
    folder. `hellos`: see `may_become_voter`.
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
    """Return whether a FRESH node may vote from now on: the rule at the top of this module.

    `hellos` are the latest greetings, each from an incarnation that is already stored durably here.
    `group_id` is the one that this node knows.
    """
    for other in others:
        hello = hellos.get(other)
        if hello is None:
            return False
        alike = hello.standing is Standing.FRESH and hello.group_id == group_id
        if not alike and hello.known_incarnations.get(me) != incarnation:
            return False
    return True


def group_id_of(cluster_id: str, broker_group: str, incarnations: dict[NodeId, int]) -> int:
    """Return the id of a broker group created by these members (64 bits, never 0)."""
    named = [
        cluster_id,
        broker_group,
        *(f"{node}={number:016x}" for node, number in sorted(incarnations.items())),
    ]
    return int.from_bytes(blake2b("\0".join(named).encode()).digest()[:8]) or 1


def find_group_id(
    mine: Hello, others: Collection[NodeId], hellos: dict[NodeId, Hello], *, may_make: bool = True
) -> int:
    """Return the id of this node's broker group, which it does not know yet; 0: cannot be determined yet.

    A peer's id is taken over only if all peers have been heard, none has a different id, and all that have it
    know this node: a peer that refuses it belongs to another broker group. Store the id durably before
    telling it, and do not let the member record change in between. `hellos`: see `may_become_voter`. Without
    `may_make`, ids are only taken over: a slave asks only its master.
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
    """Return the broker group ids that the senders know. More than one: some of one name are mixed up."""
    return {hello.group_id for hello in hellos if hello.group_id}


def _incarnations(hello: Hello, members: Collection[NodeId]) -> dict[NodeId, int]:
    """Return the members' incarnations as the sender knows them, including its own."""
    known = {**hello.known_incarnations, hello.node_id: hello.incarnation}
    return {node: number for node, number in known.items() if node in members and number}


@dataclass(slots=True)
class Rejoin:
    """Conditions for a learner to get its vote back.

    Pass it greetings and the leader's read index, then ask.
    """

    me: NodeId
    incarnation: int
    others: frozenset[NodeId]
    # leader's commit index after all others had replaced the incarnation; None: not asked yet
    target: LogIndex | None = None
    min_term: Term = NO_TERM  # highest term that any of them had reported by then

    def is_known_to_all(self, hellos: dict[NodeId, Hello]) -> bool:
        """Return whether every other member has stored the new incarnation.

        Ask the leader for `target` only then.
        """
        return all(
            (hello := hellos.get(other)) is not None
            and hello.known_incarnations.get(self.me) == self.incarnation
            for other in self.others
        )

    def aim(self, target: LogIndex, hellos: dict[NodeId, Hello]) -> None:
        """Fix the target: the leader's read index, and the highest term reported so far."""
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
        """Return whether the learner may vote again. All arguments are its own state, and durable."""
        return (
            self.target is not None
            and durable >= self.target
            and commit >= self.target
            and term >= self.min_term
            and leader is not None
            and voted_for == leader
        )
