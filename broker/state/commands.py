"""State commands: the proposals of the leader other than records, as explicit facts (D12, D14).

Rows are numpy arrays throughout: a command for a thousand acknowledgements has no Python object per row.
state/codecs.py encodes commands for the log.
Owns: the commands and their meaning.   Must not: know the state, or judge a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final

import numpy as np

#: Rows of CommitOffsets, SetPositions (queues of one topic), LogStart and TrimQueues.
POSITION_DTYPE: Final = np.dtype([("topic_id", "<u4"), ("queue_id", "<u4"), ("offset", "<i8")])
#: Rows of Ack and ReleaseLeases: each names a lease.
LEASE_ROW_DTYPE: Final = np.dtype([("queue_id", "<u4"), ("offset", "<i8"), ("lease_id", "<u8")])
#: Rows of ChangeInvisible; `invisible_ms` counts from the entry's log time.
CHANGE_DTYPE: Final = np.dtype(
    [("queue_id", "<u4"), ("offset", "<i8"), ("lease_id", "<u8"), ("invisible_ms", "<i8")]
)
#: Rows of AssignQueues. `epoch`: the queue's epoch before the command. `place`: index of the new owner in
#: `members`, or NO_OWNER.
ASSIGNMENT_DTYPE: Final = np.dtype(
    [("topic_id", "<u4"), ("queue_id", "<u4"), ("epoch", "<u8"), ("place", "<u4")]
)
#: Rows of ParkMessages. `attempts`: number of attempts that the consumer reports; 0: use the count of the
#: state.
PARK_DTYPE: Final = np.dtype(
    [("queue_id", "<u4"), ("offset", "<i8"), ("lease_id", "<u8"), ("attempts", "<u4")]
)
#: Rows of SetHold.
HOLD_DTYPE: Final = np.dtype([("queue_id", "<u4"), ("offset", "<i8")])
#: Minimum feature level (features.py) of ParkMessages and ReleaseParked.
PARKED_MESSAGES: Final = 3
#: Minimum feature level of SetTopicKeepUnread, and of CreateTopic with `keep_unread`.
KEEP_UNREAD: Final = 4
#: Minimum feature level of BeginBatch, FinishBatch and ForgetBatches.
BATCH_WRITES: Final = 5
#: Minimum feature level of SetHold and ReleaseHold.
HOLDS: Final = 6
#: `place` in AssignQueues: the queue gets no owner.
NO_OWNER: Final = 0xFFFFFFFF
_EARLIEST: Final = -2
_LATEST: Final = -1
_TIME_DIGITS_MAX: Final = 18  # of a time in ms, so that it fits into 64 bits


class MessageType(IntEnum):
    """Type of the messages of a topic. Numbers of TopicMessageType in proto/route.proto."""

    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    MIXED = 5


#: Topics of these types are refused: their messages are not supported.
NOT_BUILT: Final = frozenset({MessageType.DELAY, MessageType.TRANSACTION})


class BrokerGroupMode(IntEnum):
    """Mode of this broker group. Numbers of BrokerGroupMode in proto/route.proto."""

    ACTIVE = 0
    DRAINING = 1  # refuses new messages; everything else continues
    REMOVED = 2  # left the cluster


class ParkReason(IntEnum):
    """Reason for parking a message."""

    ATTEMPTS = 1  # it reached the consumer group's maximum of attempts without an acknowledgement
    FORWARDED = 2  # a consumer sent ForwardMessageToDeadLetterQueue


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Start of a new consumer group in a queue: `earliest`, `latest`, or the first message since a time."""

    value: int = _EARLIEST  # -2: earliest, -1: latest, otherwise log time in ms

    @classmethod
    def parse(cls, text: str) -> StartPosition:
        """Read "earliest", "latest", a time in ms, or "" (earliest). Raises: ValueError."""
        word = text.strip().lower()
        if word in ("", "earliest"):
            return EARLIEST
        if word == "latest":
            return LATEST
        if not word.isdecimal() or len(word) > _TIME_DIGITS_MAX:
            raise ValueError(
                f'"{text}" is not a start position; use earliest, latest or a time in ms since 1970'
            )
        return cls(int(word))

    @property
    def timestamp_ms(self) -> int | None:
        """Log time in ms; None for `earliest` and `latest`."""
        return self.value if self.value >= 0 else None

    def __str__(self) -> str:
        return {_EARLIEST: "earliest", _LATEST: "latest"}.get(self.value, str(self.value))


EARLIEST: Final = StartPosition(_EARLIEST)
LATEST: Final = StartPosition(_LATEST)


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic. Does nothing if the name is taken.

    Result: TopicResult (`topic`: the one of that name; `changed` False: the name was taken).
    """

    name: str
    queue_count: int
    message_type: MessageType = MessageType.NORMAL
    retention_ms: int = 0  # messages are visible for so much log time; 0: as long as the log holds them
    keep_unread: bool = False  # retention deletes no message that a consumer group has yet to read


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic, its queues and all positions in it. Result: TopicResult (`topic` None: no such id)."""

    topic_id: int


