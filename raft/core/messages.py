"""Messages between the nodes of one broker group. Values only; the codec is in the transport.

Owns: the vocabulary. Must not: hold entry bytes. An `AppendEntries` names entries by index range; the shell
puts the bytes beside it from the log, and verifies them on the other side before the core sees the message.

Every message carries `term` (of the sender; of the *next* term in a pre-vote request and its grant), `from_`
and `to`. The shell drops messages of another broker group or of an older incarnation of the sender.
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
    """Request of a candidate for a vote, or (pre-vote) its question whether it would get one."""

    term: Term
    from_: NodeId
    to: NodeId
    last_index: LogIndex  # of the candidate's newest entry: the voter compares its own log with it
    last_term: Term  # of that entry
    pre_vote: bool = False  # changes nothing at the receiver (rule P3)
    transfer: bool = False  # the leader asked for this election: do not protect the leader from it


@value
class RequestVoteReply:
    """Answer to RequestVote. A refusal carries the voter's own term, a granted pre-vote the asked one."""

    term: Term
    from_: NodeId
    to: NodeId
    granted: bool
    pre_vote: bool = False  # answers a pre-vote; a grant promises nothing then


@value
class AppendEntries:
    """Entries lo..hi (inclusive) follow the entry (prev_index, prev_term). Empty when hi < lo.

    Invariants: lo == prev_index + 1; `term_runs` cover lo..hi exactly, the first run starts at lo.
    """

    term: Term
    from_: NodeId
    to: NodeId
    prev_index: LogIndex  # the entry before the first one here; the receiver must hold it to take the others
    prev_term: Term
    lo: LogIndex
    hi: LogIndex
    commit_index: LogIndex  # of the sender; may be above hi: the receiver commits min(commit_index, hi)
    term_runs: tuple[TermRun, ...] = ()
    # Not on the wire: how many bytes the sender's shell may take from the log (at least one entry)
    max_bytes: int = 0
    size: int = 0  # bytes of the entries; the shell that fills the message knows it
    # Implies an empty message whose `prev` is the sender's base: only a reset helps a receiver without it
    offers_reset: bool = False

    @property
    def is_empty(self) -> bool:
        return self.hi < self.lo

    def shortened(self, hi: LogIndex, size: int) -> AppendEntries:
        """Return the message with only the entries lo..hi (`size` bytes), which the shell read."""
        runs = tuple(run for run in self.term_runs if run[0] <= hi)
        return replace(self, hi=hi, term_runs=runs, size=size)


@value
class AppendEntriesReply:
    """Answer to AppendEntries.

    Success: everything up to `match_index` equals the leader's log and is durable here.
    Refusal: the entry at `reject_index` (the request's prev_index) is missing or differs; the newest entry
    that may match has index <= `hint_index` and term <= `hint_term`. A refusal with a higher term deposes the
    leader.
    """

    term: Term
    from_: NodeId
    to: NodeId
    success: bool
    match_index: LogIndex = NO_INDEX
    reject_index: LogIndex = NO_INDEX
    hint_index: LogIndex = NO_INDEX
    hint_term: Term = NO_TERM
    is_learner: bool = False  # the sender's copies do not count yet
    wants_commit: bool = False  # a caller waits at the sender for the commit index to move


@value
class Heartbeat:
    """Sign of life of the leader. `commit_index` is at most the index known to match on the receiver."""

    term: Term
    from_: NodeId
    to: NodeId
    commit_index: LogIndex
    context: int = 0  # number of the read round that this heartbeat confirms leadership for
    log_time_ms: int = 0  # the shell fills it in before it sends, and reads it before `step` (D21)


@value
class HeartbeatReply:
    """Answer to a heartbeat, from memory. The indexes are for the status page, never for commit (rule P6)."""

    term: Term
    from_: NodeId
    to: NodeId
    context: int = 0  # that of the heartbeat: confirms the lead for this read round
    stable_index: LogIndex = NO_INDEX  # durable at the sender up to here
    commit_index: LogIndex = NO_INDEX  # as the sender knows it
    is_learner: bool = False  # confirms no lead
    wants_commit: bool = False  # see AppendEntriesReply


@value
class TimeoutNow:
    """Hand-over of the lead: campaign at once, without pre-vote."""

    term: Term
    from_: NodeId
    to: NodeId


@value
class Resign:
    """Resignation of a leader without a successor: forget it and campaign soon."""

    term: Term
    from_: NodeId
    to: NodeId


@value
class ReadIndexRequest:
    """Question of a follower for an index that covers everything committed before the question."""

    term: Term
    from_: NodeId
    to: NodeId
    context: int  # the follower's number of the question


@value
class ReadIndexReply:
    """Answer to ReadIndexRequest, after a quorum confirmed the leader. `index` 0: no answer, ask again."""

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
