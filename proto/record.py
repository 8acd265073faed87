"""Layout of sections and records: the payload of a RECORDS entry, as producers send and consumers fetch it.

Little-endian. The payload is 1..n sections. A section is a 64-byte header and a body, both multiples of 8
bytes.

Section header
     0  u8   kind              SectionKind: 1 records of one queue, 2 state commands
     1  u8   version           1
     2  u16  queue id
     4  u32  topic id          0 for commands
     8  i64  base queue offset filled in by the leader (producers send -1); -1 for commands
    16  u32  count             records (or commands) in the body
    20  u32  size              bytes of the body, multiple of 8
    24  u32  crc32c            over the body
    28  u32  entry distance    bytes from this header back to its entry's header; filled in by the leader
    32  u64  producer id       0: not deduplicated by sequence
    40  u32  producer epoch
    44  u32  reserved          0
    48  u64  base sequence     sequence of the first record
    56  u64  reserved          0

The checksum covers the body only, so the leader fills in its fields without touching the body.

Record (64-byte fixed header, key hashes, two runs of protobuf wire bytes, padding to 8)
     0  u32  size              whole record with padding, multiple of 8
     4  u32  section distance  bytes from this record back to its section header
     8  u16  flags             RecordFlags
    10  u16  key count
    12  u32  system size       bytes of the system run: fields of `SystemProperties` as the client sent them
    16  u32  rest size         bytes of the rest run: fields topic, user_properties, body of `Message`
    20  u32  body offset       from the record's start to the first body byte (inside the rest run)
    24  u32  body size         bytes of the body as sent (compressed when flagged so)
    28  u32  reserved          0
    32  i64  tag hash          0: no tag
    40  i64  born timestamp    ms since the epoch, the producer's clock
    48  16   message id        bytes 1..16 of a 17-byte v1 id, else blake2b-128 of the id's text
    64  u64[key count]        hashes of the keys
    then the system run, the rest run, padding

Command (in a section of kind 2): u16 type · u16 version · u32 size · payload · padding to 8.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum, IntFlag
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.lib.stride_tricks import as_strided

from .entry import Buffer, padded
from .errors import CorruptError, NewerFormatError
from .values import value

SECTION_HEADER_SIZE: Final = 64
RECORD_HEADER_SIZE: Final = 64
COMMAND_HEADER_SIZE: Final = 8
SECTION_VERSION: Final = 1
#: A larger body is refused (A2.8: 4 MiB).
MAX_BODY_SIZE: Final = 4 * 1024 * 1024
#: Tag, keys and user properties together, in bytes of text.
MAX_PROPERTIES_SIZE: Final = 16 * 1024
#: Keys per message. Each costs a hash in the record.
MAX_KEYS: Final = 1024
#: Limit of a record besides its body: properties, key hashes, names, ids, and their framing.
MAX_RECORD_OVERHEAD: Final = 64 * 1024
#: Size of the largest record.
MAX_RECORD_SIZE: Final = MAX_BODY_SIZE + MAX_RECORD_OVERHEAD

#: Bit of the producer epoch that marks sections of batches that are written exactly once. The epochs of
#: other producers are below it.
BATCH_WRITE_EPOCH: Final = 1 << 31

#: Up to this number, records are processed one by one.
_FEW: Final = 4
#: From this number on, it pays to look whether they are evenly spaced.
_MANY: Final = 100

_SECTION: Final = struct.Struct("<BBHIqIIIIQIIQQ")
_RECORD: Final = struct.Struct("<IIHHIIIIIqq16s")
_COMMAND: Final = struct.Struct("<HHI")
assert _SECTION.size == SECTION_HEADER_SIZE
assert _RECORD.size == RECORD_HEADER_SIZE

#: Positions of the fields that differ between otherwise equal records, in bytes from the start of the record.
SECTION_DISTANCE_OFFSET: Final = 4
REST_SIZE_OFFSET: Final = 16
BODY_SIZE_OFFSET: Final = 24
MESSAGE_ID_OFFSET: Final = 48

#: Header words of a record, by number: flags and key count are the low bits of the first one.
FLAGS_WORD: Final = 1
TAG_WORD: Final = 4
ID_WORDS: Final = (6, 7)
_LENGTH_WORDS: Final = (1, 2, 3)  # flags, and all lengths besides the record's own

#: Flags, body offset and body size of a record, for readers that need only the body.
BODY_FIELDS: Final = struct.Struct("<8xH10xII")

RECORD_DTYPE: Final = np.dtype(
    [
        ("size", "<u4"),
        ("section_distance", "<u4"),
        ("flags", "<u2"),
        ("key_count", "<u2"),
        ("system_size", "<u4"),
        ("rest_size", "<u4"),
        ("body_offset", "<u4"),
        ("body_size", "<u4"),
        ("reserved", "<u4"),
        ("tag_hash", "<i8"),
        ("born_timestamp", "<i8"),
        ("message_id", "V16"),
    ]
)


class SectionKind(IntEnum):
    RECORDS = 1
    COMMANDS = 2


class RecordFlags(IntFlag):
    GZIP = 1  # the body is gzip-compressed (Encoding.GZIP)
    V1_ID = 2  # `message_id` is a v1 id: text = "01" + upper-case hex of the 16 bytes
    COPY = 4  # appended by the leader as a copy of a stored message (delay, transaction, dead letter)
    FIFO = 8  # the message has a message group


_FLAGS: Final = tuple(RecordFlags(value) for value in range(16))  # cached, because constructing one is slow

#: Flags that a producer may set.
PRODUCER_FLAGS: Final = int(RecordFlags.GZIP | RecordFlags.V1_ID | RecordFlags.FIFO)


@value
class SectionHeader:
    """Decoded section header."""

    kind: SectionKind
    queue_id: int
    topic_id: int
    base_queue_offset: int  # queue offset of the first record; -1 for commands, and until the leader sets it
    count: int  # records or commands in the body
    size: int  # bytes of the body; invariant: a multiple of 8
    crc: int  # of the body only
    entry_distance: int  # bytes back to the entry's header; the leader sets it
    producer_id: int  # 0: not deduplicated by sequence
    producer_epoch: int  # a producer with a higher epoch supersedes this one
    base_sequence: int  # sequence of the first record

    @property
    def total_size(self) -> int:
        """Bytes of header and body."""
        return SECTION_HEADER_SIZE + self.size


class RecordView(NamedTuple):
    """One record inside a buffer.

    Its runs are slices without a copy. A tuple, because readers make one per message.
    """

    buffer: Buffer
    position: int  # of the record, in `buffer`
    size: int  # bytes, padding included; invariant: a multiple of 8
    section_distance: int  # bytes back to the section header
    flags: RecordFlags
    key_count: int
    system_size: int  # bytes of the system run
    rest_size: int  # bytes of the rest run
    body_offset: int  # from the start of the record to the first body byte
    body_size: int  # bytes as sent (compressed if flagged)
    tag_hash: int  # 0: no tag
    born_timestamp: int  # ms since the epoch, by the producer's clock
    message_id: bytes  # 16 bytes; `RecordFlags.V1_ID` tells how to read them

    @property
    def _system_start(self) -> int:
        return self.position + RECORD_HEADER_SIZE + 8 * self.key_count

    @property
    def system_run(self) -> memoryview:
        """Wire bytes of `SystemProperties` as the client sent them."""
        start = self._system_start
        return memoryview(self.buffer)[start : start + self.system_size]

    @property
    def rest_run(self) -> memoryview:
        """Wire bytes of the fields 1, 2 and 4 of `Message` (topic, user_properties, body)."""
        start = self._system_start + self.system_size
        return memoryview(self.buffer)[start : start + self.rest_size]

    @property
    def body(self) -> memoryview:
        """Body as sent (compressed if `RecordFlags.GZIP` is set)."""
        start = self.position + self.body_offset
        return memoryview(self.buffer)[start : start + self.body_size]

    @property
    def key_hashes(self) -> tuple[int, ...]:
        return struct.unpack_from(f"<{self.key_count}Q", self.buffer, self.position + RECORD_HEADER_SIZE)


def hash_text(text: str) -> int:
    """Return the signed 64-bit hash of a tag or key: stable across versions, languages and runs; 0 for ""."""
    if not text:
        return 0
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def pack_message_id(text: str) -> tuple[bytes, RecordFlags]:
    """Return the 16 stored bytes of a message id, and the flag that tells how to read them."""
    if len(text) == 34 and text.startswith("01"):
        try:
            raw = bytes.fromhex(text[2:])
        except ValueError:
            raw = b""
        if len(raw) == 16 and raw.hex().upper() == text[2:]:
            return raw, RecordFlags.V1_ID
    return hashlib.blake2b(text.encode(), digest_size=16).digest(), RecordFlags(0)


def encode_record(
    system_run: bytes,
    rest_run: bytes,
    *,
    section_distance: int,
    body_offset_in_rest: int,
    body_size: int,
    message_id: bytes,
    born_timestamp: int,
    tag_hash: int = 0,
    key_hashes: Sequence[int] = (),
    flags: int = 0,
) -> bytes:
    """Return one record. `section_distance` is its offset from the start of the section header, in bytes."""
    keys = struct.pack(f"<{len(key_hashes)}Q", *(key & 0xFFFFFFFFFFFFFFFF for key in key_hashes))
    body_offset = RECORD_HEADER_SIZE + len(keys) + len(system_run) + body_offset_in_rest
    exact = RECORD_HEADER_SIZE + len(keys) + len(system_run) + len(rest_run)
    size = padded(exact)
    header = _RECORD.pack(
        size, section_distance, flags, len(key_hashes), len(system_run), len(rest_run),
        body_offset, body_size, 0, tag_hash, born_timestamp, message_id,
    )  # fmt: skip
    return b"".join((header, keys, system_run, rest_run, bytes(size - exact)))


def encode_section(
    kind: SectionKind,
    body_parts: Sequence[Buffer],
    count: int,
    *,
    topic_id: int = 0,
    queue_id: int = 0,
    base_queue_offset: int = -1,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
) -> bytearray:
    """Return a section. `seal_section` later sets the leader's fields (base offset, entry distance)."""
    size = sum(len(part) for part in body_parts)
    assert size % 8 == 0, "records and commands are padded to 8 bytes"
    out = bytearray(SECTION_HEADER_SIZE + size)
    position = SECTION_HEADER_SIZE
    for part in body_parts:
        out[position : position + len(part)] = part
        position += len(part)
    put_section_header(
        out, kind, count, topic_id=topic_id, queue_id=queue_id, base_queue_offset=base_queue_offset,
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence,
    )  # fmt: skip
    return out


