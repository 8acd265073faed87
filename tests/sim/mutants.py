"""Cores with one bug each, as real systems had them. The simulator must find every one: proof that it sees.

Test-only. Each class names the rule that it breaks.
"""

from __future__ import annotations

import random
from dataclasses import replace

from ledgermq.raft.core import RaftCore
from ledgermq.raft.core_config import CoreConfig
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import AppendEntries, AppendEntriesReply, Message, RequestVote, RequestVoteReply
from ledgermq.raft.outputs import NotLeader, ReadReady
from ledgermq.raft.persist_queue import PersistQueue
from ledgermq.raft.types import HardState, LogIndex, Term


class CommitsOldTermsByCounting(RaftCore):
    """P10, figure 8: an entry of an older term is committed because a majority has it."""

    def may_commit_by_counting(self, index: LogIndex) -> bool:
        return True


class TellsOfVotesBeforeTheyAreDurable(RaftCore):
    """P2: the grant leaves before the vote is on disk."""

    def send_when_durable(self, message: Message) -> None:
        if isinstance(message, RequestVoteReply):
            self._out.send.append(message)
        else:
            super().send_when_durable(message)


class CampaignsBeforeItsVoteIsDurable(RaftCore):
    """P4: the request for votes leaves before the candidate's own vote is on disk."""

    def send_when_durable(self, message: Message) -> None:
        if isinstance(message, RequestVote):
            self._out.send.append(message)
        else:
            super().send_when_durable(message)


class CountsItselfBeforeFsync(RaftCore):
    """P8: the leader counts entries that are only in its memory."""

    def own_match_index(self) -> LogIndex:
        return self.last_index


class AcknowledgesBeforeFsync(RaftCore):
    """P5: a follower acknowledges entries that are only in its memory."""

    def send_when_durable(self, message: Message) -> None:
        if isinstance(message, AppendEntriesReply):
            self._out.send.append(message)
        else:
            super().send_when_durable(message)


class VotesTwice(RaftCore):
    """E1: the vote of a term is forgotten inside it, for instance with a change of role."""

    def step(self, message: Message) -> None:
        if isinstance(message, RequestVote) and message.term == self.term and self.voted_for != self.node_id:
            self.voted_for = None
        super().step(message)


class ForgetsItsTerm(RaftCore):
    """E2: term and vote are never written."""

    def save_hard_state(self) -> None:
        return


class VotesForAnyLog(RaftCore):
    """E5, §5.4.1: a candidate with an older log gets the vote."""

    def step(self, message: Message) -> None:
        if isinstance(message, RequestVote):
            message = replace(message, last_term=Term(1 << 40))
        super().step(message)


class _FlagQueue(PersistQueue):
    def _fold(self) -> None:
        self.stable_index = self._disk_last


class BelievesLateFsyncs(RaftCore):
    """P7, C10: a late report confirms entries that were overwritten meanwhile."""

    def __init__(
        self, config: CoreConfig, hard_state: HardState, log_view: LogView, rng: random.Random
    ) -> None:
        super().__init__(config, hard_state, log_view, rng)
        self.disk = _FlagQueue(log_view.stable_index)


class CommitsWhatItHasNotCompared(RaftCore):
    """P11, C3: a follower commits up to min(leader's commit, its own last entry)."""

    def step(self, message: Message) -> None:
        super().step(message)
        if isinstance(message, AppendEntries) and message.term == self.term and self.fault is None:
            self.commit_to(message.commit_index)


class ReadsWithoutAsking(RaftCore):
    """§8: a leader answers reads without making sure that it still leads."""

    def read_index(self, context: object) -> NotLeader | None:
        if self.leading is None:
            return super().read_index(context)
        self.ready(ReadReady(context, self.commit_index))
        return None


class NumbersReadsFromZero(RaftCore):
    """An answer of before a restart is taken for that of a new read.

    The simulator found it in its 97th seed; it is too rare for a bound of 200, so `test_core_bugs` scripts it.
    """

    def __init__(
        self, config: CoreConfig, hard_state: HardState, log_view: LogView, rng: random.Random
    ) -> None:
        super().__init__(config, hard_state, log_view, rng)
        self.read_number = 0


MUTANTS: tuple[type[RaftCore], ...] = (
    CommitsOldTermsByCounting,
    TellsOfVotesBeforeTheyAreDurable,
    CampaignsBeforeItsVoteIsDurable,
    CountsItselfBeforeFsync,
    AcknowledgesBeforeFsync,
    VotesTwice,
    ForgetsItsTerm,
    VotesForAnyLog,
    BelievesLateFsyncs,
    CommitsWhatItHasNotCompared,
    ReadsWithoutAsking,
)
