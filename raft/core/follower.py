"""Follower: takes entries and heartbeats from the leader, and notices when there is none (5.2, 5.3).

Owns: the follower's answers. Must not: start an election (the core does, when the timer has run out).
Invariants: the commit index moves only to entries that the leader of this term has shown to match (P11); an
acknowledgement names only entries that the acknowledged message covers, once they are durable (P5, P6).
"""

from __future__ import annotations

from itertools import pairwise

from ..types import LogIndex, NodeId, Term
from .messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    ReadIndexReply,
    ReadIndexRequest,
    Resign,
)
from .outputs import CaughtUp, ReadReady, ResetOffered, Role
from .state import NEVER, CoreState


def become_follower(state: CoreState, term: Term, leader_id: NodeId | None) -> None:
    """Follow `leader_id` (None: no leader is known yet) in `term`, from any role."""
    state.end_lead()
    new_term = term > state.term
    if new_term:
        state.set_term(term, None)
        state.silence = 0
    state.role = Role.FOLLOWER
    state.votes.clear()
    state.set_leader(leader_id, new_term=new_term)
    state.reset_timer()


def forget_leader(state: CoreState) -> None:
    """Believe no longer that the leader lives, and campaign within a few ticks. Term and vote stay."""
    state.set_leader(None)
    state.reset_timer(1, state.config.forget_ticks_max + 1)


def tick(state: CoreState) -> bool:
    """Count a tick; return whether it is time to campaign."""
    state.elapsed += 1
    _age_forwarded_reads(state)
    if state.ticks_to_campaign > 0:
        return False
    if state.may_campaign:
        return True
    state.set_leader(None)
    state.reset_timer()
    return False


def quiet_read_ticks(state: CoreState) -> int:
    """Return how many ticks neither repeat nor end a forwarded read (see `_age_forwarded_reads`)."""
    if not state.forwarded_reads:
        return NEVER
    lowest, interval = state.config.election_ticks_min, state.config.heartbeat_ticks
    ages = [age for _, age in state.forwarded_reads.values()]
    return min(min(lowest - age, interval - age % interval) for age in ages) - 1


def on_append_entries(state: CoreState, message: AppendEntries) -> None:
    """Take the entries that are new here, or tell where the logs part."""
    if not _hear_leader(state, message.from_) or not _is_well_formed(message):
        return
    log = state.log
    prev = message.prev_index
    if prev >= log.base_index and log.term(prev) != message.prev_term:
        _refuse(state, message)
        if message.offers_reset and prev > state.commit_index:
            state.emit(ResetOffered(message.from_, message.term, prev))
        return
    # Entries below the base are committed, so they match by leader completeness.
    new = log.first_difference(message.lo, message.hi, message.term_runs)
    if new is not None:
        if new <= log.last_index and not state.truncate_from(new):
            return
        state.append_runs(new, message.hi, message.term_runs)
    state.verified_index = max(state.verified_index, message.hi)
    state.commit_to(min(message.commit_index, message.hi))
    reply = AppendEntriesReply(
        state.term,
        state.node_id,
        message.from_,
        True,
        match_index=message.hi,
        is_learner=not state.is_voter,
        wants_commit=state.wants_commit,
    )
    if message.hi <= state.stable_index:
        state.send(reply)
    else:
        state.send_when_durable(reply)
    check_caught_up(state)


def begin_reset(state: CoreState, leader_id: NodeId, term: Term, base: LogIndex, base_term: Term) -> bool:
    """Fall silent to be reset to the committed entry `base` of the leader of `term`; False: it must not be.

    Everything that this node acknowledged stays covered. Every committed entry of its log lies below `base`:
    the entry at `base` is committed in the leader's log, and this node has another one there or none. So
    nothing of its own log from `base` on was ever committed, and all that was committed before is part of the
    state.
    """
    is_wanted = state.role is Role.FOLLOWER and (state.leader_id, state.term) == (leader_id, term)
    if not is_wanted or base <= state.commit_index or state.log.term(base) == base_term:
        return False
    state.fall_silent(Role.RESETTING)
    return True


def on_heartbeat(state: CoreState, message: Heartbeat) -> None:
    """Take a sign of life of the leader. The answer comes from memory, however slow the disk is."""
    if not _hear_leader(state, message.from_):
        return
    state.commit_to(min(message.commit_index, state.verified_index))
    state.send(
        HeartbeatReply(
            state.term,
            state.node_id,
            message.from_,
            message.context,
            stable_index=state.stable_index,
            commit_index=state.commit_index,
            is_learner=not state.is_voter,
            wants_commit=state.wants_commit,
        )
    )


