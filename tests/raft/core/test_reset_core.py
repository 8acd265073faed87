"""Reset of a follower behind the leader's first entry (D8), as the core offers and accepts it."""

from __future__ import annotations

import random

import pytest

from ledgermq.raft.core import candidate
from ledgermq.raft.core.config import CoreConfig, LogView
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from ledgermq.raft.core.outputs import ResetOffered, Role
from ledgermq.raft.core.progress import ProgressState
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from ..core_cluster import Cluster, Member, make_core

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


def offer(
    term: int, base: int, base_term: int, *, to: NodeId = N1, commit: int | None = None
) -> AppendEntries:
    """The leader n2 shows its base: nothing before it is left."""
    return AppendEntries(
        Term(term), N2, to, LogIndex(base), Term(base_term), LogIndex(base + 1), LogIndex(base),
        LogIndex(base if commit is None else commit), offers_reset=True,
    )  # fmt: skip


def offers(core: RaftCore) -> list[ResetOffered]:
    found: list[ResetOffered] = []
    while (output := core.poll()) is not None:
        found += [event for event in output.events if isinstance(event, ResetOffered)]
        if output.persist is not None:
            core.storage_done(output.persist.seq)
    return found


def install(cluster: Cluster, name: str, leader: str, *, state_index: int = 0) -> RaftCore:
    """Do what the shell does after `begin_reset`: a new core on an empty log after the leader's base."""
    old, base = cluster.members[name], cluster[leader].log.base_index
    base_term = cluster[leader].log.base_term
    view = LogView(
        first_index=LogIndex(base + 1), base_term=base_term, last_index=base, stable_index=base,
        applied_index=base, state_index=LogIndex(state_index),
    )  # fmt: skip
    core = RaftCore(cluster[leader].config.__class__(node_id=NodeId(name),
    voters=cluster[leader].config.voters),
                    old.disk_hard, view, random.Random(name))  # fmt: skip
    fresh = cluster.members[name] = Member(core)
    fresh.disk_terms = cluster.members[leader].disk_terms[:base]
    fresh.terms = list(fresh.disk_terms)
    return core


def was_reset(*, state_index: int = 0) -> tuple[Cluster, RaftCore]:
    """That cluster after the reset of n3, and the new core of n3."""
    cluster = behind()
    assert cluster["n3"].begin_reset(N1, cluster["n1"].term, LogIndex(4), cluster["n1"].log.base_term)
    return cluster, install(cluster, "n3", "n1", state_index=state_index)


