"""Replication: a leader brings its followers' logs to its own (5.3).

Owns: appends and their replies. Must not: change roles, or decide what is committed (`commit_rule.py`).
Invariant: at most one AppendEntries with entries is open per follower.
"""

from __future__ import annotations

from ..types import LogIndex
from .commit_rule import advance_commit
from .messages import AppendEntries, AppendEntriesReply, HeartbeatReply
from .outputs import FollowerBehind, FollowerLostEntries
from .progress import Progress, ProgressState
from .state import CoreState, LeaderState


def send_appends(state: CoreState, leading: LeaderState) -> None:
    """Give every follower that has room the next message."""
    last_index = state.log.last_index
    for follower in leading.followers.values():
        if follower.state is ProgressState.REPLICATE and follower.next_index > last_index:
            if follower.wants_commit and _owes_commit(state, follower):
                _send_empty(state, follower)
        elif follower.may_send(state.config.max_inflight_messages, state.config.max_inflight_bytes):
            _send_append(state, follower)


def on_append_reply(state: CoreState, leading: LeaderState, message: AppendEntriesReply) -> bool:
    """Take an acknowledgement or a refusal; return whether the commit index moved."""
    follower = leading.followers[message.from_]
    _hear(state, follower, message)
    if message.match_index > state.last_index or message.hint_index > state.last_index:
        return False  # about entries that this leader never had
    if not message.success:
        hint = state.log.last_at_most(message.hint_index, message.hint_term)
        if follower.denies_match(message):
            # Its disk lost entries that it had reported. They go again; the commit index never goes back.
            state.emit(FollowerLostEntries(follower.node_id, follower.match_index, hint))
            follower.forget(hint)
        else:
            follower.on_refusal(message, hint)
        return False
    if follower.state is ProgressState.RESET and message.match_index < state.log.base_index:
        return False
    return follower.on_success(message.match_index) and advance_commit(state, leading, message.match_index)


def on_heartbeat_reply(state: CoreState, leading: LeaderState, message: HeartbeatReply) -> bool:
    """Note that a follower lives, and probe for lost messages; return whether the commit index moved."""
    follower = leading.followers[message.from_]
    was_learner = follower.is_learner
    _hear(state, follower, message)
    _probe_again(state, follower, message)
    counts_now = was_learner and not follower.is_learner
    return counts_now and advance_commit(state, leading, follower.match_index)


def _probe_again(state: CoreState, follower: Progress, message: HeartbeatReply) -> None:
    follower.stable_index = message.stable_index
    follower.commit_index = message.commit_index
    if follower.state is not ProgressState.REPLICATE:
        follower.on_alive()
        return
    is_outstanding = follower.next_index - 1 > follower.match_index
    is_behind = message.commit_index < min(follower.match_index, state.commit_index)
    if (is_outstanding or is_behind) and not follower.acked and follower.open_append is None:
        # Refused if an entry before it was lost, acknowledged if only an answer was
        _send_empty(state, follower)
    follower.acked = False


def _hear(state: CoreState, follower: Progress, message: AppendEntriesReply | HeartbeatReply) -> None:
    state.lateness.note_peer(follower.contact_ticks)
    follower.contact_ticks = 0
    follower.wants_commit = message.wants_commit
    if message.is_learner and not follower.is_learner:
        follower.forget()
    follower.is_learner = message.is_learner


def _owes_commit(state: CoreState, follower: Progress) -> bool:
    return follower.sent_commit < min(state.commit_index, follower.match_index)


def _send_append(state: CoreState, follower: Progress) -> None:
    prev = LogIndex(follower.next_index - 1)
    prev_term = state.log.term(prev)
    if prev_term is None and follower.state is not ProgressState.RESET:
        state.emit(FollowerBehind(follower.node_id, follower.next_index))
        follower.become_reset()
    if follower.state is ProgressState.RESET or prev_term is None or prev >= state.last_index:
        follower.on_probed()
        _send_empty(state, follower)
        return
    lo, hi = follower.next_index, state.last_index
    room = state.config.max_inflight_bytes - follower.inflight_bytes
    message = AppendEntries(
        state.term,
        state.node_id,
        follower.node_id,
        prev,
        prev_term,
        lo,
        hi,
        state.commit_index,
        state.log.between(lo, hi),
        max_bytes=min(state.config.max_append_bytes, room),
    )
    follower.open_append = message
    follower.open_ticks = 0
    follower.sent_commit = max(follower.sent_commit, min(state.commit_index, prev))
    state.send(message)


def _send_empty(state: CoreState, follower: Progress) -> None:
    """Ask whether the logs agree at the last entry sent (of a follower to be reset: at our base)."""
    prev = LogIndex(follower.next_index - 1)
    is_reset = follower.state is ProgressState.RESET
    if is_reset:
        prev = state.log.base_index
        follower.next_index = LogIndex(prev + 1)
    prev_term = state.log.term(prev)
    # All messages under way were lost, and retention deleted their entries: begin at its match_index
    if prev_term is None:
        follower.become_probe()
        return
    follower.sent_commit = max(follower.sent_commit, min(state.commit_index, prev))
    state.send(
        AppendEntries(
            state.term,
            state.node_id,
            follower.node_id,
            prev,
            prev_term,
            LogIndex(prev + 1),
            prev,
            state.commit_index,
            offers_reset=is_reset,
        )
    )
