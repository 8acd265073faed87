"""Quorums against a simple count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.raft.core.quorum import Joint, Majority
from ledgermq.raft.types import LogIndex, NodeId

NAMES = [NodeId(f"n{i}") for i in range(7)]
voters_of_groups = st.sets(st.sampled_from(NAMES), min_size=1)
matches = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 20).map(LogIndex))


def dumb_commit(voters: set[NodeId], match: dict[NodeId, LogIndex]) -> int:
    index = 0
    while sum(match.get(v, 0) > index for v in voters) * 2 > len(voters):
        index += 1
    return index


@given(voters_of_groups, matches)
def test_a_majority_commits_what_more_than_half_hold(
    voters: set[NodeId], match: dict[NodeId, LogIndex]
) -> None:
    assert Majority(voters).committed_index(match) == dumb_commit(voters, match)


@given(voters_of_groups, st.sets(st.sampled_from(NAMES)))
def test_reached_and_lost_count_only_voters(voters: set[NodeId], nodes: set[NodeId]) -> None:
    quorum = Majority(voters)
    inside = len(nodes & voters)
    assert quorum.is_reached(nodes) == (inside * 2 > len(voters))
    assert quorum.is_lost(nodes) == ((len(voters) - inside) * 2 <= len(voters))


@given(voters_of_groups, voters_of_groups, matches)
def test_a_joint_quorum_needs_both(old: set[NodeId], new: set[NodeId], match: dict[NodeId, LogIndex]) -> None:
    joint = Joint(Majority(old), Majority(new))
    assert joint.committed_index(match) == min(dumb_commit(old, match), dumb_commit(new, match))
    assert joint.voters == old | new
    assert joint.is_reached(match) == (Majority(old).is_reached(match) and Majority(new).is_reached(match))
    assert joint.is_lost(match) == (Majority(old).is_lost(match) or Majority(new).is_lost(match))
