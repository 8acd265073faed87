"""Messages that differ in body and id only, encoded together.

A message without labels costs more to encode alone than to send: so those of one topic, of one size, born in one
millisecond, that follow one another in a section are kept as they are, and become records when the section is cut,
all in one go, right where they stand in the section. They get their ids then, too. Pure but for the source of ids.
The records are exactly those that `RecordEncoder.encode` makes one by one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ledgermq.proto.record import MESSAGE_ID_OFFSET, RECORD_HEADER_SIZE, SECTION_DISTANCE_OFFSET

from .encoding import ID_OFFSET_IN_SYSTEM_RUN, RecordEncoder
from .message_ids import MessageIds

#: Fewer than this are encoded one by one: arrays have a fixed cost.
FEW: Final = 8
_DIGITS: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint8).reshape(256, 2)
_DISTANCE: Final = SECTION_DISTANCE_OFFSET
_ID_NUMBER: Final = MESSAGE_ID_OFFSET + 12  # behind the stem
_TEXT_NUMBER: Final = RECORD_HEADER_SIZE + ID_OFFSET_IN_SYSTEM_RUN + 26


class PlainRun:
    """Use: append to `bodies`, each of `body_size` bytes and never empty; then `write` once; then ask `message_ids`.

    `distance` is that of its first record from the section header, bytes.
    """

    __slots__ = (
        "_distance",
        "_encoder",
        "_ids",
        "_numbers",
        "_stem",
        "bodies",
        "body_size",
        "born_ms",
        "record_size",
    )

    def __init__(
        self, encoder: RecordEncoder, distance: int, body_size: int, born_ms: int, ids: MessageIds
    ) -> None:
        self.bodies: list[bytes] = []
        self.body_size = body_size
        self.born_ms = born_ms
        self.record_size = encoder.plain_size(body_size, born_ms)
        self._encoder = encoder
        self._distance = distance
        self._ids = ids
        self._stem = ids.stem(born_ms)
        self._numbers: np.ndarray | None = None

    def fits(self, encoder: RecordEncoder, body_size: int, born_ms: int) -> bool:
        """Tell whether a message may join."""
        return born_ms == self.born_ms and body_size == self.body_size and encoder is self._encoder

    def __len__(self) -> int:
        """Bytes of all its records."""
        return self.record_size * len(self.bodies)

    def message_ids(self) -> list[str]:
        """Return the texts of the ids, which `write` gave to the messages."""
        assert self._numbers is not None, "it is written"
        return self._stem.texts(self._numbers)

    def write(self, out: memoryview) -> None:
        """Write the records into `out`, which has just their size. The bodies are let go of."""
        self._numbers = self._ids.numbers(len(self.bodies))
        if len(self.bodies) < FEW:
            for i in range(len(self.bodies)):
                out[i * self.record_size : (i + 1) * self.record_size] = self._record(i)
        else:
            self._write_array(np.frombuffer(out, np.uint8).reshape(-1, self.record_size))
        self.bodies = []

    def _record(self, i: int) -> bytes:
        assert self._numbers is not None
        message_id = self._stem.message_id(int(self._numbers[i]))
        return self._encoder.encode(
            self._distance + i * self.record_size, self.bodies[i], message_id, self.born_ms
        )

    def _write_array(self, records: np.ndarray) -> None:
        """Repeat the first record around the bodies and put in what differs: uint8, (records, record size)."""
        assert self._numbers is not None
        count, size = records.shape
        body = self._encoder.plain_body_offset(self.body_size, self.born_ms)
        end = body + self.body_size
        first = np.frombuffer(self._record(0), np.uint8)
        records[:, :body] = first[:body]
        records[:, end:] = 0
        distances = self._distance + size * np.arange(count, dtype=np.int64)
        records[:, _DISTANCE : _DISTANCE + 4] = distances.astype("<u4").view(np.uint8).reshape(count, 4)
        numbers = self._numbers.view(np.uint8).reshape(count, 4)
        records[:, _ID_NUMBER : _ID_NUMBER + 4] = numbers
        records[:, _TEXT_NUMBER : _TEXT_NUMBER + 8] = _DIGITS[numbers].reshape(count, 8)
        bodies = np.frombuffer(b"".join(self.bodies), np.uint8).reshape(count, self.body_size)
        records[:, body:end] = bodies