@dataclass(frozen=True, slots=True)
class CreateConsumerGroup:
    """Create a consumer group. Does nothing if the name is taken. Result: ConsumerGroupResult."""

    name: str
    start: StartPosition = EARLIEST
    max_attempts: int = 17  # deliveries of a message before it is parked
    fifo: bool = False  # deliver the messages of a queue in order


@dataclass(frozen=True, slots=True)
class DeleteConsumerGroup:
    """Delete a consumer group, with its positions, leases and members. Result: ConsumerGroupResult."""

    group_id: int


@dataclass(frozen=True, slots=True, eq=False)
class CommitOffsets:
    """Commit offsets of a consumer group.

    Result: CommitResult (False: the consumer group, topic or queue does not exist, or another member owns the
    queue; the latter is `fenced`).
    A reset without an epoch is allowed for every client: an owner of the queue keeps it under a new epoch.
    """

    group_id: int
    rows: np.ndarray  # POSITION_DTYPE
    reset: bool = False  # False: offsets never move back. True: they may, and all leases of the queue end
    epochs: np.ndarray | None = None  # u64 per row: epoch of the owner that consumed it; 0 or None: no owner


@dataclass(frozen=True, slots=True, eq=False)
class SetPositions:
    """Set the start of a consumer group in queues in which it has no position. Others keep theirs.

    Result: RowsResult (False: the queue does not exist).
    """

    group_id: int
    rows: np.ndarray  # POSITION_DTYPE


@dataclass(frozen=True, slots=True, eq=False)
class QueueGrant:
    """Part of a grant that concerns one queue.

    `offsets` >= `start` are new ones in [start, end); the rest of that range is skipped (filtered out,
    deleted). `offsets` < `start` have an expired lease and are leased again.
    """

    queue_id: int
    start: int  # position of the consumer group in the queue when the leader selected the offsets
    end: int  # its position after the grant
    offsets: np.ndarray  # int64, sorted


@dataclass(frozen=True, slots=True, eq=False)
class GrantLeases:
    """Lease queue offsets to a consumer. The lease id is the index of the entry.

    Result: GrantResult. It may hold fewer offsets than the command, for example after an acknowledgement that
    was applied first.
    """

    group_id: int
    topic_id: int
    invisible_ms: int  # without a session: the leases end so long after the log time of the entry
    queues: tuple[QueueGrant, ...]
    session: int = 0  # not 0: the leases end when that session is lost


@dataclass(frozen=True, slots=True, eq=False)
class Ack:
    """Acknowledge leases. Result: RowsResult (False: the handle has expired or is not the current one)."""

    group_id: int
    topic_id: int
    rows: np.ndarray  # LEASE_ROW_DTYPE
    force: bool = False  # accept expired leases, too: the leader moved the message


@dataclass(frozen=True, slots=True, eq=False)
class ChangeInvisible:
    """Move the deadline of leases. The entry's index is their new id, which invalidates older handles.

    Result: RowsResult (False: not an open, unexpired lease with that id).
    """

    group_id: int
    topic_id: int
    rows: np.ndarray  # CHANGE_DTYPE


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseLeases:
    """End leases whose messages were never sent, because the caller had gone.

    The messages are visible at once, and the attempt does not count.
    Result: RowsResult (False: not an open lease with that id).
    """

    group_id: int
    topic_id: int
    rows: np.ndarray  # LEASE_ROW_DTYPE


@dataclass(frozen=True, slots=True, eq=False)
class ParkMessages:
    """Take leased messages out of delivery until they are released. They are not deleted.

    Result: RowsResult (False: not the current lease, acknowledged, or PARKED_MAX are parked in the queue).
    """

    group_id: int
    topic_id: int
    rows: np.ndarray  # PARK_DTYPE
    reason: ParkReason


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseParked:
    """Make parked messages deliverable again and reset their attempts.

    Result: RowsResult (False: not parked).
    """

    group_id: int
    rows: np.ndarray  # POSITION_DTYPE


@dataclass(frozen=True, slots=True)
class SessionLost:
    """End the leases of a client session `grace_ms` after the log time of the entry. Result: None."""

    session: int
    grace_ms: int = 0


@dataclass(frozen=True, slots=True)
class EvictDedup:
    """Drop old items of the deduplication windows. Result: None."""

    ids_before: int  # log time (ms); generations of message ids whose last id is older are dropped
    streams_before: int  # log time (ms); producer streams whose last batch is older are dropped


@dataclass(frozen=True, slots=True, eq=False)
class LogStart:
    """Move the start of the log and the begin of its queues (retention). Neither moves back. Result: None."""

    index: int  # of the first entry that stays
    physical_offset: int  # of that entry
    rows: np.ndarray  # POSITION_DTYPE: new begin of each queue


@dataclass(frozen=True, slots=True)
class SetTopicRetention:
    """Set the retention time of a topic, in log time (see CreateTopic). Result: TopicResult."""

    topic_id: int
    retention_ms: int


@dataclass(frozen=True, slots=True)
class SetTopicKeepUnread:
    """Set whether retention spares unread messages of a topic (see CreateTopic). Result: TopicResult."""

    topic_id: int
    keep_unread: bool