def put_section_header(
    section: bytearray,
    kind: SectionKind,
    count: int,
    *,
    topic_id: int = 0,
    queue_id: int = 0,
    base_queue_offset: int = -1,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
) -> None:
    """Write the header before a body that is already in place: the rest of `section` after the header."""
    size = len(section) - SECTION_HEADER_SIZE
    crc = crc32c(memoryview(section)[SECTION_HEADER_SIZE:])
    _SECTION.pack_into(
        section, 0, kind, SECTION_VERSION, queue_id, topic_id, base_queue_offset, count, size, crc, 0,
        producer_id, producer_epoch, 0, base_sequence, 0,
    )  # fmt: skip


def seal_section(section: bytearray | memoryview, *, base_queue_offset: int, entry_distance: int) -> None:
    """Set the leader's fields of a writable section header."""
    struct.pack_into("<q", section, 8, base_queue_offset)
    struct.pack_into("<I", section, 28, entry_distance)


def decode_section(buffer: Buffer, position: int = 0) -> SectionHeader:
    """Decode the section header at `position` and check that its body is inside `buffer`.

    Raises: CorruptError, NewerFormatError.
    """
    if len(buffer) - position < SECTION_HEADER_SIZE:
        raise CorruptError("section header cut short", position)
    (
        kind, version, queue_id, topic_id, base_queue_offset, count, size, crc, entry_distance,
        producer_id, producer_epoch, reserved, base_sequence, reserved2,
    ) = _SECTION.unpack_from(buffer, position)  # fmt: skip
    if version > SECTION_VERSION:
        raise NewerFormatError("section", version, SECTION_VERSION)
    if version != SECTION_VERSION or kind not in (1, 2) or reserved or reserved2:
        raise CorruptError("no section header", position)
    if size % 8 or position + SECTION_HEADER_SIZE + size > len(buffer):
        raise CorruptError("section size does not fit", position)
    return SectionHeader(
        SectionKind.RECORDS if kind == 1 else SectionKind.COMMANDS, queue_id, topic_id, base_queue_offset,
        count, size, crc, entry_distance,
        producer_id, producer_epoch, base_sequence,
    )  # fmt: skip


