"""Bugs of other systems as scenarios: elections (E...) and commit, append, truncation (C...)."""

from __future__ import annotations

import pytest

from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    ReadIndexReply,
    RequestVote,
    RequestVoteReply,
    Resign,
    TimeoutNow,
)
from ledgermq.raft.core.outputs import FollowerBehind, FollowerLostEntries, Role
from ledgermq.raft.core.progress import ProgressState
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from ...sim.mutants_log import CommitsOldTermsByCounting, NumbersReadsFromZero
from ..core_cluster import Cluster, make_core

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


def test_e1_a_leader_that_resigns_keeps_its_vote() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster["n1"].resign()
    assert cluster["n1"].voted_for == "n1"


def test_e5_the_longer_log_wins_over_the_higher_term() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.load("n1", [1], 9)
    cluster.load("n2", [1, 2, 2], 2)
    cluster.load("n3", [1, 2], 2)
    for name in ("n1", "n3"):
        cluster[name].campaign()
        cluster.settle()
        assert cluster["n2"].role is not Role.LEADER
    cluster.tick(300)
    assert cluster["n2"].role is Role.LEADER or cluster["n2"].leader_id == "n3"
    assert cluster["n1"].role is not Role.LEADER
    assert cluster["n1"].log.term(LogIndex(2)) == 2


def test_e6_a_candidate_shows_the_log_that_it_has_after_a_truncation() -> None:
    core = make_core(terms=[1, 2, 2, 2])
    run = ((LogIndex(2), Term(3)),)
    core.step(
        AppendEntries(Term(3), N2, N1, LogIndex(1), Term(1), LogIndex(2), LogIndex(2), LogIndex(0), run)
    )
    while core.poll() is not None:
        pass
    core.storage_done(core.disk.last_seq)
    core.campaign()
    requests = []
    while (output := core.poll()) is not None:
        requests += [m for m in output.send if isinstance(m, RequestVote)]
    assert {(m.last_index, m.last_term) for m in requests} == {(2, 3)}


def test_e7_a_node_that_was_away_does_not_disturb_the_leader() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.partition(["n1", "n2"], ["n3"])
    last = cluster.propose("n1")
    cluster.tick(100 * 60)
    cluster.heal()
    cluster.tick(14)
    assert [cluster[n].term for n in cluster.names] == [1, 1, 1]
    assert cluster["n3"].commit_index == last


