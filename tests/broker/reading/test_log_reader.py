"""The way from a record to its section and entry; nothing is handed out of a damaged entry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from ledgermq.broker.reading.log_reader import LogReader, StoredSection
from ledgermq.raft.errors import DamagedLogError

from ..entry_log import Node


class BytesLog:
    """A log in memory."""

    segment_size = 1 << 20

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def damage_at(self, offset: int, reason: str) -> DamagedLogError:
        return DamagedLogError("n1", Path("/log"), offset, offset, reason)

    def read_at_nowait(self, offset: int, size: int) -> memoryview | None:
        return None

    async def read_at(self, offset: int, size: int) -> memoryview:
        assert 0 <= offset <= offset + size <= len(self.raw), "a read outside of the log"
        return memoryview(self.raw)[offset : offset + size]


def filled() -> tuple[bytes, list[int]]:
    """Return a log with two entries of records, and where each record of the second stands."""
    node = Node()
    topic = node.topic(queues=1)
    node.fill(topic, 0, 3)
    node.fill(topic, 0, 4)
    units = np.asarray(node.state.queues.lookup(topic, 0, 3, 4))
    return b"".join(node.log.raw), [int(offset) for offset in units["physical_offset"]]


def section_of(raw: bytes, record: int) -> StoredSection:
    return asyncio.run(LogReader(BytesLog(raw)).section_of(record))


def test_every_record_leads_to_its_section() -> None:
    raw, places = filled()
    found = {section_of(raw, place) for place in places}
    assert [(each.first_queue_offset, each.count) for each in found] == [(3, 4)]


def test_no_flipped_bit_of_an_entry_is_overlooked() -> None:
    raw, places = filled()
    begin = places[0] - places[0] % 8
    while raw[begin : begin + 3] != raw[:3]:  # the entry's magic
        begin -= 8
    for position in range(begin + 3, len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 1 << position % 8
        noticed: list[DamagedLogError] = []

        async def repair(error: DamagedLogError, noticed: list[DamagedLogError] = noticed) -> bool:
            noticed.append(error)
            return False

        with pytest.raises(DamagedLogError):
            asyncio.run(LogReader(BytesLog(bytes(damaged)), repair).section_of(places[2]))
        assert len(noticed) == 1


def test_what_was_repaired_is_read_again() -> None:
    raw, places = filled()
    log = BytesLog(raw[: places[2]] + b"\xff" * 40 + raw[places[2] + 40 :])

    async def repair(error: DamagedLogError) -> bool:
        log.raw = raw
        return True

    found = asyncio.run(LogReader(log, repair).section_of(places[2]))
    assert found == section_of(raw, places[2])