def verify_section(buffer: Buffer, position: int, header: SectionHeader) -> None:
    """Check the checksum of a section's body. Raises: CorruptError."""
    start = position + SECTION_HEADER_SIZE
    if crc32c(memoryview(buffer)[start : start + header.size]) != header.crc:
        raise CorruptError("section checksum mismatch", position)


def walk_sections(payload: Buffer, count: int) -> Iterator[tuple[int, SectionHeader]]:
    """Yield (position, header) of the `count` sections of a payload. Raises: CorruptError."""
    position = 0
    for _ in range(count):
        header = decode_section(payload, position)
        yield position, header
        position += header.total_size
    if position != len(payload):
        raise CorruptError("bytes behind the last section", position)


def record_positions(body: Buffer, count: int, *, distance: int = SECTION_HEADER_SIZE) -> np.ndarray:
    """Return the byte positions of a section's records inside its body (int64, shape (count,)).

    Checks that sizes chain exactly through the body, that every run is inside its record, and that each
    record refers to its section (`distance`: bytes between section header and body).
    Raises: CorruptError.
    """
    if count * RECORD_HEADER_SIZE > len(body):  # before allocating anything for that many
        raise CorruptError("the section is too short for its records", 0)
    if count <= _FEW:
        return _few_positions(body, count, distance)
    equal = _equal_positions(body, count, distance)
    if equal is not None:
        return equal
    positions = np.empty(count, np.int64)
    position, end = 0, len(body)
    size_at = struct.Struct("<II").unpack_from
    for i in range(count):
        if position + RECORD_HEADER_SIZE > end:
            raise CorruptError("record cut short", position)
        size, section_distance = size_at(body, position)
        if size < RECORD_HEADER_SIZE or size % 8 or section_distance != position + distance:
            raise CorruptError("record header does not fit its section", position)
        positions[i] = position
        position += size
    if position != end:
        raise CorruptError("records do not fill their section", position)
    check_runs(body, positions)
    return positions


