"""Effects of applying one entry: facts for the shell to act on, and results for the callers who proposed it.

`Effects.sections` and `Effects.results` keep the order of sections and commands in the entry. Effects are the
same on every node. Every node wakes its long polls; only the node that proposed the entry answers callers.

Owns: nothing; plain values.   Must not: hold views of the payload (they end with `apply`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from ledgermq.proto.values import value

from .commands import BrokerGroupMode, LogStart
from .consumer_groups import ConsumerGroup
from .holds import Held
from .topics import Topic


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """Progress of one consumer group in one topic, summed over its queues."""

    group: str  # "": no consumer group consumes the topic, and `behind` counts all messages that it holds
    topic: str
    queues: int = 0  # number of queues with unfinished messages
    behind: int = 0  # messages from `committed` to the end of the queues, leased ones included
    leased: int = 0  # messages delivered and not acknowledged
    lost: int = 0  # messages that retention deleted before they were consumed
    parked: int = 0  # not in `behind`: they are not delivered until they are released


@value
class AppliedSection:
    """A run of records that became visible in a queue."""

    topic_id: int
    queue_id: int
    base_offset: int  # queue offset of its first record
    count: int
    gone: bool = False  # the topic was deleted before the entry was applied; nothing is visible

    @property
    def end(self) -> int:
        """One past its last queue offset."""
        return self.base_offset + self.count


@dataclass(frozen=True, slots=True)
class TopicResult:
    """Result of CreateTopic, DeleteTopic and changes of a topic."""

    topic: Topic | None  # the one that the command names; None: there is none
    changed: bool  # this command changed the state


@dataclass(frozen=True, slots=True)
class ConsumerGroupResult:
    """Result of CreateConsumerGroup, DeleteConsumerGroup and JoinConsumerGroup."""

    group: ConsumerGroup | None  # the one that the command names; None: there is none
    changed: bool  # this command changed the state


@dataclass(frozen=True, slots=True, eq=False)
class RowsResult:
    """Result of a command with rows."""

    accepted: np.ndarray  # bool per row, in the order of the command


@dataclass(frozen=True, slots=True, eq=False)
class CommitResult(RowsResult):
    """Result of CommitOffsets."""

    fenced: np.ndarray  # bool per row: not accepted because another member owns the queue


@dataclass(frozen=True, slots=True, eq=False)
class GrantedQueue:
    """Leases granted in one queue."""

    queue_id: int
    offsets: np.ndarray  # leased queue offsets, int64, in the order of `attempts`
    attempts: np.ndarray  # delivery attempt of each offset, from 1
    lost: int = 0  # messages that retention deleted before the consumer group could get them
    begin: int = 0  # first stored offset of the queue; set only if `lost`


@dataclass(frozen=True, slots=True, eq=False)
class GrantResult:
    """Result of GrantLeases: the leases that were granted."""

    lease_id: int  # index of the entry
    queues: tuple[GrantedQueue, ...]  # only queues in which at least one offset was leased


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that retention deleted before a consumer group had consumed them."""

    group_id: int
    topic_id: int
    queue_id: int
    count: int
    begin: int  # queue offset at which the consumer group continues


@dataclass(frozen=True, slots=True)
class Parked:
    """Messages that were parked: their consumer group does not get them until they are released."""

    group_id: int
    topic_id: int
    queue_id: int
    count: int  # parked by this command
    total: int  # now parked for the consumer group in the queue


@dataclass(frozen=True, slots=True)
class ModeResult:
    """Result of SetBrokerGroupMode.

    With `if_consumed` the mode may differ from the one in the command: the broker group is active, or
    consumer groups still need stored messages (`left`).
    """

    mode: BrokerGroupMode  # after the command
    since: int  # log time (ms) of the last change; 0 while active
    changed: bool  # this command changed the mode
    left: tuple[TopicProgress, ...] = ()  # unconsumed topics that prevented the change


PartKey = tuple[int, int]  # writer, topic id
Span = tuple[int, int, int]  # queue id, first queue offset, one past the last


class BatchState(Enum):
    """Outcome of BeginBatch and FinishBatch."""

    BEGUN = "begun"  # the attempt is the current one
    FINISHED = "finished"  # the part is complete
    OLDER = "older"  # a newer batch, or a newer attempt, has begun
    UNKNOWN = "unknown"  # the job is not known, or no longer
    SILENT = "silent"  # the job has not changed for too long; other broker groups may have forgotten it
    BUSY = "busy"  # another attempt began in the same entry; the command can be repeated
    TAKEN = "taken"  # the writer belongs to another job


@value
class BatchResult:
    """Result of BeginBatch and FinishBatch."""

    state: BatchState
    batch: int = 0  # newest batch of the job
    epoch: int = 0  # of the current attempt; 0: none
    count: int = 0  # messages of the part that are stored
    spans: tuple[Span, ...] = ()  # where they are, among others


@dataclass(frozen=True, slots=True)
class HoldResult:
    """Result of SetHold and ReleaseHold."""

    topic_exists: bool
    held: Held | None  # the hold; None: there is none, or the topic has no room for one more


@dataclass(frozen=True, slots=True)
class HoldLoss:
    """Messages that were deleted although a hold waited for them."""

    topic_id: int
    name: str
    queue_id: int
    count: int
    is_first: bool  # since its holder advanced


CommandResult = (
    TopicResult
    | ConsumerGroupResult
    | RowsResult
    | GrantResult
    | ModeResult
    | BatchResult
    | HoldResult
    | None
)


@dataclass(slots=True)
class Effects:
    """Effects of one entry."""

    index: int
    term: int
    timestamp: int  # log time, ms
    sections: list[AppliedSection] = field(default_factory=list)  # one per section of records, in order
    results: list[CommandResult] = field(default_factory=list)  # one per command, in order
    topics_changed: bool = False  # the route changed: register and push it
    deleted_topics: list[Topic] = field(default_factory=list)  # their queue files can be deleted
    # (consumer group id, topic id) in which messages became deliverable again: wake the polls
    released: set[tuple[int, int]] = field(default_factory=set)
    log_start: LogStart | None = None  # segments below it can be deleted
    trimmed: list[tuple[int, int]] = field(default_factory=list)  # (topic id, queue id) with a new begin
    losses: list[Loss] = field(default_factory=list)
    hold_losses: list[HoldLoss] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    # ids of consumer groups whose members, owners or epochs changed
    members_changed: set[int] = field(default_factory=set)

    @property
    def is_plain(self) -> bool:
        """Tell whether the entry only stored or delivered messages, which concerns polls and callers only."""
        return not (
            self.topics_changed
            or self.deleted_topics
            or self.log_start
            or self.trimmed
            or self.losses
            or self.hold_losses
            or self.parked
            or self.members_changed
        )
