"""Decisions of a RaftCore for its shell, and its answers to local calls. Values only.

Owns: the vocabulary of outputs. Must not: decide, or hold entry bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ledgermq.proto.values import value

from ..types import HardState, LogIndex, NodeId, Term
from .messages import Message

IndexRange = tuple[LogIndex, LogIndex]
"""(lo, hi), both inclusive."""


class Role(Enum):
    """Role of a node in its current term. A learner is a follower with `is_voter` False."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESETTING = "resetting"  # silent until the shell has installed the leader's state and started a new core
    FAULTED = "faulted"  # silent for ever: its storage failed, or it was asked to break an invariant


@value
class Persist:
    """One storage operation: hard state, then truncation, then append; in this order, and in order of `seq`.

    Report `storage_done(seq)` when it and every earlier one are on stable storage.
    """

    seq: int  # from 1, without gaps
    hard_state: HardState | None = None  # replaces the one on disk
    truncate_from: LogIndex | None = None  # cut off the entries >= this; always above the commit index
    # Leader: the entries just proposed, or the no-op. Follower: entries of the last AppendEntries
    append: IndexRange | None = None


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """The lead begins. The shell must build the no-op: `persist.append` of this output covers it."""

    term: Term
    noop_index: LogIndex


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """The lead of `term` ended. Proposals above the commit index have an unknown fate."""

    term: Term


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """Another leader is known, or none, or the term moved."""

    leader_id: NodeId | None
    term: Term


@dataclass(frozen=True, slots=True)
class TransferAborted:
    """The hand-over took too long. This node leads on and takes proposals again."""

    to: NodeId


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A learner holds all that was committed when it came back: the shell may call `promote_to_voter`."""

    index: LogIndex


@dataclass(frozen=True, slots=True)
class FollowerBehind:
    """A follower needs entries below the first retained index: only a reset can help it."""

    node_id: NodeId
    next_index: LogIndex


@dataclass(frozen=True, slots=True)
class ResetOffered:
    """The leader of `term` no longer has the entries that this follower needs.

    Next: fetch the leader's state, then call `begin_reset`. The event comes with every offer, a few times a
    second, until the follower holds the base.
    """

    leader_id: NodeId
    term: Term
    base_index: LogIndex  # the entry before the leader's first one; committed


@dataclass(frozen=True, slots=True)
class FollowerLostEntries:
    """A voter lacks entries that it acknowledged: its disk lost them after it had reported them durable."""

    node_id: NodeId
    acknowledged_index: LogIndex
    last_index: LogIndex  # its newest entry that may agree with the leader's log


@dataclass(frozen=True, slots=True)
class Faulted:
    """The core is silent for ever; the process must stop with `reason`."""

    reason: str


Event = (
    BecameLeader
    | SteppedDown
    | LeaderChanged
    | TransferAborted
    | CaughtUp
    | FollowerBehind
    | ResetOffered
    | FollowerLostEntries
    | Faulted
)


@value
class ReadReady:
    """A read may be served once `index` is applied."""

    context: object  # as the caller of `read_index` gave it
    index: LogIndex


@dataclass(slots=True)
class Output:
    """Decisions of one turn. The order inside is free, but `persist` is queued before those of later outputs.

    There is no list of held messages: the core itself keeps every message that needs the disk until
    `storage_done` and drops it when the term has moved (rules P2, P4, P5, P9). All of `send` may go at once.
    """

    persist: Persist | None = None  # at most one; a turn with several operations has several outputs
    send: list[Message] = field(default_factory=list)  # none of them promises more than is durable
    commit_index: LogIndex | None = None  # it moved to this: acknowledge own proposals up to here
    committed: IndexRange | None = None  # apply these: committed, and durable here (rule P14)
    events: list[Event] = field(default_factory=list)  # in the order in which they happened
    reads: list[ReadReady] = field(default_factory=list)  # each context of `read_index` comes back once,
    reads_aborted: list[object] = field(default_factory=list)  # here or there; these must be asked again
    aborted: list[IndexRange] = field(default_factory=list)  # own proposals whose fate is now unknown


@value
class Accepted:
    """Taken: the proposal has `first_index` and the indexes after it, in `term`. It is not committed yet."""

    first_index: LogIndex
    term: Term


@dataclass(frozen=True, slots=True)
class NotLeader:
    """Refused, nothing happened."""

    leader_hint: NodeId | None  # the leader that this node follows; None: it knows none


@dataclass(frozen=True, slots=True)
class Busy:
    """Refused: too many bytes wait for commit. Nothing happened."""

    uncommitted_bytes: int


@dataclass(frozen=True, slots=True)
class Transferring:
    """Refused: the lead is being handed over. Nothing happened."""

    to: NodeId
