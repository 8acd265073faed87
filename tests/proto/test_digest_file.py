"""Files of block digests: what is written is read again, and nothing else is believed."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from crc32c import crc32c

from ledgermq.proto.block_digest import BLOCK_SIZE, block_digests
from ledgermq.proto.digest_file import (
    MAX_ROWS,
    SegmentDigests,
    decode_digests,
    encode_digests,
)
from ledgermq.proto.entry import HEADER_DTYPE, EntryHeader, EntryKind, encode_header
from ledgermq.proto.errors import CorruptError, NewerFormatError

START = 16 << 20


def made(count: int = 30, size: int = 500_000) -> SegmentDigests:
    """Digests of a segment of equal entries."""
    headers = [
        EntryHeader(
            crc=1000 + i, size=size, kind=EntryKind.RECORDS, section_count=1, index=7 + i, term=2,
            physical_offset=START + i * size, timestamp=5, prev_crc=999 + i, payload_size=size - 64,
        )
        for i in range(count)
    ]  # fmt: skip
    table = np.frombuffer(b"".join(map(encode_header, headers)), HEADER_DTYPE)
    rows = block_digests(table, table["crc"], table["physical_offset"].astype(np.int64))
    return SegmentDigests(77, START, START + count * size, 1000, 2000, headers[0], headers[-1], rows)


def sealed(raw: bytearray) -> bytes:
    raw[8:12] = struct.pack("<I", crc32c(bytes(raw[12:])))
    return bytes(raw)


def test_what_is_written_is_read_again() -> None:
    digests = made()
    again = decode_digests(encode_digests(digests))
    for name in ("incarnation", "start", "end", "read_from_ms", "read_to_ms", "first", "last"):
        assert getattr(again, name) == getattr(digests, name)
    assert np.array_equal(again.rows, digests.rows) and len(again.rows) == 4
    assert again.ends() == [*again.rows["first_offset"][1:].tolist(), digests.end]


def test_every_changed_byte_and_every_cut_is_noticed() -> None:
    raw = encode_digests(made())
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 4
        with pytest.raises((CorruptError, NewerFormatError)):
            decode_digests(bytes(changed))
        with pytest.raises(CorruptError):
            decode_digests(raw[:position])


def test_a_newer_version_says_so() -> None:
    raw = bytearray(encode_digests(made()))
    raw[4] = 2
    with pytest.raises(NewerFormatError):
        decode_digests(sealed(raw))


@pytest.mark.parametrize(
    ("field", "row", "value"),
    [
        ("block", 1, 6), ("first_offset", 0, START + 8), ("first_offset", 2, START + 2 * BLOCK_SIZE - 8),
        ("entries", 1, 0), ("entries", 1, 1 << 40), ("size", 3, 64), ("first_index", 0, 8),
        ("last_index", 3, 35), ("first_index", 2, 40), ("last_index", 1, 5),
    ],
)  # fmt: skip
def test_rows_that_contradict_each_other_or_their_edges_are_refused(field: str, row: int, value: int) -> None:
    digests = made()
    rows = digests.rows.copy()
    rows[field][row] = value
    with pytest.raises(CorruptError, match="contradict"):
        decode_digests(encode_digests(replace(digests, rows=rows)))


def test_the_number_of_rows_is_bounded() -> None:
    digests = made()
    many = replace(digests, rows=np.resize(digests.rows, MAX_ROWS + 1))
    with pytest.raises(CorruptError, match="cannot hold"):
        decode_digests(encode_digests(many))
    with pytest.raises(CorruptError, match="cannot hold"):
        decode_digests(encode_digests(replace(digests, rows=digests.rows[:0])))
