"""What the key index notes of a message: its id and its keys as hashes, and where its record stands. Pure.

An item is a u64: the upper bits of a hash, and in the lower ones the place of the record in its segment, in units of 8
bytes. So a sorted run of items needs 8 bytes for each id and key, is sorted as it is, and has the records of one hash in
the order of the log. A segment of 1 GiB leaves 37 bits to the hash: whoever finds an item must look at the record.

Owns: how ids and keys become hashes, the form of an item.   Must not: know files, or what is visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, EntryKind
from ledgermq.proto.record import SECTION_HEADER_SIZE, SectionKind, hash_text

from .consume_queue import record_starts

#: Records, and so places, are multiples of this.
PLACE_UNIT: Final = 8
_MASK: Final = (1 << 64) - 1
_ODD: Final = 0x9E3779B97F4A7C15  # spreads what is alike (the golden ratio, in 64 bits)
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64's last steps
_SECTION_WORDS: Final = SECTION_HEADER_SIZE // 8
# 8-byte words of a record: flags and key count, the two halves of the id, the first key.
_COUNT_WORD, _ID_WORD, _KEYS_WORD = 1, 6, 8

NO_ITEMS: Final = np.empty(0, np.uint64)


class ItemForm(NamedTuple):
    """How a word is shared between hash and place; the same for all segments of a group."""

    place_bits: int

    @classmethod
    def of(cls, segment_size: int) -> ItemForm:
        return cls((segment_size // PLACE_UNIT - 1).bit_length())

    @property
    def place_mask(self) -> int:
        return (1 << self.place_bits) - 1

    def bounds(self, hashed: int, begin: int, end: int) -> tuple[np.uint64, np.uint64] | None:
        """Return the smallest and the largest item of a hash whose record stands in [begin, end) (bytes in the segment).

        None: no record stands there.
        """
        first, behind = -(-begin // PLACE_UNIT), -(-end // PLACE_UNIT)
        if first >= behind:
            return None
        upper = hashed & ~self.place_mask
        return np.uint64(upper | first), np.uint64(upper | (behind - 1))

    def positions(self, items: np.ndarray) -> np.ndarray:
        """Return where in the segment the records of items stand (bytes, int64)."""
        return (items & np.uint64(self.place_mask)).astype(np.int64) * PLACE_UNIT


def id_hash(message_id: bytes) -> int:
    """Return the hash of the 16 bytes that a record has of its message id."""
    halves = np.frombuffer(message_id, "<u8")
    return int(_of_ids(halves[:1], halves[1:])[0])


def key_hash(topic_id: int, key: str) -> int:
    """Return the hash of a key in a topic."""
    return (hash_text(key) + topic_id * _ODD) & _MASK


def _of_ids(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Mix the halves of ids: those of one producer differ in few bits."""
    mixed = low ^ (high * np.uint64(_ODD))
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= factor
    mixed ^= mixed >> np.uint64(31)
    return mixed


def items_of(
    entries: Iterable[tuple[EntryHeader, memoryview]], segment_start: int, form: ItemForm
) -> np.ndarray:
    """Return the items of committed entries of one segment (u64, in no order). May run in any thread."""
    found = [
        _items_of_payload(
            payload,
            header.section_count,
            (header.physical_offset + HEADER_SIZE - segment_start) // PLACE_UNIT,
            form,
        )
        for header, payload in entries
        if header.kind is EntryKind.RECORDS
    ]
    return np.concatenate(found) if found else NO_ITEMS


def _items_of_payload(payload: memoryview, section_count: int, base: int, form: ItemForm) -> np.ndarray:
    """`base`: place of the payload in its segment."""
    records, topics = _records(payload, section_count)
    if not len(records):
        return NO_ITEMS
    words = np.frombuffer(payload, "<u8")
    mask = np.uint64(form.place_mask)
    places = (records + base).astype(np.uint64)
    ids = _of_ids(words[records + _ID_WORD], words[records + _ID_WORD + 1])
    items = (ids & ~mask) | places
    key_counts = ((words[records + _COUNT_WORD] >> np.uint64(16)) & np.uint64(0xFFFF)).astype(np.int64)
    with_keys = np.flatnonzero(key_counts)
    if not len(with_keys):
        return items
    counts = key_counts[with_keys]
    owners = np.repeat(with_keys, counts)
    nth = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    keys = words[records[owners] + _KEYS_WORD + nth] + topics[owners] * np.uint64(_ODD)
    return np.concatenate((items, (keys & ~mask) | places[owners]))


def _records(payload: memoryview, section_count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the records of a payload begin (int64, in 8-byte words), and the topic ids of each (u64)."""
    words = payload.cast("I")
    single: list[int] = []
    single_topics: list[int] = []
    records: list[np.ndarray] = []
    topics: list[np.ndarray] = []
    at = 0  # 8-byte words
    for _ in range(section_count):
        kind, topic_id, count, size = (
            words[2 * at] & 0xFF, words[2 * at + 1], words[2 * at + 4], words[2 * at + 5],
        )  # fmt: skip
        body = at + _SECTION_WORDS
        if kind == SectionKind.RECORDS:
            if count == 1:
                single.append(body)
                single_topics.append(topic_id)
            else:
                records.append((record_starts(payload[8 * body : 8 * body + size], count) >> 3) + body)
                topics.append(np.full(count, topic_id, np.uint64))
        at = body + size // 8
    records.append(np.array(single, np.int64))
    topics.append(np.array(single_topics, np.uint64))
    return np.concatenate(records), np.concatenate(topics)
