"""Entries from a peer are accepted only if each is intact and continues the one before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from ledgermq.proto.entry import (
    EntryHeader,
    EntryKind,
    decode_header,
    encode_entry,
    encode_filler,
    entry_size,
)
from ledgermq.raft.errors import InvalidWireError
from ledgermq.raft.log.wire_batch import check_wire

SEGMENT = 1 << 16

Change = Callable[[EntryHeader], EntryHeader]


def entries(count: int, change: Change | None = None, payload: int = 100) -> list[bytes]:
    """Return a chain of entries.

    `change` alters the last header before it is encoded, so its checksum is right.
    """
    chain: list[bytes] = []
    before: EntryHeader | None = None
    for number in range(count):
        size = entry_size(payload)
        header = EntryHeader(
            0,
            size,
            EntryKind.RECORDS,
            1,
            10 + number,
            3,
            1024 if before is None else before.end,
            1_000 + number,
            77 if before is None else before.crc,
            payload,
        )
        if change is not None and number == count - 1:
            header = change(header)
        raw, before = encoded(header, payload)
        chain.append(raw)
    return chain


def encoded(header: EntryHeader, payload: int) -> tuple[bytes, EntryHeader]:
    raw = encode_entry(
        header.kind,
        [bytes(payload)],
        section_count=header.section_count,
        index=header.index,
        term=header.term,
        physical_offset=header.physical_offset,
        timestamp=header.timestamp,
        prev_crc=header.prev_crc,
    )
    return bytes(raw), decode_header(raw)


def refused(chain: Sequence[bytes]) -> str:
    with pytest.raises(InvalidWireError) as caught:
        check_wire(b"".join(chain), SEGMENT)
    return str(caught.value)


def test_entries_that_continue_each_other_are_taken() -> None:
    batch = check_wire(b"".join(entries(3)), SEGMENT)
    assert (batch.first_index, batch.last_index) == (10, 12)
    assert batch.term_runs() == [(10, 3)]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("does not chain", lambda header: replace(header, prev_crc=header.prev_crc ^ 1)),
        ("does not chain", lambda header: replace(header, physical_offset=header.physical_offset + 8)),
        ("follows entry", lambda header: replace(header, index=header.index + 1)),
        ("follows entry", lambda header: replace(header, index=header.index - 1)),
        ("back in term or time", lambda header: replace(header, term=header.term - 1)),
        ("back in term or time", lambda header: replace(header, timestamp=header.timestamp - 2)),
    ],
)
def test_an_entry_that_does_not_continue_the_one_before_is_refused(what: str, change: Change) -> None:
    assert what in refused(entries(3, change))
    assert what in refused(entries(2, change))


def test_a_higher_term_and_the_same_time_may_follow() -> None:
    chain = entries(2, lambda header: replace(header, term=9, timestamp=header.timestamp - 1))
    assert check_wire(b"".join(chain), SEGMENT).term_runs() == [(10, 3), (11, 9)]


def test_a_filler_closes_its_segment_and_belongs_to_the_entry_behind_it() -> None:
    before = decode_header(entries(1)[0])
    filler = bytes(encode_filler(before, SEGMENT))
    behind = replace(
        before, index=11, physical_offset=SEGMENT, timestamp=1_001, prev_crc=decode_header(filler).crc
    )
    last, _ = encoded(behind, 100)
    batch = check_wire(b"".join((entries(1)[0], filler, last)), SEGMENT)
    assert [header.index for header in batch.headers] == [10, 11]
    assert "end without an entry" in refused([entries(1)[0], filler])


def test_a_filler_that_does_not_close_its_segment_is_refused() -> None:
    first = entries(1)[0]
    short = bytes(encode_filler(decode_header(first), SEGMENT - 64))
    assert "does not close its segment" in refused([first, short, first])


def test_an_entry_that_leaves_no_room_for_a_filler_is_refused() -> None:
    size = entry_size(100)
    chain = entries(1, lambda header: replace(header, physical_offset=SEGMENT - size - 8))
    assert "may not stand at offset" in refused(chain)


def test_flipped_bits_are_refused() -> None:
    data = bytearray(b"".join(entries(2)))
    data[-20] ^= 1
    assert "damaged" in refused([bytes(data)])


def test_no_entry_at_all_is_refused() -> None:
    assert "end without an entry" in refused([])
