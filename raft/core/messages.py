"""What the members of one group say to each other. Values only; the codec is in the transport.

Owns: the vocabulary. Must not: hold entry bytes. An `AppendEntries` names entries by index range; the shell puts
the bytes beside it from the log, and verifies them on the other side before the core sees the message.

Every message carries `term` (of the sender; of the *next* term in a pre-vote request and its grant), `from_` and
`to`. The shell drops messages of another group or of an older incarnation of the sender.
Raft paper: figure 2; thesis 3.10 (TimeoutNow), 6.4 (read index), 9.6 (pre-vote).
"""

from __future__ import annotations

from dataclasses import replace

from ledgermq.proto.values import value

from ..types import NO_INDEX, NO_TERM, LogIndex, NodeId, Term

TermRun = tuple[LogIndex, Term]
"""(first index, term) of a run of entries with one term; the run ends before the next one starts."""


@value
class RequestVote:
    """A candidate asks for a vote, or (pre-vote) whether it would get one."""

    term: Term
    from_: NodeId
    to: NodeId
    last_index: LogIndex
    last_term: Term
    pre_vote: bool = False  # changes nothing at the receiver (rule P3)
    transfer: bool = False  # the leader asked for this election: do not protect it


@value
class RequestVoteReply:
    """The answer. A refusal carries the voter's own term; a granted pre-vote the asked one."""

    term: Term
    from_: NodeId
    to: NodeId
    granted: bool
    pre_vote: bool = False


@value
class AppendEntries:
    """Entries lo..hi (inclusive) follow the entry (prev_index, prev_term). Empty when hi < lo.

    Invariants: lo == prev_index + 1; `term_runs` cover lo..hi exactly, the first run starts at lo.
    """

    term: Term
    from_: NodeId
    to: NodeId
    prev_index: LogIndex
    prev_term: Term
    lo: LogIndex
    hi: LogIndex
    commit_index: LogIndex
    term_runs: tuple[TermRun, ...] = ()
    # Not on the wire: how much the sender's shell may take from the log (at least one entry)
    max_bytes: int = 0
    size: int = 0  # bytes of the entries; the shell that fills the message knows it
    # Empty, `prev` is the sender's base: who does not hold it cannot be helped but by a reset
    offers_reset: bool = False

    @property
    def is_empty(self) -> bool:
        return self.hi < self.lo

    def shortened(self, hi: LogIndex, size: int) -> AppendEntries:
        """Return the message for the entries lo..hi only, which the shell took (`size` bytes) from the log."""
        runs = tuple(run for run in self.term_runs if run[0] <= hi)
        return replace(self, hi=hi, term_runs=runs, size=size)


@value
class AppendEntriesReply:
    """Success: everything up to `match_index` equals the leader's log and is durable here.

    Refusal: the entry at `reject_index` (the request's prev_index) is missing or differs; the newest entry that may
    match has index <= `hint_index` and term <= `hint_term`. A refusal with a higher term deposes the leader.
    """

    term: Term
    from_: NodeId
    to: NodeId
    success: bool
    match_index: LogIndex = NO_INDEX
    reject_index: LogIndex = NO_INDEX
    hint_index: LogIndex = NO_INDEX
    hint_term: Term = NO_TERM
    is_learner: bool = False  # its copies do not count yet
    wants_commit: bool = False  # somebody waits at the sender for the commit index to move


@value
class Heartbeat:
    """The leader lives. `commit_index` is at most what is known to match on the receiver."""

    term: Term
    from_: NodeId
    to: NodeId
    commit_index: LogIndex
    context: int = 0  # number of the read round that this heartbeat confirms leadership for
    log_time_ms: int = 0  # the shell fills it in before it sends, and reads it before `step` (D21)


@value
class HeartbeatReply:
    """Answered from memory. The indexes are for the status page only, never for commit (rule P6)."""

    term: Term
    from_: NodeId
    to: NodeId
    context: int = 0
    stable_index: LogIndex = NO_INDEX
    commit_index: LogIndex = NO_INDEX
    is_learner: bool = False
    wants_commit: bool = False


@value
class TimeoutNow:
    """The leader hands over: campaign at once, without pre-vote."""

    term: Term
    from_: NodeId
    to: NodeId


@value
class Resign:
    """The leader stops without a successor: forget it and campaign soon."""

    term: Term
    from_: NodeId
    to: NodeId


@value
class ReadIndexRequest:
    """A follower asks the leader for an index that includes everything committed before the question."""

    term: Term
    from_: NodeId
    to: NodeId
    context: int


@value
class ReadIndexReply:
    """The answer, after a quorum confirmed the leader. `index` 0: not answered, ask again."""

    term: Term
    from_: NodeId
    to: NodeId
    context: int
    index: LogIndex


Message = (
    RequestVote
    | RequestVoteReply
    | AppendEntries
    | AppendEntriesReply
    | Heartbeat
    | HeartbeatReply
    | TimeoutNow
    | Resign
    | ReadIndexRequest
    | ReadIndexReply
)
