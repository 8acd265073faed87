"""State commands: what the leader proposes besides records, as explicit facts (D12, D14).

Rows are numpy all the way: a command for a thousand acknowledgements has no Python object per row. How commands stand
in the log: state/codecs.py.
Owns: the commands and what each means.   Must not: know the state, or judge a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

#: Rows of CommitOffsets, SetPositions (queues of one topic), LogStart and TrimQueues.
POSITION_DTYPE: Final = np.dtype([("topic_id", "<u4"), ("queue_id", "<u4"), ("offset", "<i8")])
#: Rows that name leases: Ack, ReleaseLeases.
LEASE_ROW_DTYPE: Final = np.dtype([("queue_id", "<u4"), ("offset", "<i8"), ("lease_id", "<u8")])
#: Rows of ChangeInvisible; `invisible_ms` counts from the entry's log time.
CHANGE_DTYPE: Final = np.dtype(
    [("queue_id", "<u4"), ("offset", "<i8"), ("lease_id", "<u8"), ("invisible_ms", "<i8")]
)
#: Rows of AssignQueues: `epoch` is the one that the queue has so far, `place` that of the member, or NOBODY.
ASSIGNMENT_DTYPE: Final = np.dtype(
    [("topic_id", "<u4"), ("queue_id", "<u4"), ("epoch", "<u8"), ("place", "<u4")]
)
#: Rows of ParkMessages; `attempts`: how often a consumer says it tried, 0: what the state counted.
PARK_DTYPE: Final = np.dtype(
    [("queue_id", "<u4"), ("offset", "<i8"), ("lease_id", "<u8"), ("attempts", "<u4")]
)
#: Feature level (features.py) from which on messages are parked: ParkMessages, ReleaseParked.
PARKED_MESSAGES: Final = 3
#: Feature level from which on topics keep what is unread: SetTopicKeepUnread, CreateTopic with `keep_unread`.
KEEP_UNREAD: Final = 4
#: Place of an owner in AssignQueues when the queue goes to no one.
NOBODY: Final = 0xFFFFFFFF
_EARLIEST: Final = -2
_LATEST: Final = -1
_TIME_DIGITS_MAX: Final = 18  # of a time in ms; it must fit 64 bits


class MessageType(IntEnum):
    """Kind of message a topic takes; numbers of TopicMessageType in proto/route.proto."""

    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    MIXED = 5


#: Topics of these types are refused: no message that belongs into one would be taken.
NOT_BUILT: Final = frozenset({MessageType.DELAY, MessageType.TRANSACTION})


class BrokerGroupMode(IntEnum):
    """What this broker group does; numbers of BrokerGroupMode in proto/route.proto."""

    ACTIVE = 0
    DRAINING = 1  # takes no new messages; everything else goes on
    REMOVED = 2  # left the cluster


class ParkReason(IntEnum):
    """Why a message is not delivered any more."""

    ATTEMPTS = 1  # it came as often as its group allows, and was not acknowledged
    FORWARDED = 2  # a consumer gave it up (ForwardMessageToDeadLetterQueue)


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a new consumer group begins in a queue: `earliest`, `latest`, or the first message stored at a time."""

    value: int = _EARLIEST  # -2 earliest, -1 latest, else ms of log time

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
        """The time, when it is one."""
        return self.value if self.value >= 0 else None

    def __str__(self) -> str:
        return {_EARLIEST: "earliest", _LATEST: "latest"}.get(self.value, str(self.value))


