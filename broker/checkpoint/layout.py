"""Checkpoint format: the whole state at one index, byte-identical on every node (D12).

Little-endian. A file is a header, shards, and a manifest at the end:

    header    "LMQC" · u32 format version · u64 index · u64 term · u64 log time (ms)
    shards    consecutive payloads, each padded to 8 bytes
    manifest  per shard: u32 kind · u32 crc32c of the payload · u64 position · u64 size
    end       u32 shard count · u32 crc32c of header and manifest · "LMQCEND\\n"

Kinds: 1 numbers · 2 topics · 3 queues · 4 consumer groups · 5 consumption · 6 producer streams · 7 message
ids · 8 checksums of the blocks of queue units, from the block with the queue's begin on · 9 retention of
topics · 10 messages lost by consumer groups · 11 members and owners of queue-exclusive consumer groups · 12
mode of the broker group, while it is drained or removed · 13 parked messages · 14 topics that keep unread
messages · 15 jobs that write batches exactly once · 16 holds. Everything is sorted by its key. Message ids
keep the order in which they were applied, which is the same on all nodes. Kinds 9 to 16 are optional: they
are present only if not empty. The version is that of the highest kind present: 2 (9, 10), 3 (11), 4 (12), 5
(13), 6 (14), 7 (15), 8 (16), else 1. Older nodes can read lower versions.

Kind 11. Texts are encoded as in commands:

    consumer group  u32 id · u32 members · u32 owners
    member          u64 joined · i64 joined at (ms) · u32 session timeout · u32 release (ms) · u16 topics ·
                    texts: name, allocation, zone, filter, topics
    owner           u32 topic id · u32 queue id · u64 epoch · u32 index of the member, or all ones: no owner

Kind 15:

    job             16-byte id · i64 newest batch · i64 log time of its last change (ms) · u32 parts
    part            u64 writer · u32 topic id · u32 epoch · i64 messages · bool finished · u32 spans
    span            u32 queue id · i64 first queue offset · i64 one past the last

Kind 16, by topic id and name:

    hold            u32 topic id · u32 queues · text: name
    queue           u32 queue id · i64 offset · i64 log time at which it was last named (ms) · i64 lost

A checkpoint at an index also states that the ConsumeQueue files durably hold all units up to the queue ends
in it: the writer syncs them first (checkpoint/store.py). Recovery therefore replays the log from index + 1
only.
Owns: the bytes.   Must not: touch files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from ledgermq.proto.entry import padded

from ..errors import CheckpointError, CheckpointVersionError
from ..state.batch_writes import Job, Part
from ..state.codecs import pack_text, unpack_texts
from ..state.commands import NO_OWNER, BrokerGroupMode, MessageType, StartPosition
from ..state.consume_queue import BLOCK_UNITS, ConsumeQueue, QueueKey, QueueSums
from ..state.consumer_groups import ConsumerGroup
from ..state.consumption import LEASE_DTYPE, NO_PARKED, PARKED_DTYPE, Consumption, ConsumptionKey
from ..state.dedup import Generation, Stream, StreamKey
from ..state.holds import Held, HeldQueue
from ..state.machine import BrokerState
from ..state.memberships import ConsumerGroupMember, ConsumerGroupMembership, Ownership
from ..state.topics import Topic

MAGIC: Final = b"LMQC"
VERSION: Final = 8
_END_MAGIC: Final = b"LMQCEND\n"
_HEADER: Final = struct.Struct("<4sIQQQ")
_SHARD: Final = struct.Struct("<IIQQ")
_END: Final = struct.Struct("<II8s")
_NUMBERS: Final = struct.Struct("<IIQQIQ")
_TOPIC: Final = struct.Struct("<IIIQqH")
_GROUP: Final = struct.Struct("<IqIBQH")
_CONSUMPTION: Final = struct.Struct("<IIIIq")
_STREAM: Final = struct.Struct("<QIIqQqI")
_GENERATION: Final = struct.Struct("<qqI")
_QUEUE_DTYPE: Final = np.dtype([("topic_id", "<u4"), ("queue_id", "<u4"), ("begin", "<i8"), ("end", "<i8")])
_SUMS: Final = struct.Struct("<IIQII")
_RETENTION: Final = struct.Struct("<Iq")
_KEEP_UNREAD: Final = struct.Struct("<I")
_LOST: Final = struct.Struct("<IIIQ")
_MODE: Final = struct.Struct("<Bq")
_PARKED: Final = struct.Struct("<IIII")
_MEMBERSHIP: Final = struct.Struct("<III")
_MEMBER: Final = struct.Struct("<QqIIH")
_OWNER: Final = struct.Struct("<IIQI")
_JOB: Final = struct.Struct("<16sqqI")
_PART: Final = struct.Struct("<QIIq?I")
_SPAN: Final = struct.Struct("<Iqq")
_HOLD: Final = struct.Struct("<II")
_HELD_QUEUE: Final = struct.Struct("<Iqqq")
_ID_SIZE: Final = 20


class Shard(IntEnum):
    NUMBERS = 1
    TOPICS = 2
    QUEUES = 3
    GROUPS = 4
    CONSUMPTION = 5
    STREAMS = 6
    MESSAGE_IDS = 7
    QUEUE_SUMS = 8
    TOPIC_RETENTION = 9
    LOST = 10
    MEMBERSHIPS = 11
    MODE = 12
    PARKED = 13
    KEEP_UNREAD = 14
    BATCH_WRITES = 15
    HOLDS = 16


#: Optional shards, and the format version that introduced each.
_OPTIONAL: Final = {
    Shard.TOPIC_RETENTION: 2,
    Shard.LOST: 2,
    Shard.MEMBERSHIPS: 3,
    Shard.MODE: 4,
    Shard.PARKED: 5,
    Shard.KEEP_UNREAD: 6,
    Shard.BATCH_WRITES: 7,
    Shard.HOLDS: 8,
}


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """State at one index: shallow copies of immutable values. It can be encoded in a thread."""

    index: int  # of the last applied entry
    term: int  # of that entry
    timestamp: int  # log time (ms) of that entry
    # next topic id, next consumer group id, log start (index, physical offset), feature level, evicted early
    numbers: tuple[int, int, int, int, int, int]
    topics: tuple[Topic, ...]
    consumer_groups: tuple[ConsumerGroup, ...]
    queues: list[tuple[int, int, int, int]]  # topic id, queue id, begin, end
    consumption: dict[ConsumptionKey, Consumption]
    streams: dict[StreamKey, Stream]
    generations: list[Generation]  # oldest first
    sums: dict[QueueKey, tuple[int, bytes, int]]  # arguments of QueueSums
    memberships: dict[int, ConsumerGroupMembership]  # by consumer group id
    mode: tuple[int, int]  # mode of the broker group, log time (ms) of its last change
    jobs: dict[bytes, Job]
    holds: dict[int, dict[str, Held]]  # by topic id and name


def take_snapshot(state: BrokerState) -> Snapshot:
    """Return a snapshot of the state, made by shallow copies."""
    numbers = (
        state.topics.next_id, state.groups.next_id, state.log_start_index, state.log_start_offset,
        state.feature_level, state.message_ids.evicted_early,
    )  # fmt: skip
    return Snapshot(
        state.applied_index,
        state.applied_term,
        state.timestamp,
        numbers,
        tuple(state.topics),
        tuple(state.groups),
        [(*queue.key, queue.begin, queue.end) for queue in state.queues],
        state.consumption.copy(),
        state.streams.copy(),
        state.message_ids.copy(),
        {queue.key: queue.sums.from_block(queue.begin // BLOCK_UNITS) for queue in state.queues},
        state.memberships.copy(),
        (state.mode, state.mode_since),
        state.batch_writes.copy(),
        state.holds.copy(),
    )


def restore_state(snapshot: Snapshot) -> BrokerState:
    """Return the state of a decoded snapshot. Attach its queue files before use."""
    state = BrokerState()
    state.applied_index, state.applied_term = snapshot.index, snapshot.term
    state.timestamp = snapshot.timestamp
    (
        state.topics.next_id, state.groups.next_id, state.log_start_index, state.log_start_offset,
        state.feature_level, evicted_early,
    ) = snapshot.numbers  # fmt: skip
    for topic in snapshot.topics:
        state.topics.put(topic)
    for consumer_group in snapshot.consumer_groups:
        state.groups.put(consumer_group)
    for topic_id, queue_id, begin, end in snapshot.queues:
        owner = state.topics.get(topic_id)
        assert owner is not None, "queues belong to topics"
        key = (topic_id, queue_id)
        sums = QueueSums(*snapshot.sums[key])
        assert sums.first_block + len(sums.complete) == end // BLOCK_UNITS, "each block has a checksum"
        state.queues.add(ConsumeQueue(key, owner.folder, begin, end, sums))
    state.consumption.restore(dict(snapshot.consumption))
    state.memberships.restore(dict(snapshot.memberships))
    state.mode, state.mode_since = BrokerGroupMode(snapshot.mode[0]), snapshot.mode[1]
    state.streams.restore(dict(snapshot.streams))
    state.message_ids.restore(list(snapshot.generations), evicted_early)
    state.batch_writes.restore(snapshot.jobs)
    state.holds.restore(snapshot.holds)
    return state


# --- encoding -------------------------------------------------------------------------------------------
def encode_snapshot(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the bytes of the checkpoint: the header, one piece per shard, the manifest."""
    optional = {kind: b"".join(_ENCODERS[kind](snapshot)) for kind in _OPTIONAL}
    wanted = [kind for kind in _ENCODERS if optional.get(kind) != b""]
    version = max((_OPTIONAL[kind] for kind, payload in optional.items() if payload), default=1)
    header = _HEADER.pack(MAGIC, version, snapshot.index, snapshot.term, snapshot.timestamp)
    yield header
    position, table = len(header), b""
    for kind in wanted:
        payload = optional[kind] if kind in optional else b"".join(_ENCODERS[kind](snapshot))
        table += _SHARD.pack(kind, crc32c(payload), position, len(payload))
        piece = payload.ljust(padded(len(payload)), b"\0")
        position += len(piece)
        yield piece
    yield table + _END.pack(len(wanted), crc32c(table, crc32c(header)), _END_MAGIC)


