"""State commands: what the leader proposes besides records, as explicit facts (D12, D14, D23).

A command stands in a COMMANDS section (proto/record.py) as type, version, payload; little-endian. Payloads are a fixed
struct, then texts (u16 length + UTF-8), then rows as packed numpy columns. Rows are numpy all the way: a command for
a thousand acknowledgements has no Python object per row.

Owns: the types, their versions and bytes.   Must not: know the state, or judge a command.
Invariant: `decode(*walk_commands(...))` of `encode(command)` equals the command; a published version never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from ledgermq.proto.errors import CorruptError
from ledgermq.proto.record import encode_command

from .errors import UnknownCommandError

#: Rows of CommitOffsets, SetPositions (queues of one topic), LogStart and TrimQueues.
POSITION_DTYPE: Final = np.dtype([("topic_id", "<u4"), ("queue_id", "<u4"), ("offset", "<i8")])
#: Rows that name leases: Ack, ReleaseLeases.
LEASE_ROW_DTYPE: Final = np.dtype([("queue_id", "<u4"), ("offset", "<i8"), ("lease_id", "<u8")])
#: Rows of ChangeInvisible; `invisible_ms` counts from the entry's log time.
CHANGE_DTYPE: Final = np.dtype(
    [("queue_id", "<u4"), ("offset", "<i8"), ("lease_id", "<u8"), ("invisible_ms", "<i8")]
)
_EARLIEST: Final = -2
_LATEST: Final = -1
_TIME_DIGITS_MAX: Final = 18  # of a time in ms; it must fit 64 bits


class CommandType(IntEnum):
    CREATE_TOPIC = 1
    DELETE_TOPIC = 2
    CREATE_GROUP = 3
    DELETE_GROUP = 4
    COMMIT_OFFSETS = 5
    SET_POSITIONS = 6
    GRANT_LEASES = 7
    ACK = 8
    CHANGE_INVISIBLE = 9
    RELEASE_LEASES = 10
    SESSION_LOST = 11
    EVICT_DEDUP = 12
    LOG_START = 13
    FEATURE_LEVEL = 14
    SET_TOPIC_RETENTION = 15
    TRIM_QUEUES = 16


class MessageType(IntEnum):
    """Kind of message a topic takes; numbers of TopicMessageType in proto/route.proto."""

    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    MIXED = 5


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

    `retention_ms`: how long its messages are shown, in log time; 0: as long as the log holds them.
    """

    name: str
    queue_count: int
    message_type: MessageType = MessageType.NORMAL
    retention_ms: int = 0


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

    `rows`: POSITION_DTYPE. Result: RowsResult (False: no such group, topic or queue).
    """

    group_id: int
    rows: np.ndarray
    reset: bool = False


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


@dataclass(frozen=True, slots=True, eq=False)
class TrimQueues:
    """Retention of topics: each queue begins at the offset in `rows` (POSITION_DTYPE). Never goes back; no segment goes."""

    rows: np.ndarray


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """Raise the group's feature level (D23)."""

    level: int


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
    | TrimQueues
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


def encode(command: Command) -> bytes:
    """Return the command as it stands in a COMMANDS section (padded)."""
    codec = _BY_CLASS[type(command)]
    if isinstance(command, CreateTopic) and command.retention_ms:
        codec = _CREATE_TOPIC_2  # version 1 has no place for it, and is what older nodes read
    return encode_command(codec.number, codec.version, codec.pack(command))


def decode(command_type: int, version: int, payload: memoryview, index: int) -> Command:
    """Return the command. `index` is that of its entry. Raises: UnknownCommandError, CorruptError."""
    codec = _BY_TYPE.get((command_type, version))
    if codec is None:
        raise UnknownCommandError(command_type, version, index)
    try:
        return codec.unpack(payload)
    except (struct.error, ValueError) as error:
        raise CorruptError(f"command type {command_type} of entry {index}: {error}", 0) from None


@dataclass(frozen=True, slots=True)
class _Codec:
    number: CommandType
    kind: type[Command]
    pack: Callable[..., bytes]
    unpack: Callable[[memoryview], Command]
    version: int = field(default=1)