@pytest.mark.parametrize("end", ["n1", "n2"])
def test_e8_a_chain_keeps_its_leader(end: str) -> None:
    """n1 - n2 - n3: the ends do not hear each other; the leader is an end, or the middle."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect(end)
    cluster.cut = {("n1", "n3"), ("n3", "n1")}
    for _ in range(10):
        cluster.tick(120)
        last = cluster.propose(end)
        assert cluster[end].commit_index == last
    assert cluster[end].term == 1


@pytest.mark.parametrize("source", ["n1", "n2", "n3"])
@pytest.mark.parametrize("target", ["n1", "n2", "n3"])
def test_e8_one_link_that_is_dead_in_one_direction_costs_at_most_one_term(source: str, target: str) -> None:
    if source == target:
        return
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.cut_one_way(source, target)
    cluster.tick(400)
    leaders = [n for n in cluster.names if cluster[n].role is Role.LEADER]
    assert len(leaders) == 1
    last = cluster.propose(leaders[0])
    cluster.tick(20)
    assert cluster[leaders[0]].commit_index == last
    assert cluster[leaders[0]].term <= 2


def test_e10_after_a_resignation_the_next_leader_is_there_within_a_few_ticks() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster["n1"].resign()
    cluster.settle()
    cluster.tick(6)
    assert any(cluster[n].role is Role.LEADER for n in ("n2", "n3"))


@pytest.mark.parametrize("late", ["heartbeat", "append"])
def test_e10_what_a_leader_said_before_it_resigned_does_not_bring_it_back(late: str) -> None:
    """It came on another connection, or was overtaken.

    If accepted, it would protect a missing leader for a timeout.
    """
    core = make_core("n2")
    core.step(Heartbeat(Term(1), N1, N2, LogIndex(0)))
    core.step(Resign(Term(1), N1, N2))
    if late == "heartbeat":
        core.step(Heartbeat(Term(1), N1, N2, LogIndex(0)))
    else:
        core.step(AppendEntries(Term(1), N1, N2, LogIndex(0), Term(0), LogIndex(1), LogIndex(0), LogIndex(0)))
    assert core.leader_id is None
    core.step(Heartbeat(Term(2), N1, N2, LogIndex(0)))
    assert core.leader_id == N1, "elected again, it leads"


def test_forget_leader_elects_within_a_few_ticks_after_a_refused_connection() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.crash("n1")
    for name in ("n2", "n3"):
        cluster[name].link_down(N1, refused=True)
    cluster.tick(30)
    assert any(cluster[n].role is Role.LEADER for n in ("n2", "n3"))


def test_one_broken_link_deposes_nobody() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster["n2"].link_down(N1, refused=True)
    cluster.tick(200)
    assert (cluster["n1"].role, cluster["n1"].term, cluster["n2"].leader_id) == (Role.LEADER, 1, "n1")


def test_a_suspicion_is_forgotten_with_the_next_heartbeat() -> None:
    core = make_core()
    core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
    core.link_down(N2, refused=False)
    assert core.timeout < 80
    core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
    assert core.timeout - core.elapsed >= 40


def test_e11_a_higher_term_in_an_answer_deposes_the_leader() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster["n1"].step(AppendEntriesReply(Term(7), N2, N1, False))
    assert (cluster["n1"].role, cluster["n1"].term) == (Role.FOLLOWER, 7)


def test_e12_a_repeated_vote_counts_once() -> None:
    core = make_core(voters=("n1", "n2", "n3", "n4", "n5"))
    core.campaign()
    for _ in range(5):
        core.step(RequestVoteReply(Term(1), N2, N1, True, pre_vote=True))
    assert core.role is Role.PRE_CANDIDATE


def test_e13_strangers_are_not_heard() -> None:
    core = make_core()
    core.campaign()
    stranger = NodeId("n9")
    core.step(RequestVoteReply(Term(1), stranger, N1, True, pre_vote=True))
    core.step(Heartbeat(Term(7), stranger, N1, LogIndex(0)))
    core.step(Heartbeat(Term(7), N2, N3, LogIndex(0)))
    assert (core.role, core.term) == (Role.PRE_CANDIDATE, 0)


def test_e14_a_paused_leader_commits_nothing_when_it_resumes() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.partition(["n1"], ["n2", "n3"])
    cluster.tick(100, "n2", "n3")
    committed = cluster["n1"].commit_index
    cluster.propose("n1")
    assert cluster["n1"].commit_index == committed
    cluster.heal()
    cluster.tick(7, "n1")
    assert cluster["n1"].role is Role.FOLLOWER
    cluster.tick(14)
    assert cluster.members["n1"].disk_terms == cluster.members["n2"].disk_terms


def test_timeout_now_of_an_old_leader_is_ignored() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.elect("n2")
    cluster["n3"].step(TimeoutNow(Term(1), N1, N3))
    assert cluster["n3"].role is Role.FOLLOWER


def figure_8(core_class: type[RaftCore]) -> Cluster:
    """Paper, figure 8: n1 led term 2 and leads term 4; n5 led term 3 with an entry that no other node has."""
    cluster = Cluster("n1", "n2", "n3", "n4", "n5", core_class=core_class)
    cluster.load("n1", [1, 2], 3)
    cluster.load("n2", [1, 2], 3)
    for name in ("n3", "n4"):
        cluster.load(name, [1], 3)
    cluster.load("n5", [1, 3], 3)
    core = cluster["n1"]
    cluster.partition(["n1", "n2", "n3", "n4"], ["n5"])
    core.campaign()
    cluster.settle_until(lambda: core.role is Role.LEADER)
    runs = ((LogIndex(2), Term(2)),)
    for peer in ("n2", "n3"):  # the old entry reaches a majority; the no-op of term 4 does not
        message = AppendEntries(
            Term(4), N1, NodeId(peer), LogIndex(1), Term(1), LogIndex(2), LogIndex(2), LogIndex(0), runs
        )
        cluster[peer].step(message)
        core.step(AppendEntriesReply(Term(4), NodeId(peer), N1, True, match_index=LogIndex(2)))
    return cluster


def test_c1_an_entry_of_an_older_term_is_not_committed_by_counting() -> None:
    assert figure_8(RaftCore)["n1"].commit_index == 0


def test_c1_the_scenario_of_figure_8_shows_the_bug() -> None:
    assert figure_8(CommitsOldTermsByCounting)["n1"].commit_index == 2


def test_c2_an_inherited_tail_is_committed_without_any_client() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.load("n1", [1, 1, 1], 1)
    cluster.elect("n1")
    assert cluster["n1"].commit_index == 4


def test_c6_a_stale_append_cuts_nothing() -> None:
    core = make_core(terms=[1, 3, 3])
    old = AppendEntries(
        Term(2),
        N2,
        N1,
        LogIndex(1),
        Term(1),
        LogIndex(2),
        LogIndex(2),
        LogIndex(0),
        ((LogIndex(2), Term(2)),),
    )
    core.step(old)
    assert core.last_index == 3


def test_an_append_of_the_same_term_that_comes_late_cuts_nothing() -> None:
    core = make_core(terms=[1, 1, 1, 1])
    core.step(
        AppendEntries(
            Term(1),
            N2,
            N1,
            LogIndex(1),
            Term(1),
            LogIndex(2),
            LogIndex(2),
            LogIndex(0),
            ((LogIndex(2), Term(1)),),
        )
    )
    assert core.last_index == 4


def test_c16_a_diverged_tail_costs_one_probe_per_term() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.load("n1", [1] + [9] * 5, 9)
    cluster.load("n2", [1] + [t for t in (2, 3, 4, 5, 6) for _ in range(1000)], 9)
    cluster.load("n3", [1], 9)
    cluster.elect("n1")
    probes = [m for m in cluster.members["n1"].sent if isinstance(m, AppendEntries) and m.to == "n2"]
    assert len(probes) <= 10
    assert cluster.members["n2"].disk_terms == cluster.members["n1"].disk_terms


def test_c17_lost_acknowledgements_are_healed() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.cut_one_way("n2", "n1")
    last = cluster.propose("n1", 3)
    cluster.heal()
    cluster.tick(21)
    assert [p.match_index for p in cluster["n1"].progress()] == [last, last]


def test_a_read_of_before_a_restart_does_not_answer_a_new_one() -> None:
    """Found by the simulator."""
    for core_class, wrong in ((RaftCore, False), (NumbersReadsFromZero, True)):
        core = make_core(core_class=core_class, hard=HardState(Term(1)))
        core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
        core.read_index("new")
        core.step(ReadIndexReply(Term(1), N2, N1, 1, LogIndex(5)))
        output = core.poll()
        assert output is not None
        assert bool(output.reads) is wrong


def test_a_follower_below_the_first_entry_is_reported_once_and_shown_the_base() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.partition(["n1", "n2"], ["n3"])
    cluster.propose("n1", 5)
    cluster["n1"].compacted(LogIndex(5))
    cluster.heal()
    cluster.tick(70)
    behind = [e for e in cluster.members["n1"].events if isinstance(e, FollowerBehind)]
    assert [e.node_id for e in behind] == ["n3"]
    assert [p.state for p in cluster["n1"].progress()] == [ProgressState.REPLICATE, ProgressState.RESET]
    assert cluster["n1"].role is Role.LEADER


def test_a_voter_that_lost_what_it_had_acknowledged_is_reported_and_gets_it_again() -> None:
    """Found with real processes: the leader ignored its refusals as outdated, and it never caught up."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    last = cluster.propose("n1", 5)
    cluster.crash("n3")
    del cluster.members["n3"].disk_terms[-2:]
    cluster["n1"].link_down(N3, refused=False)
    cluster.restart("n3")
    cluster.tick(70)
    lost = [e for e in cluster.members["n1"].events if isinstance(e, FollowerLostEntries)]
    assert lost == [FollowerLostEntries(N3, last, LogIndex(last - 2))]
    assert cluster["n3"].stable_index == last
    assert cluster["n1"].role is Role.LEADER


