"""A core with changing voters: while there are two majorities, both must agree (thesis 4.3)."""

from __future__ import annotations

import random

from ledgermq.raft.core.config import CoreConfig, LogView
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import RequestVoteReply
from ledgermq.raft.core.outputs import Role
from ledgermq.raft.core.quorum import Joint, Majority
from ledgermq.raft.types import HardState, NodeId, Term

from .test_core_edges import acknowledge, outputs_of

N1, N2, N3, N4, N5 = (NodeId(f"n{i}") for i in range(1, 6))


def joint_candidate() -> RaftCore:
    """n1 of {n1 n2 n3}, changing to {n3 n4 n5}: thesis 4.3."""
    quorum = Joint(Majority((N1, N2, N3)), Majority((N3, N4, N5)))
    assert quorum.voters == {N1, N2, N3, N4, N5}
    config = CoreConfig(node_id=N1, voters=(N1, N2, N3, N4, N5))
    core = RaftCore(config, HardState(), LogView(), random.Random(1), quorum)
    core.campaign()
    outputs_of(core)
    return core


def test_during_a_change_a_candidate_needs_both_majorities() -> None:
    core = joint_candidate()
    for peer in (N2, N3):
        core.step(RequestVoteReply(Term(1), peer, N1, True, pre_vote=True))
    assert core.term == 0, "n3 alone is no majority of the new voters"
    core.step(RequestVoteReply(Term(1), N4, N1, True, pre_vote=True))
    assert (core.role, core.term) == (Role.CANDIDATE, 1)


def test_during_a_change_one_lost_majority_loses_the_election() -> None:
    core = joint_candidate()
    for peer in (N4, N5):
        core.step(RequestVoteReply(Term(0), peer, N1, False, pre_vote=True))
    assert core.role is Role.FOLLOWER


def test_during_a_change_an_entry_is_committed_by_both_majorities() -> None:
    core = joint_candidate()
    for pre_vote in (True, False):
        for peer in (N2, N3, N4):
            core.step(RequestVoteReply(Term(1), peer, N1, True, pre_vote=pre_vote))
        outputs_of(core)
    assert core.role is Role.LEADER
    for peer, committed in ((N2, 0), (N3, 0), (N4, 1)):
        acknowledge(core, peer, 1)
        assert core.commit_index == committed
