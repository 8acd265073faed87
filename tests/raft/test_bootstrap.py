"""P19: an empty disk under a voter's id must not vote."""

from __future__ import annotations

from ledgermq.raft.bootstrap import MemberRecord, Rejoin, may_become_voter
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
) -> Hello:
    return Hello(
        cluster_id="c", group=group, node_id=node, incarnation=incarnation, segment_size=segment_size,
        standing=standing, term=Term(term), known_incarnations=known or {}, to_node_id=to,
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
    greeting = hello(N2, (1 << 63) - 1, Standing.LEARNER, {N1: 5}, term=9, to="n1")
    assert Hello.from_proto(greeting.to_proto()) == greeting
