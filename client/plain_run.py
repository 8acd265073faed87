"""Messages that differ in body and id only, encoded together.

A message without labels costs more to encode alone than to send: so those of one topic, of one size, born in one
millisecond, that follow one another in a section are kept as they are, and become records when the section is cut,
all in one go. Pure. The records are exactly those that `RecordEncoder.encode` makes one by one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ledgermq.proto.entry import Buffer
from ledgermq.proto.record import MESSAGE_ID_OFFSET, RECORD_HEADER_SIZE, SECTION_DISTANCE_OFFSET

from .encoding import ID_OFFSET_IN_SYSTEM_RUN, RecordEncoder
from .message_ids import IdStem

#: Fewer than this are encoded one by one: arrays have a fixed cost.
_FEW: Final = 8
_DIGITS: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint8).reshape(256, 2)
_DISTANCE: Final = SECTION_DISTANCE_OFFSET
_ID_NUMBER: Final = MESSAGE_ID_OFFSET + 12  # behind the stem
_TEXT_NUMBER: Final = RECORD_HEADER_SIZE + ID_OFFSET_IN_SYSTEM_RUN + 26


class PlainRun:
    """`distance` is that of its first record from the section header, bytes. Use: `add`, then once `encoded`."""

    __slots__ = (
        "_bodies",
        "_distance",
        "_encoder",
        "_numbers",
        "_stem",
        "body_size",
        "born_ms",
        "record_size",
    )

    def __init__(
        self, encoder: RecordEncoder, distance: int, body_size: int, born_ms: int, stem: IdStem
    ) -> None:
        self.body_size = body_size
        self.born_ms = born_ms
        self.record_size = encoder.plain_size(body_size, born_ms)
        self._encoder = encoder
        self._distance = distance
        self._stem = stem
        self._bodies: list[bytes] = []
        self._numbers: list[int] = []

    def fits(self, encoder: RecordEncoder, body_size: int, born_ms: int) -> bool:
        """Tell whether a message may join."""
        return born_ms == self.born_ms and body_size == self.body_size and encoder is self._encoder

    def add(self, body: bytes, number: int) -> str:
        """Take one more message, with the number of its id; return the id's text."""
        self._bodies.append(body)
        self._numbers.append(number)
        return f"{self._stem.text}{number:08X}"

    def __len__(self) -> int:
        """Bytes of all its records."""
        return self.record_size * len(self._bodies)

    def encoded(self) -> list[Buffer]:
        """Return the records, in pieces."""
        if len(self._bodies) < _FEW:
            return [self._record(i) for i in range(len(self._bodies))]
        return [self._array().reshape(-1).data]

    def _record(self, i: int) -> bytes:
        message_id = self._stem.message_id(self._numbers[i])
        return self._encoder.encode(
            self._distance + i * self.record_size, self._bodies[i], message_id, self.born_ms
        )

    def _array(self) -> np.ndarray:
        """Repeat the first record and put in what differs: uint8, (records, record size)."""
        first = self._record(0)
        count, size = len(self._bodies), self.record_size
        records = np.empty((count, size), np.uint8)
        records[:] = np.frombuffer(first, np.uint8)
        distances = self._distance + size * np.arange(count, dtype=np.int64)
        records[:, _DISTANCE : _DISTANCE + 4] = distances.astype("<u4").view(np.uint8).reshape(count, 4)
        numbers = np.array(self._numbers, ">u4").view(np.uint8).reshape(count, 4)
        records[:, _ID_NUMBER : _ID_NUMBER + 4] = numbers
        records[:, _TEXT_NUMBER : _TEXT_NUMBER + 8] = _DIGITS[numbers].reshape(count, 8)
        body = self._encoder.plain_body_offset(self.body_size, self.born_ms)
        bodies = np.frombuffer(b"".join(self._bodies), np.uint8).reshape(count, self.body_size)
        records[:, body : body + self.body_size] = bodies
        return records
