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
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from ledgermq.proto.entry import Buffer
from ledgermq.proto.errors import CorruptError
from ledgermq.proto.record import encode_command

from ..errors import UnknownCommandError
from . import commands as c

#: Consumer group, topic (0: none), flag. Rows follow.
_ROWS: Final = struct.Struct("<IIB")
_GROUP: Final = struct.Struct("<qIB")
_GRANT: Final = struct.Struct("<IIqQI")
_QUEUE_GRANT: Final = struct.Struct("<IqqI")
_LOG_START: Final = struct.Struct("<QQ")
_JOIN: Final = struct.Struct("<IIIH")
_TEXTS: Final = struct.Struct("<IH")
_MODE: Final = struct.Struct("<B")
_MODE_2: Final = struct.Struct("<BI")
_HOLD: Final = struct.Struct("<I")
#: Rows of CommitOffsets, version 2.
_OWNED_POSITION_DTYPE: Final = np.dtype(
    [("topic_id", "<u4"), ("queue_id", "<u4"), ("offset", "<i8"), ("epoch", "<u8")]
)


def encode(command: c.Command) -> bytes:
    """Return the bytes of the command in a COMMANDS section (padded)."""
    version = 1
    if isinstance(command, c.CreateTopic):
        version = 3 if command.keep_unread else 2 if command.retention_ms else 1
    elif isinstance(command, c.CommitOffsets):
        version = 1 if command.epochs is None else 2
    elif isinstance(command, c.SetBrokerGroupMode):
        version = 2 if command.if_consumed else 1
    codec = _BY_CLASS[type(command), version]
    return encode_command(codec.number, version, codec.pack(command))


def decode(command_type: int, version: int, payload: memoryview, index: int) -> c.Command:
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
    number: int
    kind: type[Any]
    pack: Callable[..., bytes]
    unpack: Callable[[memoryview], c.Command]
    version: int = 1


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


