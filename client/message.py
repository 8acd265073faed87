"""Messages as users see them: to be sent, and received ones, which decode their parts on access.

Owns: `Message` (to send), `SendReceipt`, `MessageQueue`, `MessageView` (fetched from the log),
`LeasedMessage` (received with a lease). Must not: do I/O. Times are ms since the epoch.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.entry import Buffer
from ledgermq.proto.record import BODY_FIELDS, MAX_BODY_SIZE, RecordFlags, RecordView, decode_record

from .errors import CorruptMessageError

_body_fields: Final = BODY_FIELDS.unpack_from
_GZIP: Final = int(RecordFlags.GZIP)
_GZIP_MAGIC: Final = b"\x1f\x8b"
#: `wbits` of zlib for the two formats in use under the GZIP flag.
_GZIP_FORM: Final = 16 + zlib.MAX_WBITS
_ZLIB_FORM: Final = zlib.MAX_WBITS
#: Maximum of gzip members per body. Real bodies have fewer, and each costs a copy of the rest.
_MAX_MEMBERS: Final = 64


@dataclass(slots=True)
class Message:
    """A message to send.

    `message_group` requests order: messages of one message group stay in one queue, in order.
    `body`: 1 byte to 4 MiB (or the limit of the broker group). `tag`: for filters. `keys`: for look-ups
    (`ledgermq message query --key`). Tag, keys and properties have at most 16 KiB together.

        Message("orders", b"hello", tag="new", keys=["4711"], properties={"shop": "1"})
    """

    topic: str
    body: bytes
    tag: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    message_group: str = ""


class MessageQueue(NamedTuple):
    """One queue of a topic. Queue ids count from 0 in each broker group."""

    topic: str
    broker_group: str
    queue_id: int


class SendReceipt(NamedTuple):
    """Position of an acknowledged message. `duplicate`: a retry met the copy that was stored first.

    `queue_id` counts from 0 in each broker group, `queue_offset` from 0 in each queue.
    """

    message_id: str
    topic: str
    broker_group: str
    queue_id: int
    queue_offset: int
    duplicate: bool = False


class UnpackError(ValueError):
    """A compressed body in an unsupported form."""


def unpack_body(body: Buffer, gzipped: bool, max_bytes: int = MAX_BODY_SIZE) -> bytes:
    """Return the body as the producer gave it. Some clients put zlib data under the GZIP flag: both are read.

    A few bytes may decompress to gigabytes, so the result is limited to `max_bytes`. Producers refuse larger
    bodies before compression. Raises: UnpackError, zlib.error.
    """
    if not gzipped:
        return bytes(body)
    raw, parts, size = bytes(body), list[bytes](), 0
    is_gzip = raw.startswith(_GZIP_MAGIC)
    while not parts or (is_gzip and raw):
        if len(parts) == _MAX_MEMBERS:
            raise UnpackError(f"it is compressed in more than {_MAX_MEMBERS} parts")
        unpacker = zlib.decompressobj(_GZIP_FORM if is_gzip else _ZLIB_FORM)
        parts.append(unpacker.decompress(raw, max_bytes + 1 - size))
        size += len(parts[-1])
        if size > max_bytes:
            raise UnpackError(
                f"it has more than {max_bytes:,} bytes when it is unpacked; "
                "read_body(max_bytes=...) reads larger ones"
            )
        if not unpacker.eof:
            raise UnpackError("what is compressed is cut short")
        raw = unpacker.unused_data.lstrip(b"\0")  # gzip allows zero padding after the last member
    return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def _reading(part: str, queue: MessageQueue, queue_offset: int) -> Iterator[None]:
    """Translate decoding errors into one that names the message. Raises: CorruptMessageError."""
    try:
        yield
    except (DecodeError, zlib.error, UnpackError) as error:
        raise CorruptMessageError(
            queue.topic, queue.queue_id, f"its {part}: {error}", queue_offset
        ) from error


class _InQueue:
    """A stored message, which knows its queue."""

    __slots__ = ()
    queue: MessageQueue

    @property
    def topic(self) -> str:
        """Name of its topic."""
        return self.queue.topic

    @property
    def queue_id(self) -> int:
        """Queue id, counted from 0 in its broker group."""
        return self.queue.queue_id


class MessageView(_InQueue):
    """A message in the log. Attributes are decoded from the section's bytes on access.

    If a producer stored a part in an unreadable form, the attribute raises CorruptMessageError. Later
    messages are not affected: catch the error around the use of one message, and continue.

    Invariant: the section around the record was verified, so sizes are consistent. `_record` and `_system`
    are set on first use.
    """

    __slots__ = ("_buffer", "_position", "_record", "_system", "queue", "queue_offset", "store_timestamp")

    def __init__(
        self, buffer: Buffer, position: int, queue: MessageQueue, queue_offset: int, store_timestamp: int
    ) -> None:
        self._buffer = buffer
        self._position = position
        self.queue = queue
        self.queue_offset = queue_offset
        self.store_timestamp = store_timestamp

    def __repr__(self) -> str:
        return f"<MessageView {self.message_id} {self.topic}[{self.queue_id}]@{self.queue_offset}>"

    @property
    def record(self) -> RecordView:
        """The record's fixed header and the positions of its parts."""
        try:
            return self._record
        except AttributeError:
            self._record: RecordView = decode_record(self._buffer, self._position)
            return self._record

    @property
    def system_properties(self) -> v2.SystemProperties:
        """Properties set by the producer's client: id, tag, keys, times."""
        try:
            return self._system
        except AttributeError:
            with _reading("properties", self.queue, self.queue_offset):
                self._system: v2.SystemProperties = v2.SystemProperties.FromString(
                    bytes(self.record.system_run)
                )
            return self._system

    @property
    def body(self) -> bytes:
        """Body as the producer gave it.

        Raises: CorruptMessageError (marked as compressed, but is not; or more than 4 MiB).
        """
        flags, offset, size = _body_fields(self._buffer, self._position)
        if flags & _GZIP:
            return self.read_body()
        start = self._position + offset
        return bytes(self._buffer[start : start + size])

    def read_body(self, max_bytes: int = MAX_BODY_SIZE) -> bytes:
        """Return `body` if it has at most `max_bytes` when decompressed. Raises: CorruptMessageError."""
        record = self.record
        with _reading("body", self.queue, self.queue_offset):
            return unpack_body(record.body, bool(record.flags & _GZIP), max_bytes)

    @property
    def message_id(self) -> str:
        """Id given by the producer, as in its SendReceipt."""
        record = self.record
        if record.flags & RecordFlags.V1_ID:
            return "01" + record.message_id.hex().upper()
        try:
            return self.system_properties.message_id
        except CorruptMessageError:
            return record.message_id.hex().upper()

    @property
    def born_timestamp(self) -> int:
        """Creation time at the producer, ms since the epoch, by the producer's clock."""
        return self.record.born_timestamp

    @property
    def tag(self) -> str:
        """Tag, "" without one."""
        return self.system_properties.tag if self.record.tag_hash else ""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys, for look-ups."""
        return tuple(self.system_properties.keys) if self.record.key_count else ()

    @property
    def message_group(self) -> str:
        """Message group; "" without order."""
        return self.system_properties.message_group if self.record.flags & RecordFlags.FIFO else ""

    @property
    def properties(self) -> dict[str, str]:
        """Properties set by the producer's application."""
        with _reading("properties", self.queue, self.queue_offset):
            return dict(v2.Message.FromString(bytes(self.record.rest_run)).user_properties)


