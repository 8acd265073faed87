"""Commit rule: what a leader may call committed (5.3, 5.4.2).

An entry is committed when a quorum of voters has a durable copy and the entry is of the leader's own term;
all entries before it are committed with it. The leader counts its own copy only once it is durable (P8). An
entry of an earlier term is never committed by counting copies: another leader could still replace it (P10,
figure 8).

`quorum.py` counts the copies, `CoreState.may_commit_by_counting` compares the term.
Owns: the commit index of a leader. Must not: count learners, go back. Followers take theirs from the leader.
"""

from __future__ import annotations

from ..types import LogIndex
from .state import CoreState, LeaderState


def advance_commit(state: CoreState, leading: LeaderState, moved_to: LogIndex) -> bool:
    """Commit what a quorum holds after one node moved to `moved_to`; tell whether the commit index moved."""
    if moved_to <= state.commit_index:
        return False
    match = {f.node_id: f.match_index for f in leading.followers.values() if not f.is_learner}
    match[state.node_id] = state.own_match_index()
    index = state.quorum.committed_index(match)
    if index <= state.commit_index or not state.may_commit_by_counting(index):
        return False
    state.commit_to(index)
    leading.free_up_to(index)
    return True