@dataclass(frozen=True, slots=True, eq=False)
class TrimQueues:
    """Move the begin of queues (retention of topics). It never moves back. Result: None.

    No segment of the log is deleted.
    """

    rows: np.ndarray  # POSITION_DTYPE: new begin of each queue


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """Raise the feature level of the broker group (D23). Result: None."""

    level: int


@dataclass(frozen=True, slots=True)
class SetBrokerGroupMode:
    """Drain, reactivate or remove this broker group. Result: ModeResult."""

    mode: BrokerGroupMode
    #: Change the mode only if the broker group is not active and no consumer group misses a stored message
    #: (backlog.py).
    if_consumed: bool = False
    #: Further pairs (consumer group, topic) to count: they consume the topic in other broker groups.
    consumers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class JoinConsumerGroup:
    """Add a member to a queue-exclusive consumer group, or update its settings.

    A known member keeps its queues. Result: ConsumerGroupResult (`changed`: the member is new or its settings
    differ).
    """

    group_id: int
    member: str
    topics: tuple[str, ...]  # names of topics, existing or not
    allocation: str = ""  # name of the allocation strategy; the oldest member's decides
    zone: str = ""  # for the allocation by zone
    filter: str = ""
    session_timeout_ms: int = 0  # the member is removed after so long without a sign of life
    release_ms: int = 0  # time that it has to give up a revoked queue


@dataclass(frozen=True, slots=True)
class LeaveConsumerGroup:
    """Remove members. Their queues lose their owner, and their epochs end.

    Result: RowsResult (False: not a member).
    """

    group_id: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AssignQueues:
    """Assign queues to members, or to no member. The new epoch of each queue is the index of the entry.

    Result: RowsResult (False: the queue's epoch is not the one in the row, or the queue or the member is
    gone).
    """

    group_id: int
    members: tuple[str, ...]
    rows: np.ndarray  # ASSIGNMENT_DTYPE; `place` is an index into `members`


@dataclass(frozen=True, slots=True)
class BeginBatch:
    """Begin an attempt at a part of a job's batch; it ends the attempt before. Result: BatchResult."""

    job: bytes  # 16 bytes
    writer: int  # u64, not 0: stands for the job and one of its partitions
    topic_id: int
    batch: int
    unknown_too: bool = False  # although the job is unknown and the batch not 0, or the job was silent


@dataclass(frozen=True, slots=True)
class FinishBatch:
    """Declare a part of a batch complete: a later attempt finds nothing to do.

    Result: BatchResult (FINISHED, or OLDER: another attempt has begun, or the count is not what is stored).
    """

    writer: int
    topic_id: int
    epoch: int  # of the attempt
    count: int  # messages that it knows to be stored


@dataclass(frozen=True, slots=True)
class ForgetBatches:
    """Drop jobs that have not changed since a time. Result: None."""

    before: int  # log time (ms)


@dataclass(frozen=True, slots=True, eq=False)
class SetHold:
    """Let retention wait for messages of a topic until their holder advances (D41). Result: HoldResult.

    Offsets never move back. To name one again tells that the holder lives. One below the begin of its queue
    becomes that, and what is missing is counted. Queues that do not exist are passed over.
    """

    topic_id: int
    name: str
    rows: np.ndarray  # HOLD_DTYPE: first offset of each queue that is needed


@dataclass(frozen=True, slots=True)
class ReleaseHold:
    """Remove a hold. Result: HoldResult (`held`: empty; None: there was none)."""

    topic_id: int
    name: str


Command = (
    CreateTopic | DeleteTopic | SetTopicRetention | SetTopicKeepUnread | CreateConsumerGroup
    | DeleteConsumerGroup | CommitOffsets | SetPositions | GrantLeases | Ack | ChangeInvisible
    | ReleaseLeases | ParkMessages | ReleaseParked | SessionLost | EvictDedup | LogStart | TrimQueues
    | FeatureLevel | SetBrokerGroupMode | JoinConsumerGroup | LeaveConsumerGroup | AssignQueues
    | BeginBatch | FinishBatch | ForgetBatches | SetHold | ReleaseHold
)  # fmt: skip


def _rows(dtype: np.dtype, rows: Sequence[tuple[int, ...]]) -> np.ndarray:
    return np.array(list(rows), dtype)


position_rows: Final = partial(_rows, POSITION_DTYPE)  # (topic id, queue id, offset)
lease_rows: Final = partial(_rows, LEASE_ROW_DTYPE)  # (queue id, offset, lease id)
change_rows: Final = partial(_rows, CHANGE_DTYPE)  # (queue id, offset, lease id, invisible ms)
hold_rows: Final = partial(_rows, HOLD_DTYPE)  # (queue id, offset)
park_rows: Final = partial(_rows, PARK_DTYPE)  # (queue id, offset, lease id, attempts)
assignment_rows: Final = partial(
    _rows, ASSIGNMENT_DTYPE
)  # (topic id, queue id, epoch so far, place of the member)
