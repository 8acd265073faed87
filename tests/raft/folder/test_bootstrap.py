"""P19: an empty disk under a voter's id must not vote."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ledgermq.raft.folder.bootstrap import (
    MemberRecord,
    Refusers,
    Rejoin,
    find_group_id,
    group_id_of,
    is_vouched_for,
    may_become_voter,
)
from ledgermq.raft.log.identity import Recovery
from ledgermq.raft.transport.hello import Hello, RefusalKind, Standing, refusal_of
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
    assert "n3 is a known voter of broker group g0 and its data folder is empty" in refusal.text
    assert "ledgermq broker --rejoin" in refusal.text


def test_an_old_disk_that_comes_back_is_refused() -> None:
    refusal = MemberRecord("g0", {N3: 4}).refusal_of(hello(N3, 3, Standing.VOTER))
    assert refusal is not None
    assert "old copy" in refusal.text and "ledgermq broker --rejoin" in refusal.text


def test_one_peer_is_not_enough_to_call_a_folder_the_old_one_and_who_is_old_itself_does_not_count() -> None:
    def refusing(name: NodeId, incarnation: int) -> Hello:
        return hello(name, 7, Standing.VOTER, {N1: incarnation})

    refusers = Refusers(N1, former=(4, 5), needed=2)
    assert not refusers.are_right(refusing(N2, 6))
    assert not refusers.are_right(refusing(N2, 6)), "the same one again"
    assert not refusers.is_outdated(N2)
    assert refusers.are_right(refusing(N3, 6)), "two of three"
    refusers = Refusers(N1, former=(4, 5), needed=2)
    assert not refusers.are_right(refusing(N2, 4))
    assert refusers.is_outdated(N2), "it knows what this node was before"
    assert not refusers.are_right(refusing(N3, 6))
    assert not refusers.are_right(refusing(N3, 5)), "two old copies are wrong together"


def test_a_learner_with_an_old_record_believes_a_majority_of_voters() -> None:
    """Its disk was restored from before n3 was replaced. Without this rule it refuses n3 for ever."""
    record, new = MemberRecord("g0", {N2: 2, N3: 3}), hello(N3, 4, Standing.VOTER)
    knows = {N2: hello(N2, 2, Standing.VOTER, {N3: 4})}
    assert is_vouched_for(new, knows, 3)
    assert record.refusal_of(new, vouched=True) is None
    assert not is_vouched_for(new, {}, 3), "nobody else was heard yet"
    assert not is_vouched_for(new, {N2: hello(N2, 2, Standing.VOTER, {N3: 5})}, 3), "n3 is the old one"
    assert not is_vouched_for(new, {N2: hello(N2, 2, Standing.LEARNER, {N3: 4})}, 3)
    assert not is_vouched_for(hello(N3, 4), knows, 3), "an empty disk"
    assert record.refusal_of(hello(N3, 4), vouched=True) is not None


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
    good: dict[str, Any] = {
        "durable": LogIndex(10),
        "commit": LogIndex(10),
        "term": Term(7),
        "leader": N1,
        "voted_for": N1,
    }
    assert not rejoin.is_done(**good)
    rejoin.aim(LogIndex(10), {N1: hello(N1, 1, term=7), N2: hello(N2, 2, term=5)})
    assert rejoin.is_done(**good)
    for key, bad in (("durable", 9), ("commit", 9), ("term", 6), ("leader", None), ("voted_for", None)):
        assert not rejoin.is_done(**{**good, key: bad})


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
        assert "another broker group with the same names" in refusal.text
        assert "nothing was changed" in refusal.text
        assert "rejoin" not in refusal.text
    for known, told in ((7, 7), (7, 0), (0, 8)):
        assert refusal_of(hello(N1, 1, group_id=known), hello(N2, 2, group_id=told), members) is None


# --- a broker group that was recovered after the loss of its majority ---------------------------------------
LOST, NEW = 7, 8
RECOVERY = Recovery(replaced_group_id=LOST, from_incarnation=1, term=6, last_index=10, last_crc=1)


def test_first_members_of_a_recovered_group_become_voters_when_all_have_met() -> None:
    fresh = {N2: hello(N2, 2, group_id=NEW), N3: hello(N3, 3, group_id=NEW)}
    assert may_become_voter(N1, 1, [N2, N3], fresh, NEW)
    assert not may_become_voter(N1, 1, [N2, N3], {N2: fresh[N2]}, NEW)


def test_an_empty_folder_and_a_recovered_one_do_not_count_each_other_as_new() -> None:
    recovered, empty = hello(N1, 1, group_id=NEW), hello(N2, 2)
    assert not may_become_voter(N1, 1, [N2], {N2: empty}, NEW)
    assert not may_become_voter(N2, 2, [N1], {N1: recovered}, 0)


def test_a_group_id_is_not_taken_over_from_members_that_do_not_know_this_node() -> None:
    others = {N1: hello(N1, 1, group_id=NEW), N3: hello(N3, 3, group_id=NEW)}
    assert find_group_id(hello(N2, 2), [N1, N3], others) == 0
    others = {
        N1: hello(N1, 1, group_id=NEW, known={N2: 2}),
        N3: hello(N3, 3, group_id=NEW, known={N2: 2}),
    }
    assert find_group_id(hello(N2, 2), [N1, N3], others) == NEW


@pytest.mark.parametrize(
    ("left_behind", "kind"),
    [
        (hello(N2, 2, Standing.VOTER, group_id=LOST), RefusalKind.GROUP),
        (hello(N2, 2, Standing.LEARNER, group_id=LOST), RefusalKind.GROUP),
        (hello(N2, 2, Standing.VOTER), RefusalKind.INCARNATION),
        (hello(N2, 2), RefusalKind.INCARNATION),
    ],
    ids=["old voter", "old learner", "old voter of a group without an id", "empty"],
)
def test_whoever_was_left_behind_by_a_recovery_is_refused_with_the_way_back(
    left_behind: Hello, kind: RefusalKind
) -> None:
    refusal = MemberRecord("g0", {}, RECOVERY).refusal_of_lost(left_behind)
    assert refusal is not None
    assert refusal.kind is kind
    assert "broker group g0 was recovered without the data folder of n2" in refusal.text
    assert "ledgermq broker --rejoin" in refusal.text


def test_clones_and_nodes_that_rejoin_are_not_left_behind() -> None:
    record = MemberRecord("g0", {}, RECOVERY)
    assert record.refusal_of_lost(hello(N2, 2, group_id=NEW)) is None
    assert record.refusal_of_lost(hello(N2, 2, Standing.LEARNER)) is None
    assert MemberRecord("g0", {}).refusal_of_lost(hello(N2, 2, Standing.VOTER, group_id=LOST)) is None


@dataclass
class Folder:
    """A node as `VotingRights` runs it: its durable state, and the greetings heard in this run."""

    node: NodeId
    incarnation: int
    kind: str  # clone (of the recovered folder, which is one, too) · old · empty · rejoined
    group_id: int
    standing: Standing
    record: MemberRecord
    hellos: dict[NodeId, Hello] = field(default_factory=dict)

    @property
    def others(self) -> list[NodeId]:
        return [node for node in ALL if node != self.node]

    def greeting(self) -> Hello:
        return hello(
            self.node, self.incarnation, self.standing, dict(self.record.known), group_id=self.group_id
        )

    def hear(self, theirs: Hello) -> bool:
        """Judge a greeting, store what must be stored, and apply the consequences."""
        refusal = refusal_of(self.greeting(), theirs, frozenset(ALL))
        if refusal is None or refusal.kind is RefusalKind.OTHER_GROUP:
            refusal = self.record.refusal_of_lost(theirs) or refusal
        if refusal is not None or self.record.refusal_of(theirs) is not None:
            return False
        self.record.known[theirs.node_id] = theirs.incarnation
        self.hellos[theirs.node_id] = theirs
        self.group_id = self.group_id or find_group_id(self.greeting(), self.others, self.hellos)
        mixed = len({h.group_id for h in self.hellos.values() if h.group_id}) > 1
        if self.standing is Standing.FRESH and not mixed:
            me = (self.node, self.incarnation, self.others, self.hellos, self.group_id)
            self.standing = Standing.VOTER if may_become_voter(*me) else Standing.FRESH
        return True


def folders(rng: random.Random) -> Iterator[Folder]:
    """Yield folders as people put them under the nodes' names, in any order, repeatedly."""
    incarnations = iter(range(100, 10**6))
    while True:
        node, kind = rng.choice(list(ALL)), rng.choice(["clone", "clone", "old", "empty", "rejoined"])
        known = {n: ALL[n] for n in ALL if n != node} if kind == "old" else {}
        record = MemberRecord("g0", known, RECOVERY if kind == "clone" else None)
        standing = {"old": Standing.VOTER, "rejoined": Standing.LEARNER}.get(kind, Standing.FRESH)
        incarnation = ALL[node] if kind == "old" else next(incarnations)
        group_id = {"clone": NEW, "old": rng.choice([LOST, LOST, 0])}.get(kind, 0)
        yield Folder(node, incarnation, kind, group_id, standing, record)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_folders_meet_nobody_votes_in_the_recovered_group_without_its_log(seed: int) -> None:
    """Clones, old and empty folders and learners in random order.

    The disks of n2 and n3 are swapped in between.
    """
    rng = random.Random(seed)
    voters = 0
    for _ in range(10):
        given = folders(rng)
        running = {N1: Folder(N1, 50, "clone", NEW, Standing.FRESH, MemberRecord("g0", {}, RECOVERY))}
        for _ in range(rng.choice([60, 200])):
            if rng.random() < 0.08 or len(running) < len(ALL):
                folder = next(given)
                if folder.node != N1 or folder.kind == "clone":  # the survivor keeps its data
                    running[folder.node] = folder
            if len(running) < 2:
                continue
            speaker, listener = rng.sample(sorted(running), 2)
            if running[listener].hear(running[speaker].greeting()):
                running[speaker].hear(running[listener].greeting())
            for folder in running.values():
                assert folder.kind != "empty" or folder.standing is Standing.FRESH, folder
                assert folder.kind != "old" or folder.group_id != NEW, folder
                voters += folder.kind == "clone" and folder.standing is Standing.VOTER
    assert voters, "no group was ever made, so nothing was tried"
