"""Bugs of elections and votes, as real systems had them: cores with one bug each.

Test-only. Each class names its row of the bug list (E..., K12) or the rule (P...) that it breaks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ledgermq.raft.core import candidate, follower, leader
from ledgermq.raft.core.config import CoreConfig
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    RequestVote,
    RequestVoteReply,
    Resign,
)
from ledgermq.raft.core.outputs import NotLeader, ReadReady, Role
from ledgermq.raft.folder.bootstrap import Rejoin
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from .mutant_list import SendsEarly, core_mutant, patch_mutant


@core_mutant("E1")
class VotesTwice(RaftCore):
    """The vote of a term is forgotten inside it when another candidate asks."""

    def step(self, message: Message) -> None:
        asks = isinstance(message, RequestVote) and not message.pre_vote
        if asks and message.term == self.term and self.voted_for != self.node_id:
            self.voted_for = None
        super().step(message)


@core_mutant("E1")
class ForgetsItsVoteWhenItStepsDown(RaftCore):
    """A leader that steps down clears its vote and may give it again in the same term."""

    def end_lead(self) -> None:
        if self.leading is not None:
            self.voted_for = None
            self.save_hard_state()
        super().end_lead()


@core_mutant("E2")
class ForgetsItsTerm(RaftCore):
    """Term and vote are never written."""

    def save_hard_state(self) -> None:
        return


@core_mutant("E3")
class WritesVoteAndTermApart(RaftCore):
    """Two writes, the vote first: a power cut between them leaves the new vote in the old term."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._written_term = self.term

    def save_hard_state(self) -> None:
        if self.term > self._written_term:
            self.disk.set_hard_state(replace(self.hard_state, term=self._written_term))
            self.disk._close()
            self._written_term = self.term
        super().save_hard_state()


@core_mutant("E4, P2")
class TellsOfVotesBeforeTheyAreDurable(SendsEarly):
    """The grant leaves before the vote is on disk."""

    _early = RequestVoteReply


@core_mutant("E4, P4")
class CampaignsBeforeItsVoteIsDurable(SendsEarly):
    """The request for votes leaves before the candidate's own vote is on disk."""

    _early = RequestVote


@core_mutant("E5, 5.4.1")
class VotesForAnyLog(RaftCore):
    """A candidate with an older log gets the vote."""

    def step(self, message: Message) -> None:
        if isinstance(message, RequestVote):
            message = replace(message, last_term=Term(1 << 40))
        super().step(message)


@core_mutant("E5")
class ComparesCurrentTerms(RaftCore):
    """The election compares the nodes' current terms, not the terms of their last entries."""

    @property
    def last_term(self) -> Term:
        return self.term


@core_mutant("E6")
class ShowsTheTailThatItHadBeforeACut(RaftCore):
    """After a truncation the candidate shows its old, longer tail until the next append but one."""

    _shown: tuple[LogIndex, Term] | None = None
    _appends = 0

    def truncate_from(self, index: LogIndex) -> bool:
        self._shown, self._appends = (self.last_index, self.last_term), 0
        return super().truncate_from(index)

    def append_runs(self, lo: LogIndex, hi: LogIndex, runs: tuple[tuple[LogIndex, Term], ...]) -> None:
        self._appends += 1
        if self._appends > 1:
            self._shown = None
        super().append_runs(lo, hi, runs)

    def send_when_durable(self, message: Message) -> None:
        if isinstance(message, RequestVote) and self._shown is not None:
            message = replace(message, last_index=self._shown[0], last_term=self._shown[1])
        super().send_when_durable(message)


@core_mutant("E7")
class CampaignsWithoutAPreVote(RaftCore):
    """A node that hears no leader raises the term at once."""

    def tick(self) -> None:
        super().tick()
        if self.role is Role.PRE_CANDIDATE:
            candidate.become_candidate(self)


@core_mutant("E8")
class ProtectsNoLeader(RaftCore):
    """Votes are given although the leader was heard a moment ago."""

    def protects_leader(self, candidate: NodeId) -> bool:
        return False


@core_mutant("E9, P3")
class TakesTheTermOfAPreVote(RaftCore):
    """The question whether one would vote raises the term of the node that is asked."""

    def step(self, message: Message) -> None:
        super().step(message)
        if isinstance(message, RequestVote) and message.pre_vote and message.term > self.term:
            follower.become_follower(self, message.term, None)


