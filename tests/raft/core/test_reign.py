"""Generations of a broker group with a master: which one wins, is superseded, or is unrelated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledgermq.raft.core.reign import (
    MAX_FORMER,
    TERMS_PER_GENERATION,
    Claim,
    Reign,
    Replication,
    first_term_of,
)
from ledgermq.raft.transport.hello import Hello, RefusalKind, Standing, claim_beside, refusal_of, successor_of
from ledgermq.raft.types import LogIndex, NodeId, Term

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
MEMBERS = frozenset((N1, N2, N3))
FIRST = Reign(master=N1)
SECOND = FIRST.next(N2, 0xA, LogIndex(70))
THIRD = SECOND.next(N3, 0xB, LogIndex(90))
BESIDE = FIRST.next(N3, 0xA, LogIndex(80))  # SECOND's master did not know of it


def hello(node: NodeId, reign: Reign | None, group_id: int, **changes: Any) -> Hello:
    fields: dict[str, Any] = {
        "cluster_id": "c", "group": "g0", "node_id": node, "incarnation": 7, "segment_size": 1 << 20,
        "standing": Standing.VOTER, "term": Term(1), "group_id": group_id, "reign": reign,
        "replication": Replication.ASYNC_MASTER if reign else Replication.QUORUM,
    }  # fmt: skip
    return Hello(**{**fields, **changes})


def kind_of(mine: Hello, theirs: Hello) -> RefusalKind | None:
    refusal = refusal_of(mine, theirs, MEMBERS)
    return refusal.kind if refusal else None


def test_a_promotion_begins_the_next_generation_behind_the_former_group() -> None:
    assert (SECOND.master, SECOND.generation, SECOND.began_after) == (N2, 1, 70)
    assert (THIRD.generation, THIRD.former_group_ids) == (2, (0xA, 0xB))


def test_the_list_of_former_groups_is_bounded() -> None:
    reign = FIRST
    for number in range(1, 100):
        reign = reign.next(N2, number, LogIndex(1))
    assert reign.generation == 99
    assert reign.former_group_ids == tuple(range(100 - MAX_FORMER, 100))


def test_a_generation_begins_above_every_term_of_the_one_before() -> None:
    assert first_term_of(1, Term(12)) == TERMS_PER_GENERATION + 1
    assert first_term_of(1, Term(TERMS_PER_GENERATION + 40)) == TERMS_PER_GENERATION + 41
    assert first_term_of(0, Term(12)) == 13  # a recovered quorum group


def test_a_greeting_carries_the_reign_over_the_wire() -> None:
    said = hello(N3, THIRD, 0xC)
    assert Hello.from_proto(said.to_proto()) == said
    quorum = hello(N3, None, 0xC)
    assert Hello.from_proto(quorum.to_proto()) == quorum
    assert not quorum.to_proto().HasField("reign")


def test_the_master_of_an_earlier_generation_is_left_behind_whatever_its_term() -> None:
    old, new = hello(N1, FIRST, 0xA, term=Term(10**15)), hello(N2, SECOND, 0xB)
    assert successor_of(old, new) == SECOND
    assert successor_of(new, old) is None
    assert kind_of(new, old) is kind_of(old, new) is RefusalKind.LEFT_BEHIND


def test_who_missed_several_generations_goes_with_the_newest() -> None:
    assert successor_of(hello(N1, FIRST, 0xA), hello(N3, THIRD, 0xC)) == THIRD


def test_a_slave_that_followed_tells_the_former_master() -> None:
    """It need not know the new group id yet."""
    follower = hello(N3, SECOND, 0, standing=Standing.LEARNER)
    assert successor_of(hello(N1, FIRST, 0xA), follower) == SECOND


def test_a_later_generation_of_another_group_leaves_nobody_behind() -> None:
    mine, stranger = hello(N1, FIRST, 0xF), hello(N2, SECOND, 0xB)
    assert successor_of(mine, stranger) is None
    assert kind_of(mine, stranger) is RefusalKind.OTHER_GROUP


def test_two_nodes_that_were_promoted_beside_each_other_wait_for_a_person() -> None:
    one, other = hello(N2, SECOND, 0xB), hello(N3, BESIDE, 0xC)
    assert successor_of(one, other) is successor_of(other, one) is None
    refusal = refusal_of(one, other, MEMBERS)
    assert refusal is not None and refusal.kind is RefusalKind.OTHER_GROUP
    assert "beside each other" in refusal.text
    assert (
        "cluster promote n2 --instead-of n3, or ledgermq cluster promote n3 --instead-of n2" in refusal.text
    )


def test_of_generations_that_began_beside_each_other_none_follows_the_other() -> None:
    one, other = hello(N2, SECOND, 0xB), hello(N3, BESIDE, 0xC)
    assert claim_beside(one, other) == Claim(group_id=0xC, reign=BESIDE)
    assert claim_beside(other, one) == Claim(group_id=0xB, reign=SECOND)
    later = hello(N1, BESIDE.next(N1, 0xC, LogIndex(90)), 0xD)
    assert claim_beside(one, later) is not None and claim_beside(later, one) is not None
    for not_beside in (
        hello(N3, THIRD, 0xC),
        hello(N1, FIRST, 0xA),
        hello(N3, BESIDE, 0),
        hello(N3, SECOND, 0xB),
    ):
        assert claim_beside(one, not_beside) is claim_beside(not_beside, one) is None


def test_a_generation_that_begins_in_the_place_of_another_one_leaves_both_behind() -> None:
    claim = Claim(group_id=0xC, reign=BESIDE)
    both = SECOND.next(N2, 0xB, LogIndex(99), [claim, claim])
    assert (both.generation, both.former_group_ids) == (2, (0xA, 0xB, 0xC))
    new = hello(N2, both, 0xD)
    for old in (hello(N3, BESIDE, 0xC), hello(N2, SECOND, 0xB), hello(N1, FIRST, 0xA)):
        assert successor_of(old, new) == both and successor_of(new, old) is None
    later = Claim(group_id=0xE, reign=replace(BESIDE, generation=7, former_group_ids=(0xA, 0xF)))
    highest = SECOND.next(N2, 0xB, LogIndex(99), [later, claim])
    assert (highest.generation, highest.former_group_ids) == (8, (0xA, 0xB, 0xC, 0xF, 0xE))


def test_a_master_that_was_given_up_goes_with_its_rival_and_its_slaves_with_it() -> None:
    rival = hello(N2, SECOND, 0xB)
    given_up = hello(N3, BESIDE, 0, standing=Standing.LEARNER)
    assert successor_of(given_up, rival) == SECOND and successor_of(rival, given_up) is None
    assert successor_of(given_up, hello(N1, SECOND, 0, standing=Standing.LEARNER)) is None, "given up, too"
    slave = hello(N1, BESIDE, 0, standing=Standing.LEARNER)
    assert successor_of(slave, rival) is None, "its own master may be the one that stays"
    followed = hello(N3, SECOND, 0, standing=Standing.LEARNER)
    assert successor_of(slave, followed) == SECOND
    assert successor_of(hello(N1, BESIDE, 0xC, standing=Standing.LEARNER), followed) is None, (
        "it holds something"
    )


def test_two_first_masters_are_a_matter_of_the_settings() -> None:
    blank = hello(N3, Reign(master=N3), 0, standing=Standing.LEARNER)
    assert successor_of(blank, hello(N2, Reign(master=N2), 0xB)) is None


def test_a_learner_that_knows_no_group_goes_with_the_newest_generation() -> None:
    blank = hello(N1, FIRST, 0, standing=Standing.LEARNER)
    assert successor_of(blank, hello(N3, THIRD, 0xC)) == THIRD
    fresh = hello(N1, FIRST, 0, standing=Standing.FRESH)
    assert successor_of(fresh, hello(N3, THIRD, 0xC)) is None
    assert kind_of(hello(N3, THIRD, 0xC), fresh) is RefusalKind.REPLICATION


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (hello(N1, FIRST, 0xA), hello(N2, None, 0xA)),
        (hello(N1, None, 0xA), hello(N2, FIRST, 0xA)),
        (hello(N1, FIRST, 0), hello(N2, Reign(master=N2), 0)),
        (hello(N1, FIRST, 0xA), hello(N2, FIRST, 0xA, replication=Replication.SYNC_MASTER)),
    ],
)
def test_another_mode_or_another_master_is_refused_with_what_to_do(mine: Hello, theirs: Hello) -> None:
    refusal = refusal_of(mine, theirs, MEMBERS)
    assert refusal is not None and refusal.kind is RefusalKind.REPLICATION
    assert "`replication` and `master`" in refusal.text


def test_nodes_that_agree_are_not_refused() -> None:
    assert kind_of(hello(N1, FIRST, 0xA), hello(N2, FIRST, 0xA)) is None
    assert kind_of(hello(N2, SECOND, 0xB), hello(N3, SECOND, 0xB)) is None
    assert kind_of(hello(N1, None, 0xA), hello(N2, None, 0xA)) is None
