"""Bugs of append, commit, truncation and reads, as real systems had them: cores with one bug each.

Test-only. Each class names its row of the bug list (C..., K..., B...) or the rule (P...) that it breaks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ledgermq.proto.entry import Buffer
from ledgermq.raft.core import follower
from ledgermq.raft.core.config import CoreConfig, LogView
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import AppendEntries, AppendEntriesReply, Heartbeat, Message
from ledgermq.raft.core.outputs import (
    Accepted,
    BecameLeader,
    Busy,
    Event,
    NotLeader,
    Output,
    Role,
    Transferring,
)
from ledgermq.raft.core.persist_queue import PersistQueue
from ledgermq.raft.core.term_runs import TermRuns
from ledgermq.raft.transport.seal import SEAL_SIZE
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from . import life, membership
from .mutant_list import SendsEarly, core_mutant, patch_mutant


@core_mutant("C1, P10")
class CommitsOldTermsByCounting(RaftCore):
    """Figure 8: an entry of an older term is committed because a majority has it."""

    def may_commit_by_counting(self, index: LogIndex) -> bool:
        return True


@core_mutant("C2")
class LeadsWithoutANoop(RaftCore):
    """A new leader appends nothing: what it inherited stays undecided until a client comes."""

    def append_runs(self, lo: LogIndex, hi: LogIndex, runs: tuple[tuple[LogIndex, Term], ...]) -> None:
        if self.leading is None or self.leading.noop_given or lo != self.leading.noop_index:
            super().append_runs(lo, hi, runs)

    def emit(self, event: Event) -> None:
        if isinstance(event, BecameLeader) and self.leading is not None:
            event = replace(event, noop_index=LogIndex(0))
            self.leading.noop_index = LogIndex(0)
        super().emit(event)


@core_mutant("C3, P11")
class CommitsWhatItHasNotCompared(RaftCore):
    """A follower commits up to min(leader's commit, its own last entry)."""

    def step(self, message: Message) -> None:
        super().step(message)
        if isinstance(message, AppendEntries) and message.term == self.term and self.fault is None:
            self.commit_to(message.commit_index)


@core_mutant("C3, P11")
class CommitsByHeartbeat(RaftCore):
    """Heartbeats carry the leader's whole commit index, and followers believe it as far as their logs go."""

    def send(self, message: Message) -> None:
        if isinstance(message, Heartbeat):
            message = replace(message, commit_index=self.commit_index)
        super().send(message)

    def step(self, message: Message) -> None:
        super().step(message)
        if isinstance(message, Heartbeat) and message.term == self.term and self.fault is None:
            self.commit_to(message.commit_index)


@core_mutant("C4")
class CommitsBeyondItsLog(RaftCore):
    """The commit index of an append is taken as it is, also when the log is shorter."""

    def step(self, message: Message) -> None:
        super().step(message)
        if isinstance(message, AppendEntries) and message.term == self.term and self.role is Role.FOLLOWER:
            self.commit_index = max(self.commit_index, message.commit_index)


@core_mutant("C5")
class LowersItsCommitIndex(RaftCore):
    """A follower takes the leader's word for the commit index also when that is lower than its own."""

    def step(self, message: Message) -> None:
        is_leaders = isinstance(message, AppendEntries | Heartbeat) and message.term >= self.term
        if is_leaders and self.role is Role.FOLLOWER:
            assert isinstance(message, AppendEntries | Heartbeat)
            self.commit_index = min(self.commit_index, message.commit_index)
        super().step(message)


@core_mutant("C6")
class TakesAppendsOfAnOldTerm(RaftCore):
    """A delayed append of a deposed leader is carried out."""

    def step(self, message: Message) -> None:
        if isinstance(message, AppendEntries) and message.term < self.term and self.role is Role.FOLLOWER:
            leader_id, self.leader_id = self.leader_id, message.from_
            follower.on_append_entries(self, replace(message, term=self.term))
            self.leader_id = leader_id
        else:
            super().step(message)


@core_mutant("C7")
class CutsWhatLiesBehindAnAppend(RaftCore):
    """A late or repeated append is taken for the end of the leader's log, and what is behind it is
    cut off.
    """

    def step(self, message: Message) -> None:
        super().step(message)
        is_leaders = isinstance(message, AppendEntries) and message.from_ == self.leader_id
        if is_leaders and message.term == self.term and self.fault is None:
            assert isinstance(message, AppendEntries)
            if self.verified_index >= message.hi and self.last_index > message.hi >= self.log.base_index:
                self.truncate_from(LogIndex(message.hi + 1))


@core_mutant("C9, P5")
class AcknowledgesBeforeFsync(SendsEarly):
    """A follower acknowledges entries that are only in its memory."""

    _early = AppendEntriesReply


class _NotesNews(RaftCore):
    """Knows whether the message in progress brings entries."""

    _is_new = True

    def step(self, message: Message) -> None:
        self._is_new = not isinstance(message, AppendEntries) or bool(
            self.log.first_difference(message.lo, message.hi, message.term_runs)
        )
        super().step(message)


@core_mutant("C9, P5")
class AcknowledgesAtOnceWhatBringsNothingNew(_NotesNews):
    """An empty or repeated append is acknowledged at once, while what it covers is still being written."""

    def send_when_durable(self, message: Message) -> None:
        if isinstance(message, AppendEntriesReply) and not self._is_new:
            self._out.send.append(message)
        else:
            super().send_when_durable(message)


@core_mutant("P6")
class AcknowledgesItsWholeLog(RaftCore):
    """The acknowledgement names the follower's last entry, not the last one that was compared."""

    def send(self, message: Message) -> None:
        super().send(self._whole(message))

    def send_when_durable(self, message: Message) -> None:
        super().send_when_durable(self._whole(message))

    def _whole(self, message: Message) -> Message:
        if isinstance(message, AppendEntriesReply) and message.success:
            return replace(message, match_index=self.last_index)
        return message


class _LatestReport(PersistQueue):
    def _fold(self) -> None:
        self.stable_index = self._disk_last


@core_mutant("C10, P7")
class BelievesLateFsyncs(RaftCore):
    """A late report confirms entries that were overwritten meanwhile."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.disk = _LatestReport(self.disk.stable_index)


class _Uncut(PersistQueue):
    def truncate_from(self, index: LogIndex) -> None:
        stable = self.stable_index
        super().truncate_from(index)
        self._cuts.pop()
        self.stable_index = stable


@core_mutant("C15, P7")
class KeepsItsStableIndexOverACut(RaftCore):
    """What was durable before a truncation counts as durable after it, until the next report."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.disk = _Uncut(self.disk.stable_index)


@core_mutant("C11")
class CountsAnswersOfAnOldTerm(RaftCore):
    """An acknowledgement from an earlier lead counts for the present one."""

    def step(self, message: Message) -> None:
        if isinstance(message, AppendEntriesReply) and message.success and self.leading is not None:
            message = replace(message, term=max(message.term, self.term))
        super().step(message)


@core_mutant("C11")
class RemembersItsFollowersOfAnEarlierLead(RaftCore):
    """A new leader counts what its followers had when it led before; they may have cut it off since."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._had: dict[NodeId, LogIndex] = {}

    def end_lead(self) -> None:
        if self.leading is not None:
            self._had = {peer: each.match_index for peer, each in self.leading.followers.items()}
        super().end_lead()

    def emit(self, event: Event) -> None:
        if isinstance(event, BecameLeader) and self.leading is not None:
            for peer, index in self._had.items():
                progress = self.leading.followers[peer]
                progress.match_index = min(index, LogIndex(event.noop_index - 1))
        super().emit(event)


@core_mutant("C12")
class ProposesAfterItLed(RaftCore):
    """A leader that was deposed goes on to append proposals, now in a term that is not its own."""

    _led = False

    def end_lead(self) -> None:
        self._led = self._led or self.leading is not None
        super().end_lead()

    def propose(self, sizes: Sequence[int]) -> Accepted | NotLeader | Busy | Transferring:
        if self.leading is not None or not self._led or self.role is not Role.FOLLOWER:
            return super().propose(sizes)
        first = LogIndex(self.last_index + 1)
        self.append_runs(first, LogIndex(self.last_index + len(sizes)), ((first, self.term),))
        return Accepted(first, self.term)


@core_mutant("C13, 8")
class ReadsBeforeItsNoop(RaftCore):
    """A new leader answers reads before it knows what is committed."""

    def emit(self, event: Event) -> None:
        if isinstance(event, BecameLeader) and self.leading is not None:
            self.leading.noop_index = LogIndex(0)
        super().emit(event)


class _OneByOne(TermRuns):
    def last_at_most(self, index: LogIndex, term: Term) -> LogIndex:
        index = min(index, self.last_index)
        wrong = index > self.base_index and self.term(index) != term
        return LogIndex(index - 1) if wrong else max(index, self.base_index)


@core_mutant("C16")
class ProbesOneByOne(RaftCore):
    """Where a diverged log parts is looked for entry by entry."""

    def __init__(self, config: CoreConfig, hard_state: HardState, log: LogView, rng: random.Random) -> None:
        super().__init__(config, hard_state, log, rng)
        self.log = _OneByOne(log.first_index, log.base_term, log.term_runs, log.last_index)


@core_mutant("C17")
class NeverAcknowledgesARepeatedAppend(_NotesNews):
    """An append that brings nothing new is not answered: an acknowledgement that was lost is lost
    for ever.
    """

    def send(self, message: Message) -> None:
        if self._is_new or not isinstance(message, AppendEntriesReply) or not message.success:
            super().send(message)

    def send_when_durable(self, message: Message) -> None:
        if self._is_new or not isinstance(message, AppendEntriesReply) or not message.success:
            super().send_when_durable(message)


@core_mutant("K1, P8")
class CountsItselfBeforeFsync(RaftCore):
    """The leader counts entries that are only in its memory."""

    def own_match_index(self) -> LogIndex:
        return self.last_index


@core_mutant("B6, P14")
class AppliesWhatIsNotCommitted(RaftCore):
    """Consumers see what is on this disk, and it may be cut off again."""

    def take_output(self) -> Output | None:
        commit_index, self.commit_index = self.commit_index, max(self.commit_index, self.stable_index)
        output = super().take_output()
        self.commit_index = commit_index
        return output


@core_mutant("P14")
class AppliesWhatIsNotDurable(RaftCore):
    """What is committed is applied although it is not on this node's own disk yet."""

    def take_output(self) -> Output | None:
        output = super().take_output()
        if output is not None and self.fault is None and self.commit_index > self.applied_index:
            output.committed = (LogIndex(self.applied_index + 1), self.commit_index)
            self.applied_index = self.commit_index
        return output


class NumbersReadsFromZero(RaftCore):
    """An answer of before a restart is taken for that of a new read.

    The simulator found it once, in the 97th seed of its first version. It is too rare to be in the list, so
    `test_core_bugs` scripts it.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.read_number = 0


def _unverified(message: Buffer) -> memoryview:
    return memoryview(message)[:-SEAL_SIZE]


patch_mutant(
    "BelievesFramesThatWereChanged",
    "V2",
    "The checksum of a frame between nodes is not compared: a flipped bit of an index or a term is taken "
    "for the sender's word.",
    (life, "unsealed", _unverified),
)

patch_mutant(
    "BelievesGreetingsThatWereChanged",
    "V2",
    "The checksum of a greeting is not compared: a flipped bit of an incarnation gives a healthy folder up.",
    (membership, "unsealed", _unverified),
)