def test_an_append_that_the_shell_shortens_goes_on_behind_it() -> None:
    core = make_core(max_append_bytes=10)
    core.campaign()
    core.step(RequestVoteReply(Term(1), N2, N1, True, pre_vote=True))
    assert core.poll() is not None
    core.storage_done(1)
    core.step(RequestVoteReply(Term(1), N2, N1, True))
    while core.poll() is not None:
        pass
    core.propose([10] * 5)
    core.step(AppendEntriesReply(Term(1), N2, N1, False, reject_index=LogIndex(0)))
    core.link_down(N2, refused=False)
    core.step(AppendEntriesReply(Term(1), N2, N1, True, match_index=LogIndex(0)))
    output = core.poll()
    assert output is not None
    message = next(m for m in output.send if isinstance(m, AppendEntries) and m.to == N2)
    assert (message.lo, message.hi) == (1, 6)
    core.append_sent(message, LogIndex(2), 20)
    output = core.poll()
    assert output is not None
    follow_up = next(m for m in output.send if isinstance(m, AppendEntries) and m.to == N2)
    assert (follow_up.lo, follow_up.hi) == (3, 6)
    core.append_dropped(follow_up)
    assert core.poll() is None, "tried again with the next heartbeat reply"


def test_e7_a_leader_whose_election_took_long_is_protected_from_its_first_moment() -> None:
    """A slow disk: the candidate's own vote became durable only after the minimum election timeout."""
    core = make_core()
    core.campaign()
    core.step(RequestVoteReply(Term(1), N2, N1, True, pre_vote=True))
    first = core.poll()
    assert first is not None and first.persist is not None
    core.step(RequestVoteReply(Term(1), N2, N1, True))
    core.timeout = core.config.election_ticks_min + 1
    for _ in range(core.config.election_ticks_min):
        core.tick()
    core.storage_done(first.persist.seq)
    assert core.role is Role.LEADER
    core.step(RequestVote(Term(2), N3, N1, LogIndex(9), Term(1), pre_vote=True))
    core.step(RequestVote(Term(2), N3, N1, LogIndex(9), Term(1)))
    assert (core.role, core.term) == (Role.LEADER, 1)
