"""Sentences of the Raft paper that no scenario tells (tests/raft/scenarios), one test each."""

from __future__ import annotations

import pytest

from ledgermq.raft.core.config import LogView
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import AppendEntries, Heartbeat, RequestVote, RequestVoteReply
from ledgermq.raft.core.outputs import (
    Role,
)
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from ..core_cluster import Cluster, make_core

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


def test_servers_start_as_followers() -> None:
    """5.2."""
    assert make_core().role is Role.FOLLOWER


def test_a_follower_that_hears_nothing_begins_an_election() -> None:
    """5.2: over the election timeout, which is drawn from [min, max)."""
    core = make_core()
    ticks = 0
    while core.role is Role.FOLLOWER:
        core.tick()
        ticks += 1
    assert 40 <= ticks < 80
    assert core.role is Role.PRE_CANDIDATE


def test_a_follower_stays_one_as_long_as_it_hears_a_leader() -> None:
    """5.2."""
    core = make_core()
    for _ in range(200):
        core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
        core.tick()
    assert core.role is Role.FOLLOWER
    assert core.leader_id == N2


def test_each_server_votes_for_one_candidate_in_a_term_first_come_first_served() -> None:
    """5.2."""
    cluster = Cluster("n1", "n2", "n3")
    for candidate in ("n2", "n3"):
        cluster["n1"].step(RequestVote(Term(1), NodeId(candidate), N1, LogIndex(0), Term(0)))
        cluster.settle()
    replies = [m for m in cluster.members["n1"].sent if isinstance(m, RequestVoteReply)]
    assert [(m.to, m.granted) for m in replies] == [("n2", True), ("n3", False)]


@pytest.mark.parametrize(
    ("ours", "last_term", "last_index", "granted"),
    [
        ([1, 1], 1, 1, False),
        ([1, 1], 1, 2, True),
        ([1, 1], 2, 1, True),
        ([1, 2], 1, 9, False),
        ([2], 2, 5, True),
    ],
)
def test_a_vote_is_refused_to_a_log_that_is_less_up_to_date(
    ours: list[int], last_term: int, last_index: int, granted: bool
) -> None:
    """5.4.1: the later last term wins; with equal terms, the longer log."""
    core = make_core(terms=ours)
    core.step(RequestVote(Term(5), N2, N1, LogIndex(last_index), Term(last_term)))
    assert (core.voted_for == N2) is granted
    assert core.term == 5


def test_a_leader_sends_heartbeats_at_once_and_regularly() -> None:
    """5.2."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    sent = cluster.members["n1"].sent
    assert {m.to for m in sent if isinstance(m, Heartbeat)} == {"n2", "n3"}
    sent.clear()
    cluster.tick(70, "n1")
    assert len([m for m in sent if isinstance(m, Heartbeat)]) == 20


def test_a_candidate_that_hears_of_a_leader_of_its_term_follows_it() -> None:
    """5.2."""
    core = make_core()
    core.campaign()
    core.step(RequestVoteReply(Term(1), N2, N1, True, pre_vote=True))
    assert (core.role, core.term) == (Role.CANDIDATE, 1)
    core.step(Heartbeat(Term(1), N3, N1, LogIndex(0)))
    assert (core.role, core.leader_id) == (Role.FOLLOWER, "n3")


def test_a_message_of_an_older_term_is_refused_with_the_present_one() -> None:
    """5.1."""
    core = make_core(terms=[1, 4])
    core.step(AppendEntries(Term(2), N2, N1, LogIndex(1), Term(1), LogIndex(2), LogIndex(1), LogIndex(1)))
    output = core.poll()
    assert output is not None
    assert [(m.term, getattr(m, "success", None)) for m in output.send] == [(4, False)]
    assert core.last_index == 2


@pytest.mark.parametrize(
    "terms",
    [
        [1, 1, 1, 4, 4, 5, 5, 6, 6],
        [1, 1, 1, 4],
        [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
        [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
        [1, 1, 1, 4, 4, 4, 4],
        [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
    ],
)
def test_a_leader_brings_a_followers_log_to_its_own(terms: list[int]) -> None:
    """5.3, figure 7: followers a to f."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.load("n1", [1, 1, 1, 4, 4, 5, 5, 6, 6, 6], 7)
    cluster.load("n2", terms, 7)
    cluster.load("n3", [], 7)
    cluster.elect("n1")
    cluster.tick(21)
    assert (
        cluster.members["n2"].disk_terms
        == cluster.members["n1"].disk_terms
        == [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 8]
    )
    assert cluster["n2"].commit_index == 11


def test_the_log_may_start_at_ten() -> None:
    """The consistency check at the horizon: the base entry is known by index and term."""
    core = make_core()
    view = LogView(LogIndex(11), Term(3), (), LogIndex(10), LogIndex(10), LogIndex(10))
    core = RaftCore(core.config, HardState(Term(3)), view, core.rng)
    core.step(
        AppendEntries(
            Term(4),
            N2,
            N1,
            LogIndex(10),
            Term(3),
            LogIndex(11),
            LogIndex(12),
            LogIndex(11),
            ((LogIndex(11), Term(4)),),
        )
    )
    output = core.poll()
    assert output is not None and output.persist is not None
    assert output.persist.append == (11, 12)
    assert core.commit_index == 11
