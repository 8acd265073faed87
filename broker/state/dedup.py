"""Deduplication of retried sends (D15): batches by producer sequence, single messages by message id.

Owns: both windows.   Must not: read clocks; time is the log time of entries.
Invariants: a stream's `next_sequence` is the number of records applied in its epoch. Streams are
immutable, so a snapshot is a shallow copy. Eviction depends on commands and counts only, so all nodes evict
the same items.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ledgermq.proto.values import value

#: Number of batch results that a stream keeps for retries.
KEPT_BATCHES: Final = 64
#: Maximum of message ids that are kept.
MAX_MESSAGE_IDS: Final = 1_000_000
#: Number of message ids at which a generation is closed. The ids of a generation are evicted together.
GENERATION_IDS: Final = 65_536
#: Age in log time (ms) at which a generation is closed.
GENERATION_MS: Final = 15_000
_BATCH: Final = struct.Struct("<QIq")  # base sequence, count, base queue offset
_OFFSET_BITS: Final = 48
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1

StreamKey = tuple[int, int, int]  # producer id, topic id, queue id


@value
class Stream:
    """Window of one producer in one queue."""

    epoch: int  # epoch of its last batch; a batch of another epoch clears `batches`
    next_sequence: int  # one past the last sequence number applied in `epoch`
    timestamp: int  # log time (ms) of its last batch
    batches: bytes = b""  # the last results (_BATCH), oldest first; at most KEPT_BATCHES

    def find(self, base_sequence: int, count: int) -> int | None:
        """Return the queue offset of a stored batch.

        -1: its range is older than the window, so it cannot be known. None: it was not stored.
        """
        oldest = None
        for base, size, offset in _BATCH.iter_unpack(self.batches):
            if oldest is None:
                oldest = base
            if base == base_sequence:
                return offset if size == count else None
        stop = base_sequence + count
        return -1 if stop <= (self.next_sequence if oldest is None else oldest) else None

    def with_batch(self, epoch: int, base_sequence: int, count: int, offset: int, timestamp: int) -> Stream:
        """Return the stream after one more batch."""
        kept = self.batches if epoch == self.epoch else b""
        if len(kept) >= KEPT_BATCHES * _BATCH.size:
            kept = kept[_BATCH.size :]
        return Stream(
            epoch, base_sequence + count, timestamp, kept + _BATCH.pack(base_sequence, count, offset)
        )


_NEW_STREAM: Final = Stream(-1, 0, 0)


class ProducerStreams:
    """Streams of all producers, by StreamKey."""

    def __init__(self) -> None:
        self._streams: dict[StreamKey, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, key: StreamKey) -> Stream | None:
        return self._streams.get(key)

    def record(
        self, key: StreamKey, epoch: int, base_sequence: int, count: int, offset: int, timestamp: int
    ) -> None:
        """Record a batch that was applied at queue offset `offset`."""
        stream = self._streams.get(key, _NEW_STREAM)
        self._streams[key] = stream.with_batch(epoch, base_sequence, count, offset, timestamp)

    def evict(self, before: int) -> None:
        """Drop streams whose last batch is older than `before` (log time, ms)."""
        for key in [key for key, stream in self._streams.items() if stream.timestamp < before]:
            del self._streams[key]

    def remove_topic(self, topic_id: int) -> None:
        for key in [key for key in self._streams if key[1] == topic_id]:
            del self._streams[key]

    def oldest(self) -> int | None:
        """Log time (ms) of the least recently used stream; None without streams."""
        return min((stream.timestamp for stream in self._streams.values()), default=None)

    def copy(self) -> dict[StreamKey, Stream]:
        return dict(self._streams)

    def restore(self, streams: dict[StreamKey, Stream]) -> None:
        self._streams = streams


@dataclass(slots=True)
class Generation:
    """Message ids stored within GENERATION_MS, at most about GENERATION_IDS; they are evicted together."""

    first_timestamp: int  # log time (ms) at which it was opened
    last_timestamp: int  # log time (ms) of its latest id
    # topic id (u32) + 16-byte message id -> queue id << 48 | queue offset
    places: dict[bytes, int] = field(default_factory=dict)


class MessageIds:
    """Queue and offset of the messages of MessagingService, by topic id and 16-byte message id."""

    def __init__(self) -> None:
        self.generations: list[Generation] = []  # oldest first; only the last one grows
        self.count = 0  # ids in all generations
        self.evicted_early = 0  # ids evicted by count, not by age: a retry of them is stored twice

    @staticmethod
    def key(topic_id: int, message_id: bytes) -> bytes:
        return topic_id.to_bytes(4, "little") + message_id

    def find(self, topic_id: int, message_id: bytes) -> tuple[int, int] | None:
        """Return (queue id, queue offset) of a stored message."""
        key = self.key(topic_id, message_id)
        for generation in reversed(self.generations):
            place = generation.places.get(key)
            if place is not None:
                return place >> _OFFSET_BITS, place & _OFFSET_MASK
        return None

    def record(
        self, topic_id: int, queue_id: int, base: int, ids: bytes, wanted: np.ndarray, now: int
    ) -> None:
        """Record the messages base, base+1, ... that were applied to a queue.

        `ids`: their 16-byte ids, concatenated. `wanted`: bool per message, whether to record it.
        """
        generation = self._open(now)
        before = len(generation.places)
        prefix = topic_id.to_bytes(4, "little")
        place = queue_id << _OFFSET_BITS | base
        for i in np.flatnonzero(wanted).tolist():
            generation.places[prefix + ids[16 * i : 16 * i + 16]] = place + i
        generation.last_timestamp = now
        self.count += len(generation.places) - before
        while self.count > MAX_MESSAGE_IDS and len(self.generations) > 1:
            self.evicted_early += self._drop_oldest()

    def _open(self, now: int) -> Generation:
        """Return the generation for ids stored at `now`, a new one if the last is full or too old."""
        newest = self.generations[-1] if self.generations else None
        if (
            newest is None
            or len(newest.places) >= GENERATION_IDS
            or now - newest.first_timestamp >= GENERATION_MS
        ):
            newest = Generation(now, now)
            self.generations.append(newest)
        return newest

    def _drop_oldest(self) -> int:
        count = len(self.generations.pop(0).places)
        self.count -= count
        return count

    def evict(self, before: int) -> None:
        """Drop generations whose last id was stored before `before` (log time, ms)."""
        while self.generations and self.generations[0].last_timestamp < before:
            self._drop_oldest()

    def oldest(self) -> int | None:
        """Log time (ms) of the last id of the oldest generation; None without ids."""
        return self.generations[0].last_timestamp if self.generations else None

    def copy(self) -> list[Generation]:
        """Return a snapshot. Only the newest generation can still change, so only it is copied."""
        copies = list(self.generations)
        if copies:
            newest = copies[-1]
            copies[-1] = Generation(newest.first_timestamp, newest.last_timestamp, dict(newest.places))
        return copies

    def restore(self, generations: list[Generation], evicted_early: int) -> None:
        self.generations = generations
        self.count = sum(len(generation.places) for generation in generations)
        self.evicted_early = evicted_early
