"""Reign of a master: a broker group with one voter instead of a majority, and since when (D24).

Owns: generations and what follows from two of them. Must not: promote anything; a person does. The members
that are not the master get the whole log, and never vote, lead or count for commit. No slave takes over by
itself: a person promotes one (group_recovery.py). That begins a generation: a new id of the broker group, a
higher term, and the list of the ids that it follows. Hence, between two nodes of one broker group:

- the later generation wins, whatever the terms say; its terms are above those of earlier ones
  (`first_term_of`);
- a node that finds the id of its own folder among the former ids is left behind. It stops at once, for ever
  in that generation; its folder is moved aside, whole, and it fetches the log from the new master
  (`successor_of`);
- a node that does not find it there belongs to another broker group, or to a generation that was promoted
  beside this one. Nothing is inferred: a person decides, and gives up one of the two.

Two generations must not begin beside each other unless their nodes cannot reach each other. So a node that is
about to begin a generation first tells the others its id (`Claim`), and they store it. A generation that one
of them begins after that is a later one and names the claimed id among the former ones: if the claimed
generation begins all the same, at any time, it was left behind. The same holds for a generation that a person
wants in the place of another one that is heard (`Reign.next`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ..types import NO_INDEX, LogIndex, NodeId, Term

#: Number of promotions that are remembered. A node that was left behind before them needs a person to rejoin.
MAX_FORMER: Final = 64
#: Terms of one generation. No master restarts as often; people can read the generation off a term.
TERMS_PER_GENERATION: Final = 10**12


class Replication(Enum):
    """Mode of a broker group: what is committed, and what an answer to a producer waits for."""

    QUORUM = "quorum"  # every member votes; what a majority holds is committed
    ASYNC_MASTER = "async_master"  # what the master holds is committed, and answered
    SYNC_MASTER = "sync_master"  # the same, and the answer waits for slaves that hold it too

    @property
    def has_master(self) -> bool:
        return self is not Replication.QUORUM


@dataclass(frozen=True, slots=True, kw_only=True)
class Reign:
    """Master of a broker group. Equal generations of one broker group have the same master."""

    master: NodeId  # the only voter
    generation: int = 0  # promotions so far, and those that were only claimed; 0: as it was configured
    began_after: LogIndex = NO_INDEX  # the last entry that this generation took over from the one before
    former_group_ids: tuple[int, ...] = ()  # of the generations that it leaves behind, oldest first

    def next(
        self, master: NodeId, group_id: int, last_index: LogIndex, claims: Iterable[Claim] = ()
    ) -> Reign:
        """Return the generation that begins when `master` goes on alone with its log up to `last_index`.

        `group_id` is that of this generation; those of `claims` are left behind too, whether or not they
        began.
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
    """Claim of a node to begin a generation. Other nodes do not know whether it began."""

    group_id: int  # of the claimed generation
    reign: Reign


def passed_over(claims: Iterable[Claim], claim: Claim) -> Claim | None:
    """Return a claim of another node that `claim` does not leave behind: both would begin side by side."""
    former = claim.reign.former_group_ids
    for known in claims:
        if known.reign.master != claim.reign.master and known.group_id not in former:
            return known
    return None


def first_term_of(generation: int, term: Term) -> Term:
    """Return the term in which a generation begins; `term` is the highest that the promoted node knows."""
    return Term(max(term, generation * TERMS_PER_GENERATION) + 1)


def explain_reign(reign: Reign | None, replication: str) -> str:
    """Return a description of a reign, for refusals."""
    if reign is None:
        return f"replication {replication}"
    since = f", generation {reign.generation}" if reign.generation else ""
    return f"replication {replication} with the master {reign.master}{since}"
