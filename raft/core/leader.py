"""Leader: takes proposals, sends heartbeats, and steps down when a quorum no longer answers (5.2, 5.3, 8).

Owns: the beginning and the end of a lead, heartbeats, proposals, reads, check-quorum, hand-over. Must not:
move entries (`replication.py`), or count what is committed (`commit_rule.py`).
Invariants: the first entry of a term is its no-op; a leader that heard no quorum for the shortest election
timeout steps down.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..types import LogIndex, NodeId
from . import replication
from .follower import become_follower
from .messages import Heartbeat, ReadIndexReply, ReadIndexRequest, Resign, TimeoutNow
from .outputs import Accepted, BecameLeader, Busy, NotLeader, ReadReady, Role, TransferAborted, Transferring
from .progress import Progress
from .read_rounds import Reader
from .state import CoreState, LeaderState


def become_leader(state: CoreState) -> None:
    """Lead the present term: append its no-op, and find out where each follower's log agrees."""
    noop_index = LogIndex(state.last_index + 1)
    state.role = Role.LEADER
    state.votes.clear()
    state.elapsed = 0  # however long the candidacy was: a leader is protected from its first moment (`votes`)
    followers = {peer: Progress(peer, next_index=noop_index) for peer in state.peers}
    state.leading = LeaderState(followers, noop_index)
    state.set_leader(state.node_id)
    state.append_runs(noop_index, noop_index, ((noop_index, state.term),))
    state.emit(BecameLeader(state.term, noop_index))
    send_heartbeats(state, state.leading)


def propose(state: CoreState, sizes: Sequence[int]) -> Accepted | NotLeader | Busy | Transferring:
    """Append one entry per size to the log, unless a limit forbids."""
    leading = state.leading
    if leading is None:
        return NotLeader(state.leader_id)
    if leading.transfer_to is not None:
        return Transferring(leading.transfer_to)
    total = sum(sizes)
    undecided = leading.uncommitted_bytes
    if undecided and undecided + total > state.config.max_uncommitted_bytes:
        return Busy(undecided)
    assert leading.noop_given, "poll() after an election, before proposals: the no-op comes first"
    first = LogIndex(state.last_index + 1)
    last = LogIndex(state.last_index + len(sizes))
    if sizes:
        state.append_runs(first, last, ((first, state.term),))
        leading.uncommitted.append((last, total))
        leading.uncommitted_bytes += total
    return Accepted(first, state.term)


def tick(state: CoreState, leading: LeaderState) -> None:
    """Count a tick: heartbeats, check-quorum, the bound of a hand-over."""
    config = state.config
    alive = [state.node_id]
    for follower in leading.followers.values():
        follower.contact_ticks += 1
        if follower.contact_ticks < state.shortest_timeout and not follower.is_learner:
            alive.append(follower.node_id)
        if follower.open_append is not None:
            follower.open_ticks += 1
            if follower.open_ticks >= config.election_ticks_min:
                follower.on_dropped()
    if not state.quorum.is_reached(alive):
        become_follower(state, state.term, None)
        return
    if leading.transfer_to is not None:
        leading.transfer_elapsed += 1
        if leading.transfer_elapsed >= config.election_ticks_min:
            state.emit(TransferAborted(leading.transfer_to))
            leading.transfer_to = None
    leading.heartbeat_elapsed += 1
    if leading.heartbeat_elapsed >= config.heartbeat_ticks:
        send_heartbeats(state, leading)


def quiet_ticks(state: CoreState, leading: LeaderState) -> int:
    """Return how many of the next ticks only count (see `tick`)."""
    lowest = state.config.election_ticks_min
    nearest = state.config.heartbeat_ticks - leading.heartbeat_elapsed
    alive = [state.node_id]
    for follower in leading.followers.values():
        left = state.shortest_timeout - follower.contact_ticks  # ticks until it no longer counts as alive
        if left > 0:
            nearest = min(nearest, left)
            if not follower.is_learner:
                alive.append(follower.node_id)
        if follower.open_append is not None:
            nearest = min(nearest, lowest - follower.open_ticks)
    if leading.transfer_to is not None:
        nearest = min(nearest, lowest - leading.transfer_elapsed)
    if not state.quorum.is_reached(alive):  # a voter came back as a learner
        return 0
    return max(nearest - 1, 0)


def send_heartbeats(state: CoreState, leading: LeaderState) -> None:
    """Tell every follower that the leader lives, and the commit index as far as it has the entries."""
    leading.heartbeat_elapsed = 0
    for follower in leading.followers.values():
        follower.probe_is_newest = False
        commit_index = min(follower.match_index, state.commit_index)
        state.send(Heartbeat(state.term, state.node_id, follower.node_id, commit_index, leading.reads.number))


def ask_read(state: CoreState, leading: LeaderState, reader: Reader) -> None:
    """Queue a read; it is answered when a quorum has confirmed that this node still leads."""
    leading.reads.waiting.append(reader)
    run_reads(state, leading)


def run_reads(state: CoreState, leading: LeaderState) -> None:
    """Answer confirmed reads and start the next round. Before the no-op commits nothing may be read (8)."""
    reads = leading.reads
    while True:
        for reader in reads.finished(state.quorum):
            if reader.node_id is None:
                state.ready(ReadReady(reader.context, reads.index))
            else:
                assert isinstance(reader.context, int)
                state.send(
                    ReadIndexReply(state.term, state.node_id, reader.node_id, reader.context, reads.index)
                )
        if not reads.may_start() or state.commit_index < leading.noop_index:
            return
        reads.start(state.commit_index, state.node_id)
        send_heartbeats(state, leading)


def on_read_index_request(state: CoreState, message: ReadIndexRequest) -> None:
    """Take a read that a follower forwards."""
    leading = state.leading
    if leading is not None:
        ask_read(state, leading, Reader(message.context, message.from_))
    else:
        state.send(ReadIndexReply(state.term, state.node_id, message.from_, message.context, LogIndex(0)))


def transfer(state: CoreState, leading: LeaderState, to: NodeId | None) -> NodeId | None:
    """Begin to hand the lead over; return the target, or None when no follower can take it."""
    voters = state.quorum.voters
    candidates = [f for f in leading.followers.values() if not f.is_learner and f.node_id in voters]
    if to is None:
        candidates = [f for f in candidates if f.contact_ticks < state.shortest_timeout]
        candidates.sort(key=lambda f: (-f.match_index, f.contact_ticks))
    else:
        candidates = [f for f in candidates if f.node_id == to]
    if not candidates:
        return None
    target = candidates[0].node_id
    if leading.transfer_to != target:
        leading.transfer_to = target
        leading.transfer_elapsed = 0
        leading.transfer_sent = False
    hand_over_when_ready(state, leading)
    return target


def hand_over_when_ready(state: CoreState, leading: LeaderState) -> None:
    """Tell the target to campaign once it holds the whole log."""
    target = leading.transfer_to
    if target is None or leading.transfer_sent:
        return
    if leading.followers[target].match_index == state.last_index:
        leading.transfer_sent = True
        state.send(TimeoutNow(state.term, state.node_id, target))


def resign(state: CoreState) -> None:
    """Give up the lead at once and let the others elect without waiting for silence."""
    for peer in state.peers:
        state.send(Resign(state.term, state.node_id, peer))
    become_follower(state, state.term, None)


def take_output_of(state: CoreState, leading: LeaderState) -> None:
    """Before each poll: turn what is new into messages."""
    leading.noop_given = True
    replication.send_appends(state, leading)