def on_resign(state: CoreState, message: Resign) -> None:
    """Forget a leader that stops, instead of waiting for its silence."""
    state.resigned_in = state.term
    if message.from_ == state.leader_id:
        forget_leader(state)


def forward_read(state: CoreState, context: object) -> bool:
    """Ask the leader for a read index; return whether there is one to ask."""
    if state.leader_id is None:
        return False
    state.read_number += 1
    state.forwarded_reads[state.read_number] = (context, 0)
    _ask_leader(state, state.read_number)
    return True


def on_read_index_reply(state: CoreState, message: ReadIndexReply) -> None:
    """Take the leader's answer: a confirmed index, or that it could not confirm itself."""
    entry = state.forwarded_reads.pop(message.context, None)
    if entry is None:
        return
    if message.context == state.caught_up_number:
        state.caught_up_number = 0
        if message.index:
            state.caught_up_index = message.index
            check_caught_up(state)
    elif message.index:
        state.ready(ReadReady(entry[0], message.index))
    else:
        state.abort_read(entry[0])


def check_caught_up(state: CoreState) -> None:
    """Tell the shell, once, that a learner holds all that was committed when it came back (P19)."""
    if state.is_voter or state.caught_up_index is None:
        return
    if min(state.stable_index, state.verified_index) >= state.caught_up_index:
        state.emit(CaughtUp(state.caught_up_index))
        state.caught_up_index = None
        state.caught_up_told = True


def _hear_leader(state: CoreState, leader_id: NodeId) -> bool:
    """Note a sign of life; return False if it came late, or cannot come from the leader of this term.

    A message that the leader sent before it resigned may arrive after its resignation, on another connection.
    Believing it would protect a leader that is gone, for a whole election timeout.
    """
    if state.role is Role.LEADER or state.resigned_in == state.term:
        return False
    if state.role is not Role.FOLLOWER or state.leader_id is None:
        if state.silence:  # the leader was late, and taken for dead
            state.lateness.note_peer(state.silence + state.elapsed)
        become_follower(state, state.term, leader_id)
    elif state.leader_id != leader_id:
        return False
    else:
        state.lateness.note_peer(state.elapsed)
        if state.timeout < state.config.election_ticks_min:  # a suspicion had shortened the timeout
            state.reset_timer()
        else:
            state.elapsed = 0
    state.silence = 0
    _ask_what_to_catch_up_to(state)
    return True


def _ask_what_to_catch_up_to(state: CoreState) -> None:
    asked = state.caught_up_told or state.caught_up_number or state.caught_up_index is not None
    if not state.is_voter and not asked and forward_read(state, None):
        state.caught_up_number = state.read_number


def _refuse(state: CoreState, message: AppendEntries) -> None:
    hint = state.log.last_at_most(message.prev_index, message.prev_term)
    hint_term = state.log.term(hint)
    assert hint_term is not None, "a hint is an entry of the log or its base"
    state.send(
        AppendEntriesReply(
            state.term,
            state.node_id,
            message.from_,
            False,
            reject_index=message.prev_index,
            hint_index=hint,
            hint_term=hint_term,
            is_learner=not state.is_voter,
            wants_commit=state.wants_commit,
        )
    )


def _is_well_formed(message: AppendEntries) -> bool:
    if message.lo != message.prev_index + 1 or message.hi < message.prev_index:
        return False
    if message.is_empty:
        return not message.term_runs
    runs = message.term_runs
    if not runs or runs[0][0] != message.lo or runs[0][1] < message.prev_term:
        return False
    if runs[-1][0] > message.hi or runs[-1][1] > message.term:
        return False
    return all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(runs))


def _ask_leader(state: CoreState, number: int) -> None:
    assert state.leader_id is not None, "with the leader go the reads that were forwarded to it"
    state.send(ReadIndexRequest(state.term, state.node_id, state.leader_id, number))


def _age_forwarded_reads(state: CoreState) -> None:
    """Repeat forwarded reads at each heartbeat interval; give up after the shortest election timeout."""
    if not state.forwarded_reads:
        return
    for number, (context, age) in list(state.forwarded_reads.items()):
        state.forwarded_reads[number] = (context, age + 1)
        if age + 1 >= state.config.election_ticks_min:
            del state.forwarded_reads[number]
            if number == state.caught_up_number:
                state.caught_up_number = 0
            else:
                state.abort_read(context)
        elif (age + 1) % state.config.heartbeat_ticks == 0:
            _ask_leader(state, number)
