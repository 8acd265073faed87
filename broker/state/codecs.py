"""Binary encoding of state commands (D12, D23).

A COMMANDS section (proto/record.py) holds each command as type, version and payload, little-endian. A payload
is a fixed struct, then texts (u16 length + UTF-8), then rows of a packed numpy dtype.

Owns: types, versions and bytes.   Must not: know the state, or judge a command.
Invariant: `decode(*walk_commands(...))` of `encode(command)` equals the command. A published version never
changes. A newer version of a command is written only for values that the older one cannot represent, so older
nodes can read all other commands.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from ledgermq.proto.entry import Buffer
from ledgermq.proto.errors import CorruptError
from ledgermq.proto.record import encode_command

from ..errors import UnknownCommandError
from .commands import (
    ASSIGNMENT_DTYPE,
    CHANGE_DTYPE,
    LEASE_ROW_DTYPE,
    PARK_DTYPE,
    POSITION_DTYPE,
    Ack,
    AssignQueues,
    BrokerGroupMode,
    ChangeInvisible,
    Command,
    CommitOffsets,
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    EvictDedup,
    FeatureLevel,
    GrantLeases,
    JoinGroup,
    LeaveGroup,
    LogStart,
    MessageType,
    ParkMessages,
    ParkReason,
    QueueGrant,
    ReleaseLeases,
    ReleaseParked,
    SessionLost,
    SetBrokerGroupMode,
    SetPositions,
    SetTopicKeepUnread,
    SetTopicRetention,
    StartPosition,
    TrimQueues,
)


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
    JOIN_GROUP = 17
    LEAVE_GROUP = 18
    ASSIGN_QUEUES = 19
    SET_BROKER_GROUP_MODE = 20
    PARK_MESSAGES = 21
    RELEASE_PARKED = 22
    SET_TOPIC_KEEP_UNREAD = 23


def encode(command: Command) -> bytes:
    """Return the bytes of the command in a COMMANDS section (padded)."""
    codec = _BY_CLASS[type(command)]
    if isinstance(command, CreateTopic) and command.keep_unread:
        codec = _CREATE_TOPIC_3
    elif isinstance(command, CreateTopic) and command.retention_ms:
        codec = _CREATE_TOPIC_2
    elif isinstance(command, CommitOffsets) and command.epochs is not None:
        codec = _COMMIT_OFFSETS_2
    elif isinstance(command, SetBrokerGroupMode) and command.if_consumed:
        codec = _SET_BROKER_GROUP_MODE_2
    return encode_command(codec.number, codec.version, codec.pack(command))


def decode(command_type: int, version: int, payload: memoryview, index: int) -> Command:
    """Return the command. `index`: index of its entry. Raises: UnknownCommandError, CorruptError."""
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
_TOPIC_3: Final = struct.Struct("<IBq?")
_GROUP: Final = struct.Struct("<qIB")
_ROWS: Final = struct.Struct("<IIB")
_GRANT: Final = struct.Struct("<IIqQI")
_QUEUE_GRANT: Final = struct.Struct("<IqqI")
_LOG_START: Final = struct.Struct("<QQ")
_PAIR: Final = struct.Struct("<qq")
_SESSION: Final = struct.Struct("<Qq")
_RETENTION: Final = struct.Struct("<Iq")
_KEEP_UNREAD: Final = struct.Struct("<I?")
_JOIN: Final = struct.Struct("<IIIH")
_TEXTS: Final = struct.Struct("<IH")
_MODE: Final = struct.Struct("<B")
_MODE_2: Final = struct.Struct("<BI")
#: Rows of CommitOffsets, version 2.
_OWNED_POSITION_DTYPE: Final = np.dtype(
    [*((name, POSITION_DTYPE[name]) for name in POSITION_DTYPE.names or ()), ("epoch", "<u8")]
)


def pack_text(text: str) -> bytes:
    """Return the bytes of a text in commands and checkpoints: u16 length + UTF-8."""
    raw = text.encode()
    return struct.pack("<H", len(raw)) + raw


def unpack_text(payload: Buffer, position: int) -> str:
    """Return the text at a position. Raises: struct.error, ValueError."""
    (text,), _ = unpack_texts(payload, position, 1)
    return text


def unpack_texts(payload: Buffer, position: int, count: int) -> tuple[list[str], int]:
    """Return `count` texts, and the position behind them. Raises: struct.error, ValueError."""
    texts = []
    for _ in range(count):
        (size,) = struct.unpack_from("<H", payload, position)
        raw = bytes(payload[position + 2 : position + 2 + size])
        if len(raw) != size:
            raise ValueError("text cut short")
        texts.append(raw.decode())
        position += 2 + size
    return texts, position


def _rows(payload: memoryview, position: int, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(payload[position:], dtype).copy()


def _unpack_topic(payload: memoryview) -> Command:
    count, kind = _TOPIC.unpack_from(payload)
    return CreateTopic(unpack_text(payload, _TOPIC.size), count, MessageType(kind))


def _unpack_topic_2(payload: memoryview) -> Command:
    count, kind, retention_ms = _TOPIC_2.unpack_from(payload)
    return CreateTopic(unpack_text(payload, _TOPIC_2.size), count, MessageType(kind), retention_ms)


def _unpack_topic_3(payload: memoryview) -> Command:
    count, kind, retention_ms, keep_unread = _TOPIC_3.unpack_from(payload)
    return CreateTopic(
        unpack_text(payload, _TOPIC_3.size), count, MessageType(kind), retention_ms, keep_unread
    )


def _unpack_group(payload: memoryview) -> Command:
    start, attempts, fifo = _GROUP.unpack_from(payload)
    return CreateGroup(unpack_text(payload, _GROUP.size), StartPosition(start), attempts, bool(fifo))


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


def _pack_rows(
    command: CommitOffsets | SetPositions | Ack | ChangeInvisible | ReleaseLeases | ReleaseParked,
) -> bytes:
    topic_id = 0 if isinstance(command, CommitOffsets | SetPositions | ReleaseParked) else command.topic_id
    flag = (isinstance(command, CommitOffsets) and command.reset) or (
        isinstance(command, Ack) and command.force
    )
    return _ROWS.pack(command.group_id, topic_id, flag) + command.rows.tobytes()


def _unpack_commit(payload: memoryview) -> Command:
    group_id, _, reset = _ROWS.unpack_from(payload)
    return CommitOffsets(group_id, _rows(payload, _ROWS.size, POSITION_DTYPE), bool(reset))


def _pack_commit_2(command: CommitOffsets) -> bytes:
    rows = np.empty(len(command.rows), _OWNED_POSITION_DTYPE)
    for name in ("topic_id", "queue_id", "offset"):
        rows[name] = command.rows[name]
    rows["epoch"] = command.epochs
    return _ROWS.pack(command.group_id, 0, command.reset) + rows.tobytes()


def _unpack_commit_2(payload: memoryview) -> Command:
    group_id, _, reset = _ROWS.unpack_from(payload)
    found = _rows(payload, _ROWS.size, _OWNED_POSITION_DTYPE)
    rows = np.empty(len(found), POSITION_DTYPE)
    for name in ("topic_id", "queue_id", "offset"):
        rows[name] = found[name]
    return CommitOffsets(group_id, rows, bool(reset), found["epoch"].copy())


def _unpack_positions(payload: memoryview) -> Command:
    group_id, _, _ = _ROWS.unpack_from(payload)
    return SetPositions(group_id, _rows(payload, _ROWS.size, POSITION_DTYPE))


def _unpack_release_parked(payload: memoryview) -> Command:
    group_id, _, _ = _ROWS.unpack_from(payload)
    return ReleaseParked(group_id, _rows(payload, _ROWS.size, POSITION_DTYPE))


def _unpack_park(payload: memoryview) -> Command:
    group_id, topic_id, reason = _ROWS.unpack_from(payload)
    return ParkMessages(group_id, topic_id, _rows(payload, _ROWS.size, PARK_DTYPE), ParkReason(reason))


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


def _pack_join(command: JoinGroup) -> bytes:
    head = _JOIN.pack(command.group_id, command.session_timeout_ms, command.release_ms, len(command.topics))
    texts = (command.member, command.allocation, command.zone, command.filter, *command.topics)
    return head + b"".join(map(pack_text, texts))


def _unpack_join(payload: memoryview) -> Command:
    group_id, session_timeout_ms, release_ms, count = _JOIN.unpack_from(payload)
    (member, allocation, zone, tags, *topics), _ = unpack_texts(payload, _JOIN.size, 4 + count)
    return JoinGroup(group_id, member, tuple(topics), allocation, zone, tags, session_timeout_ms, release_ms)


def _pack_members(command: LeaveGroup | AssignQueues) -> bytes:
    head = _TEXTS.pack(command.group_id, len(command.members))
    return head + b"".join(map(pack_text, command.members))


def _unpack_leave(payload: memoryview) -> Command:
    group_id, count = _TEXTS.unpack_from(payload)
    return LeaveGroup(group_id, tuple(unpack_texts(payload, _TEXTS.size, count)[0]))


def _unpack_assign(payload: memoryview) -> Command:
    group_id, count = _TEXTS.unpack_from(payload)
    members, position = unpack_texts(payload, _TEXTS.size, count)
    return AssignQueues(group_id, tuple(members), _rows(payload, position, ASSIGNMENT_DTYPE))


def _unpack_mode(payload: memoryview) -> Command:
    (mode,) = _MODE.unpack_from(payload)
    return SetBrokerGroupMode(BrokerGroupMode(mode))


def _pack_mode_2(command: SetBrokerGroupMode) -> bytes:
    texts = (text for consumer in command.consumers for text in consumer)
    return _MODE_2.pack(command.mode, len(command.consumers)) + b"".join(map(pack_text, texts))


def _unpack_mode_2(payload: memoryview) -> Command:
    mode, count = _MODE_2.unpack_from(payload)
    texts, _ = unpack_texts(payload, _MODE_2.size, 2 * count)
    consumers = tuple(zip(texts[::2], texts[1::2], strict=True))
    return SetBrokerGroupMode(BrokerGroupMode(mode), True, consumers)


_CODECS: Final = (
    _Codec(
        CommandType.CREATE_TOPIC, CreateTopic,
        lambda c: _TOPIC.pack(c.queue_count, c.message_type) + pack_text(c.name), _unpack_topic,
    ),
    _Codec(
        CommandType.DELETE_TOPIC, DeleteTopic,
        lambda c: _U32.pack(c.topic_id), lambda p: DeleteTopic(*_U32.unpack_from(p)),
    ),
    _Codec(
        CommandType.CREATE_GROUP, CreateGroup,
        lambda c: _GROUP.pack(c.start.value, c.max_attempts, c.fifo) + pack_text(c.name), _unpack_group,
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
    _Codec(CommandType.JOIN_GROUP, JoinGroup, _pack_join, _unpack_join),
    _Codec(CommandType.LEAVE_GROUP, LeaveGroup, _pack_members, _unpack_leave),
    _Codec(
        CommandType.ASSIGN_QUEUES, AssignQueues, lambda c: _pack_members(c) + c.rows.tobytes(), _unpack_assign,
    ),
    _Codec(
        CommandType.SET_BROKER_GROUP_MODE, SetBrokerGroupMode, lambda c: _MODE.pack(c.mode), _unpack_mode,
    ),
    _Codec(
        CommandType.PARK_MESSAGES, ParkMessages,
        lambda c: _ROWS.pack(c.group_id, c.topic_id, c.reason) + c.rows.tobytes(), _unpack_park,
    ),
    _Codec(CommandType.RELEASE_PARKED, ReleaseParked, _pack_rows, _unpack_release_parked),
    _Codec(
        CommandType.SET_TOPIC_KEEP_UNREAD, SetTopicKeepUnread,
        lambda c: _KEEP_UNREAD.pack(c.topic_id, c.keep_unread), lambda p: SetTopicKeepUnread(*_KEEP_UNREAD.unpack_from(p)),
    ),
)  # fmt: skip
_CREATE_TOPIC_2: Final = _Codec(
    CommandType.CREATE_TOPIC, CreateTopic,
    lambda c: _TOPIC_2.pack(c.queue_count, c.message_type, c.retention_ms) + pack_text(c.name), _unpack_topic_2, 2,
)  # fmt: skip
_CREATE_TOPIC_3: Final = _Codec(
    CommandType.CREATE_TOPIC, CreateTopic,
    lambda c: _TOPIC_3.pack(c.queue_count, c.message_type, c.retention_ms, c.keep_unread) + pack_text(c.name),
    _unpack_topic_3, 3,
)  # fmt: skip
_COMMIT_OFFSETS_2: Final = _Codec(
    CommandType.COMMIT_OFFSETS, CommitOffsets, _pack_commit_2, _unpack_commit_2, 2
)
_SET_BROKER_GROUP_MODE_2: Final = _Codec(
    CommandType.SET_BROKER_GROUP_MODE, SetBrokerGroupMode, _pack_mode_2, _unpack_mode_2, 2
)
_LATER: Final = (_CREATE_TOPIC_2, _CREATE_TOPIC_3, _COMMIT_OFFSETS_2, _SET_BROKER_GROUP_MODE_2)
_BY_TYPE: Final[dict[tuple[int, int], _Codec]] = {
    (codec.number, codec.version): codec for codec in (*_CODECS, *_LATER)
}
_BY_CLASS: Final = {codec.kind: codec for codec in _CODECS}