def _encode_topics(snapshot: Snapshot) -> Iterator[bytes]:
    for topic in snapshot.topics:
        name = topic.name.encode()
        numbers = (topic.topic_id, topic.queue_count, topic.message_type, topic.version, topic.created_at)
        yield _TOPIC.pack(*numbers, len(name)) + name


def _encode_consumer_groups(snapshot: Snapshot) -> Iterator[bytes]:
    for each in snapshot.consumer_groups:
        name = each.name.encode()
        numbers = (each.group_id, each.start.value, each.max_attempts, each.fifo, each.version)
        yield _GROUP.pack(*numbers, len(name)) + name


def _encode_consumption(snapshot: Snapshot) -> Iterator[bytes]:
    for key, found in _by_key(snapshot.consumption):
        yield _CONSUMPTION.pack(*key, len(found.leases), found.position)
        yield found.leases.tobytes()


def _encode_streams(snapshot: Snapshot) -> Iterator[bytes]:
    for key, stream in _by_key(snapshot.streams):
        size = len(stream.batches)
        yield _STREAM.pack(*key, stream.epoch, stream.next_sequence, stream.timestamp, size) + stream.batches


def _encode_message_ids(snapshot: Snapshot) -> Iterator[bytes]:
    for generation in snapshot.generations:
        places = generation.places
        yield _GENERATION.pack(generation.first_timestamp, generation.last_timestamp, len(places))
        yield b"".join(places)
        yield np.fromiter(places.values(), "<u8", len(places)).tobytes()


