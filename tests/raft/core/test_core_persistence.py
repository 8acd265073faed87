"""Durability before sending: rules P2 to P16 of the persistence rules, one test each."""

from __future__ import annotations

import pytest

from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    RequestVote,
    RequestVoteReply,
)
from ledgermq.raft.core.outputs import CaughtUp, Faulted, Role
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from ..core_cluster import Cluster, make_core

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


def drain(core: RaftCore) -> tuple[list[Message], int]:
    """Poll until None. Returns the sent messages and the number of the last storage operation."""
    sent: list[Message] = []
    seq = 0
    while (output := core.poll()) is not None:
        sent += output.send
        seq = output.persist.seq if output.persist else seq
    return sent, seq


def append(
    prev: int, prev_term: int, terms: list[int], *, term: int = 5, commit: int = 0, from_: NodeId = N2
) -> AppendEntries:
    lo = prev + 1
    runs: list[tuple[LogIndex, Term]] = []
    for offset, each in enumerate(terms):
        if not runs or runs[-1][1] != each:
            runs.append((LogIndex(lo + offset), Term(each)))
    return AppendEntries(
        Term(term), from_, N1, LogIndex(prev), Term(prev_term), LogIndex(lo), LogIndex(prev + len(terms)),
        LogIndex(commit), tuple(runs),
    )  # fmt: skip


def test_p2_a_vote_is_told_only_when_it_is_durable() -> None:
    core = make_core()
    core.step(RequestVote(Term(1), N2, N1, LogIndex(0), Term(0)))
    sent, seq = drain(core)
    assert sent == []
    core.storage_done(seq)
    assert [m.granted for m in drain(core)[0] if isinstance(m, RequestVoteReply)] == [True]


def test_p2_a_vote_waits_also_for_the_log_it_was_compared_with() -> None:
    core = make_core(terms=[5])
    core.step(append(1, 5, [5]))
    _, first = drain(core)
    core.forget_leader()
    core.step(RequestVote(Term(6), N2, N1, LogIndex(9), Term(5)))
    _, second = drain(core)
    core.storage_done(first)
    assert not [m for m in drain(core)[0] if isinstance(m, RequestVoteReply)]
    core.storage_done(second)
    assert [m for m in drain(core)[0] if isinstance(m, RequestVoteReply)]


def test_p3_a_pre_vote_changes_nothing() -> None:
    core = make_core(terms=[1])
    before = (core.term, core.voted_for, core.elapsed, core.timeout, core.role)
    for term in range(2, 50):
        core.step(RequestVote(Term(term), N2, N1, LogIndex(9), Term(9), pre_vote=True))
    sent, seq = drain(core)
    assert (core.term, core.voted_for, core.elapsed, core.timeout, core.role) == before
    assert seq == 0
    assert all(isinstance(m, RequestVoteReply) and m.granted for m in sent)


def test_p4_a_candidate_asks_and_counts_itself_only_when_its_vote_is_durable() -> None:
    core = make_core()
    core.campaign()
    drain(core)
    core.step(RequestVoteReply(Term(1), N2, N1, True, pre_vote=True))
    sent, seq = drain(core)
    assert (sent, core.role, core.votes) == ([], Role.CANDIDATE, {})
    core.storage_done(seq)
    assert [type(m) for m in drain(core)[0]] == [RequestVote, RequestVote]
    assert core.votes == {"n1": True}


@pytest.mark.parametrize("again", [append(1, 5, [5, 5]), append(3, 5, [])])
def test_p5_an_acknowledgement_waits_for_what_it_covers_also_when_nothing_is_new(
    again: AppendEntries,
) -> None:
    core = make_core(terms=[5])
    core.step(append(1, 5, [5, 5]))
    assert not [m for m in drain(core)[0] if isinstance(m, AppendEntriesReply)]
    core.step(again)
    core.step(Heartbeat(Term(5), N2, N1, LogIndex(0)))
    sent, _ = drain(core)
    assert [type(m) for m in sent] == [HeartbeatReply], "heartbeats need no disk"
    core.storage_done(1)
    assert [m.match_index for m in drain(core)[0] if isinstance(m, AppendEntriesReply)] == [3]


def test_p6_an_acknowledgement_names_what_the_message_covers_not_the_own_end() -> None:
    core = make_core(terms=[5, 5, 5, 5])
    core.step(append(1, 5, [5]))
    assert [m.match_index for m in drain(core)[0] if isinstance(m, AppendEntriesReply)] == [2]


def test_p8_a_leader_sends_before_its_own_fsync_and_counts_itself_after() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.hold_disk("n1")
    cluster.partition(["n1", "n2"], ["n3"])
    last = cluster.propose("n1")
    assert cluster["n2"].last_index == last
    assert cluster["n1"].commit_index == last - 1
    cluster.release_disk("n1")
    assert cluster["n1"].commit_index == last


def test_p8_followers_alone_may_commit() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.hold_disk("n1")
    last = cluster.propose("n1")
    assert cluster["n1"].commit_index == last
    assert cluster["n1"].applied_index == last - 1, "P14: applied only what is durable here"