@core_mutant("E9, P3")
class RestartsItsTimerForAPreVote(RaftCore):
    """A node that is asked whether it would vote waits a whole timeout again."""

    def step(self, message: Message) -> None:
        super().step(message)
        if isinstance(message, RequestVote) and message.pre_vote:
            self.elapsed = 0


@core_mutant("E10")
class BelievesInALeaderThatResigned(RaftCore):
    """Who is asked for a vote after a resignation protects the leader that resigned."""

    def step(self, message: Message) -> None:
        if not isinstance(message, Resign):
            super().step(message)


@core_mutant("E10")
class BelievesALateWordOfWhoResigned(RaftCore):
    """What a leader said before it resigned, and what comes after its resignation, brings it back."""

    def step(self, message: Message) -> None:
        super().step(message)
        self.resigned_in = Term(0)


@core_mutant("E11")
class IgnoresHigherTermsInAnswers(RaftCore):
    """A leader does not step down when an answer shows it a higher term."""

    def step(self, message: Message) -> None:
        is_answer = isinstance(message, AppendEntriesReply | HeartbeatReply | RequestVoteReply)
        if is_answer and self.leading is not None and message.term > self.term:
            return
        super().step(message)


@core_mutant("E12")
class CountsARepeatedVoteTwice(RaftCore):
    """Votes are counted, not voters."""

    def step(self, message: Message) -> None:
        if isinstance(message, RequestVoteReply) and message.granted and self.votes.get(message.from_):
            silent = [peer for peer in self.peers if peer not in self.votes]
            if silent:
                message = replace(message, from_=silent[0])
        super().step(message)


@core_mutant("E13")
class TakesStrangersForMembers(RaftCore):
    """What a node outside the broker group says counts like the word of a member."""

    def step(self, message: Message) -> None:
        if message.from_ not in self.peers and self.peers:
            message = replace(message, from_=self.peers[0])
        super().step(message)


@core_mutant("E14")
class LeadsWithoutAQuorum(RaftCore):
    """A leader without answers leads on."""

    def tick(self) -> None:
        if self.leading is not None:
            for progress in self.leading.followers.values():
                progress.contact_ticks = 0
        super().tick()


@core_mutant("E14, 8")
class ReadsWithoutAsking(RaftCore):
    """A leader answers reads without making sure that it still leads: it may have slept."""

    def read_index(self, context: object) -> NotLeader | None:
        if self.leading is None:
            return super().read_index(context)
        self.ready(ReadReady(context, self.commit_index))
        return None


@core_mutant("E15, P16")
class LeadsOnAfterARestart(RaftCore):
    """Who voted for itself in the stored term takes the lead of that term again."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._resumes = self.is_voter and self.voted_for == self.node_id

    def tick(self) -> None:
        if self._resumes and self.leader_id is None and self.role is Role.FOLLOWER:
            leader.become_leader(self)
        self._resumes = False
        super().tick()


@core_mutant("E16")
class StaysACandidate(RaftCore):
    """A candidate does not follow the leader of its own term."""

    def step(self, message: Message) -> None:
        campaigns = self.role in (Role.CANDIDATE, Role.PRE_CANDIDATE)
        if campaigns and isinstance(message, AppendEntries | Heartbeat) and message.term == self.term:
            return
        super().step(message)


@core_mutant("K12, P19")
class VotesWithAnEmptyDisk(RaftCore):
    """A node whose disk was lost votes at once."""

    def __init__(self, config: CoreConfig, hard_state: HardState, *given: Any) -> None:
        super().__init__(config, replace(hard_state, is_voter=True), *given)


@core_mutant("K12, P19")
class VotesAgainInTheTermInWhichItWasWiped(RaftCore):
    """A node that caught up votes in its present term, in which it may have voted before it was wiped."""

    def promote_to_voter(self) -> None:
        if not self.is_voter and self.fault is None:
            self.is_voter = True
            self.save_hard_state()


def _always_done(self: Rejoin, **_: object) -> bool:
    return True


patch_mutant(
    "VotesBeforeItCaughtUp",
    "K12, P19",
    "A node whose disk was lost votes as soon as it knows what it should fetch.",
    (Rejoin, "is_done", _always_done),
)
