"""Conversion of MessagingService messages to and from records, at the level of protobuf wire bytes.

In: one encoding pass turns a `Message` into the two runs of a record (D5).   Out: a delivered message
consists of the stored runs and the server's own fields, in one SystemProperties field.
Pure. Layout of records: proto/record.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import RecordFlags, RecordView, encode_record, hash_text, pack_message_id
from ledgermq.proto.varint import read_varint, varint

from .validation import derived_type

#: Fields of SystemProperties that only the server may set; values from producers are dropped.
SERVER_FIELDS: Final = (
    "store_timestamp",
    "store_host",
    "receipt_handle",
    "queue_id",
    "queue_offset",
    "invisible_duration",
    "delivery_attempt",
    "dead_letter_queue",
)
#: Range of a protobuf Timestamp (ms): the years 1 to 9999.
_FIRST_TIMESTAMP: Final = -62_135_596_800_000
_LAST_TIMESTAMP: Final = 253_402_300_799_999
_MASK64: Final = (1 << 64) - 1
_JUMP_FACTOR: Final = 2862933555777941757


@dataclass(slots=True)
class OutgoingRecord:
    """Runs and header fields of a future record; its section distance is not known yet."""

    system_run: bytes  # encoded SystemProperties
    rest_run: bytes  # encoded message without them
    body_offset: int  # in the rest run
    body_size: int
    message_id: bytes  # 16 bytes
    flags: int  # RecordFlags
    tag_hash: int
    key_hashes: tuple[int, ...]
    born_timestamp: int  # ms

    def encode(self, section_distance: int) -> bytes:
        """Return the record for a place `section_distance` bytes after the start of its section."""
        return encode_record(
            self.system_run,
            self.rest_run,
            section_distance=section_distance,
            body_offset_in_rest=self.body_offset,
            body_size=self.body_size,
            message_id=self.message_id,
            born_timestamp=self.born_timestamp,
            tag_hash=self.tag_hash,
            key_hashes=self.key_hashes,
            flags=self.flags,
        )


def outgoing_record(message: v2.Message, kind: v2.MessageType | None = None) -> OutgoingRecord:
    """Convert a validated message, which loses its system properties and body. `kind`: its type, if known."""
    system, body = message.system_properties, message.body
    for name in SERVER_FIELDS:
        system.ClearField(name)
    kind = derived_type(system) if kind is None else kind
    system.message_type = kind
    message_id, flags = pack_message_id(system.message_id)
    if system.body_encoding == v2.GZIP:
        flags |= RecordFlags.GZIP
    else:
        system.body_encoding = v2.IDENTITY
    if kind == v2.FIFO:
        flags |= RecordFlags.FIFO
    tag, keys = system.tag, tuple(hash_text(key) for key in system.keys)
    born_ms = _sound_birth(system)
    system_run = system.SerializeToString()
    message.ClearField("system_properties")
    message.ClearField("body")
    prefix = b"".join((message.SerializeToString(), b"\x22", varint(len(body))))
    return OutgoingRecord(
        system_run,
        prefix + body,
        len(prefix),
        len(body),
        message_id,
        int(flags),
        hash_text(tag),
        keys,
        born_ms,
    )


def _sound_birth(system: v2.SystemProperties) -> int:
    """Return the birth time (ms), clamped to the range of a Timestamp; the stored field is corrected, too."""
    born = system.born_timestamp
    given = born.seconds * 1000 + born.nanos // 1_000_000
    sound = min(max(given, _FIRST_TIMESTAMP), _LAST_TIMESTAMP)
    if sound != given:
        born.FromMilliseconds(sound)
    return sound


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode` (signed 32 bits, over UTF-16 units)."""
    units = text.encode("utf-16-le")
    value = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def queue_of_group(message_group: str, queue_count: int) -> int:
    """Return the queue of a message group by jump consistent hash: added queues move few message groups."""
    state, candidate = java_string_hash(message_group) & _MASK64, 0
    while True:
        state = (state * _JUMP_FACTOR + 1) & _MASK64
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= queue_count:
            return candidate
        candidate = following


