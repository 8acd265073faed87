"""Runs of plain messages: messages that differ only in body and id, encoded together.

Encoding a message without labels alone costs more than sending it. Plain messages of one topic that are born
in the same millisecond and follow one another in a section are therefore kept as bodies. They become records,
and get their ids, all at once when the section is cut. Their sizes may differ as long as the number of bytes
before the body is the same. Pure except for the source of ids. The records are identical to those that
`RecordEncoder.encode` makes one by one.

Also splits a batch into stretches of messages that can be encoded together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

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
from .message_ids import MessageIdSource

#: A stretch ends at about this many bytes of bodies, so that a long batch waits for room as it goes.
_MAX_BYTES: Final = 256 * 1024
_LEAST: Final = 64  # minimum count of a small body, bytes: a stretch has at most 4,096 messages


class Stretch(NamedTuple):
    """Bodies of unlabelled messages for one topic, of similar size (see `alike_sizes`)."""

    topic: str
    bodies: list[bytes]


def stretches(messages: Iterable[Message], largest: int) -> Iterator[Message | Stretch]:
    """Yield messages in order: unlabelled neighbours as a stretch; others and bodies over `largest` alone."""
    topic, low, high, room = "", 1, 0, 0
    bodies: list[bytes] = []
    for message in messages:
        body = message.body
        labelled = message.tag or message.keys or message.properties or message.message_group
        if labelled or type(body) is not bytes or not 0 < len(body) <= largest:
            if bodies:
                yield Stretch(topic, bodies)
                bodies, high = [], 0
            yield message
            continue
        size = len(body)
        if size > room or not low <= size <= high or message.topic != topic:
            if bodies:
                yield Stretch(topic, bodies)
            topic, bodies, room = message.topic, [], _MAX_BYTES
            low, high = alike_sizes(size)
        bodies.append(body)
        room -= max(size, _LEAST)
    if bodies:
        yield Stretch(topic, bodies)


#: Fewer messages than this are encoded one by one: arrays have a fixed cost.
FEW: Final = 8
_DIGITS: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint8).reshape(256, 2)
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
        "_ids",
        "_numbers",
        "_stem",
        "_texts",
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
        self._numbers: np.ndarray  # of the ids, if there are FEW messages or more
        self._texts: list[str] = []  # the ids, if there are fewer

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

    def record_ends(self, bodies: list[bytes]) -> np.ndarray:
        """Return the end of each record, from the start of the first one (int64, one per body)."""
        ends: np.ndarray = np.cumsum(_sizes(bodies) + (self.body_offset + 7) & -8)
        return ends

    def message_ids(self) -> list[str]:
        """Return the texts of the ids that `write` assigned."""
        return self._texts or self._stem.texts(self._numbers)

    def write(self, out: memoryview) -> int:
        """Write the records to the start of `out`, and drop the bodies. Return the bytes written."""
        bodies, self.bodies = self.bodies, []
        if len(bodies) < FEW:
            return self._write_few(bodies, out)
        self._numbers = self._ids.next_numbers(len(bodies))
        sizes = _sizes(bodies)
        if (sizes == sizes[0]).all():
            return self._write_equal(bodies, out)
        return self._write_different(bodies, sizes, out)

    def _write_few(self, bodies: list[bytes], out: memoryview) -> int:
        at = 0
        for body in bodies:
            message_id = self._stem.message_id(self._ids.next_number())
            record = self._encoder.encode(self._distance + at, body, message_id, self.born_ms)
            out[at : at + len(record)] = record
            at += len(record)
            self._texts.append(message_id[1])
        return at

    def _write_equal(self, bodies: list[bytes], out: memoryview) -> int:
        """Write bodies of one size: records are rows of an array."""
        count, body_size = len(bodies), len(bodies[0])
        size, body_at = self.record_size(body_size), self.body_offset
        records = np.frombuffer(out[: count * size], np.uint8).reshape(count, size)
        self._put_heads(records[:, :body_at], bodies[0], size * np.arange(count, dtype=np.int64))
        joined = np.frombuffer(b"".join(bodies), np.uint8).reshape(count, body_size)
        records[:, body_at : body_at + body_size] = joined
        records[:, body_at + body_size :] = 0
        return count * size

    def _write_different(self, bodies: list[bytes], sizes: np.ndarray, out: memoryview) -> int:
        """Write bodies of different sizes: heads are rows of an array; bodies and padding go between them."""
        head_size, count = self.body_offset, len(bodies)
        record_sizes = sizes + (head_size + 7) & -8
        ends = np.cumsum(record_sizes)
        heads = np.empty((count, head_size), np.uint8)
        self._put_heads(heads, bodies[0], ends - record_sizes)
        heads[:, :4] = _bytes_of(record_sizes)
        rest = int.from_bytes(heads[0, REST_SIZE_OFFSET : REST_SIZE_OFFSET + 4].tobytes(), "little")
        heads[:, REST_SIZE_OFFSET : REST_SIZE_OFFSET + 4] = _bytes_of(rest - sizes[0] + sizes)
        heads[:, BODY_SIZE_OFFSET : BODY_SIZE_OFFSET + 4] = _bytes_of(sizes)
        length = len(varint(len(bodies[0])))  # of the body size in front of the body
        for byte in range(length):
            more = 0x80 if byte < length - 1 else 0
            heads[:, head_size - length + byte] = sizes >> 7 * byte & 0x7F | more
        raw, end = heads.tobytes(), int(ends[-1])
        rows = [raw[at : at + head_size] for at in range(0, len(raw), head_size)]
        paddings = map(_PADDINGS.__getitem__, (record_sizes - head_size - sizes).tolist())
        out[:end] = b"".join(chain.from_iterable(zip(rows, bodies, paddings, strict=True)))
        return end

    def _put_heads(self, heads: np.ndarray, first_body: bytes, starts: np.ndarray) -> None:
        """Copy the first record's head to all rows, and fill in the fields that differ."""
        first = self._encoder.encode(self._distance, first_body, self._stem.message_id(0), self.born_ms)
        heads[:] = np.frombuffer(first, np.uint8, len(heads[0]))
        distance = SECTION_DISTANCE_OFFSET
        heads[:, distance : distance + 4] = _bytes_of(self._distance + starts)
        numbers = self._numbers.view(np.uint8).reshape(-1, 4)
        heads[:, _ID_NUMBER : _ID_NUMBER + 4] = numbers
        heads[:, _TEXT_NUMBER : _TEXT_NUMBER + 8] = _DIGITS[numbers].reshape(-1, 8)


def _sizes(bodies: list[bytes]) -> np.ndarray:
    return np.fromiter(map(len, bodies), np.int64, len(bodies))


def _bytes_of(values: np.ndarray) -> np.ndarray:
    """Return the values as rows of 4 little-endian bytes."""
    return values.astype("<u4").view(np.uint8).reshape(-1, 4)