def behind() -> Cluster:
    """n1 leads, its log begins at 5, and n3 holds less than that."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.partition(["n1", "n2"], ["n3"])
    cluster.propose("n1", 6)
    cluster["n1"].compacted(LogIndex(5))
    cluster.heal()
    cluster.tick(20)
    return cluster


def test_a_follower_behind_the_first_entry_is_offered_the_base_until_it_holds_it() -> None:
    cluster = behind()
    cluster.tick(20)
    found = [event for event in cluster.members["n3"].events if isinstance(event, ResetOffered)]
    assert len(found) >= 2, "lost offers are repeated"
    assert set(found) == {ResetOffered(N1, cluster["n1"].term, LogIndex(4))}
    assert not [e for e in cluster.members["n2"].events if isinstance(e, ResetOffered)]


def test_a_follower_that_was_reset_streams_from_the_base_and_its_copies_count() -> None:
    cluster, core = was_reset()
    cluster.tick(20)
    assert core.last_index == core.commit_index == cluster["n1"].last_index
    assert cluster.members["n3"].committed == list(range(5, core.last_index + 1)), (
        "nothing below the base is applied"
    )
    cluster.crash("n2")
    last = cluster.propose("n1")
    assert cluster["n1"].commit_index == last, "n1 and n3 are a majority"
    assert [p.state for p in cluster["n1"].progress() if p.node_id == "n3"] == [ProgressState.REPLICATE]


def test_a_node_that_was_reset_can_win_an_election_and_bring_the_others_on() -> None:
    cluster, _ = was_reset()
    cluster.tick(20)
    cluster.elect("n3")
    last = cluster.propose("n3", 3)
    cluster.tick(20)
    assert {cluster[name].commit_index for name in cluster.names} == {last}


def test_term_and_vote_are_kept_through_a_reset() -> None:
    """A vote is a promise of the node, not of the log: after the reset it votes for no other node in that
    term.
    """
    cluster = behind()
    term = cluster["n1"].term
    assert cluster["n3"].begin_reset(N1, term, LogIndex(4), cluster["n1"].log.base_term)
    voted_for = cluster.members["n3"].disk_hard.voted_for
    assert voted_for == N1
    core = install(cluster, "n3", "n1")
    core.step(RequestVote(term, N2, N3, LogIndex(100), term))
    output = core.poll()
    assert output is not None
    assert [m.granted for m in output.send if isinstance(m, RequestVoteReply)] == [False]


def test_a_node_that_was_reset_votes_only_for_logs_that_hold_the_base() -> None:
    """The base covers its earlier acknowledgements: no candidate without the base may get its vote
    (P2, P6).
    """
    cluster, core = was_reset()
    term, base_term = Term(core.term + 1), cluster["n1"].log.base_term
    core.step(RequestVote(term, N2, N3, LogIndex(3), base_term))
    core.step(RequestVote(term, N1, N3, LogIndex(4), base_term))
    granted: dict[NodeId, bool] = {}
    while (output := core.poll()) is not None:
        granted |= {m.to: m.granted for m in output.send if isinstance(m, RequestVoteReply)}
        if output.persist is not None:
            core.storage_done(output.persist.seq)
    assert granted == {N2: False, N1: True}


@pytest.mark.parametrize("role", [Role.PRE_CANDIDATE, Role.CANDIDATE])
def test_e16_a_candidate_takes_the_offer_of_the_leader_of_its_term(role: Role) -> None:
    core = make_core(terms=[1, 1])
    core.campaign()
    if role is Role.CANDIDATE:
        candidate.become_candidate(core)
    assert core.role is role
    core.step(offer(core.term, 9, 1))
    assert offers(core) == [ResetOffered(N2, core.term, LogIndex(9))]
    assert core.role is Role.FOLLOWER
    assert core.begin_reset(N2, core.term, LogIndex(9), Term(1))


def test_an_offer_of_a_past_leader_is_ignored() -> None:
    core = make_core(terms=[1, 1], hard=HardState(Term(5)))
    core.step(offer(4, 9, 1))
    assert offers(core) == []
    assert not core.begin_reset(N2, Term(4), LogIndex(9), Term(1))
    assert core.role is Role.FOLLOWER


def test_a_state_that_came_from_a_leader_of_before_is_not_installed() -> None:
    """The leader changed while the chunks were in flight."""
    core = make_core(terms=[1, 1])
    core.step(offer(3, 9, 1))
    assert offers(core)
    core.step(Heartbeat(Term(4), N3, N1, LogIndex(0)))
    assert not core.begin_reset(N2, Term(3), LogIndex(9), Term(1))
    assert core.role is Role.FOLLOWER


@pytest.mark.parametrize(
    ("base", "base_term", "why"),
    [(2, 1, "it holds the base"), (1, 1, "the base is below what it knows to be committed")],
)
def test_a_follower_that_has_the_base_by_now_keeps_its_log(base: int, base_term: int, why: str) -> None:
    """A repeated or late offer: entries streamed and acknowledged since must not be lost."""
    core = make_core(terms=[1, 1, 1])
    core.step(offer(1, base, base_term, commit=1))
    assert offers(core) == [], why
    assert not core.begin_reset(N2, Term(1), LogIndex(base), Term(base_term)), why
    assert core.last_index == 3


def test_a_base_at_or_below_the_commit_index_never_resets() -> None:
    core = make_core(terms=[1, 1, 1])
    core.step(Heartbeat(Term(2), N2, N1, LogIndex(0)))
    core.commit_to(LogIndex(3))
    assert not core.begin_reset(N2, Term(2), LogIndex(3), Term(2)), (
        "it would go back behind what it committed"
    )


def test_a_log_that_parted_from_the_leaders_at_the_base_is_replaced() -> None:
    """It holds another entry at the base, so none of its entries from there on was ever committed."""
    core = make_core(terms=[1, 2, 2, 2])
    core.step(offer(3, 3, 1))
    assert offers(core) == [ResetOffered(N2, Term(3), LogIndex(3))]
    assert core.begin_reset(N2, Term(3), LogIndex(3), Term(1))


def test_a_core_that_is_being_reset_is_silent() -> None:
    """Between the decision and the new log it must not report anything about the old one."""
    core = make_core(terms=[1, 1])
    core.step(offer(2, 9, 1))
    offers(core)
    assert core.begin_reset(N2, Term(2), LogIndex(9), Term(1))
    core.step(Heartbeat(Term(2), N2, N1, LogIndex(0)))
    core.step(RequestVote(Term(9), N3, N1, LogIndex(99), Term(8)))
    core.step(offer(3, 12, 1))
    core.step(AppendEntries(Term(2), N2, N1, LogIndex(2), Term(1), LogIndex(3), LogIndex(3), LogIndex(0),
                            ((LogIndex(3), Term(2)),)))  # fmt: skip
    for _ in range(200):
        core.tick()
    core.campaign()
    core.promote_to_voter()
    core.storage_done(99)
    while (output := core.poll()) is not None:
        assert not output.send
        assert output.persist is None
        assert output.committed is None
    assert core.role is Role.RESETTING
    assert core.term == 2
    assert not core.begin_reset(N2, Term(2), LogIndex(9), Term(1)), "once is enough"


def test_what_waited_for_the_disk_is_not_said_after_the_decision() -> None:
    core = make_core(terms=[1])
    core.step(AppendEntries(Term(2), N2, N1, LogIndex(1), Term(1), LogIndex(2), LogIndex(2), LogIndex(0),
                            ((LogIndex(2), Term(2)),)))  # fmt: skip
    seqs = []
    while (output := core.poll()) is not None:
        seqs += [output.persist.seq] if output.persist is not None else []
    assert core.begin_reset(N2, Term(2), LogIndex(9), Term(2))
    core.storage_done(max(seqs))
    while (output := core.poll()) is not None:
        assert not [m for m in output.send if isinstance(m, AppendEntriesReply)]


def test_a_node_whose_state_is_not_whole_does_not_campaign() -> None:
    """It received the state of entry 8 with a log that begins after 4.

    Before it has applied 8 it may not lead.
    """
    cluster, core = was_reset(state_index=7)
    term = core.term
    core.campaign()
    core.step(Heartbeat(term, N1, N3, LogIndex(0)))
    core.step(TimeoutNow(term, N1, N3))
    for _ in range(500):
        core.tick()
    assert core.role is Role.FOLLOWER
    assert core.term == term
    cluster.tick(20)
    assert core.applied_index >= 7
    cluster.elect("n3")


@pytest.mark.parametrize(("last_index", "campaigns"), [(6, False), (7, True)])
def test_a_node_that_holds_its_state_campaigns_before_it_knows_that_this_is_committed(
    last_index: int, campaigns: bool
) -> None:
    """It restarted during a rebuild and its leader is lost.

    If the others hold less, no other node can win.
    """
    view = LogView(
        first_index=LogIndex(5), base_term=Term(1), term_runs=((LogIndex(5), Term(2)),),
        last_index=LogIndex(last_index), stable_index=LogIndex(last_index), applied_index=LogIndex(4),
        state_index=LogIndex(7),
    )  # fmt: skip
    config = CoreConfig(node_id=N3, voters=(N1, N2, N3))
    core = RaftCore(config, HardState(Term(2), None, LogIndex(4)), view, random.Random(1))
    core.campaign()
    assert (core.role is Role.PRE_CANDIDATE) is campaigns


def test_the_leader_of_a_longer_log_brings_a_reset_follower_on() -> None:
    """The next leader's log begins earlier.

    Entries below the base count as held, because the base is committed.
    """
    cluster, core = was_reset()
    cluster.partition(["n2", "n3"], ["n1"])
    cluster.elect("n2")
    last = cluster.propose("n2", 2)
    cluster.tick(20)
    assert core.first_index == 5
    assert core.commit_index == last
