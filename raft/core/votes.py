"""Answers to requests for a vote, in every role (5.2, 5.4.1; thesis 9.6).

Owns: the decision to grant. Must not: count votes (`candidate.py`).
Invariants: one vote per term, told only when it and the log it was compared with are durable (P2); a pre-vote
changes nothing here, not even a timer (P3); a leader that was heard lately is protected from both.
"""

from __future__ import annotations

from .follower import become_follower
from .messages import RequestVote, RequestVoteReply
from .state import CoreState


def on_request_vote(state: CoreState, message: RequestVote) -> None:
    """Grant or refuse; ignore the request while a leader is heard."""
    if message.term < state.term:
        _reply(state, message, granted=False)
        return
    if message.term > state.term and not message.transfer and state.protects_leader(message.from_):
        return
    if message.pre_vote:
        _reply(state, message, granted=may_grant(state, message))
        return
    if message.term > state.term:
        become_follower(state, message.term, None)
    granted = may_grant(state, message)
    if granted:
        state.vote_for(message.from_)
        state.elapsed = 0
    _reply(state, message, granted=granted)


def may_grant(state: CoreState, message: RequestVote) -> bool:
    """Tell whether this node would vote for the candidate in the candidate's term."""
    if not state.may_vote:
        return False
    if message.term == state.term:
        is_free = state.voted_for is None and state.leader_id is None
        if not is_free and state.voted_for != message.from_:
            return False
    return (message.last_term, message.last_index) >= (state.last_term, state.last_index)


def _reply(state: CoreState, message: RequestVote, *, granted: bool) -> None:
    term = message.term if granted else state.term
    reply = RequestVoteReply(term, state.node_id, message.from_, granted, message.pre_vote)
    if granted and not message.pre_vote:
        state.send_when_durable(reply)
    else:
        state.send(reply)