class LeasedMessage(_InQueue):
    """A received message. Leased to this consumer until it is acknowledged or its invisible time is over."""

    __slots__ = ("_raw", "queue", "receipt_handle", "received_ms")

    def __init__(self, raw: v2.Message, broker_group: str) -> None:
        system = raw.system_properties
        self._raw = raw
        self.queue = MessageQueue(raw.topic.name, broker_group, system.queue_id)
        self.receipt_handle = system.receipt_handle
        self.received_ms = 0  # set by a consumer with tracing, ms

    def __repr__(self) -> str:
        return f"<LeasedMessage {self.message_id} {self.topic}[{self.queue_id}]@{self.queue_offset}>"

    @property
    def queue_offset(self) -> int:
        """Offset in its queue, counted from 0."""
        return self._raw.system_properties.queue_offset

    @property
    def body(self) -> bytes:
        """Body as the producer gave it.

        Raises: CorruptMessageError (marked as compressed, but is not; or more than 4 MiB).
        """
        return self.read_body()

    def read_body(self, max_bytes: int = MAX_BODY_SIZE) -> bytes:
        """Return `body` if it has at most `max_bytes` when decompressed. Raises: CorruptMessageError."""
        is_gzipped = self._raw.system_properties.body_encoding == v2.GZIP
        with _reading("body", self.queue, self.queue_offset):
            return unpack_body(self._raw.body, is_gzipped, max_bytes)

    @property
    def message_id(self) -> str:
        """Id given by the producer, as in its SendReceipt."""
        return self._raw.system_properties.message_id

    @property
    def tag(self) -> str:
        """Tag, "" without one."""
        return self._raw.system_properties.tag

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys, for look-ups."""
        return tuple(self._raw.system_properties.keys)

    @property
    def message_group(self) -> str:
        """Message group; "" without order."""
        return self._raw.system_properties.message_group

    @property
    def properties(self) -> dict[str, str]:
        """Properties set by the producer's application."""
        return dict(self._raw.user_properties)

    @property
    def born_timestamp(self) -> int:
        """Creation time at the producer, ms since the epoch, by the producer's clock."""
        return self._raw.system_properties.born_timestamp.ToMilliseconds()

    @property
    def store_timestamp(self) -> int:
        """Time at which the broker group stored it, ms since the epoch."""
        return self._raw.system_properties.store_timestamp.ToMilliseconds()

    @property
    def delivery_attempt(self) -> int:
        """Delivery attempt, 1 for the first one."""
        return self._raw.system_properties.delivery_attempt