EARLIEST: Final = StartPosition(_EARLIEST)
LATEST: Final = StartPosition(_LATEST)


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Result: TopicResult (the topic's id; `created` False when the name is taken, nothing changes then).

    `retention_ms`: how long its messages are shown, in log time; 0: as long as the log holds them. `keep_unread`: retention
    deletes none that a consumer group has still to read.
    """

    name: str
    queue_count: int
    message_type: MessageType = MessageType.NORMAL
    retention_ms: int = 0
    keep_unread: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Result: TopicResult (`topic` None when there was none of that id)."""

    topic_id: int


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Result: GroupResult, as for topics."""

    name: str
    start: StartPosition = EARLIEST
    max_attempts: int = 17
    fifo: bool = False


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Result: GroupResult."""

    group_id: int


@dataclass(frozen=True, slots=True, eq=False)
class CommitOffsets:
    """Offsets of a pulling group. Without `reset` they never go back; with it all leases of the queue end.

    `rows`: POSITION_DTYPE. `epochs` (u64): for each row the ownership under which it was consumed; 0 or None: none.
    Result: CommitResult (False: no such group, topic or queue; or another owner has the queue, which is `fenced`).
    A reset without an epoch is anyone's: an owner that the queue has keeps it under a new epoch.
    """

    group_id: int
    rows: np.ndarray
    reset: bool = False
    epochs: np.ndarray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SetPositions:
    """The resolved start of a group in queues it has not consumed from; queues that have a position keep it.

    `rows`: POSITION_DTYPE. Result: RowsResult.
    """

    group_id: int
    rows: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class QueueGrant:
    """The part of a grant that is in one queue.

    `offsets` >= `start` are new ones in [start, end); the rest of that range is skipped (filtered out, deleted).
    `offsets` < `start` are leased ones that have expired. Sorted, int64.
    """

    queue_id: int
    start: int  # position of the group in the queue that the leader selected from
    end: int  # its position after the grant
    offsets: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class GrantLeases:
    """Lease queue offsets to a consumer. The lease id is the index of the entry.

    Ends `invisible_ms` after the entry's log time, or, with a `session` (not 0), when that session is lost.
    Result: GrantResult: what was really granted, which may be less (an acknowledgement came first).
    """

    group_id: int
    topic_id: int
    invisible_ms: int
    queues: tuple[QueueGrant, ...]
    session: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ack:
    """Acknowledge leases. `rows`: LEASE_ROW_DTYPE. With `force`, expired leases too (the leader moved the message).

    Result: RowsResult (False: the handle is expired or no longer the current one).
    """

    group_id: int
    topic_id: int
    rows: np.ndarray
    force: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ChangeInvisible:
    """Move the end of leases; each gets the entry's index as its new id, so older handles end.

    `rows`: CHANGE_DTYPE. Result: RowsResult.
    """

    group_id: int
    topic_id: int
    rows: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseLeases:
    """End leases whose messages never left (the caller was gone): visible at once, the attempt is not counted.

    `rows`: LEASE_ROW_DTYPE. Result: RowsResult.
    """

    group_id: int
    topic_id: int
    rows: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class ParkMessages:
    """Take leased messages out of delivery until they are released; none is deleted. `rows`: PARK_DTYPE.

    Result: RowsResult (False: not the current lease, acknowledged, or PARKED_MAX are parked in the queue).
    """

    group_id: int
    topic_id: int
    rows: np.ndarray
    reason: ParkReason


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseParked:
    """Deliver parked messages again, with all attempts. `rows`: POSITION_DTYPE. Result: RowsResult (False: not parked)."""

    group_id: int
    rows: np.ndarray


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The leases of a client session end `grace_ms` after the entry's log time. Result: None."""

    session: int
    grace_ms: int = 0


@dataclass(frozen=True, slots=True)
class EvictDedup:
    """Forget message ids last stored before `ids_before`, and streams silent since `streams_before` (log time, ms)."""

    ids_before: int
    streams_before: int


@dataclass(frozen=True, slots=True, eq=False)
class LogStart:
    """Retention: the log begins at `index`; each queue at the offset in `rows` (POSITION_DTYPE). Never goes back."""

    index: int
    physical_offset: int
    rows: np.ndarray


@dataclass(frozen=True, slots=True)
class SetTopicRetention:
    """Messages of a topic are shown for `retention_ms` of log time (see CreateTopic). Result: TopicResult."""

    topic_id: int
    retention_ms: int


@dataclass(frozen=True, slots=True)
class SetTopicKeepUnread:
    """Whether retention leaves unread messages of a topic (see CreateTopic). Result: TopicResult."""

    topic_id: int
    keep_unread: bool


@dataclass(frozen=True, slots=True, eq=False)
class TrimQueues:
    """Retention of topics: each queue begins at the offset in `rows` (POSITION_DTYPE). Never goes back; no segment goes."""

    rows: np.ndarray


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """Raise the group's feature level (D23)."""

    level: int


@dataclass(frozen=True, slots=True)
class SetBrokerGroupMode:
    """Drain this broker group, take it back, or remove it. Result: ModeResult.

    `if_consumed`: only when it takes no messages at that moment, and no consumer group misses one that it holds (backlog.py).
    `consumers`: (consumer group, topic) that count besides those that came here: they consume the topic in other broker groups.
    """

    mode: BrokerGroupMode
    if_consumed: bool = False
    consumers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """A member of a queue-exclusive group comes, or comes again, perhaps with another subscription; it keeps its queues.

    `topics`: names, whether they exist or not. Result: GroupResult (`changed`: it is new or subscribes otherwise).
    """

    group_id: int
    member: str
    topics: tuple[str, ...]
    allocation: str = ""
    zone: str = ""
    filter: str = ""
    session_timeout_ms: int = 0
    release_ms: int = 0


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Members are gone: their queues have no owner, and their epochs end.

    Result: RowsResult (False: it was no member).
    """

    group_id: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AssignQueues:
    """Give queues to members, or to nobody; the new epoch of each is the index of the entry.

    `rows`: ASSIGNMENT_DTYPE; `place` counts in `members`. Result: RowsResult (False: the queue has another epoch than the
    leader knew, or the queue or the member is gone).
    """

    group_id: int
    members: tuple[str, ...]
    rows: np.ndarray


Command = (
    CreateTopic
    | DeleteTopic
    | CreateGroup
    | DeleteGroup
    | CommitOffsets
    | SetPositions
    | GrantLeases
    | Ack
    | ChangeInvisible
    | ReleaseLeases
    | SessionLost
    | EvictDedup
    | LogStart
    | FeatureLevel
    | SetTopicRetention
    | SetTopicKeepUnread
    | TrimQueues
    | JoinGroup
    | LeaveGroup
    | AssignQueues
    | SetBrokerGroupMode
    | ParkMessages
    | ReleaseParked
)


def position_rows(rows: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Return POSITION_DTYPE rows of (topic id, queue id, offset)."""
    return np.array(list(rows), POSITION_DTYPE)


def lease_rows(rows: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Return LEASE_ROW_DTYPE rows of (queue id, offset, lease id)."""
    return np.array(list(rows), LEASE_ROW_DTYPE)


def change_rows(rows: Sequence[tuple[int, int, int, int]]) -> np.ndarray:
    """Return CHANGE_DTYPE rows of (queue id, offset, lease id, invisible ms)."""
    return np.array(list(rows), CHANGE_DTYPE)


def park_rows(rows: Sequence[tuple[int, int, int, int]]) -> np.ndarray:
    """Return PARK_DTYPE rows of (queue id, offset, lease id, attempts)."""
    return np.array(list(rows), PARK_DTYPE)


def assignment_rows(rows: Sequence[tuple[int, int, int, int]]) -> np.ndarray:
    """Return ASSIGNMENT_DTYPE rows of (topic id, queue id, epoch so far, place of the member)."""
    return np.array(list(rows), ASSIGNMENT_DTYPE)
