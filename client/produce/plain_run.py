"""Runs of plain messages: messages that differ only in body and id, encoded together.

Encoding a message without labels alone costs more than sending it. Plain messages of one topic that are born
in the same millisecond and follow one another in a section are therefore kept as bodies. They become records,
and get their ids, all at once when the section is cut. Their sizes may differ as long as the number of bytes
before the body is the same. Pure except for the source of ids. The records are identical to those that
`RecordEncoder.encode` makes one by one.

Also splits a batch into stretches of messages that can be encoded together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from ledgermq.proto.entry import Buffer
from ledgermq.proto.record import (
    BODY_SIZE_OFFSET,
    MESSAGE_ID_OFFSET,
    RECORD_HEADER_SIZE,
    REST_SIZE_OFFSET,
    SECTION_DISTANCE_OFFSET,
)
from ledgermq.proto.varint import varint

from ..message import Message
from .encoding import ID_OFFSET_IN_SYSTEM_RUN, RecordEncoder, alike_sizes
from .message_ids import MessageIdSource, numbers_from

#: A stretch ends at about this many bytes of bodies, so that a long batch waits for room as it goes.
_MAX_BYTES: Final = 256 * 1024
_LEAST: Final = 64  # minimum count of a small body, bytes
_MOST: Final = _MAX_BYTES // _LEAST  # messages in a stretch, and of those that are looked at together


class Stretch(NamedTuple):
    """Bodies of unlabelled messages for one topic, of similar size (see `alike_sizes`)."""

    topic: str
    bodies: list[bytes]
    smallest: int  # size of a body, bytes
    largest: int

    @classmethod
    def of(cls, topic: str, bodies: list[bytes]) -> Stretch:
        sizes = set(map(len, bodies))
        return cls(topic, bodies, min(sizes), max(sizes))


def stretches(messages: Sequence[Message], largest: int) -> Iterator[Message | Stretch]:
    """Yield messages in order: unlabelled neighbours as a stretch; others and bodies over `largest` alone."""
    for at in range(0, len(messages), _MOST):
        part = messages[at : at + _MOST]
        topic = part[0].topic
        bodies = [
            each.body
            for each in part
            if each.topic == topic
            and not (each.tag or each.keys or each.properties or each.message_group)
            and type(each.body) is bytes
        ]
        if len(bodies) == len(part):
            yield from stretches_of(topic, bodies, largest)
        else:
            yield from _cut(part, largest)


def stretches_of(topic: str, bodies: list[bytes], largest: int) -> Iterator[Message | Stretch]:
    """Do the same for the bodies of unlabelled messages."""
    sizes = set(map(len, bodies))
    smallest, longest = min(sizes), max(sizes)
    if not 0 < smallest <= longest <= min(largest, alike_sizes(smallest)[1]):
        yield from _cut([Message(topic, body) for body in bodies], largest)
        return
    count = max(1, _MAX_BYTES // max(longest, _LEAST))
    for start in range(0, len(bodies), count):
        yield Stretch(topic, bodies[start : start + count], smallest, longest)


def _cut(messages: Iterable[Message], largest: int) -> Iterator[Message | Stretch]:
    """Do the same message by message."""
    topic, low, high, room = "", 1, 0, 0
    bodies: list[bytes] = []

    for message in messages:
        body = message.body
        labelled = message.tag or message.keys or message.properties or message.message_group
        if labelled or type(body) is not bytes or not 0 < len(body) <= largest:
            if bodies:
                yield Stretch.of(topic, bodies)
                bodies, high = [], 0
            yield message
            continue
        size = len(body)
        if size > room or not low <= size <= high or message.topic != topic:
            if bodies:
                yield Stretch.of(topic, bodies)
            topic, bodies, room = message.topic, [], _MAX_BYTES
            low, high = alike_sizes(size)
        bodies.append(body)
        room -= max(size, _LEAST)
    if bodies:
        yield Stretch.of(topic, bodies)


#: Fewer messages than this are encoded one by one: arrays have a fixed cost.
FEW: Final = 8
_DIGITS: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), "<u2")
_U4: Final = struct.Struct("<I")
_PADDINGS: Final = tuple(bytes(count) for count in range(8))
_ID_NUMBER: Final = MESSAGE_ID_OFFSET + 12  # follows the stem
_TEXT_NUMBER: Final = RECORD_HEADER_SIZE + ID_OFFSET_IN_SYSTEM_RUN + 26


class PlainRun:
    """Bodies of plain messages. Append to `bodies` what `fits`; then call `write` once; then `message_ids`.

    `distance`: bytes from the section header to the first record.
    """

    __slots__ = (
        "_distance",
        "_encoder",
        "_first_number",
        "_ids",
        "_stem",
        "bodies",
        "body_offset",
        "born_ms",
        "largest",
        "smallest",
    )

    def __init__(
        self, encoder: RecordEncoder, distance: int, body_size: int, born_ms: int, ids: MessageIdSource
    ) -> None:
        self.bodies: list[bytes] = []  # emptied by `write`
        self.born_ms = born_ms
        self.smallest, self.largest = encoder.plain_sizes(body_size)  # range of its bodies' sizes, bytes
        self.body_offset = encoder.plain_body_offset(body_size, born_ms)  # equal in all records, bytes
        self._encoder = encoder
        self._distance = distance
        self._ids = ids
        self._stem = ids.stem(born_ms)
        self._first_number = 0  # of the ids; set by `write`

    def fits(self, encoder: RecordEncoder, body_size: int, born_ms: int) -> bool:
        """Tell whether a message may join."""
        return (
            born_ms == self.born_ms
            and self.smallest <= body_size <= self.largest
            and encoder is self._encoder
        )

    def record_size(self, body_size: int) -> int:
        """Return the size of a record with such a body, bytes."""
        return self.body_offset + body_size + 7 & -8

    def record_ends(self, bodies: list[bytes], size: int = 0) -> np.ndarray:
        """Return the end of each record, from the start of the first one (int64, one per body).

        `size`: of all bodies, if they are equally large; 0: they may differ.
        """
        if size:
            return np.arange(1, len(bodies) + 1, dtype=np.int64) * self.record_size(size)
        ends: np.ndarray = np.cumsum(_sizes(bodies) + (self.body_offset + 7) & -8)
        return ends

    def message_ids(self, start: int, stop: int) -> list[str]:
        """Return the texts of the ids that `write` assigned to the messages [start, stop)."""
        return self._stem.texts(self._first_number + start, stop - start)

    def write(self, out: memoryview) -> int:
        """Write the records to the start of `out`, and drop the bodies. Return the bytes written."""
        bodies, self.bodies = self.bodies, []
        self._first_number = self._ids.next_number(len(bodies))
        if len(bodies) < FEW:
            return self._write_few(bodies, out)
        sizes = _sizes(bodies)
        if (sizes == sizes[0]).all():
            return self._write_equal(bodies, out)
        return self._write_different(bodies, sizes, out)

    def _write_few(self, bodies: list[bytes], out: memoryview) -> int:
        at = 0
        for number, body in enumerate(bodies, self._first_number):
            message_id = self._stem.message_id(number & 0xFFFFFFFF)
            record = self._encoder.encode(self._distance + at, body, message_id, self.born_ms)
            out[at : at + len(record)] = record
            at += len(record)
        return at

    def _write_equal(self, bodies: list[bytes], out: memoryview) -> int:
        """Write bodies of one size: records are rows of an array."""
        count, body_size = len(bodies), len(bodies[0])
        size, body_at = self.record_size(body_size), self.body_offset
        _column(out, 0, size, count, f"V{size}")[:] = np.frombuffer(self._head(bodies[0]), f"V{size}")
        self._put_numbers(out, size, size * np.arange(count, dtype=np.int64))
        joined = b"".join(bodies)
        _column(out, body_at, size, count, f"V{body_size}")[:] = np.frombuffer(joined, f"V{body_size}")
        return count * size

    def _write_different(self, bodies: list[bytes], sizes: np.ndarray, out: memoryview) -> int:
        """Write bodies of different sizes: heads are rows of an array; bodies and padding go between them."""
        head_size, count = self.body_offset, len(bodies)
        record_sizes = sizes + (head_size + 7) & -8
        ends = np.cumsum(record_sizes)
        raw = bytearray(count * head_size)
        heads = np.frombuffer(raw, np.uint8).reshape(count, head_size)
        first = self._head(bodies[0])
        heads[:] = np.frombuffer(first, np.uint8, head_size)
        self._put_numbers(raw, head_size, ends - record_sizes)
        (rest,) = _U4.unpack_from(first, REST_SIZE_OFFSET)
        _column(raw, 0, head_size, count)[:] = record_sizes
        _column(raw, REST_SIZE_OFFSET, head_size, count)[:] = rest - sizes[0] + sizes
        _column(raw, BODY_SIZE_OFFSET, head_size, count)[:] = sizes
        length = len(varint(len(bodies[0])))  # of the body size in front of the body
        for byte in range(length):
            more = 0x80 if byte < length - 1 else 0
            heads[:, head_size - length + byte] = sizes >> 7 * byte & 0x7F | more
        end = int(ends[-1])
        rows = [raw[at : at + head_size] for at in range(0, len(raw), head_size)]
        paddings = map(_PADDINGS.__getitem__, (record_sizes - head_size - sizes).tolist())
        out[:end] = b"".join(chain.from_iterable(zip(rows, bodies, paddings, strict=True)))
        return end

    def _head(self, first_body: bytes) -> bytes:
        """Return the first record, as it would be with the number 0 in its id."""
        return self._encoder.encode(self._distance, first_body, self._stem.message_id(0), self.born_ms)

    def _put_numbers(self, heads: Buffer, stride: int, starts: np.ndarray) -> None:
        """Fill in what differs in the heads, which lie `stride` bytes apart. `starts`: of the records."""
        count = len(starts)
        numbers = numbers_from(self._first_number, count)
        _column(heads, SECTION_DISTANCE_OFFSET, stride, count)[:] = self._distance + starts
        _column(heads, _ID_NUMBER, stride, count, ">u4")[:] = numbers
        digits = _DIGITS[numbers.view(np.uint8).reshape(-1, 4)]
        _column(heads, _TEXT_NUMBER, stride, count, "<u8")[:] = digits.view("<u8").reshape(-1)


def _sizes(bodies: list[bytes]) -> np.ndarray:
    return np.fromiter(map(len, bodies), np.int64, len(bodies))


def _column(rows: Buffer, offset: int, stride: int, count: int, kind: str = "<u4") -> np.ndarray:
    """Return the fields at `offset` in rows of `stride` bytes as a writable array."""
    return np.ndarray((count,), kind, rows, offset, (stride,))