_U32: Final = struct.Struct("<I")
_TOPIC: Final = struct.Struct("<IB")
_TOPIC_2: Final = struct.Struct("<IBq")
_GROUP: Final = struct.Struct("<qIB")
_ROWS: Final = struct.Struct("<IIB")
_GRANT: Final = struct.Struct("<IIqQI")
_QUEUE_GRANT: Final = struct.Struct("<IqqI")
_LOG_START: Final = struct.Struct("<QQ")
_PAIR: Final = struct.Struct("<qq")
_SESSION: Final = struct.Struct("<Qq")
_RETENTION: Final = struct.Struct("<Iq")


def _pack_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<H", len(raw)) + raw


def _unpack_text(payload: memoryview, position: int) -> str:
    (size,) = struct.unpack_from("<H", payload, position)
    raw = bytes(payload[position + 2 : position + 2 + size])
    if len(raw) != size:
        raise ValueError("text cut short")
    return raw.decode()


def _rows(payload: memoryview, position: int, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(payload[position:], dtype).copy()


def _unpack_topic(payload: memoryview) -> Command:
    count, kind = _TOPIC.unpack_from(payload)
    return CreateTopic(_unpack_text(payload, _TOPIC.size), count, MessageType(kind))


def _unpack_topic_2(payload: memoryview) -> Command:
    count, kind, retention_ms = _TOPIC_2.unpack_from(payload)
    return CreateTopic(_unpack_text(payload, _TOPIC_2.size), count, MessageType(kind), retention_ms)


def _unpack_group(payload: memoryview) -> Command:
    start, attempts, fifo = _GROUP.unpack_from(payload)
    return CreateGroup(_unpack_text(payload, _GROUP.size), StartPosition(start), attempts, bool(fifo))


def _pack_grant(command: GrantLeases) -> bytes:
    parts = [
        _GRANT.pack(
            command.group_id, command.topic_id, command.invisible_ms, command.session, len(command.queues)
        )
    ]
    for queue in command.queues:
        parts.append(_QUEUE_GRANT.pack(queue.queue_id, queue.start, queue.end, len(queue.offsets)))
        parts.append(np.ascontiguousarray(queue.offsets, "<i8").tobytes())
    return b"".join(parts)


def _unpack_grant(payload: memoryview) -> Command:
    group_id, topic_id, invisible_ms, session, count = _GRANT.unpack_from(payload)
    position, queues = _GRANT.size, []
    for _ in range(count):
        queue_id, start, end, size = _QUEUE_GRANT.unpack_from(payload, position)
        position += _QUEUE_GRANT.size
        offsets = np.frombuffer(payload, "<i8", size, position).copy()
        position += 8 * size
        queues.append(QueueGrant(queue_id, start, end, offsets))
    return GrantLeases(group_id, topic_id, invisible_ms, tuple(queues), session)


def _pack_rows(command: CommitOffsets | SetPositions | Ack | ChangeInvisible | ReleaseLeases) -> bytes:
    topic_id = 0 if isinstance(command, CommitOffsets | SetPositions) else command.topic_id
    flag = (isinstance(command, CommitOffsets) and command.reset) or (
        isinstance(command, Ack) and command.force
    )
    return _ROWS.pack(command.group_id, topic_id, flag) + command.rows.tobytes()


def _unpack_commit(payload: memoryview) -> Command:
    group_id, _, reset = _ROWS.unpack_from(payload)
    return CommitOffsets(group_id, _rows(payload, _ROWS.size, POSITION_DTYPE), bool(reset))


def _unpack_positions(payload: memoryview) -> Command:
    group_id, _, _ = _ROWS.unpack_from(payload)
    return SetPositions(group_id, _rows(payload, _ROWS.size, POSITION_DTYPE))


def _unpack_ack(payload: memoryview) -> Command:
    group_id, topic_id, force = _ROWS.unpack_from(payload)
    return Ack(group_id, topic_id, _rows(payload, _ROWS.size, LEASE_ROW_DTYPE), bool(force))


def _unpack_change(payload: memoryview) -> Command:
    group_id, topic_id, _ = _ROWS.unpack_from(payload)
    return ChangeInvisible(group_id, topic_id, _rows(payload, _ROWS.size, CHANGE_DTYPE))


def _unpack_release(payload: memoryview) -> Command:
    group_id, topic_id, _ = _ROWS.unpack_from(payload)
    return ReleaseLeases(group_id, topic_id, _rows(payload, _ROWS.size, LEASE_ROW_DTYPE))


def _unpack_trim(payload: memoryview) -> Command:
    return TrimQueues(_rows(payload, 0, POSITION_DTYPE))


def _unpack_log_start(payload: memoryview) -> Command:
    index, physical_offset = _LOG_START.unpack_from(payload)
    return LogStart(index, physical_offset, _rows(payload, _LOG_START.size, POSITION_DTYPE))


_CODECS: Final = (
    _Codec(
        CommandType.CREATE_TOPIC, CreateTopic,
        lambda c: _TOPIC.pack(c.queue_count, c.message_type) + _pack_text(c.name), _unpack_topic,
    ),
    _Codec(
        CommandType.DELETE_TOPIC, DeleteTopic,
        lambda c: _U32.pack(c.topic_id), lambda p: DeleteTopic(*_U32.unpack_from(p)),
    ),
    _Codec(
        CommandType.CREATE_GROUP, CreateGroup,
        lambda c: _GROUP.pack(c.start.value, c.max_attempts, c.fifo) + _pack_text(c.name), _unpack_group,
    ),
    _Codec(
        CommandType.DELETE_GROUP, DeleteGroup,
        lambda c: _U32.pack(c.group_id), lambda p: DeleteGroup(*_U32.unpack_from(p)),
    ),
    _Codec(CommandType.COMMIT_OFFSETS, CommitOffsets, _pack_rows, _unpack_commit),
    _Codec(CommandType.SET_POSITIONS, SetPositions, _pack_rows, _unpack_positions),
    _Codec(CommandType.GRANT_LEASES, GrantLeases, _pack_grant, _unpack_grant),
    _Codec(CommandType.ACK, Ack, _pack_rows, _unpack_ack),
    _Codec(CommandType.CHANGE_INVISIBLE, ChangeInvisible, _pack_rows, _unpack_change),
    _Codec(CommandType.RELEASE_LEASES, ReleaseLeases, _pack_rows, _unpack_release),
    _Codec(
        CommandType.SESSION_LOST, SessionLost,
        lambda c: _SESSION.pack(c.session, c.grace_ms), lambda p: SessionLost(*_SESSION.unpack_from(p)),
    ),
    _Codec(
        CommandType.EVICT_DEDUP, EvictDedup,
        lambda c: _PAIR.pack(c.ids_before, c.streams_before), lambda p: EvictDedup(*_PAIR.unpack_from(p)),
    ),
    _Codec(
        CommandType.LOG_START, LogStart,
        lambda c: _LOG_START.pack(c.index, c.physical_offset) + c.rows.tobytes(), _unpack_log_start,
    ),
    _Codec(
        CommandType.FEATURE_LEVEL, FeatureLevel,
        lambda c: _U32.pack(c.level), lambda p: FeatureLevel(*_U32.unpack_from(p)),
    ),
    _Codec(
        CommandType.SET_TOPIC_RETENTION, SetTopicRetention,
        lambda c: _RETENTION.pack(c.topic_id, c.retention_ms), lambda p: SetTopicRetention(*_RETENTION.unpack_from(p)),
    ),
    _Codec(CommandType.TRIM_QUEUES, TrimQueues, lambda c: c.rows.tobytes(), _unpack_trim),
)  # fmt: skip
_CREATE_TOPIC_2: Final = _Codec(
    CommandType.CREATE_TOPIC, CreateTopic,
    lambda c: _TOPIC_2.pack(c.queue_count, c.message_type, c.retention_ms) + _pack_text(c.name), _unpack_topic_2, 2,
)  # fmt: skip
_BY_TYPE: Final[dict[tuple[int, int], _Codec]] = {
    (codec.number, codec.version): codec for codec in (*_CODECS, _CREATE_TOPIC_2)
}
_BY_CLASS: Final = {codec.kind: codec for codec in _CODECS}