def _encode_queue_sums(snapshot: Snapshot) -> Iterator[bytes]:
    for key, (first_block, complete, open_sum) in _by_key(snapshot.sums):
        yield _SUMS.pack(*key, first_block, len(complete) // 4, open_sum) + complete


def _encode_memberships(snapshot: Snapshot) -> Iterator[bytes]:
    for group_id, membership in _by_key(snapshot.memberships):
        yield _MEMBERSHIP.pack(group_id, len(membership.members), len(membership.owners))
        places = {name: place for place, name in enumerate(sorted(membership.members))}
        for name in places:
            member = membership.members[name]
            numbers = (member.joined, member.joined_at, member.session_timeout_ms, member.release_ms)
            yield _MEMBER.pack(*numbers, len(member.topics))
            yield from map(pack_text, (name, member.allocation, member.zone, member.filter, *member.topics))
        for key, owner in _by_key(membership.owners):
            yield _OWNER.pack(*key, owner.epoch, places.get(owner.member, NO_OWNER))


def _encode_parked(snapshot: Snapshot) -> Iterator[bytes]:
    for key, found in _by_key(snapshot.consumption):
        if len(found.parked):
            yield _PARKED.pack(*key, len(found.parked)) + found.parked.tobytes()


def _encode_jobs(snapshot: Snapshot) -> Iterator[bytes]:
    for name, job in _by_key(snapshot.jobs):
        yield _JOB.pack(name, job.batch, job.timestamp, len(job.parts))
        for key, part in _by_key(job.parts):
            yield _PART.pack(*key, part.epoch, part.count, part.finished, len(part.spans))
            yield from (_SPAN.pack(*span) for span in part.spans)


def _encode_holds(snapshot: Snapshot) -> Iterator[bytes]:
    for topic_id, holds in _by_key(snapshot.holds):
        for name, held in _by_key(holds):
            yield _HOLD.pack(topic_id, len(held)) + pack_text(name)
            for queue_id, need in _by_key(held):
                yield _HELD_QUEUE.pack(queue_id, need.offset, need.advanced, need.lost)


def _by_key(table: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(table.items(), key=lambda item: item[0])


_ENCODERS: Final[dict[Shard, Callable[[Snapshot], Iterable[bytes]]]] = {
    Shard.NUMBERS: lambda snapshot: [_NUMBERS.pack(*snapshot.numbers)],
    Shard.TOPICS: _encode_topics,
    Shard.QUEUES: lambda snapshot: [np.array(sorted(snapshot.queues), _QUEUE_DTYPE).tobytes()],
    Shard.GROUPS: _encode_consumer_groups,
    Shard.CONSUMPTION: _encode_consumption,
    Shard.STREAMS: _encode_streams,
    Shard.MESSAGE_IDS: _encode_message_ids,
    Shard.QUEUE_SUMS: _encode_queue_sums,
    Shard.TOPIC_RETENTION: lambda snapshot: (
        _RETENTION.pack(each.topic_id, each.retention_ms) for each in snapshot.topics if each.retention_ms
    ),
    Shard.LOST: lambda snapshot: (
        _LOST.pack(*key, found.lost) for key, found in _by_key(snapshot.consumption) if found.lost
    ),
    Shard.MEMBERSHIPS: _encode_memberships,
    Shard.MODE: lambda snapshot: [_MODE.pack(*snapshot.mode)] if snapshot.mode[0] else [],
    Shard.PARKED: _encode_parked,
    Shard.KEEP_UNREAD: lambda snapshot: (
        _KEEP_UNREAD.pack(each.topic_id) for each in snapshot.topics if each.keep_unread
    ),
    Shard.BATCH_WRITES: _encode_jobs,
    Shard.HOLDS: _encode_holds,
}


# --- decoding -------------------------------------------------------------------------------------------
def decode_snapshot(raw: bytes, path: str) -> Snapshot:
    """Decode a checkpoint. `path` appears in errors. Raises: CheckpointError, CheckpointVersionError."""
    if len(raw) < _HEADER.size + _END.size or raw[:4] != MAGIC:
        raise CheckpointError(path, "this is not a checkpoint, or it is cut short")
    _, version, index, term, timestamp = _HEADER.unpack_from(raw)
    if version > VERSION:
        raise CheckpointVersionError(path, version, VERSION)
    count, crc, end_magic = _END.unpack_from(raw, len(raw) - _END.size)
    start = len(raw) - _END.size - count * _SHARD.size
    if end_magic != _END_MAGIC or start < _HEADER.size:
        raise CheckpointError(path, "the manifest at its end is missing: it was never finished")
    table = raw[start : len(raw) - _END.size]
    if crc32c(table, crc32c(raw[: _HEADER.size])) != crc:
        raise CheckpointError(path, "the checksum of its manifest is wrong")
    shards = _shards(raw, table, path)
    try:
        retention = dict(_RETENTION.iter_unpack(shards.get(Shard.TOPIC_RETENTION, b"")))
        unread = {row[0] for row in _KEEP_UNREAD.iter_unpack(shards.get(Shard.KEEP_UNREAD, b""))}
        lost = {row[:3]: row[3] for row in _LOST.iter_unpack(shards.get(Shard.LOST, b""))}
        parked = {
            numbers[:3]: np.frombuffer(rows, PARKED_DTYPE)
            for numbers, rows in _items(shards.get(Shard.PARKED, b""), _PARKED, PARKED_DTYPE.itemsize)
        }
        topics = tuple(_decode_topics(shards[Shard.TOPICS], retention, unread))
        numbers: Any = _NUMBERS.unpack(shards[Shard.NUMBERS])
        return Snapshot(
            index, term, timestamp, numbers, topics,
            tuple(_decode_consumer_groups(shards[Shard.GROUPS])),
            np.frombuffer(shards[Shard.QUEUES], _QUEUE_DTYPE).tolist(),
            dict(_decode_consumption(shards[Shard.CONSUMPTION], lost, parked)),
            dict(_decode_streams(shards[Shard.STREAMS])),
            list(_decode_message_ids(shards[Shard.MESSAGE_IDS])),
            dict(_decode_queue_sums(shards[Shard.QUEUE_SUMS])),
            dict(_decode_memberships(shards.get(Shard.MEMBERSHIPS, b""))),
            _decode_mode(shards.get(Shard.MODE, b"")),
            dict(_decode_jobs(shards.get(Shard.BATCH_WRITES, b""))),
            _decode_holds(shards.get(Shard.HOLDS, b"")),
        )  # fmt: skip
    except (LookupError, struct.error, ValueError) as error:
        raise CheckpointError(path, f"its checksums are right but its contents are not: {error}") from None


def _shards(raw: bytes, table: bytes, path: str) -> dict[int, bytes]:
    shards = {}
    for kind, crc, position, size in _SHARD.iter_unpack(table):
        payload = raw[position : position + size]
        if len(payload) != size or crc32c(payload) != crc:
            raise CheckpointError(path, f"the checksum of shard {kind} at byte {position} is wrong")
        shards[kind] = payload
    return shards


def _items(
    raw: bytes, head: struct.Struct, item_size: int = 1, count_at: int = -1
) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """Yield the numbers of each head in a shard, and the bytes behind it.

    `count_at`: place of the number that says how many items of `item_size` bytes follow.
    Raises: struct.error, ValueError.
    """
    position = 0
    while position < len(raw):
        numbers = head.unpack_from(raw, position)
        start = position + head.size
        position = start + numbers[count_at] * item_size
        if position > len(raw):
            raise ValueError("a shard is cut short")
        yield numbers, raw[start:position]


def _decode_mode(raw: bytes) -> tuple[int, int]:
    mode, since = _MODE.unpack(raw) if raw else (BrokerGroupMode.ACTIVE, 0)
    return BrokerGroupMode(mode), since


def _decode_topics(raw: bytes, retention: Mapping[int, int], unread: Set[int]) -> Iterator[Topic]:
    for (topic_id, queues, kind, version, created_at, _), name in _items(raw, _TOPIC):
        kept = retention.get(topic_id, 0)
        kind = MessageType(kind)
        yield Topic(topic_id, name.decode(), queues, kind, version, created_at, kept, topic_id in unread)


def _decode_consumer_groups(raw: bytes) -> Iterator[ConsumerGroup]:
    for (group_id, start, attempts, fifo, version, _), name in _items(raw, _GROUP):
        yield ConsumerGroup(group_id, name.decode(), StartPosition(start), attempts, bool(fifo), version)


def _decode_consumption(
    raw: bytes, lost: Mapping[ConsumptionKey, int], parked: Mapping[ConsumptionKey, np.ndarray]
) -> Iterator[tuple[ConsumptionKey, Consumption]]:
    for (*ids, _, position), leases in _items(raw, _CONSUMPTION, LEASE_DTYPE.itemsize, count_at=3):
        key = (ids[0], ids[1], ids[2])
        found = np.frombuffer(leases, LEASE_DTYPE)
        yield key, Consumption(position, found, lost.get(key, 0), parked.get(key, NO_PARKED))


def _decode_streams(raw: bytes) -> Iterator[tuple[StreamKey, Stream]]:
    for (producer_id, topic_id, queue_id, epoch, sequence, timestamp, _), batches in _items(raw, _STREAM):
        yield (producer_id, topic_id, queue_id), Stream(epoch, sequence, timestamp, batches)


def _decode_queue_sums(raw: bytes) -> Iterator[tuple[QueueKey, tuple[int, bytes, int]]]:
    for (topic_id, queue_id, first_block, _, open_sum), complete in _items(raw, _SUMS, 4, count_at=3):
        yield (topic_id, queue_id), (first_block, complete, open_sum)


def _decode_message_ids(raw: bytes) -> Iterator[Generation]:
    for (first, last, count), items in _items(raw, _GENERATION, _ID_SIZE + 8):
        places = np.frombuffer(items, "<u8", count, count * _ID_SIZE).tolist()
        keys = (items[i : i + _ID_SIZE] for i in range(0, count * _ID_SIZE, _ID_SIZE))
        yield Generation(first, last, dict(zip(keys, places, strict=True)))


def _decode_memberships(raw: bytes) -> Iterator[tuple[int, ConsumerGroupMembership]]:
    position = 0
    while position < len(raw):
        group_id, member_count, owner_count = _MEMBERSHIP.unpack_from(raw, position)
        position += _MEMBERSHIP.size
        members = {}
        for _ in range(member_count):
            joined, joined_at, timeout, release, topic_count = _MEMBER.unpack_from(raw, position)
            texts, position = unpack_texts(raw, position + _MEMBER.size, 4 + topic_count)
            name, allocation, zone, tags, *topics = texts
            members[name] = ConsumerGroupMember(
                name, joined, joined_at, tuple(topics), allocation, zone, tags, timeout, release
            )
        names, owners = list(members), {}
        for _ in range(owner_count):
            topic_id, queue_id, epoch, place = _OWNER.unpack_from(raw, position)
            position += _OWNER.size
            owners[topic_id, queue_id] = Ownership("" if place == NO_OWNER else names[place], epoch)
        yield group_id, ConsumerGroupMembership(members, owners)


def _decode_jobs(raw: bytes) -> Iterator[tuple[bytes, Job]]:
    position = 0
    while position < len(raw):
        name, batch, timestamp, part_count = _JOB.unpack_from(raw, position)
        position += _JOB.size
        job = Job(batch, timestamp)
        for _ in range(part_count):
            writer, topic_id, epoch, count, finished, span_count = _PART.unpack_from(raw, position)
            position += _PART.size
            end = position + span_count * _SPAN.size
            if end > len(raw):
                raise ValueError("a shard is cut short")
            spans = tuple(_SPAN.iter_unpack(raw[position:end]))
            position = end
            job.parts[writer, topic_id] = Part(epoch, count, finished, spans)
        yield name, job


def _decode_holds(raw: bytes) -> dict[int, dict[str, Held]]:
    position, found = 0, dict[int, dict[str, Held]]()
    while position < len(raw):
        topic_id, count = _HOLD.unpack_from(raw, position)
        (name,), position = unpack_texts(raw, position + _HOLD.size, 1)
        end = position + count * _HELD_QUEUE.size
        if end > len(raw):
            raise ValueError("a shard is cut short")
        rows = _HELD_QUEUE.iter_unpack(raw[position:end])
        found.setdefault(topic_id, {})[name] = {queue_id: HeldQueue(*need) for queue_id, *need in rows}
        position = end
    return found
