"""A group with one voter, the master, instead of a majority: whose word counts, and since when (D24).

Pure. The members that are not the master get the whole log, and never vote, lead or count for commit. Nobody takes over
by himself: a person promotes a slave (group_recovery.py). That begins a generation: a new group id, a higher term, and
the list of the ids that it follows. Hence, between two nodes of one group:

- the later generation wins, whatever the terms say; a term of it is above all of the earlier ones (`first_term_of`);
- who finds the id of its own folder among the former ids is left behind. It stops at once, for ever in that
  generation; its folder is moved aside, whole, and it fetches the log from the new master (`successor_of`);
- who does not find it there is of another group, or of a generation that was promoted beside this one. Nothing is
  inferred: a person decides, and gives up one of the two.

So that no two begin beside each other unless their nodes cannot reach each other, whoever is about to begin a generation
tells the others its id before (`Claim`), and they store it. A generation that one of them begins after that is a later
one, and names the claimed id among the former ones: if that generation begins all the same, whenever that is, it was left
behind. So does one that a person wants in the place of another that is heard (`Reign.next`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ..types import NO_INDEX, LogIndex, NodeId, Term

#: So many promotions are remembered: who was left behind before them is told to rejoin by a person.
MAX_FORMER: Final = 64
#: Terms of one generation. A master that starts again and again gets nowhere near; people can read it off a term.
TERMS_PER_GENERATION: Final = 10**12


class Replication(Enum):
    """How a group decides what is committed, and what an answer to a producer waits for."""

    QUORUM = "quorum"  # every member votes; what a majority holds is committed
    ASYNC_MASTER = "async_master"  # what the master holds is committed, and answered
    SYNC_MASTER = "sync_master"  # the same, and the answer waits for slaves that hold it too

    @property
    def has_master(self) -> bool:
        return self is not Replication.QUORUM


@dataclass(frozen=True, slots=True, kw_only=True)
class Reign:
    """Who is the master of a group. Equal generations of one group have the same master."""

    master: NodeId
    generation: int = 0  # promotions so far, and those that were only claimed; 0: as it was configured
    began_after: LogIndex = NO_INDEX  # the last entry that this generation took over from the one before
    former_group_ids: tuple[int, ...] = ()  # of the generations that it leaves behind, oldest first

    def next(
        self, master: NodeId, group_id: int, last_index: LogIndex, claims: Iterable[Claim] = ()
    ) -> Reign:
        """Return the generation that begins when `master` goes on alone with its log up to `last_index`.

        `group_id` is that of this generation; those of `claims` are left behind, too, whether they ever began or not.
        """
        others = sorted(claims, key=lambda claim: (claim.reign.generation, claim.group_id))
        former = [*self.former_group_ids, group_id]
        for claim in others:
            former += (*claim.reign.former_group_ids, claim.group_id)
        return Reign(
            master=master,
            generation=max(self.generation, *(claim.reign.generation for claim in others), 0) + 1,
            began_after=last_index,
            former_group_ids=tuple(dict.fromkeys(former))[-MAX_FORMER:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A generation that a node is about to begin, or has begun, of which others do not know more than that."""

    group_id: int
    reign: Reign


def passed_over(claims: Iterable[Claim], claim: Claim) -> Claim | None:
    """Return one of `claims`, of another node, that `claim` does not leave behind: both would begin beside each other."""
    former = claim.reign.former_group_ids
    for known in claims:
        if known.reign.master != claim.reign.master and known.group_id not in former:
            return known
    return None


def first_term_of(generation: int, term: Term) -> Term:
    """Return the term in which a generation begins; `term` is the highest that the promoted node knows."""
    return Term(max(term, generation * TERMS_PER_GENERATION) + 1)


def explain_reign(reign: Reign | None, replication: str) -> str:
    """Return a reign in words, for refusals."""
    if reign is None:
        return f"replication {replication}"
    since = f", generation {reign.generation}" if reign.generation else ""
    return f"replication {replication} with the master {reign.master}{since}"
