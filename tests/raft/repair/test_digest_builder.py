"""Digests of a growing prefix of a segment."""

from __future__ import annotations

import numpy as np
import pytest

from ledgermq.proto.block_digest import BLOCK_SIZE, block_digests
from ledgermq.proto.digest_file import decode_digests, encode_digests
from ledgermq.proto.entry import (
    HEADER_DTYPE,
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    encode_filler,
    encode_header,
)
from ledgermq.raft.repair.digest_builder import DigestBuilder

SEGMENT = 32 << 20


def headers(count: int, size: int = 900_000) -> list[bytes]:
    """Headers of a segment's entries, and of the filler that closes it."""
    entries = [
        EntryHeader(i + 1, size, EntryKind.RECORDS, 1, i + 1, 1, i * size, 5, i, size - HEADER_SIZE)
        for i in range(count)
    ]
    return [*map(encode_header, entries), bytes(encode_filler(entries[-1], SEGMENT))]


def whole(raw: list[bytes]) -> np.ndarray:
    table = np.frombuffer(b"".join(raw), HEADER_DTYPE)
    return block_digests(table, table["crc"], table["physical_offset"].astype(np.int64))


def test_a_sealed_segment_is_digested_to_its_end_from_pieces_of_any_size() -> None:
    raw = headers(35)
    for step in (1, 4, 36):
        builder = DigestBuilder(9, 0)
        for at in range(0, len(raw), step):
            builder.add(b"".join(raw[at : at + step]), 100 + at)
        made = builder.digests(sealed=True)
        assert made is not None and (made.end, made.last.kind) == (SEGMENT, EntryKind.FILLER)
        assert np.array_equal(made.rows, whole(raw))
        assert made.read_from_ms == 100 and decode_digests(encode_digests(made)).end == SEGMENT


@pytest.mark.parametrize("step", [1, 7, 100])
def test_an_open_segment_is_digested_in_whole_blocks_and_continued_later(step: int) -> None:
    raw = headers(35)
    builder = DigestBuilder(9, 0)
    for at in range(0, 20, step):
        builder.add(b"".join(raw[at : min(at + step, 20)]), 1)
    first = builder.digests(sealed=False)
    assert first is not None
    # the entries that start in the last block, which is not complete, are left out
    last_block = 19 * 900_000 // BLOCK_SIZE
    assert first.rows["block"].tolist() == list(range(last_block))
    assert first.last.physical_offset < last_block * BLOCK_SIZE <= first.end
    later = DigestBuilder(9, 0, decode_digests(encode_digests(first)))
    later.add(b"".join(raw[first.last.index :]), 50)
    made = later.digests(sealed=True)
    assert made is not None and np.array_equal(made.rows, whole(raw))
    assert (made.read_from_ms, made.read_to_ms) == (1, 50)


def test_nothing_and_less_than_a_block_have_no_digests() -> None:
    builder = DigestBuilder(9, 0)
    assert builder.digests(sealed=True) is None
    builder.add(headers(2)[0], 1)
    assert builder.digests(sealed=False) is None


def test_what_grew_by_less_than_a_block_stays_as_it_was() -> None:
    raw = headers(35)
    builder = DigestBuilder(9, 0)
    builder.add(b"".join(raw[:20]), 1)
    first = builder.digests(sealed=False)
    assert first is not None
    later = DigestBuilder(9, 0, first)
    later.add(raw[first.last.index], 2)
    made = later.digests(sealed=False)
    assert made is not None and made.end == first.end and np.array_equal(made.rows, first.rows)
