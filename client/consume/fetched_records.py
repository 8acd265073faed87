"""The records of one fetched section, checked once and handed out bit by bit. Pure.

Owns: the checks of what a broker sent, which records a tag filter lets through, the views of them.
Must not: do I/O; decode a record.
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
    """Records that were not handed out yet: those from `at` on."""

    raw: bytes  # the section
    positions: list[int]  # of records, in `raw`
    offsets: Sequence[int]  # their queue offsets, ascending
    end: int  # the queue offset behind the section
    store_timestamp: int
    at: int = 0
    users: int = 0  # batches that look into `raw`

    @property
    def next_offset(self) -> int:
        """The queue offset of the next record that is handed out; behind the section when none is left."""
        return self.offsets[self.at] if self.at < len(self.positions) else self.end

    def take(self, queue: MessageQueue, at_most: int) -> Iterable[MessageView]:
        """Make the views of the next records and move behind them."""
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
    """Return the hashes of the tags that a filter names (see `check_tag_filter`); None: everything passes."""
    tags = [tag.strip() for tag in expression.split("||") if tag.strip()]
    if not tags or "*" in tags:
        return None
    return np.array([hash_text(tag) for tag in tags], np.int64)


def open_section(
    queue: MessageQueue, fetched: log_pb2.FetchedSection, from_offset: int, tags: np.ndarray | None = None
) -> FetchedRecords | None:
    """Check a section and return its records from `from_offset` on, of these tags; None when it ends before.

    Raises: CorruptMessageError (a checksum or a size does not fit).
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
