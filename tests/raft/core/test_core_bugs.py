"""Bugs of other systems that no scenario in tests/raft/scenarios shows: elections (E...), appends (C...)."""

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
from ledgermq.raft.core.outputs import Role
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from ...sim.mutants_log import NumbersReadsFromZero
from ..core_cluster import Cluster, make_core

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


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


def test_a_suspicion_is_forgotten_with_the_next_heartbeat() -> None:
    core = make_core()
    core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
    core.link_down(N2, refused=False)
    assert core.timeout < 80
    core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
    assert core.timeout - core.elapsed >= 40


def test_e13_strangers_are_not_heard() -> None:
    core = make_core()
    core.campaign()
    stranger = NodeId("n9")
    core.step(RequestVoteReply(Term(1), stranger, N1, True, pre_vote=True))
    core.step(Heartbeat(Term(7), stranger, N1, LogIndex(0)))
    core.step(Heartbeat(Term(7), N2, N3, LogIndex(0)))
    assert (core.role, core.term) == (Role.PRE_CANDIDATE, 0)


def test_timeout_now_of_an_old_leader_is_ignored() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.elect("n2")
    cluster["n3"].step(TimeoutNow(Term(1), N1, N3))
    assert cluster["n3"].role is Role.FOLLOWER


def test_c16_a_diverged_tail_costs_one_probe_per_term() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.load("n1", [1] + [9] * 5, 9)
    cluster.load("n2", [1] + [t for t in (2, 3, 4, 5, 6) for _ in range(1000)], 9)
    cluster.load("n3", [1], 9)
    cluster.elect("n1")
    probes = [m for m in cluster.members["n1"].sent if isinstance(m, AppendEntries) and m.to == "n2"]
    assert len(probes) <= 10
    assert cluster.members["n2"].disk_terms == cluster.members["n1"].disk_terms


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
