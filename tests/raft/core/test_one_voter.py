"""Broker group with one voter (D24): the master votes and commits alone; the slaves only receive the log."""

from __future__ import annotations

import pytest

from ledgermq.raft.core.messages import RequestVote, TimeoutNow
from ledgermq.raft.core.outputs import Role
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from ..core_cluster import Cluster, make_core

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
SLAVES = ("n2", "n3")


def one_voter() -> Cluster:
    cluster = Cluster("n1", "n2", "n3", non_voters=SLAVES)
    cluster.elect("n1")
    return cluster


def test_the_master_leads_commits_and_answers_reads_without_its_slaves() -> None:
    cluster = Cluster("n1", "n2", "n3", non_voters=SLAVES)
    cluster.partition(["n1"], ["n2"], ["n3"])
    cluster.tick(200)
    assert cluster["n1"].role is Role.LEADER
    assert cluster["n1"].commit_index == 1
    assert not any(isinstance(said, RequestVote) for said in cluster.members["n1"].sent)
    last = cluster.propose("n1", 3)
    assert cluster["n1"].commit_index == last
    assert cluster["n1"].read_index("mine") is None
    cluster.settle()
    assert [read.context for read in cluster.members["n1"].reads] == ["mine"]
    cluster.tick(500)
    assert cluster["n1"].role is Role.LEADER
    cluster.heal()
    cluster.tick(20)
    assert all(cluster[name].commit_index == last for name in SLAVES), "slaves get everything"


def test_what_only_slaves_hold_is_not_committed() -> None:
    """Their acknowledgements never count: the master's own disk decides."""
    cluster = one_voter()
    before = cluster["n1"].commit_index
    cluster.hold_disk("n1")
    last = cluster.propose("n1")
    assert {cluster[name].stable_index for name in SLAVES} == {last}
    assert cluster["n1"].commit_index == before
    cluster.release_disk("n1")
    cluster.settle()
    assert cluster["n1"].commit_index == last


@pytest.mark.parametrize("is_told", [False, True])
def test_a_slave_shows_of_what_it_holds_what_the_master_has_told_it_to_be_committed(is_told: bool) -> None:
    """The master's next heartbeat tells them.

    A master lost before it leaves confirmed entries that no slave shows.
    """
    cluster = one_voter()
    cluster.tick(20)
    before = cluster["n2"].commit_index
    cluster.hold_disk("n1")
    last = cluster.propose("n1")
    cluster.release_disk("n1")
    if is_told:
        cluster.tick(20)
    shown = last if is_told else before
    assert cluster["n1"].commit_index == last > before
    assert {each.durable_index for each in cluster["n1"].progress()} == {last}
    assert {each.commit_index == last for each in cluster["n1"].progress()} == {is_told}
    cluster.crash("n1")
    cluster.tick(1000, *SLAVES)
    assert {cluster[name].commit_index for name in SLAVES} == {shown}


def test_slaves_never_campaign() -> None:
    cluster = one_voter()
    cluster.propose("n1")
    cluster.crash("n1")
    term = cluster["n2"].term
    cluster.tick(1000, *SLAVES)
    for name in SLAVES:
        cluster[name].campaign()
        cluster[name].forget_leader()
    cluster.tick(1000, *SLAVES)
    assert {cluster[name].role for name in SLAVES} == {Role.FOLLOWER}
    assert {cluster[name].term for name in SLAVES} == {term}
    assert not any(isinstance(said, RequestVote) for name in SLAVES for said in cluster.members[name].sent)


def test_a_slave_does_not_campaign_when_it_is_told_to() -> None:
    core = make_core("n2", [1], voters=("n1",), non_voters=SLAVES)
    core.campaign()
    core.step(TimeoutNow(Term(1), N1, N2))
    assert core.role is Role.FOLLOWER


@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_slave_never_votes(pre_vote: bool) -> None:
    core = make_core("n2", [1], voters=("n1",), non_voters=SLAVES)
    core.step(RequestVote(Term(5), N1, N2, LogIndex(9), Term(4), pre_vote=pre_vote))
    core.storage_done(core.disk.last_seq)
    assert core.voted_for is None
    answers = [message for out in iter(core.poll, None) for message in out.send]
    assert [getattr(answer, "granted", None) for answer in answers] == [False]


def test_the_lead_is_not_handed_to_a_slave() -> None:
    cluster = one_voter()
    assert cluster["n1"].transfer_leadership() is None
    assert cluster["n1"].transfer_leadership(N2) is None


def test_a_master_that_is_back_cuts_off_what_it_never_held_durably() -> None:
    """A slave may have flushed an entry before the master did. It was not committed, so it does not stay."""
    cluster = one_voter()
    cluster.hold_disk("n1")
    cluster.propose("n1", 5)
    lost = cluster["n2"].last_index
    cluster.crash("n1")
    cluster.restart("n1")
    cluster.elect("n1")
    last = cluster.propose("n1")
    cluster.tick(100)
    assert last < lost
    assert {cluster[name].last_index for name in ("n1", *SLAVES)} == {last}
    assert {cluster[name].last_term for name in ("n1", *SLAVES)} == {cluster["n1"].term}


def test_a_configured_non_voter_and_a_learner_are_two_things() -> None:
    """One comes from the configuration, the other from a lost disk. Each alone takes the vote away."""
    slave = make_core("n2", [1], voters=("n1",), non_voters=SLAVES)
    assert (slave.is_voter, slave.may_vote) == (True, False)
    learner = make_core("n1", [1], voters=("n1",), non_voters=SLAVES, hard=HardState(Term(1), is_voter=False))
    assert (learner.is_voter, learner.may_vote) == (False, False)
    learner.campaign()
    assert learner.role is Role.FOLLOWER


def test_a_master_that_is_held_back_does_not_campaign() -> None:
    cluster = Cluster("n1", "n2", "n3", non_voters=SLAVES)
    cluster["n1"].hold(True)
    cluster.tick(300)
    assert cluster["n1"].leader_id is None
    cluster["n1"].hold(False)
    cluster.tick(100)
    assert cluster["n1"].leader_id == N1


def test_a_master_that_was_left_behind_says_and_takes_nothing_any_more() -> None:
    cluster = one_voter()
    core = cluster["n1"]
    core.propose([10])
    core.leave()
    output = core.poll()
    assert output is not None and output.aborted and not output.send
    core.tick()
    core.storage_done(core.disk.last_seq)
    assert core.poll() is None
    assert core.role is Role.RESETTING
    assert getattr(core.propose([10]), "term", None) is None
