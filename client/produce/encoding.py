"""Record encoder: turns a message into the bytes of its record. Pure: the caller supplies time, ids and host.

Owns: the checks that need no broker, compression, and the protobuf wire bytes of `Message`. These are written
by hand: one protobuf object per message would cost more than everything else together.

The two runs of a record (see proto/record.py):
    system run   fields of `SystemProperties`: 1 tag, 2 keys, 3 message_id, 5 body_encoding, 6 message_type,
                 7 born_timestamp, 8 born_host, 17 message_group
    rest run     fields of `Message`: 1 topic, 2 user_properties, 4 body
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ledgermq.proto.record import (
    MAX_BODY_SIZE,
    MAX_KEYS,
    MAX_PROPERTIES_SIZE,
    RECORD_HEADER_SIZE,
    RecordFlags,
    encode_record,
    hash_text,
)
from ledgermq.proto.varint import varint

from ..arguments import check_name, check_text, encode_text
from ..errors import InvalidMessageError, MessageTooLargeError

#: Larger bodies are compressed, if that makes them smaller; bytes.
COMPRESS_ABOVE: Final = 4096
_GZIP_LEVEL: Final = 5
#: For larger bodies, compressed samples decide whether to compress. Compressing 1 MiB of incompressible data
#: (images, compressed or encrypted data) takes 20 ms, which would be the largest cost of the send.
_SAMPLED_ABOVE: Final = 32 << 10  # bytes
_SAMPLE: Final = 4 << 10  # bytes, each at the beginning, in the middle and at the end
_WORTH_IT: Final = 0.95  # compress when compressed/original size of the samples is at most this
_MAX_PROPERTIES: Final = 128
_MAX_MESSAGE_GROUP: Final = 63
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_V1_ID: Final = int(RecordFlags.V1_ID)
_FIFO: Final = int(RecordFlags.FIFO)
_GZIP: Final = int(RecordFlags.GZIP)

#: Offset of the id's text in the system run of a message without labels.
ID_OFFSET_IN_SYSTEM_RUN: Final = 2
_ID_FIELD_SIZE: Final = ID_OFFSET_IN_SYSTEM_RUN + 34

# body_encoding (5) and message_type (6) for the four possible combinations of flags.
_KIND_RUN: Final = {
    0: b"\x28\x01\x30\x01",  # IDENTITY, NORMAL
    _GZIP: b"\x28\x02\x30\x01",
    _FIFO: b"\x28\x01\x30\x02",
    _GZIP | _FIFO: b"\x28\x02\x30\x02",
}


def alike_sizes(size: int) -> tuple[int, int]:
    """Return the range of sizes whose varint is as long as that of `size`; 0 is excluded."""
    length = max(1, -(-size.bit_length() // 7))
    return 1 << 7 * (length - 1), (1 << 7 * length) - 1


def field_bytes(number: int, value: bytes) -> bytes:
    """Encode a length-delimited field."""
    return varint(number << 3 | 2) + varint(len(value)) + value


class RecordEncoder:
    """Encodes the messages of one topic. Caches the runs that stay the same between messages."""

    __slots__ = ("_body_tags", "_born_ms", "_born_run", "_compress_above", "_host_run", "_topic_run", "topic")

    def __init__(self, topic: str, *, born_host: str, compress_above: int | None = COMPRESS_ABOVE) -> None:
        """`compress_above` None: never compress. Raises: InvalidNameError."""
        check_name("topic", topic)
        self.topic = topic
        self._topic_run = field_bytes(1, field_bytes(2, topic.encode()))
        self._host_run = field_bytes(8, born_host.encode())
        self._compress_above = MAX_BODY_SIZE if compress_above is None else compress_above
        self._born_ms = -1
        self._born_run = b""
        self._body_tags: dict[int, bytes] = {}  # body size → tag and length of the body field; bounded

    def encode(
        self,
        section_distance: int,
        body: bytes,
        message_id: tuple[bytes, str],
        born_ms: int,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str = "",
    ) -> bytes:
        """Encode a record. `message_id`: 16 bytes and text of a v1 id. `section_distance`: bytes.

        Raises: MessageTooLargeError, InvalidMessageError.
        """
        size = len(body)
        flags = 0
        if size > self._compress_above or not size:
            body, flags = self._squeeze(body)
            size = len(body)
        if message_group:
            flags |= _FIFO
        if born_ms != self._born_ms:
            self._keep_born(born_ms)
        system = b"\x1a\x22%b%b%b%b" % (
            message_id[1].encode(), _KIND_RUN[flags], self._born_run, self._host_run,
        )  # fmt: skip
        tag_hash = 0
        key_hashes: Sequence[int] = ()
        head = self._topic_run
        if tag or keys or properties or message_group:
            check_sizes(tag, keys, properties or {}, message_group)
            system, tag_hash, key_hashes = _with_labels(system, tag, keys, message_group)
            if properties:
                head += _properties_run(properties)
        head += self._body_tags.get(size) or self._keep_body_tag(size)
        return encode_record(
            system,
            head + body,
            section_distance=section_distance,
            body_offset_in_rest=len(head),
            body_size=size,
            message_id=message_id[0],
            born_timestamp=born_ms,
            tag_hash=tag_hash,
            key_hashes=key_hashes,
            flags=flags | _V1_ID,
        )

    def is_plain(self, body: bytes) -> bool:
        """Tell whether a body is immutable and sent as it is: `bytes`, not empty, not to be compressed."""
        return type(body) is bytes and 0 < len(body) <= self._compress_above

    def plain_sizes(self, body_size: int) -> tuple[int, int]:
        """Return the range of uncompressed body sizes with the same `plain_body_offset`."""
        smallest, largest = alike_sizes(body_size)
        return smallest, min(largest, self._compress_above)

    def plain_body_offset(self, body_size: int, born_ms: int) -> int:
        """Return the offset of the body in the record of an unlabelled message born at `born_ms`, bytes."""
        if born_ms != self._born_ms:
            self._keep_born(born_ms)
        tag = self._body_tags.get(body_size) or self._keep_body_tag(body_size)
        fixed = RECORD_HEADER_SIZE + _ID_FIELD_SIZE + len(_KIND_RUN[0])
        return fixed + len(self._born_run) + len(self._host_run) + len(self._topic_run) + len(tag)

    def _squeeze(self, body: bytes) -> tuple[bytes, int]:
        """Check the size of a body, and compress it if that makes it smaller."""
        check_body(body)
        if len(body) > _SAMPLED_ABOVE and not _looks_compressible(body):
            return body, 0
        packed = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        return (packed, _GZIP) if len(packed) < len(body) else (body, 0)

    def _keep_born(self, born_ms: int) -> None:
        seconds, ms = divmod(born_ms, 1000)
        stamp = b"\x08" + varint(seconds) + (b"\x10" + varint(ms * 1_000_000) if ms else b"")
        self._born_run = field_bytes(7, stamp)
        self._born_ms = born_ms

    def _keep_body_tag(self, size: int) -> bytes:
        if len(self._body_tags) >= 1024:
            self._body_tags.clear()
        tag = self._body_tags[size] = b"\x22" + varint(size)
        return tag


def _looks_compressible(body: bytes) -> bool:
    last = len(body) - _SAMPLE
    samples = b"".join([body[at : at + _SAMPLE] for at in (0, last // 2, last)])
    return len(zlib.compress(samples, _GZIP_LEVEL)) <= _WORTH_IT * len(samples)


def check_body(body: bytes) -> None:
    """Check the size of a body. Raises: InvalidMessageError, MessageTooLargeError."""
    if not body:
        raise InvalidMessageError("body", "it is empty")
    if len(body) > MAX_BODY_SIZE:
        raise MessageTooLargeError(len(body), MAX_BODY_SIZE)


def check_labels(tag: object, keys: object, properties: object, message_group: object) -> None:
    """Check the types of tag, keys, properties and message group. Empty values are checked, too.

    Raises: InvalidMessageError.
    """
    if isinstance(keys, str):
        raise InvalidMessageError("keys", f"{keys!r} is a single str; a list of keys is wanted")
    wanted = (
        ("tag", tag, str, "a str"),
        ("keys", keys, Sequence, "a list of str"),
        ("properties", properties, Mapping, "a dict of str"),
        ("message_group", message_group, str, "a str"),
    )
    for name, value, kind, what in wanted:
        if not isinstance(value, kind):
            raise InvalidMessageError(name, f"{value!r} is of type {type(value).__name__}; {what} is wanted")


def check_sizes(tag: str, keys: Sequence[str], properties: Mapping[str, str], message_group: str) -> int:
    """Check all labels as the brokers do, and return their size in bytes. Raises: InvalidMessageError."""
    check_labels(tag, keys, properties, message_group)
    if tag:
        check_text("tag", tag)
        if "|" in tag:
            raise InvalidMessageError("tag", f"{tag!r} contains '|', which separates tags in filters")
    if len(keys) > MAX_KEYS:
        raise InvalidMessageError("keys", f"there are {len(keys):,}, {MAX_KEYS:,} are allowed")
    for key in keys:
        check_text("key", key)
    for name, value in properties.items():
        check_text("property", name)
        if not isinstance(value, str) or _CONTROL.search(value):
            raise InvalidMessageError("property", f"{name!r} must be a str without control characters")
        encode_text("property", value)
    if message_group:
        check_text("message_group", message_group)
        if len(message_group.encode()) > _MAX_MESSAGE_GROUP:
            raise InvalidMessageError("message_group", f"it has more than {_MAX_MESSAGE_GROUP} bytes")
    if len(properties) > _MAX_PROPERTIES:
        raise InvalidMessageError("property", f"there are {len(properties)}, {_MAX_PROPERTIES} are allowed")
    total = _total((tag, *keys, *properties.keys(), *properties.values()))
    if total > MAX_PROPERTIES_SIZE:
        raise InvalidMessageError(
            "property", f"tag, keys and properties have {total} bytes, {MAX_PROPERTIES_SIZE} are allowed"
        )
    return total + len(message_group)


def _total(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _with_labels(
    system: bytes, tag: str, keys: Sequence[str], message_group: str
) -> tuple[bytes, int, list[int]]:
    """Return the system run with tag, keys and message group, the tag's hash and the keys' hashes."""
    parts = [field_bytes(1, tag.encode())] if tag else []
    parts += [field_bytes(2, key.encode()) for key in keys]
    parts.append(system)
    if message_group:
        parts.append(field_bytes(17, message_group.encode()))
    return b"".join(parts), hash_text(tag), [hash_text(key) for key in keys]


def _properties_run(properties: Mapping[str, str]) -> bytes:
    return b"".join(
        field_bytes(2, field_bytes(1, name.encode()) + field_bytes(2, value.encode()))
        for name, value in properties.items()
    )
