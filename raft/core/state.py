"""State of a RaftCore, and the primitive steps that every role shares.

Owns: term and vote, the log's shape, commit index, timers, and the outgoing messages, including those that
wait for the disk. Must not: decide by role; the role modules (`follower`, `candidate`, `leader`, `votes`) do
that.

Invariants, with their persistence rules:
- a message leaves only when the term it carries is durable; grants, vote requests and append acknowledgements
  leave only when every operation queued before them is (P2, P4, P5), and never after the term has moved (P9);
- commit_index never decreases, and the log is never cut at or below it (P12);
- entries are given out to apply up to min(commit_index, stable_index) only (P14).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from ..types import LAST_TERM, MAX_TERM_JUMP, HardState, LogIndex, NodeId, Term
from .config import CoreConfig, LogView
from .lateness import Lateness
from .messages import AppendEntriesReply, Message, TermRun
from .outputs import Event, Faulted, LeaderChanged, Output, ReadReady, Role, SteppedDown
from .persist_queue import PersistQueue
from .progress import Progress
from .quorum import Majority
from .read_rounds import ReadRounds
from .term_runs import TermRuns


@dataclass(slots=True)
class LeaderState:
    """State of one lead. It lives from the election to the step-down; nothing of it is durable."""

    followers: dict[NodeId, Progress]  # every member but this node, non-voters and learners included
    noop_index: LogIndex  # first entry of this term. No read is served before it is committed (8)
    noop_given: bool = False  # the shell has been told to build it; proposals come after it
    heartbeat_elapsed: int = 0  # ticks since the last heartbeat
    # (last index, bytes) of own proposals that are not committed, oldest first
    uncommitted: deque[tuple[LogIndex, int]] = field(default_factory=deque)
    uncommitted_bytes: int = 0  # sum of the bytes in `uncommitted`
    reads: ReadRounds = field(default_factory=ReadRounds)
    transfer_to: NodeId | None = None  # target of the hand-over that is under way; no proposals meanwhile
    transfer_elapsed: int = 0  # ticks since it began
    transfer_sent: bool = False  # TimeoutNow went, and no heartbeat of the target was answered since

    def free_up_to(self, commit_index: LogIndex) -> None:
        """Drop the proposals up to the commit index: they are decided."""
        queue = self.uncommitted
        while queue and queue[0][0] <= commit_index:
            self.uncommitted_bytes -= queue.popleft()[1]


#: Number of quiet ticks where no tick ever decides anything.
NEVER: Final = 1 << 30


class CoreState:
    """Fields and shared steps. `RaftCore` adds the inputs."""

    def __init__(
        self,
        config: CoreConfig,
        hard_state: HardState,
        log_view: LogView,
        rng: random.Random,
    ) -> None:
        self.config = config
        self.node_id = config.node_id
        self.peers = tuple(member for member in config.members if member != config.node_id)
        self.quorum = Majority(config.voters)
        self.is_held = False  # no campaign: it waits to hear whether another node took its place
        self.rng = rng  # draws the timeouts; the caller seeds it

        # Durable with the next hard state (`save_hard_state`); no message of `term` leaves before it is
        self.term: Term = hard_state.term  # the highest term that it has entered; never decreases
        self.voted_for: NodeId | None = hard_state.voted_for  # in `term`; once set it stays for the term
        self.is_voter: bool = hard_state.is_voter  # False: a learner, whose earlier votes are unknown (P19)

        self.role = Role.FOLLOWER
        self.is_silent = False  # FAULTED or RESETTING: it takes no input and says nothing any more
        # The leader of `term` that this node believes to live: itself exactly when role is LEADER, none while
        # it campaigns
        self.leader_id: NodeId | None = None
        self.resigned_in = Term(0)  # the last term whose leader told this node that it leads no longer

        # Invariants: first_index - 1 <= applied_index <= min(commit_index, stable_index);
        # stable_index <= last_index; commit_index <= last_index.
        # first_index, applied_index and commit_index never decrease
        self.log = TermRuns(log_view.first_index, log_view.base_term, log_view.term_runs, log_view.last_index)
        self.disk = PersistQueue(log_view.stable_index)  # has stable_index
        self.applied_index = LogIndex(max(log_view.applied_index, self.log.base_index))  # given out to apply
        # A state that a reset installed is that after this entry. The node may campaign once its log reaches
        # it
        self.state_index = log_view.state_index
        hint = min(hard_state.commit_hint, log_view.last_index)
        self.commit_index = LogIndex(max(hint, self.applied_index))
        # The log equals that of the leader of `term` up to here; a heartbeat commits no further (P11)
        self.verified_index = LogIndex(0)

        # Election timer, in ticks
        self.elapsed = 0  # since the leader was heard, a vote was given, or the timer was set; 0 on a leader
        self.timeout = 0  # campaign when `elapsed` reaches this, or later by `lateness.patience`
        self.silence = 0  # without the leader before this campaign; 0 in a new term, or if it was heard since
        self.lateness = Lateness(config)

        # Campaign
        self.votes: dict[NodeId, bool] = {}  # by voter, of this campaign: a repeated answer changes nothing
        self.self_vote_seq = 0  # the candidate's own vote counts when this operation is done (P4)

        self.leading: LeaderState | None = None  # set exactly when role is LEADER
        self.wants_commit = False  # a caller waits for the commit index; each answer to the leader says so

        # Reads that were forwarded to the leader. Numbers start at random: an answer to a question of before
        # a restart must not be taken for an answer to a new one
        self.read_number = rng.getrandbits(62)
        self.forwarded_reads: dict[int, tuple[object, int]] = {}  # number -> (context, age in ticks)

        # A learner asks the leader, by a forwarded read, what is committed, and tells once that it holds it
        self.caught_up_number = 0  # the read under way; 0: none
        self.caught_up_index: LogIndex | None = None  # its answer: hold entries up to here, durably
        self.caught_up_told = False  # CaughtUp was emitted

        self.fault: str | None = None  # the reason, once role is FAULTED
        self._out = Output()  # collects decisions until the next poll
        self._told_commit = self.commit_index  # the newest value that an output carried
        # (operation, message), oldest first: messages that wait until this operation is done. Any message
        # waits for the hard state with its term; votes, requests for votes and acknowledgements wait for
        # everything that was asked of the storage before them
        self._held_for_term: deque[tuple[int, Message]] = deque()
        self._held_for_log: deque[tuple[int, Message]] = deque()
        self.reset_timer()

    # --- what it knows --------------------------------------------------------------------------------------
    @property
    def first_index(self) -> LogIndex:
        return self.log.first_index

    @property
    def last_index(self) -> LogIndex:
        return self.log.last_index

    @property
    def last_term(self) -> Term:
        return self.log.last_term

    @property
    def stable_index(self) -> LogIndex:
        """Durable here up to this entry."""
        return self.disk.stable_index

    @property
    def may_vote(self) -> bool:
        """Whether its vote counts: it is a configured voter and no learner (P19)."""
        return self.is_voter and self.node_id in self.quorum.voters

    @property
    def may_campaign(self) -> bool:
        """Whether it may campaign: it may vote, and holds the entries of the state that it was reset to.

        Without these entries it could not win. With them it must campaign, even if it has not heard that they
        are committed: perhaps no other node can win.
        """
        is_complete = self.last_index >= self.state_index
        return self.may_vote and not self.is_held and is_complete and self.term < LAST_TERM

    def may_be_reached(self, term: Term) -> bool:
        """Tell whether elections can have led a peer to `term`. A learner in term 0 believes any term.

        A term is never taken back, so believing a single wrong one would end the broker group for good.
        """
        if not self.term and not self.is_voter:
            return term <= LAST_TERM
        return term <= min(max(self.term, self.config.first_term) + MAX_TERM_JUMP, LAST_TERM)

    @property
    def hard_state(self) -> HardState:
        """Record to write at a clean stop. The hint covers only entries that are durable (P13)."""
        return HardState(self.term, self.voted_for, min(self.commit_index, self.stable_index), self.is_voter)

    # --- term, vote, role -----------------------------------------------------------------------------------
    def set_term(self, term: Term, voted_for: NodeId | None) -> None:
        """Enter a higher term. The vote of a term is never cleared inside it."""
        assert term > self.term, "terms only grow"
        self.term = term
        self.voted_for = voted_for
        self.verified_index = LogIndex(0)
        self.save_hard_state()

    def vote_for(self, candidate: NodeId) -> None:
        """Give this term's vote. Messages that tell of it must wait until it is durable."""
        assert self.voted_for in (None, candidate), "one vote per term"
        if self.voted_for is None:
            self.voted_for = candidate
            self.save_hard_state()

    def save_hard_state(self) -> None:
        self.disk.set_hard_state(self.hard_state)

    def set_leader(self, leader_id: NodeId | None, *, new_term: bool = False) -> None:
        """Believe in a leader, or in none. Reads that were forwarded to another leader are aborted."""
        if leader_id == self.leader_id and not new_term:
            return
        self.leader_id = leader_id
        self.emit(LeaderChanged(leader_id, self.term))
        self._abort_forwarded_reads()

    def end_lead(self) -> None:
        """Drop the state of the lead; undecided proposals get an unknown fate, reads are aborted."""
        leading = self.leading
        if leading is None:
            return
        self.leading = None
        self._out.events.append(SteppedDown(self.term))
        if self.last_index > self.commit_index:
            self._out.aborted.append((LogIndex(self.commit_index + 1), self.last_index))
        for reader in leading.reads.everyone():
            if reader.node_id is None:
                self.abort_read(reader.context)

    def reset_timer(self, lowest: int | None = None, limit: int | None = None) -> None:
        """Draw a new timeout from [lowest, limit) ticks, the election timeout by default (5.2)."""
        self.elapsed = 0
        low = self.config.election_ticks_min if lowest is None else lowest
        high = self.config.election_ticks_max if limit is None else limit
        self.timeout = self.rng.randrange(low, max(high, low + 1))

    def protects_leader(self, candidate: NodeId) -> bool:
        """Tell whether a leader was heard within the shortest election timeout: then no vote may depose it.

        A leader that asks for votes itself leads no longer, since it heard no majority for a while.
        """
        return self.leader_id not in (None, candidate) and self.elapsed < self.shortest_timeout

    @property
    def shortest_timeout(self) -> int:
        """Ticks for which a silent leader is protected, and leads without an answer of a majority."""
        return self.config.election_ticks_min + self.lateness.patience

    @property
    def ticks_to_campaign(self) -> int:
        """Ticks left on the timer. A shortened timeout is not stretched: the leader is known to be gone."""
        stretched = self.lateness.patience if self.timeout >= self.config.election_ticks_min else 0
        return self.timeout + stretched - self.elapsed

    # --- log and commit -------------------------------------------------------------------------------------
    def append_runs(self, lo: LogIndex, hi: LogIndex, runs: tuple[TermRun, ...]) -> None:
        """Append entries lo..hi to the log's shape, and ask for their durability."""
        self.log.append_runs(runs, hi)
        self.disk.append(lo, hi)

    def truncate_from(self, index: LogIndex) -> bool:
        """Cut off the entries >= `index`. At or below the commit index: fault (P12), and return False."""
        if index <= self.commit_index:
            self.fail(f"asked to cut off entry {index}, but entry {self.commit_index} is committed")
            return False
        self.log.truncate_from(index)
        self.disk.truncate_from(index)
        self.verified_index = min(self.verified_index, LogIndex(index - 1))
        return True

    def commit_to(self, index: LogIndex) -> bool:
        """Raise the commit index, never lower it, never beyond the log; return whether it moved."""
        index = min(index, self.last_index)
        if index <= self.commit_index:
            return False
        self.commit_index = index
        return True

    def own_match_index(self) -> LogIndex:
        """Highest index that this node counts for itself: only durable entries (P8)."""
        return self.disk.stable_index

    def may_commit_by_counting(self, index: LogIndex) -> bool:
        """Tell whether counting copies may commit this entry: one of the leader's term (5.4.2, P10)."""
        return self.log.term(index) == self.term

    # --- output ---------------------------------------------------------------------------------------------
    def emit(self, event: Event) -> None:
        self._out.events.append(event)

    def ready(self, read: ReadReady) -> None:
        self._out.reads.append(read)

    def abort_read(self, context: object) -> None:
        self._out.reads_aborted.append(context)

    def send(self, message: Message) -> None:
        """Send as soon as the present term is durable: at once, nearly always."""
        if self.disk.hard_state_seq > self.disk.done_seq:
            self._held_for_term.append((self.disk.hard_state_seq, message))
        else:
            self._out.send.append(message)

    def send_when_durable(self, message: Message) -> None:
        """Send once everything that was asked of the storage so far is durable."""
        if self.disk.last_seq > self.disk.done_seq:
            self._held_for_log.append((self.disk.last_seq, message))
        else:
            self._out.send.append(message)

    def release_held(self) -> None:
        """Send messages whose operations are done; drop those of a past term (P9)."""
        if not self._held_for_term and not self._held_for_log:
            return
        acknowledged: dict[NodeId, AppendEntriesReply] = {}
        done = self.disk.done_seq
        for queue in (self._held_for_term, self._held_for_log):
            while queue and queue[0][0] <= done:
                message = queue.popleft()[1]
                if message.term < self.term:
                    continue
                if not isinstance(message, AppendEntriesReply) or not message.success:
                    self._out.send.append(message)
                    continue
                newest = acknowledged.get(message.to)
                if newest is None or newest.match_index < message.match_index:
                    acknowledged[message.to] = message  # cumulative: the newest one is enough
        for message in acknowledged.values():
            if message.match_index > self.stable_index:
                message = replace(message, match_index=self.stable_index)
            self._out.send.append(message)

    def fail(self, reason: str) -> None:
        """Stop for ever: drop all messages, and emit the reason."""
        if self.fault is not None:
            return
        self.fault = reason
        self.end_lead()
        self.fall_silent(Role.FAULTED)
        self.emit(Faulted(reason))

    def fall_silent(self, role: Role) -> None:
        """Say nothing any more; drop also the messages that wait for the disk."""
        self.role = role
        self.is_silent = True
        self.leader_id = None
        self._held_for_term.clear()
        self._held_for_log.clear()
        self._out.send.clear()
        self._abort_forwarded_reads()

    def take_output(self) -> Output | None:
        """Return one turn's decisions. Messages go with the turn's last storage operation, never before."""
        if self.is_silent:
            return self._take_last_words()
        disk, out = self.disk, self._out
        if disk.has_any:
            if disk.has_several:
                return Output(persist=disk.take())
            out.persist = disk.take()
        commit_index, apply_to = self.commit_index, disk.stable_index
        if commit_index > self._told_commit:
            out.commit_index = self._told_commit = commit_index
        if commit_index < apply_to:
            apply_to = commit_index
        if apply_to > self.applied_index:
            out.committed = (LogIndex(self.applied_index + 1), apply_to)
            self.applied_index = apply_to
        if not (
            out.persist or out.send or out.committed or out.commit_index or out.events or out.reads
            or out.reads_aborted or out.aborted
        ):  # fmt: skip
            return None
        self._out = Output()
        return out

    def _take_last_words(self) -> Output | None:
        out = self._out
        if not (out.events or out.reads_aborted):
            return None
        self._out = Output()
        return Output(events=out.events, reads_aborted=out.reads_aborted, aborted=out.aborted)

    def _abort_forwarded_reads(self) -> None:
        for number, (context, _) in self.forwarded_reads.items():
            if number != self.caught_up_number:
                self._out.reads_aborted.append(context)
        self.forwarded_reads.clear()
        self.caught_up_number = 0