def test_p9_what_was_held_in_a_past_term_is_dropped() -> None:
    core = make_core(terms=[5])
    core.step(append(1, 5, [5]))
    _, seq = drain(core)
    core.step(Heartbeat(Term(6), N3, N1, LogIndex(0)))
    drain(core)
    core.storage_done(seq)
    assert not [m for m in drain(core)[0] if m.term == 5]


def test_no_message_shows_a_term_that_is_not_durable() -> None:
    core = make_core()
    core.step(Heartbeat(Term(6), N3, N1, LogIndex(0)))
    sent, seq = drain(core)
    assert sent == []
    core.storage_done(seq)
    assert [(type(m), m.term) for m in drain(core)[0]] == [(HeartbeatReply, 6)]


def test_p11_a_follower_commits_only_what_the_leader_has_shown_to_match() -> None:
    core = make_core(terms=[1, 1, 2, 2])
    core.step(Heartbeat(Term(5), N2, N1, LogIndex(4)))
    assert core.commit_index == 0
    core.step(append(1, 1, [1], commit=4))
    assert core.commit_index == 2
    core.step(Heartbeat(Term(5), N2, N1, LogIndex(4)))
    assert core.commit_index == 2


def test_p12_a_cut_at_the_commit_index_faults_the_node() -> None:
    core = make_core(terms=[1, 1, 1])
    core.step(append(1, 1, [1], commit=2))
    core.step(append(1, 1, [4], term=5))
    outputs = []
    while (output := core.poll()) is not None:
        outputs.append(output)
    assert core.role is Role.FAULTED
    assert any(isinstance(e, Faulted) for o in outputs for e in o.events)
    assert not any(o.persist for o in outputs)


def test_p13_the_stored_commit_index_is_a_hint() -> None:
    assert make_core(terms=[1, 1], hard=HardState(Term(1), None, LogIndex(9))).commit_index == 2


def test_p15_after_a_storage_failure_the_core_is_silent() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    core = cluster["n1"]
    core.propose([1])
    core.storage_failed("input/output error")
    output = core.poll()
    assert output is not None and output.send == [] and output.persist is None
    assert Faulted("input/output error") in output.events
    core.step(Heartbeat(Term(9), N2, N1, LogIndex(0)))
    core.tick()
    core.campaign()
    core.storage_done(1)
    core.storage_failed("again")
    assert core.poll() is None


def test_p16_a_restarted_leader_is_a_follower_of_its_term() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.crash("n1")
    cluster.restart("n1")
    assert (cluster["n1"].role, cluster["n1"].term, cluster["n1"].leader_id) == (Role.FOLLOWER, 1, None)


def test_p19_a_learner_neither_votes_nor_campaigns_nor_counts() -> None:
    core = make_core(hard=HardState(is_voter=False))
    for _ in range(300):
        core.tick()
    core.campaign()
    core.step(RequestVote(Term(3), N2, N1, LogIndex(9), Term(2)))
    sent, seq = drain(core)
    core.storage_done(seq)
    sent += drain(core)[0]
    assert core.role is Role.FOLLOWER
    assert [m.granted for m in sent if isinstance(m, RequestVoteReply)] == [False]


def test_p19_a_learner_is_told_when_it_holds_all_that_was_committed() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    last = cluster.propose("n1", 3)
    member = cluster.members["n3"]
    member.disk_terms, member.disk_hard = [], HardState(is_voter=False)
    cluster.crash("n3")
    cluster.restart("n3")
    cluster["n1"].peer_replaced(N3)
    cluster.tick(14)
    assert CaughtUp(last) in cluster.members["n3"].events
    assert [p.is_learner for p in cluster["n1"].progress()] == [False, True]
    cluster.partition(["n1", "n3"], ["n2"])
    cluster.propose("n1")
    assert cluster["n1"].commit_index == last, "a learner's copy does not count"
    cluster["n3"].promote_to_voter()
    assert cluster["n3"].voted_for == "n1"
    cluster.tick(14)
    assert cluster["n1"].commit_index == last + 1


def test_p19_a_vote_counts_no_more_when_its_voter_came_back_without_its_disk() -> None:
    """The candidate learns of the new incarnation before its voter may vote again (VotingRights waits for
    that).
    """
    core = make_core(voters=("n1", "n2", "n3", "n4", "n5"))
    core.campaign()
    drain(core)
    for voter in (N2, N3):
        core.step(RequestVoteReply(Term(1), voter, N1, True, pre_vote=True))
    _, seq = drain(core)
    core.storage_done(seq)
    core.step(RequestVoteReply(Term(1), N2, N1, True, pre_vote=False))
    core.peer_replaced(N2)
    core.step(RequestVoteReply(Term(1), N3, N1, True, pre_vote=False))
    roles = [core.role]
    core.step(RequestVoteReply(Term(1), NodeId("n4"), N1, True, pre_vote=False))
    assert [*roles, core.role] == [Role.CANDIDATE, Role.LEADER]