def present_fields(run: bytes | memoryview) -> int:
    """Return a bit set of the field numbers (below 64) in a wire run. Raises: ValueError."""
    found, position, end = 0, 0, len(run)
    while position < end:
        tag, position = read_varint(run, position)
        found |= 1 << (tag >> 3 & 63)
        wire = tag & 7
        if wire == 2:
            size, position = read_varint(run, position)
            position += size
        elif wire == 0:
            _, position = read_varint(run, position)
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} in system properties")
    if position != end:
        raise ValueError("system properties are cut short")
    return found


@dataclass(frozen=True, slots=True)
class OutgoingDelivery:
    """Fields that the server adds to a delivered record."""

    queue_id: int
    queue_offset: int
    store_timestamp: int  # log time, ms
    store_host: str
    receipt_handle: str
    attempt: int  # from 1
    topic: str = ""  # for a record without a topic name


def message_id_text(record: RecordView) -> str:
    """Return the text form of the message id, for a record whose system run has none."""
    prefix = "01" if record.flags & RecordFlags.V1_ID else ""
    return prefix + record.message_id.hex().upper()


def delivered_message(record: RecordView, delivery: OutgoingDelivery) -> bytes:
    """Return the wire bytes of the `Message` for a consumer.

    A client that builds records itself may store runs that are not valid protobuf. Such a message must not
    block a consumer group, so its readable parts are delivered: at least topic, place and body.
    """
    stored, present = _sound_system_run(record)
    extra = _server_properties(record, delivery, present)
    rest = _sound_rest_run(record, delivery.topic)
    system = b"\x1a" + varint(len(stored) + len(extra))
    return b"".join((rest, system, stored, extra))


def _sound_system_run(record: RecordView) -> tuple[bytes, int]:
    """Return the system run and its field numbers, or an empty run if it is not valid."""
    stored = bytes(record.system_run)
    try:
        v2.SystemProperties.FromString(stored)
        return stored, present_fields(stored)
    except (DecodeError, ValueError):
        return b"", 0


def _sound_rest_run(record: RecordView, topic: str) -> bytes:
    """Return the rest run, or one of topic and body if it is not valid."""
    rest = bytes(record.rest_run)
    try:
        if v2.Message.FromString(rest).topic.name or not topic:
            return rest
        kept = rest
    except DecodeError:
        kept = v2.Message(body=bytes(record.body)).SerializeToString()
    return v2.Message(topic=v2.Resource(name=topic)).SerializeToString() + kept


def message_frame(message: bytes) -> bytes:
    """Return a ReceiveMessageResponse with `message`."""
    return b"\x12" + varint(len(message)) + message


def _server_properties(record: RecordView, delivery: OutgoingDelivery, present: int) -> bytes:
    """Encode the server's fields, and required fields that the producer omitted."""
    extra = v2.SystemProperties(
        store_host=delivery.store_host,
        receipt_handle=delivery.receipt_handle,
        queue_id=delivery.queue_id,
        queue_offset=delivery.queue_offset,
        delivery_attempt=delivery.attempt,
    )
    extra.store_timestamp.FromMilliseconds(delivery.store_timestamp)
    if not present & 1 << 3:
        extra.message_id = message_id_text(record)
    if not present & 1 << 4:
        extra.body_digest.type = v2.MD5
        extra.body_digest.checksum = hashlib.md5(record.body, usedforsecurity=False).hexdigest().upper()
    if not present & 1 << 5:
        extra.body_encoding = v2.GZIP if record.flags & RecordFlags.GZIP else v2.IDENTITY
    if not present & 1 << 6:
        extra.message_type = v2.FIFO if record.flags & RecordFlags.FIFO else v2.NORMAL
    if not present & 1 << 7:
        extra.born_timestamp.FromMilliseconds(min(max(record.born_timestamp, 0), _LAST_TIMESTAMP))
    if not present & 1 << 8:
        extra.born_host = delivery.store_host
    return extra.SerializeToString()