def _array(payload: memoryview, position: int, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(payload[position:], dtype).copy()


def _numbers(number: int, kind: type[Any], layout: str) -> _Codec:
    """Return the codec of a command that consists of numbers, in the order of its fields."""
    fixed, names = struct.Struct(layout), [each.name for each in fields(kind)]

    def unpack(payload: memoryview) -> c.Command:
        command: c.Command = kind(*fixed.unpack_from(payload))
        return command

    return _Codec(
        number, kind, lambda command: fixed.pack(*(getattr(command, name) for name in names)), unpack
    )


def _rows(
    number: int, kind: type[Any], dtype: np.dtype, flag: str = "", flag_type: type[int] = bool
) -> _Codec:
    """Return the codec of a command for rows of a consumer group. `flag`: name of a field behind the rows."""
    has_topic = any(each.name == "topic_id" for each in fields(kind))

    def pack(command: Any) -> bytes:
        topic_id = command.topic_id if has_topic else 0
        head = _ROWS.pack(command.group_id, topic_id, getattr(command, flag) if flag else 0)
        rows: bytes = command.rows.tobytes()
        return head + rows

    def unpack(payload: memoryview) -> c.Command:
        group_id, topic_id, value = _ROWS.unpack_from(payload)
        names = (group_id, topic_id) if has_topic else (group_id,)
        command: c.Command = kind(
            *names, _array(payload, _ROWS.size, dtype), *((flag_type(value),) if flag else ())
        )
        return command

    return _Codec(number, kind, pack, unpack)


def _create_topic(version: int, layout: str) -> _Codec:
    """Return the codec of a version of CreateTopic. Each has one number more than the one before."""
    fixed = struct.Struct(layout)

    def pack(command: c.CreateTopic) -> bytes:
        numbers = (command.queue_count, command.message_type, command.retention_ms, command.keep_unread)
        return fixed.pack(*numbers[: version + 1]) + pack_text(command.name)

    def unpack(payload: memoryview) -> c.Command:
        count, kind, *later = fixed.unpack_from(payload)
        return c.CreateTopic(unpack_text(payload, fixed.size), count, c.MessageType(kind), *later)

    return _Codec(1, c.CreateTopic, pack, unpack, version)


def _pack_group(command: c.CreateConsumerGroup) -> bytes:
    return _GROUP.pack(command.start.value, command.max_attempts, command.fifo) + pack_text(command.name)


def _unpack_group(payload: memoryview) -> c.Command:
    start, attempts, fifo = _GROUP.unpack_from(payload)
    return c.CreateConsumerGroup(
        unpack_text(payload, _GROUP.size), c.StartPosition(start), attempts, bool(fifo)
    )


def _pack_grant(command: c.GrantLeases) -> bytes:
    parts = [
        _GRANT.pack(
            command.group_id, command.topic_id, command.invisible_ms, command.session, len(command.queues)
        )
    ]
    for queue in command.queues:
        parts.append(_QUEUE_GRANT.pack(queue.queue_id, queue.start, queue.end, len(queue.offsets)))
        parts.append(np.ascontiguousarray(queue.offsets, "<i8").tobytes())
    return b"".join(parts)


def _unpack_grant(payload: memoryview) -> c.Command:
    group_id, topic_id, invisible_ms, session, count = _GRANT.unpack_from(payload)
    position, queues = _GRANT.size, []
    for _ in range(count):
        queue_id, start, end, size = _QUEUE_GRANT.unpack_from(payload, position)
        position += _QUEUE_GRANT.size
        offsets = np.frombuffer(payload, "<i8", size, position).copy()
        position += 8 * size
        queues.append(c.QueueGrant(queue_id, start, end, offsets))
    return c.GrantLeases(group_id, topic_id, invisible_ms, tuple(queues), session)


def _pack_commit_2(command: c.CommitOffsets) -> bytes:
    rows = np.empty(len(command.rows), _OWNED_POSITION_DTYPE)
    for name in ("topic_id", "queue_id", "offset"):
        rows[name] = command.rows[name]
    rows["epoch"] = command.epochs
    return _ROWS.pack(command.group_id, 0, command.reset) + rows.tobytes()


def _unpack_commit_2(payload: memoryview) -> c.Command:
    group_id, _, reset = _ROWS.unpack_from(payload)
    found = _array(payload, _ROWS.size, _OWNED_POSITION_DTYPE)
    rows = np.empty(len(found), c.POSITION_DTYPE)
    for name in ("topic_id", "queue_id", "offset"):
        rows[name] = found[name]
    return c.CommitOffsets(group_id, rows, bool(reset), found["epoch"].copy())


def _pack_log_start(command: c.LogStart) -> bytes:
    return _LOG_START.pack(command.index, command.physical_offset) + command.rows.tobytes()


def _unpack_log_start(payload: memoryview) -> c.Command:
    index, physical_offset = _LOG_START.unpack_from(payload)
    return c.LogStart(index, physical_offset, _array(payload, _LOG_START.size, c.POSITION_DTYPE))


def _pack_join(command: c.JoinConsumerGroup) -> bytes:
    head = _JOIN.pack(command.group_id, command.session_timeout_ms, command.release_ms, len(command.topics))
    texts = (command.member, command.allocation, command.zone, command.filter, *command.topics)
    return head + b"".join(map(pack_text, texts))


def _unpack_join(payload: memoryview) -> c.Command:
    group_id, session_timeout_ms, release_ms, count = _JOIN.unpack_from(payload)
    (member, allocation, zone, tags, *topics), _ = unpack_texts(payload, _JOIN.size, 4 + count)
    return c.JoinConsumerGroup(
        group_id, member, tuple(topics), allocation, zone, tags, session_timeout_ms, release_ms
    )


def _pack_members(command: c.LeaveConsumerGroup | c.AssignQueues) -> bytes:
    head = _TEXTS.pack(command.group_id, len(command.members))
    return head + b"".join(map(pack_text, command.members))


def _unpack_members(payload: memoryview) -> tuple[int, tuple[str, ...], int]:
    """Return the consumer group, the names of members, and the position behind them."""
    group_id, count = _TEXTS.unpack_from(payload)
    members, position = unpack_texts(payload, _TEXTS.size, count)
    return group_id, tuple(members), position


def _unpack_assign(payload: memoryview) -> c.Command:
    group_id, members, position = _unpack_members(payload)
    return c.AssignQueues(group_id, members, _array(payload, position, c.ASSIGNMENT_DTYPE))


def _unpack_mode(payload: memoryview) -> c.Command:
    return c.SetBrokerGroupMode(c.BrokerGroupMode(*_MODE.unpack_from(payload)))


def _pack_mode_2(command: c.SetBrokerGroupMode) -> bytes:
    texts = (text for consumer in command.consumers for text in consumer)
    return _MODE_2.pack(command.mode, len(command.consumers)) + b"".join(map(pack_text, texts))


def _unpack_mode_2(payload: memoryview) -> c.Command:
    mode, count = _MODE_2.unpack_from(payload)
    texts, _ = unpack_texts(payload, _MODE_2.size, 2 * count)
    consumers = tuple(zip(texts[::2], texts[1::2], strict=True))
    return c.SetBrokerGroupMode(c.BrokerGroupMode(mode), True, consumers)


def _pack_hold(command: c.SetHold | c.ReleaseHold) -> bytes:
    return _HOLD.pack(command.topic_id) + pack_text(command.name)


def _unpack_hold(payload: memoryview) -> tuple[int, str, int]:
    """Return the topic id, the name, and the position behind them."""
    (topic_id,) = _HOLD.unpack_from(payload)
    (name,), position = unpack_texts(payload, _HOLD.size, 1)
    return topic_id, name, position


def _unpack_set_hold(payload: memoryview) -> c.Command:
    topic_id, name, position = _unpack_hold(payload)
    return c.SetHold(topic_id, name, _array(payload, position, c.HOLD_DTYPE))


_CODECS: Final = (
    _create_topic(1, "<IB"),
    _create_topic(2, "<IBq"),
    _create_topic(3, "<IBq?"),
    _numbers(2, c.DeleteTopic, "<I"),
    _Codec(3, c.CreateConsumerGroup, _pack_group, _unpack_group),
    _numbers(4, c.DeleteConsumerGroup, "<I"),
    _rows(5, c.CommitOffsets, c.POSITION_DTYPE, "reset"),
    _Codec(5, c.CommitOffsets, _pack_commit_2, _unpack_commit_2, version=2),
    _rows(6, c.SetPositions, c.POSITION_DTYPE),
    _Codec(7, c.GrantLeases, _pack_grant, _unpack_grant),
    _rows(8, c.Ack, c.LEASE_ROW_DTYPE, "force"),
    _rows(9, c.ChangeInvisible, c.CHANGE_DTYPE),
    _rows(10, c.ReleaseLeases, c.LEASE_ROW_DTYPE),
    _numbers(11, c.SessionLost, "<Qq"),
    _numbers(12, c.EvictDedup, "<qq"),
    _Codec(13, c.LogStart, _pack_log_start, _unpack_log_start),
    _numbers(14, c.FeatureLevel, "<I"),
    _numbers(15, c.SetTopicRetention, "<Iq"),
    _Codec(
        16,
        c.TrimQueues,
        lambda command: command.rows.tobytes(),
        lambda payload: c.TrimQueues(_array(payload, 0, c.POSITION_DTYPE)),
    ),
    _Codec(17, c.JoinConsumerGroup, _pack_join, _unpack_join),
    _Codec(
        18,
        c.LeaveConsumerGroup,
        _pack_members,
        lambda payload: c.LeaveConsumerGroup(*_unpack_members(payload)[:2]),
    ),
    _Codec(
        19, c.AssignQueues, lambda command: _pack_members(command) + command.rows.tobytes(), _unpack_assign
    ),
    _Codec(20, c.SetBrokerGroupMode, lambda command: _MODE.pack(command.mode), _unpack_mode),
    _Codec(20, c.SetBrokerGroupMode, _pack_mode_2, _unpack_mode_2, version=2),
    _rows(21, c.ParkMessages, c.PARK_DTYPE, "reason", c.ParkReason),
    _rows(22, c.ReleaseParked, c.POSITION_DTYPE),
    _numbers(23, c.SetTopicKeepUnread, "<I?"),
    _numbers(24, c.BeginBatch, "<16sQIq?"),
    _numbers(25, c.FinishBatch, "<QIIq"),
    _numbers(26, c.ForgetBatches, "<q"),
    _Codec(27, c.SetHold, lambda command: _pack_hold(command) + command.rows.tobytes(), _unpack_set_hold),
    _Codec(28, c.ReleaseHold, _pack_hold, lambda payload: c.ReleaseHold(*_unpack_hold(payload)[:2])),
)
_BY_TYPE: Final = {(codec.number, codec.version): codec for codec in _CODECS}
_BY_CLASS: Final = {(codec.kind, codec.version): codec for codec in _CODECS}
