"""P19: an empty disk under a voter's id must not vote."""

from __future__ import annotations

from ledgermq.raft.bootstrap import MemberRecord, Rejoin, find_group_id, group_id_of, may_become_voter
from ledgermq.raft.hello import Hello, RefusalKind, Standing, refusal_of
from ledgermq.raft.types import LogIndex, NodeId, Term

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


def hello(
    node: NodeId,
    incarnation: int,
    standing: Standing = Standing.FRESH,
    known: dict[NodeId, int] | None = None,
    term: int = 0,
    group: str = "g0",
    segment_size: int = 1 << 20,
    to: str = "",
    group_id: int = 0,
) -> Hello:
    return Hello(
        cluster_id="c", group=group, node_id=node, incarnation=incarnation, segment_size=segment_size,
        standing=standing, term=Term(term), known_incarnations=known or {}, to_node_id=to,
        group_id=group_id,
    )  # fmt: skip


def test_a_node_alone_in_its_group_becomes_a_voter_at_once() -> None:
    assert may_become_voter(N1, 1, [], {})


def test_a_fresh_node_waits_until_every_other_member_answered() -> None:
    assert not may_become_voter(N1, 1, [N2, N3], {N2: hello(N2, 2)})
    assert may_become_voter(N1, 1, [N2, N3], {N2: hello(N2, 2), N3: hello(N3, 3)})


def test_a_fresh_node_may_join_voters_that_recorded_its_incarnation() -> None:
    known = {N1: 1}
    voters = {N2: hello(N2, 2, Standing.VOTER, known), N3: hello(N3, 3, Standing.VOTER, known)}
    assert may_become_voter(N1, 1, [N2, N3], voters)


def test_an_empty_disk_does_not_become_a_voter_while_one_member_knows_another_incarnation() -> None:
    others = {N2: hello(N2, 2, Standing.VOTER, {N1: 99}), N3: hello(N3, 3)}
    assert not may_become_voter(N1, 1, [N2, N3], others)


def test_an_empty_disk_under_a_known_id_is_refused_with_the_way_out() -> None:
    record = MemberRecord("g0", {N3: 3})
    refusal = record.refusal_of(hello(N3, 4))
    assert refusal is not None
    assert refusal.kind is RefusalKind.INCARNATION
    assert "n3 is a known voter of group g0 and its data folder is empty" in refusal.text
    assert "ledgermq broker --rejoin" in refusal.text


def test_an_old_disk_that_comes_back_is_refused() -> None:
    refusal = MemberRecord("g0", {N3: 4}).refusal_of(hello(N3, 3, Standing.VOTER))
    assert refusal is not None
    assert "old data folder" in refusal.text


def test_a_learner_replaces_its_incarnation() -> None:
    record = MemberRecord("g0", {N3: 3})
    assert record.refusal_of(hello(N3, 4, Standing.LEARNER)) is None
    assert record.would_change(hello(N3, 4, Standing.LEARNER))


def test_a_learner_asks_for_its_target_only_when_all_others_know_it() -> None:
    rejoin = Rejoin(N3, 4, frozenset((N1, N2)))
    some = {N1: hello(N1, 1, Standing.VOTER, {N3: 4}), N2: hello(N2, 2, Standing.VOTER, {N3: 3})}
    assert not rejoin.is_known_to_all(some)
    assert rejoin.is_known_to_all({**some, N2: hello(N2, 2, Standing.VOTER, {N3: 4})})


def test_a_learner_votes_again_only_with_the_log_the_term_and_the_bound_vote() -> None:
    rejoin = Rejoin(N3, 4, frozenset((N1, N2)))
    good = {"durable": LogIndex(10), "commit": LogIndex(10), "term": Term(7), "leader": N1, "voted_for": N1}
    assert not rejoin.is_done(**good)  # type: ignore[arg-type]
    rejoin.aim(LogIndex(10), {N1: hello(N1, 1, term=7), N2: hello(N2, 2, term=5)})
    assert rejoin.is_done(**good)  # type: ignore[arg-type]
    for key, bad in (("durable", 9), ("commit", 9), ("term", 6), ("leader", None), ("voted_for", None)):
        assert not rejoin.is_done(**{**good, key: bad})  # type: ignore[arg-type]


