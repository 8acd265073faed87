"""Items of the key index: hashes of message ids and keys, with the place of the record. Pure.

An item is a u64. Its upper bits are those of a hash. Its lower bits are the place of the record in its
segment, in units of 8 bytes. A run therefore needs 8 bytes per id or key, sorts by plain comparison, and
holds the records of one hash in log order. A segment of 1 GiB leaves 37 bits for the hash: a match must be
verified in the record.

Owns: the hash functions of ids and keys, the form of an item.   Must not: know files, or what is visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, EntryKind
from ledgermq.proto.record import (
    FLAGS_WORD,
    ID_WORDS,
    RECORD_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    RecordWords,
    SectionKind,
    hash_text,
)

from ..state.consume_queue import record_starts

#: Alignment of records (bytes), and unit of places.
PLACE_UNIT: Final = 8
_MASK: Final = (1 << 64) - 1
_ODD: Final = 0x9E3779B97F4A7C15  # the golden ratio in 64 bits; spreads similar values
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64's last steps
_SECTION_WORDS: Final = SECTION_HEADER_SIZE // 8
_FEW: Final = 24  # records; up to so many, a loop is faster than arrays
_LOW_WORD, _HIGH_WORD = ID_WORDS
_KEYS_WORD: Final = RECORD_HEADER_SIZE // 8  # 8-byte word of a record with the first key
_KEY_COUNT: Final = np.uint64(0xFFFF << 16)  # bits of the key count, in the word of the flags

NO_ITEMS: Final = np.empty(0, np.uint64)


class ItemForm(NamedTuple):
    """Division of an item into hash and place; equal for all segments of a broker group."""

    place_bits: int  # number of low bits for the place; the others are the hash's upper bits

    @classmethod
    def of(cls, segment_size: int) -> ItemForm:
        return cls((segment_size // PLACE_UNIT - 1).bit_length())

    @property
    def place_mask(self) -> int:
        return (1 << self.place_bits) - 1

    def bounds(self, hashed: int, begin: int, end: int) -> tuple[np.uint64, np.uint64] | None:
        """Return the smallest and the largest item of a hash in [begin, end) (bytes in the segment).

        None: no record can start there.
        """
        first, behind = -(-begin // PLACE_UNIT), -(-end // PLACE_UNIT)
        if first >= behind:
            return None
        upper = hashed & ~self.place_mask
        return np.uint64(upper | first), np.uint64(upper | (behind - 1))

    def positions(self, items: np.ndarray) -> np.ndarray:
        """Return the positions of the items' records in the segment (bytes, int64)."""
        return (items & np.uint64(self.place_mask)).astype(np.int64) * PLACE_UNIT


def id_hash(message_id: bytes) -> int:
    """Return the hash of the 16-byte message id of a record."""
    halves = np.frombuffer(message_id, "<u8")
    return int(_of_ids(halves[:1], halves[1:])[0])


def key_hash(topic_id: int, key: str) -> int:
    """Return the hash of a key in a topic."""
    return (hash_text(key) + topic_id * _ODD) & _MASK


def _of_ids(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Mix the halves of ids: ids of one producer differ in few bits."""
    mixed = high * np.uint64(_ODD)
    mixed ^= low
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= factor
    mixed ^= mixed >> np.uint64(31)
    return mixed


def items_of(
    entries: Iterable[tuple[EntryHeader, memoryview]], segment_start: int, form: ItemForm
) -> np.ndarray:
    """Return the items of committed entries of one segment (u64, unsorted). Thread-safe."""
    items = _Items(form)
    for header, payload in entries:
        if header.kind is EntryKind.RECORDS:
            base = (header.physical_offset + HEADER_SIZE - segment_start) // PLACE_UNIT
            items.add(payload, header.section_count, base)
    return items.all()


class _Items:
    """Collector of items. Small sections are processed record by record, because arrays would cost more."""

    def __init__(self, form: ItemForm) -> None:
        self._mask = np.uint64(form.place_mask)
        self._ids: tuple[list[int], list[int], list[int]] = ([], [], [])  # halves, places
        self._keys: tuple[list[int], list[int]] = ([], [])  # hashes, places
        self._found: list[np.ndarray] = []

    def add(self, payload: memoryview, section_count: int, base: int) -> None:
        """Add the records of a payload that starts at place `base`."""
        words = payload.cast("Q")
        at = 0
        for _ in range(section_count):
            head, sizes = words[at], words[at + 2]
            topic_id, count, size = head >> 32, sizes & 0xFFFFFFFF, sizes >> 32
            body = at + _SECTION_WORDS
            if head & 0xFF == SectionKind.RECORDS:
                if count <= _FEW:
                    self._add_few(words, body, count, topic_id, base)
                else:
                    self._add_many(payload[8 * body : 8 * body + size], count, topic_id, base + body)
            at = body + size // 8

    def _add_few(self, words: memoryview, at: int, count: int, topic_id: int, base: int) -> None:
        (low, high, places), (keys, key_places) = self._ids, self._keys
        for _ in range(count):
            low.append(words[at + _LOW_WORD])
            high.append(words[at + _HIGH_WORD])
            places.append(base + at)
            if key_count := words[at + FLAGS_WORD] >> 16 & 0xFFFF:
                for key in words[at + _KEYS_WORD : at + _KEYS_WORD + key_count]:
                    keys.append((key + topic_id * _ODD) & _MASK)
                    key_places.append(base + at)
            at += (words[at] & 0xFFFFFFFF) >> 3

    def _add_many(self, body: memoryview, count: int, topic_id: int, base: int) -> None:
        starts = record_starts(body, count)
        words, records = RecordWords(body, starts), starts >> 3
        places = (records + base).view(np.uint64)
        self._put(_of_ids(words.column(_LOW_WORD), words.column(_HIGH_WORD)), places)
        if not (words.column(FLAGS_WORD) & _KEY_COUNT).any():
            return
        key_counts = (words.column(FLAGS_WORD) >> np.uint64(16)).astype(np.uint16).astype(np.int64)
        owners = np.repeat(np.arange(count), key_counts)
        nth = np.arange(len(owners)) - np.repeat(np.cumsum(key_counts) - key_counts, key_counts)
        keys = np.frombuffer(body, "<u8")[records[owners] + _KEYS_WORD + nth]
        self._put(keys + np.uint64(topic_id * _ODD & _MASK), places[owners])

    def _put(self, hashes: np.ndarray, places: np.ndarray) -> None:
        """Keep items of hashes, which it overwrites."""
        hashes &= ~self._mask
        hashes |= places
        self._found.append(hashes)

    def all(self) -> np.ndarray:
        """Return all collected items."""
        if self._ids[0]:
            low, high, places = (np.array(each, np.uint64) for each in self._ids)
            self._put(_of_ids(low, high), places)
            self._put(*(np.array(each, np.uint64) for each in self._keys))
        return np.concatenate(self._found) if self._found else NO_ITEMS
