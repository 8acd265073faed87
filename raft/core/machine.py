"""Raft state machine of one node: inputs go in, decisions come out; no I/O, no clock (D9).

Owns: the dispatch of inputs to the module of the present role. Must not: know bytes, offsets, time.

How a shell drives it, on one thread:

1. Call one input (`tick`, `step`, `propose`, `storage_done`, ...).
2. Call `poll()` until it returns None, and carry out each Output, before the next input. `propose` may be
   called several times before a poll: the proposals share one persist operation and one AppendEntries per
   follower.
3. For each AppendEntries in `send` that is not empty: read its bytes from the log, as many whole entries as
   fit `max_bytes` (at least one), send `message.shortened(hi, size)` and call `append_sent(message, hi,
   size)`; or call `append_dropped(message)` when the log has changed or the stream is gone. There is at most
   one such message open per follower: the next one comes only after that call.
4. When an AppendEntries arrives: verify its bytes first, then `step`; then `persist.append` of the next
   Output names the entries of it to store. Its lo may be above the message's lo: the entries before it are
   here already. Without `persist.append` all of them are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..types import LogIndex, NodeId, Term
from . import candidate, follower, leader, replication, votes
from .commit_rule import advance_commit
from .messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    ReadIndexReply,
    ReadIndexRequest,
    RequestVote,
    RequestVoteReply,
    Resign,
    TimeoutNow,
)
from .outputs import Accepted, Busy, NotLeader, Output, Role, Transferring
from .progress import Progress
from .read_rounds import Reader
from .state import NEVER, CoreState


class RaftCore(CoreState):
    """One node's view of its broker group. Starts as a follower, even if it led before a restart (rule P16).

    Readable at any time: role, term, voted_for, leader_id, is_voter, first_index, last_index, last_term,
    stable_index (durable here), commit_index, applied_index (given out in Output.committed), hard_state,
    fault.
    """

    # --- inputs ---------------------------------------------------------------------------------------------
    def tick(self) -> None:
        """Count a tick of a monotonic clock. After a stall, deliver queued messages first, then tick once."""
        self.lateness.tick()
        if self.leading is not None:
            leader.tick(self, self.leading)
        elif self.role is Role.FOLLOWER:
            if follower.tick(self):
                candidate.campaign(self)
        elif not self.is_silent and candidate.tick(self):
            candidate.campaign(self)

    def late(self, ticks: int) -> None:
        """Note that this node's own timer fired so many ticks late. A leader's heartbeat is due then."""
        self.lateness.note_timer(ticks)
        if self.leading is not None and ticks >= self.config.heartbeat_ticks:
            self.leading.heartbeat_elapsed = self.config.heartbeat_ticks - 1  # with the next tick

    def step(self, message: Message) -> None:
        """Take a message of a peer. Never raises: a message that makes no sense is ignored."""
        if self.is_silent or message.to != self.node_id or message.from_ not in self.peers:
            return
        if message.term > self.term and not self.may_be_reached(message.term):
            return
        if isinstance(message, RequestVote):
            votes.on_request_vote(self, message)
            return
        if message.term != self.term and not self._settle_terms(message):
            return
        _HANDLERS[type(message)](self, message)

    def propose(self, sizes: Sequence[int]) -> Accepted | NotLeader | Busy | Transferring:
        """Append one entry per size (bytes in the log). Then build those entries at exactly these indexes."""
        return leader.propose(self, sizes)

    def append_sent(self, message: AppendEntries, hi: LogIndex, size: int) -> None:
        """Note that the shell sent the entries lo..hi (`size` bytes) of an AppendEntries from `poll`."""
        if self.leading is not None and not message.is_empty:
            progress = self.leading.followers[message.to]
            if progress.open_append is message:
                assert message.lo <= hi <= message.hi, "an append carries at least one of its entries"
                progress.on_sent(hi, size)

    def append_dropped(self, message: AppendEntries) -> None:
        """Note that the shell could not send an AppendEntries from `poll`. The next heartbeat retries it."""
        if self.leading is not None and not message.is_empty:
            progress = self.leading.followers[message.to]
            if progress.open_append is message:
                progress.on_dropped()

    def storage_done(self, seq: int) -> None:
        """Note that all persist operations with a number <= `seq` are on stable storage."""
        if self.is_silent:
            return
        self.disk.done(seq)
        self.release_held()
        if self.leading is not None:
            self._after_commit(advance_commit(self, self.leading, self.stable_index))
        elif self.role is Role.CANDIDATE:
            candidate.count_own_vote(self)
        else:
            follower.check_caught_up(self)

    def storage_failed(self, reason: str) -> None:
        """Stop because a write or flush failed. Terminal: role FAULTED, no message ever again (rule P15)."""
        self.fail(reason)

    def link_down(self, peer: NodeId, refused: bool) -> None:
        """Note that the connection to `peer` broke; `refused`: it cannot be made again at once.

        A hint, not a fact: it may start an election sooner, and the pre-votes of a quorum decide.
        """
        if self.leading is not None and peer in self.leading.followers:
            self.leading.followers[peer].on_dropped()  # messages under way are lost
        elif self.role is Role.FOLLOWER and peer == self.leader_id:
            if refused:
                follower.forget_leader(self)
            else:
                lowest = 2 * self.config.forget_ticks_max
                self.timeout = min(
                    self.timeout, self.elapsed + self.rng.randrange(lowest, self.config.suspect_ticks_max)
                )

    def link_up(self, peer: NodeId) -> None:
        """Note that `peer` can be reached. A pre-candidate asks again soon, not after its whole timeout."""
        if self.role is Role.PRE_CANDIDATE and peer in self.quorum.voters:
            candidate.ask_again_soon(self)

    def forget_leader(self) -> None:
        """Stop believing that the leader lives; campaign within `forget_ticks_max`."""
        if self.role is Role.FOLLOWER:
            follower.forget_leader(self)

    def compacted(self, first_index: LogIndex) -> None:
        """Note that the log now starts at `first_index`; everything before it is applied."""
        assert first_index - 1 <= self.applied_index, "only applied entries may be deleted"
        self.log.compact(first_index)

    def begin_reset(self, leader_id: NodeId, term: Term, base_index: LogIndex, base_term: Term) -> bool:
        """Tell whether to install the state that the leader of `term` offered, and that is durable here now.

        True: this core is silent for ever. Install the state, then start another core on the disk as it is
        then: a log with the base (base_index, base_term) and no entries, a hard state with at least this
        term. False: drop the state.
        """
        return follower.begin_reset(self, leader_id, term, base_index, base_term)

    def read_index(self, context: object) -> NotLeader | None:
        """Ask for an index that covers all committed entries. Answer: `Output.reads` or `reads_aborted`."""
        if self.leading is not None:
            leader.ask_read(self, self.leading, Reader(context))
            return None
        return None if follower.forward_read(self, context) else NotLeader(None)

    def transfer_leadership(self, to: NodeId | None = None) -> NodeId | NotLeader | None:
        """Hand the lead to `to` (None: the best follower). Return the target; None: no follower can take it.

        Success shows as SteppedDown; TransferAborted comes after the shortest election timeout.
        """
        if self.leading is None:
            return NotLeader(self.leader_id)
        return leader.transfer(self, self.leading, to)

    def resign(self) -> None:
        """Step down; the others elect at once. For a stop whose hand-over failed."""
        if self.leading is not None:
            leader.resign(self)

    def hold(self, held: bool) -> None:
        """Hold back campaigns, or no longer: a sole voter may have been replaced while it was away."""
        self.is_held = held

    def leave(self) -> None:
        """Fall silent for ever: the broker group goes on in a later generation, without this folder."""
        if not self.is_silent:
            self.end_lead()
            self.fall_silent(Role.RESETTING)

    def campaign(self) -> None:
        """Start an election now (by pre-vote), if this node may."""
        if self.role is not Role.LEADER and not self.is_silent:
            candidate.campaign(self)

    def promote_to_voter(self) -> None:
        """Make a learner a voter, durably. Only after CaughtUp. In this term it gives no new vote (P19)."""
        if self.is_voter or self.is_silent:
            return
        self.is_voter = True
        if self.voted_for is None:
            # Its vote of before it lost its log is unknown
            self.voted_for = self.leader_id or self.node_id
        self.save_hard_state()

    def peer_replaced(self, peer: NodeId) -> None:
        """Forget votes and acknowledgements of `peer`, which came back as another incarnation."""
        self.votes.pop(peer, None)
        if self.leading is not None and peer in self.leading.followers:
            self.leading.followers[peer].forget()
            self.leading.reads.acks.discard(peer)

    def want_commits(self, wanted: bool) -> None:
        """Ask the leader to tell at once when the commit index moves, because a caller waits for it here."""
        self.wants_commit = wanted

    # --- output ---------------------------------------------------------------------------------------------
    def poll(self) -> Output | None:
        """Return what is to be done next, or None. Call again until None."""
        if self.leading is not None:
            leader.take_output_of(self, self.leading)
        return self.take_output()

    # --- what it knows --------------------------------------------------------------------------------------
    def quiet_ticks(self) -> int:
        """Return how many of the next ticks decide nothing and need no poll, if no input comes before."""
        if self.is_silent:
            return NEVER
        window = self.lateness.quiet_ticks()
        if self.leading is not None:
            return min(leader.quiet_ticks(self, self.leading), window)
        asked, read = candidate.quiet_ticks(self), follower.quiet_read_ticks(self)
        return max(0, min(self.ticks_to_campaign - 1, asked, read, window))

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes of own proposals that wait for commit."""
        return self.leading.uncommitted_bytes if self.leading is not None else 0

    def progress(self) -> list[Progress]:
        """Return what this leader knows of each follower, to read only; empty in other roles."""
        return [] if self.leading is None else list(self.leading.followers.values())

    # --- inside ---------------------------------------------------------------------------------------------
    def _settle_terms(self, message: Message) -> bool:
        """Compare terms (5.1); return whether the message still matters."""
        if message.term > self.term:
            if isinstance(message, RequestVoteReply) and message.pre_vote and message.granted:
                return True  # carries the term that we asked about
            leads = isinstance(message, AppendEntries | Heartbeat)
            follower.become_follower(self, message.term, message.from_ if leads else None)
            return True
        if isinstance(message, AppendEntries | Heartbeat):
            # A leader of the past, or one whose node no pre-vote can reach: show it the present term.
            self.send(AppendEntriesReply(self.term, self.node_id, message.from_, False))
        return False

    def _after_commit(self, moved: bool) -> None:
        if moved and self.leading is not None and self.leading.reads.waiting:
            leader.run_reads(self, self.leading)

    def _on_append_reply(self, message: AppendEntriesReply) -> None:
        if self.leading is not None:
            self._after_commit(replication.on_append_reply(self, self.leading, message))
            leader.hand_over_when_ready(self, self.leading)

    def _on_heartbeat_reply(self, message: HeartbeatReply) -> None:
        leading = self.leading
        if leading is None:
            return
        self._after_commit(replication.on_heartbeat_reply(self, leading, message))
        if not message.is_learner:
            leading.reads.on_ack(message.from_, message.context)
            leader.run_reads(self, leading)
        if message.from_ == leading.transfer_to:
            leading.transfer_sent = False  # TimeoutNow may have been lost
            leader.hand_over_when_ready(self, leading)

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        if self.role is Role.FOLLOWER and message.from_ == self.leader_id:
            candidate.campaign(self, transfer=True)


_HANDLERS: dict[type, Callable[[RaftCore, Any], None]] = {  # each takes the message type of its key
    RequestVoteReply: candidate.on_request_vote_reply,
    AppendEntries: follower.on_append_entries,
    AppendEntriesReply: RaftCore._on_append_reply,
    Heartbeat: follower.on_heartbeat,
    HeartbeatReply: RaftCore._on_heartbeat_reply,
    TimeoutNow: RaftCore._on_timeout_now,
    Resign: follower.on_resign,
    ReadIndexRequest: leader.on_read_index_request,
    ReadIndexReply: follower.on_read_index_reply,
}