def test_greetings_of_another_cluster_group_member_address_or_segment_size_are_refused() -> None:
    mine, members = hello(N1, 1), frozenset((N1, N2, N3))
    assert refusal_of(mine, hello(N2, 2, to="n1"), members) is None
    kinds = [
        refusal_of(mine, theirs, members)
        for theirs in (
            hello(N2, 2, group="g1"),
            hello(NodeId("n9"), 2),
            hello(N1, 2),
            hello(N2, 2, to="n3"),
            hello(N2, 2, segment_size=2 << 20),
        )
    ]
    assert [refusal.kind for refusal in kinds if refusal] == [
        RefusalKind.GROUP,
        RefusalKind.NOT_A_MEMBER,
        RefusalKind.NOT_A_MEMBER,
        RefusalKind.WRONG_ADDRESS,
        RefusalKind.SEGMENT_SIZE,
    ]


def test_a_greeting_survives_the_wire() -> None:
    greeting = hello(N2, (1 << 63) - 1, Standing.LEARNER, {N1: 5}, term=9, to="n1", group_id=(1 << 64) - 1)
    assert Hello.from_proto(greeting.to_proto()) == greeting


ALL = {N1: 1, N2: 2, N3: 3}


def agreeing(node: NodeId, group_id: int = 0, **replaced: int) -> Hello:
    """A greeting of a node that knows all members, some of them in another incarnation than `ALL`."""
    known = {**ALL, **{NodeId(name): number for name, number in replaced.items()}}
    return hello(node, known.pop(node), Standing.VOTER, known, group_id=group_id)


def test_members_that_know_the_same_incarnations_make_the_same_group_id() -> None:
    hellos = {node: agreeing(node) for node in ALL}
    found = {find_group_id(hellos[n], [o for o in ALL if o != n], hellos) for n in ALL}
    assert found == {group_id_of("c", "g0", ALL)}


def test_the_group_id_differs_with_the_names_and_with_any_incarnation() -> None:
    made = [("c", "g0", ALL), ("d", "g0", ALL), ("c", "g1", ALL), ("c", "g0", {**ALL, N2: 4})]
    assert len({group_id_of(*names) for names in made}) == len(made)


def test_no_group_id_is_made_while_a_member_is_unheard_or_knows_other_incarnations() -> None:
    mine, others = agreeing(N1), [N2, N3]
    assert find_group_id(mine, others, {N2: agreeing(N2)}) == 0
    assert find_group_id(mine, others, {N2: agreeing(N2), N3: hello(N3, 3)}) == 0
    assert find_group_id(mine, others, {N2: agreeing(N2), N3: agreeing(N3, n2=4)}) == 0
    assert find_group_id(hello(N1, 1, known={N2: 2}), others, {N2: agreeing(N2), N3: agreeing(N3)}) == 0


def test_a_late_node_takes_the_group_id_of_its_peers_although_one_was_replaced_since() -> None:
    first = group_id_of("c", "g0", ALL)
    hellos = {N1: agreeing(N1, first, n2=4), N2: agreeing(N2, n2=4)}
    assert find_group_id(agreeing(N3, n2=4), [N1, N2], hellos) == first


def test_no_group_id_is_taken_over_from_peers_that_are_of_two_groups() -> None:
    assert find_group_id(agreeing(N3), [N1, N2], {N1: agreeing(N1, 7), N2: agreeing(N2, 8)}) == 0


def test_another_group_with_the_same_names_is_refused_without_the_advice_to_rejoin() -> None:
    mine, members = hello(N1, 1, group_id=7), frozenset(ALL)
    for theirs in (hello(N2, 99, Standing.VOTER, to="n1", group_id=8), hello(N1, 99, to="n1", group_id=8)):
        refusal = refusal_of(mine, theirs, members)
        assert refusal is not None
        assert refusal.kind is RefusalKind.OTHER_GROUP
        assert "another group with the same names" in refusal.text
        assert "nothing was changed" in refusal.text
        assert "rejoin" not in refusal.text
    for known, told in ((7, 7), (7, 0), (0, 8)):
        assert refusal_of(hello(N1, 1, group_id=known), hello(N2, 2, group_id=told), members) is None
