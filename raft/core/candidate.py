"""Pre-candidate and candidate: ask whether they would win, then ask for the votes (5.2; thesis 9.6).

Owns: campaigns and the counting of votes. Must not: decide on the votes of others (`votes.py`).
Invariants: a pre-vote changes neither term nor vote; the request for a vote and the candidate's own vote wait
until its term, its vote and the log tail that it shows are durable (P4).
"""

from __future__ import annotations

from ..types import Term
from .follower import become_follower
from .leader import become_leader
from .messages import RequestVote, RequestVoteReply
from .outputs import Role
from .state import NEVER, CoreState


def campaign(state: CoreState, *, transfer: bool = False) -> None:
    """Start an election: by pre-vote, or at once when the leader itself asked for it."""
    if not state.may_campaign:
        return
    if transfer:
        become_candidate(state, transfer=True)
    else:
        become_pre_candidate(state)


def become_pre_candidate(state: CoreState) -> None:
    """Ask whether a quorum would vote for us. Nothing is promised, so nothing is persisted."""
    state.role = Role.PRE_CANDIDATE
    if state.silence or state.leader_id is not None:
        state.silence += state.elapsed
    state.set_leader(None)
    state.votes = {state.node_id: True}
    state.reset_timer()
    _request_votes(state, Term(state.term + 1), pre_vote=True, transfer=False)
    _count(state)


def ask_again_soon(state: CoreState) -> None:
    """Ask for pre-votes again within a few ticks: the voter that came back may complete a majority."""
    if state.ticks_to_campaign > state.config.forget_ticks_max:
        if state.silence:
            state.silence += state.elapsed
        state.reset_timer(1, state.config.forget_ticks_max + 1)


def become_candidate(state: CoreState, *, transfer: bool = False) -> None:
    """Enter the next term, vote for ourselves, and ask the others, all once that is durable."""
    state.set_term(Term(state.term + 1), state.node_id)
    state.silence = 0
    state.role = Role.CANDIDATE
    state.set_leader(None, new_term=True)
    state.votes = {}
    state.self_vote_seq = state.disk.last_seq
    state.reset_timer()
    _request_votes(state, state.term, pre_vote=False, transfer=transfer)
    count_own_vote(state)


def count_own_vote(state: CoreState) -> None:
    """Count the candidate's own vote once it is durable."""
    if state.role is Role.CANDIDATE and state.disk.done_seq >= state.self_vote_seq:
        state.votes[state.node_id] = True
        _count(state)


def on_request_vote_reply(state: CoreState, message: RequestVoteReply) -> None:
    """Count an answer to the present campaign."""
    if state.role is Role.PRE_CANDIDATE:
        if not message.pre_vote or (message.granted and message.term != state.term + 1):
            return
    elif state.role is not Role.CANDIDATE or message.pre_vote or message.term != state.term:
        return
    state.votes[message.from_] = message.granted
    _count(state)
    if state.role is Role.CANDIDATE and not message.granted:
        # The votes are split, and the missing voters may be dead: do not sit out the whole timeout. The next
        # campaign starts with a pre-vote, so this cannot raise the term without a chance to win.
        soon = state.elapsed + state.rng.randrange(1, max(2, state.config.election_ticks_min // 2))
        state.timeout = min(state.timeout, soon)


def tick(state: CoreState) -> bool:
    """Count a tick; return whether the campaign took too long and another one is due.

    Voters that did not answer a pre-vote are asked again at each heartbeat interval. One may have ignored the
    question because it still heard the leader; if its log is shorter, no other node can win without it.
    """
    state.elapsed += 1
    if state.ticks_to_campaign <= 0:
        return True
    if state.role is Role.PRE_CANDIDATE and state.elapsed % state.config.heartbeat_ticks == 0:
        _request_votes(state, Term(state.term + 1), pre_vote=True, transfer=False)
    return False


def quiet_ticks(state: CoreState) -> int:
    """Return how many ticks repeat no request for a pre-vote (see `tick`)."""
    if state.role is not Role.PRE_CANDIDATE:
        return NEVER
    interval = state.config.heartbeat_ticks
    return interval - state.elapsed % interval - 1


def _request_votes(state: CoreState, term: Term, *, pre_vote: bool, transfer: bool) -> None:
    for peer in state.peers:
        if peer not in state.quorum.voters or peer in state.votes:
            continue
        request = RequestVote(
            term, state.node_id, peer, state.last_index, state.last_term, pre_vote=pre_vote, transfer=transfer
        )
        if pre_vote:
            state.send(request)
        else:
            state.send_when_durable(request)


def _count(state: CoreState) -> None:
    was_pre_vote = state.role is Role.PRE_CANDIDATE
    if state.quorum.is_reached([voter for voter, granted in state.votes.items() if granted]):
        if was_pre_vote:
            become_candidate(state)
        else:
            become_leader(state)
    elif state.quorum.is_lost([voter for voter, granted in state.votes.items() if not granted]):
        become_follower(state, state.term, None)
        if not was_pre_vote:
            # The votes were split. The voters are known to be alive, so the next try need not wait long.
            state.reset_timer(1, state.config.election_ticks_min // 2)
