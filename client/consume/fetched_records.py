"""Fetched records: the records of one section, verified once and handed out in portions. Pure.

Owns: verification of received sections, the client-side tag filter, message views.
Must not: do I/O, decode records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from ledgermq.proto import log_pb2
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.record import (
    SECTION_HEADER_SIZE,
    decode_section,
    hash_text,
    record_headers,
    record_positions,
    verify_section,
)

from ..errors import CorruptMessageError
from ..message import MessageQueue, MessageView


@dataclass(slots=True, eq=False)
class FetchedRecords:
    """The records of a section. Those from `at` on were not handed out yet."""

    raw: bytes  # the section
    positions: list[int]  # of the records, in `raw`; as long as `offsets`
    offsets: Sequence[int]  # queue offsets of the records, ascending
    end: int  # queue offset after the section
    store_timestamp: int  # ms since the epoch
    at: int = 0  # index of the next record; at <= len(positions)
    users: int = 0  # batches that refer to `raw`

    @property
    def next_offset(self) -> int:
        """Queue offset of the next record to hand out; `end` when none is left."""
        return self.offsets[self.at] if self.at < len(self.positions) else self.end

    def take(self, queue: MessageQueue, at_most: int) -> Iterable[MessageView]:
        """Create views of the next records, and advance past them."""
        start = self.at
        self.at = end = min(start + at_most, len(self.positions))
        return map(
            MessageView,
            repeat(self.raw),
            self.positions[start:end],
            repeat(queue),
            self.offsets[start:end],
            repeat(self.store_timestamp),
        )


def tag_hashes(expression: str) -> np.ndarray | None:
    """Return the tag hashes of a filter expression (see `check_tag_filter`); None: everything passes."""
    tags = [tag.strip() for tag in expression.split("||") if tag.strip()]
    if not tags or "*" in tags:
        return None
    return np.array([hash_text(tag) for tag in tags], np.int64)


def open_section(
    queue: MessageQueue, fetched: log_pb2.FetchedSection, from_offset: int, tags: np.ndarray | None = None
) -> FetchedRecords | None:
    """Verify a section and return its records with these tags, from `from_offset` on; None: all are older.

    Raises: CorruptMessageError (a checksum or a size is wrong).
    """
    raw = fetched.section
    try:
        header = decode_section(raw)
        verify_section(raw, 0, header)
        body = memoryview(raw)[SECTION_HEADER_SIZE : header.total_size]
        positions = record_positions(body, header.count)
    except LayoutError as error:
        raise CorruptMessageError(queue.topic, queue.queue_id, str(error)) from error
    base, end = header.base_queue_offset, header.base_queue_offset + header.count
    skip = max(from_offset - base, 0)
    if skip >= header.count:
        return None
    offsets: Sequence[int] = range(base + skip, end)
    positions = positions[skip:]
    if tags is not None:
        passing = np.flatnonzero(np.isin(record_headers(body, positions)["tag_hash"], tags))
        positions = positions[passing]
        offsets = (passing + (base + skip)).tolist()
    found: list[int] = (positions + SECTION_HEADER_SIZE).tolist()
    return FetchedRecords(raw, found, offsets, end, fetched.store_timestamp)
