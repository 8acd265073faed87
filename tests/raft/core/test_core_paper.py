"""One test per relevant sentence of the Raft paper, or of the thesis where the paper is silent."""

from __future__ import annotations

import pytest

from ledgermq.raft.core.config import LogView
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import AppendEntries, Heartbeat, RequestVote, RequestVoteReply
from ledgermq.raft.core.outputs import (
    Accepted,
    BecameLeader,
    Busy,
    NotLeader,
    Role,
    SteppedDown,
    Transferring,
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


def test_a_candidate_wins_with_the_votes_of_a_majority() -> None:
    """5.2."""
    cluster = Cluster("n1", "n2", "n3", "n4", "n5")
    cluster.partition(["n1", "n2", "n3"], ["n4", "n5"])
    cluster.elect("n1")
    assert cluster["n1"].term == 1


def test_a_minority_elects_nobody() -> None:
    """5.2."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.partition(["n1"], ["n2"], ["n3"])
    cluster.tick(300)
    assert all(cluster[n].role is not Role.LEADER for n in cluster.names)
    assert all(cluster[n].term == 0 for n in cluster.names), "pre-votes raise no term"


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


def test_a_leader_that_sees_a_higher_term_becomes_a_follower() -> None:
    """5.1."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster["n1"].step(Heartbeat(Term(9), N2, N1, LogIndex(0)))
    cluster.settle()
    assert (cluster["n1"].role, cluster["n1"].term) == (Role.FOLLOWER, 9)
    assert SteppedDown(Term(1)) in cluster.members["n1"].events


def test_an_entry_is_committed_when_a_majority_holds_it() -> None:
    """5.3."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.partition(["n1"], ["n2", "n3"])
    last = cluster.propose("n1")
    assert cluster["n1"].commit_index == last - 1
    cluster.partition(["n1", "n2"], ["n3"])
    cluster.tick(14, "n1")
    assert cluster["n1"].commit_index == last


def test_followers_learn_the_commit_index_and_apply_in_order() -> None:
    """5.3."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    last = cluster.propose("n1", 5)
    cluster.tick(7, "n1")
    for name in cluster.names:
        assert cluster.members[name].committed == list(range(1, last + 1))


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


def test_a_new_leader_appends_a_no_op_of_its_term() -> None:
    """8."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.load("n1", [1, 1], 1)
    cluster.elect("n1")
    assert BecameLeader(Term(2), LogIndex(3)) in cluster.members["n1"].events
    assert cluster.members["n2"].disk_terms[-1] == 2


def test_a_leader_without_a_quorum_steps_down_within_an_election_timeout() -> None:
    """6.2 of the thesis: check-quorum."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.partition(["n1"], ["n2", "n3"])
    cluster.propose("n1")
    cluster.tick(40, "n1")
    assert cluster["n1"].role is Role.FOLLOWER
    assert cluster["n1"].propose([1]) == NotLeader(None)


def test_a_read_is_answered_after_a_quorum_confirmed_the_leader() -> None:
    """8."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    last = cluster.propose("n1")
    cluster.partition(["n1"], ["n2", "n3"])
    cluster["n1"].read_index("r1")
    cluster.settle()
    assert cluster.members["n1"].reads == []
    cluster.heal()
    cluster.tick(7, "n1")
    assert [(r.context, r.index) for r in cluster.members["n1"].reads] == [("r1", last)]


def test_a_read_of_a_leader_that_steps_down_is_not_answered() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.partition(["n1"], ["n2", "n3"])
    cluster["n1"].read_index("r1")
    cluster.tick(40, "n1")
    assert cluster.members["n1"].reads == []
    assert cluster.members["n1"].reads_aborted == ["r1"]


def test_a_read_waits_for_the_no_op() -> None:
    """8: before it, the leader does not know what is committed."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.load("n2", [1, 1], 1)
    cluster.load("n3", [1, 1], 1)
    cluster.load("n1", [1, 1], 1)
    cluster["n1"].campaign()
    cluster.settle_until(lambda: cluster["n1"].role is Role.LEADER)
    for name in ("n2", "n3"):
        cluster.hold_disk(name)
    cluster["n1"].read_index("r")
    cluster.tick(7, "n1")
    assert cluster.members["n1"].reads == []
    cluster.release_disk("n2")
    assert [r.index for r in cluster.members["n1"].reads] == [3]


def test_a_follower_asks_the_leader_for_a_read_index() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    last = cluster.propose("n1")
    cluster["n2"].read_index("r")
    cluster.settle()
    assert [(r.context, r.index) for r in cluster.members["n2"].reads] == [("r", last)]


def test_a_hand_over_takes_one_round() -> None:
    """Thesis 3.10; bypasses pre-vote and leader protection."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    assert cluster["n1"].transfer_leadership(N2) == "n2"
    assert cluster["n1"].propose([1]) == Transferring(N2) or cluster["n1"].role is not Role.LEADER
    cluster.settle()
    assert (cluster["n2"].role, cluster["n2"].term, cluster["n1"].leader_id) == (Role.LEADER, 2, "n2")


def test_a_hand_over_that_takes_too_long_is_given_up() -> None:
    """Thesis 3.10: about an election timeout."""
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.partition(["n1", "n3"], ["n2"])
    cluster["n1"].transfer_leadership(N2)
    cluster.tick(40, "n1", "n3")
    assert cluster["n1"].role is Role.LEADER
    assert isinstance(cluster["n1"].propose([1]), Accepted)


def test_a_group_of_one_works() -> None:
    cluster = Cluster("n1")
    cluster["n1"].campaign()
    cluster.settle()
    assert cluster["n1"].role is Role.LEADER
    last = cluster.propose("n1")
    assert cluster["n1"].commit_index == last
    cluster["n1"].read_index("r")
    cluster.settle()
    assert cluster.members["n1"].reads[0].index == last


def test_too_many_undecided_bytes_are_refused() -> None:
    """Definite: nothing was appended."""
    cluster = Cluster("n1", "n2", "n3", max_uncommitted_bytes=25)
    cluster.elect("n1")
    cluster.partition(["n1"], ["n2", "n3"])
    cluster.propose("n1", 2)
    last = cluster["n1"].last_index
    assert cluster["n1"].propose([10]) == Busy(20)
    assert cluster["n1"].last_index == last
