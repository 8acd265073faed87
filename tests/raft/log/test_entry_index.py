"""Entry index file and tail cache, each alone."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from ledgermq.proto.entry import EntryKind, decode_header, encode_entry, encode_filler
from ledgermq.proto.errors import CorruptError, NewerFormatError
from ledgermq.raft.log.contents import TailCache
from ledgermq.raft.log.entry_index import IndexCache, decode_index, encode_index, read_index, write_index
from ledgermq.raft.log.segment import Segment
from ledgermq.raft.types import LogIndex

from ..simulated_disk import SimulatedDisk


def entries(count: int, size: int = 40) -> list[bytearray]:
    """Return a chain of entries from physical offset 4096, index 10."""
    out: list[bytearray] = []
    offset, crc = 4096, 0
    for number in range(count):
        out.append(
            encode_entry(
                EntryKind.RECORDS, [bytes([number]) * size], section_count=1, index=10 + number,
                term=1 + number // 3, physical_offset=offset, timestamp=5, prev_crc=crc,
            )
        )  # fmt: skip
        offset += len(out[-1])
        crc = decode_header(out[-1]).crc
    return out


def segment(count: int = 7) -> Segment:
    made = Segment(4096, LogIndex(10))
    for raw in entries(count):
        made.add(decode_header(raw))
    return made


def test_index_comes_back_as_it_was() -> None:
    made = segment()
    assert made.last is not None
    made.filler = bytes(encode_filler(made.last, 8192))
    again = decode_index(encode_index(made))
    assert again == made
    assert again.runs == [(10, 1), (13, 2), (16, 3)]


def test_damaged_index_is_found_at_every_byte() -> None:
    raw = encode_index(segment())
    for position in range(len(raw)):
        bad = bytearray(raw)
        bad[position] ^= 4
        with pytest.raises((CorruptError, NewerFormatError)):
            decode_index(bytes(bad))
    for size in range(len(raw)):
        with pytest.raises(CorruptError):
            decode_index(raw[:size])


def test_index_of_another_segment_is_refused() -> None:
    disk = SimulatedDisk()
    write_index(disk, Path("/i"), segment())
    assert read_index(disk, Path("/i"), 4096) == segment()
    disk.rename(Path("/i") / f"{4096:020d}", Path("/i") / f"{8192:020d}")
    with pytest.raises(CorruptError):
        read_index(disk, Path("/i"), 8192)


def test_index_cache_keeps_the_latest_within_its_bound() -> None:
    cache = IndexCache(max_bytes=4 * 30)
    for start in range(4):
        cache.put(start, array("I", range(10)))
    assert cache.get(0) is None and cache.get(1) is not None
    cache.put(4, array("I", range(10)))
    assert cache.get(2) is None and cache.get(1) is not None
    cache.drop_from(3)
    assert cache.get(3) is None and cache.get(4) is None and cache.get(1) is not None


def test_tail_cache_never_evicts_what_is_not_written() -> None:
    cache = TailCache(0, LogIndex(10))
    for raw in entries(5):
        cache.add(decode_header(raw), memoryview(raw))
    cache.evict(LogIndex(11))
    assert (cache.first_index, cache.last_index) == (12, 14)
    cache.evict(LogIndex(14))
    assert cache.first_index == 15 and cache.size == 0
    assert cache.header(LogIndex(12)) is None


def test_tail_cache_cuts_and_goes_on() -> None:
    raws = entries(6)
    cache = TailCache(1 << 20, LogIndex(10))
    for raw in raws:
        cache.add(decode_header(raw), memoryview(raw))
    cache.cut(LogIndex(13))
    assert cache.last_index == 12 and cache.size == sum(map(len, raws[:3]))
    cache.add(decode_header(raws[3]), memoryview(raws[3]))
    assert cache.wire(LogIndex(12), LogIndex(13), 1 << 20) == raws[2] + raws[3]
    start = 4096 + len(raws[0])
    found = cache.bytes_at(start + 3, 5)
    assert found is not None and bytes(found) == bytes(raws[1][3:8])
    assert cache.joined(start + 3, len(raws[1])) == bytes((raws[1] + raws[2])[3 : 3 + len(raws[1])])
    cache.cut(LogIndex(10))
    assert cache.last_index == 9 and cache.size == 0
