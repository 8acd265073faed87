"""Quorums against a simple count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.raft.core.quorum import Majority
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