def _few_positions(body: Buffer, count: int, distance: int) -> np.ndarray:
    """Like `record_positions`. For a few records a loop is faster than arrays. Raises: CorruptError."""
    positions = []
    position, end = 0, len(body)
    for _ in range(count):
        if position + RECORD_HEADER_SIZE > end:
            raise CorruptError("record cut short", position)
        (
            size, section_distance, _flags, key_count, system_size, rest_size, body_offset, body_size,
            reserved,
            _tag_hash, _born_timestamp, _message_id,
        ) = _RECORD.unpack_from(body, position)  # fmt: skip
        if size < RECORD_HEADER_SIZE or size % 8 or section_distance != position + distance:
            raise CorruptError("record header does not fit its section", position)
        rest_start = RECORD_HEADER_SIZE + 8 * key_count + system_size
        exact = rest_start + rest_size
        if padded(exact) != size or not rest_start <= body_offset <= exact - body_size or reserved:
            raise CorruptError("record runs do not fit the record", position)
        positions.append(position)
        position += size
    if position != end:
        raise CorruptError("records do not fill their section", position)
    return np.array(positions, np.int64)


def _equal_positions(body: Buffer, count: int, distance: int) -> np.ndarray | None:
    """Like `record_positions`, without a loop; None if the records differ in size. Raises: CorruptError."""
    if not count or len(body) < RECORD_HEADER_SIZE:
        return None
    (size,) = struct.unpack_from("<I", body)
    if size < RECORD_HEADER_SIZE or size % 8 or size * count != len(body):
        return None
    positions: np.ndarray = np.arange(count, dtype=np.int64) * size
    words = np.frombuffer(body, "<u8").reshape(count, size // 8)
    if not bool((words[:, 0] == (positions + distance << 32 | size).view(np.uint64)).all()):
        return None
    if all(bool((words[:, word] == words[0, word]).all()) for word in _LENGTH_WORDS):
        _few_positions(memoryview(body)[:size], 1, distance)  # it stands for all of them
    else:
        check_runs(body, positions)
    return positions


def check_runs(body: Buffer, positions: np.ndarray) -> np.ndarray:
    """Check the inner lengths of all records at once. Returns their headers. Raises: CorruptError."""
    headers = record_headers(body, positions)
    lengths = headers[:1] if len(headers) and are_alike(headers) else headers  # one may stand for all
    exact = (
        RECORD_HEADER_SIZE
        + 8 * lengths["key_count"].astype(np.int64)
        + lengths["system_size"]
        + lengths["rest_size"]
    )
    rest_start = exact - lengths["rest_size"]
    body_end = lengths["body_offset"].astype(np.int64) + lengths["body_size"]
    bad = (lengths["body_offset"] < rest_start) | (body_end > exact) | (lengths["reserved"] != 0)
    bad = bad | ((exact + 7) & ~7 != headers["size"])
    if bad.any():
        raise CorruptError("record runs do not fit the record", int(positions[int(bad.argmax())]))
    return headers


class RecordWords:
    """The 8-byte words of the headers of the records at `positions`, by columns.

    A column is a view of the body when many records are evenly spaced, as those of equal size are.
    """

    __slots__ = ("_places", "_step", "_words")

    def __init__(self, body: Buffer, positions: np.ndarray) -> None:
        self._words = np.frombuffer(body, "<u8", len(body) // 8)
        self._places = places = positions >> 3
        self._step = 0  # words from each record to the next; 0: they differ, or are few
        if len(places) >= _MANY:
            step = int(places[1] - places[0])
            if bool((places[1:] - places[:-1] == step).all()):
                self._step = step

    def column(self, word: int) -> np.ndarray:
        """Return the header word number `word` of each record (u64)."""
        places, step = self._places, self._step
        which = slice(places[0] + word, places[-1] + word + 1, step) if step else places + word
        found: np.ndarray = self._words[which]
        return found


def record_flags(body: Buffer, positions: np.ndarray) -> np.ndarray:
    """Return the flags of the records at `positions` (uint16, same length)."""
    halves = np.frombuffer(body, "<u2", count=len(body) // 2)
    flags: np.ndarray = halves[positions // 2 + 4]
    return flags


def record_headers(body: Buffer, positions: np.ndarray) -> np.ndarray:
    """Return the fixed headers of the records at `positions` (RECORD_DTYPE, same length), copied once."""
    count, width = len(positions), RECORD_HEADER_SIZE // 8
    if count == 0:
        return np.empty(0, RECORD_DTYPE)
    words, places = np.frombuffer(body, "<u8", len(body) // 8), positions >> 3
    step = int(places[1] - places[0]) if count > 1 else width
    breaks = np.flatnonzero(places[1:] - places[:-1] != step) + 1
    is_inside = int(places.min()) >= 0 and int(places.max()) + width <= len(words)
    if len(breaks) * _MANY > count or step < width or not is_inside:
        found = words[places[:, None] + np.arange(width)]
    else:  # stretches of evenly spaced records, as those of equal size are: a view of each
        found = np.empty((count, width), "<u8")
        for first, end in pairwise([0, *breaks.tolist(), count]):
            start = int(places[first])
            stretch = words[start : start + (end - first - 1) * step + width]
            found[first:end] = as_strided(stretch, (end - first, width), (8 * step, 8), writeable=False)
    headers: np.ndarray = found.view(RECORD_DTYPE).reshape(-1)
    return headers


def are_alike(headers: np.ndarray) -> bool:
    """Tell whether headers (RECORD_DTYPE, at least one) say the same of their flags and inner lengths."""
    words = headers.view("<u8").reshape(len(headers), -1)
    return all(bool((words[:, word] == words[0, word]).all()) for word in _LENGTH_WORDS)


def decode_record(buffer: Buffer, position: int = 0) -> RecordView:
    """Decode the record at `position`. Raises: CorruptError."""
    if len(buffer) - position < RECORD_HEADER_SIZE:
        raise CorruptError("record header cut short", position)
    (
        size, section_distance, flags, key_count, system_size, rest_size, body_offset, body_size, reserved,
        tag_hash, born_timestamp, message_id,
    ) = _RECORD.unpack_from(buffer, position)  # fmt: skip
    exact = RECORD_HEADER_SIZE + 8 * key_count + system_size + rest_size
    if size != padded(exact) or position + size > len(buffer) or body_offset + body_size > exact or reserved:
        raise CorruptError("record sizes do not fit", position)
    return RecordView(
        buffer, position, size, section_distance, _FLAGS[flags] if flags < 16 else RecordFlags(flags),
        key_count, system_size, rest_size,
        body_offset, body_size, tag_hash, born_timestamp, message_id,
    )  # fmt: skip


def encode_command(command_type: int, version: int, payload: bytes) -> bytes:
    """Return one state command, padded."""
    size = padded(COMMAND_HEADER_SIZE + len(payload))
    return _COMMAND.pack(command_type, version, len(payload)) + payload.ljust(
        size - COMMAND_HEADER_SIZE, b"\0"
    )


def walk_commands(body: Buffer, count: int) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (type, version, payload) of the commands in a section body. Raises: CorruptError."""
    position, view = 0, memoryview(body)
    for _ in range(count):
        if position + COMMAND_HEADER_SIZE > len(view):
            raise CorruptError("command cut short", position)
        command_type, version, size = _COMMAND.unpack_from(view, position)
        start = position + COMMAND_HEADER_SIZE
        if start + size > len(view):
            raise CorruptError("command cut short", position)
        yield command_type, version, view[start : start + size]
        position += padded(COMMAND_HEADER_SIZE + size)
    if position != len(view):
        raise CorruptError("bytes behind the last command", position)
