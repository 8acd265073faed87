"""The entry layout: what is encoded comes back, and any other byte is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.entry import (
    ALIGNMENT,
    HEADER_DTYPE,
    HEADER_SIZE,
    EntryKind,
    decode_header,
    encode_entry,
    encode_filler,
    encode_header,
    entry_size,
    fits_segment,
    padded,
    verify_entry,
    walk_wire,
)
from ledgermq.proto.errors import CorruptError, LayoutError, NewerFormatError

U64 = st.integers(0, 2**64 - 1)
KINDS = st.sampled_from([EntryKind.RECORDS, EntryKind.NOOP, EntryKind.CONFIGURATION])
FIELDS = st.fixed_dictionaries(
    {
        "section_count": st.integers(0, 2**16 - 1),
        "index": U64,
        "term": U64,
        "physical_offset": st.integers(0, 2**60).map(lambda n: n * 8),
        "timestamp": U64,
        "prev_crc": st.integers(0, 2**32 - 1),
    }
)


@given(KINDS, st.lists(st.binary(max_size=200), max_size=4), FIELDS)
def test_entry_comes_back_as_it_was(kind: EntryKind, parts: list[bytes], fields: dict[str, Any]) -> None:
    raw = encode_entry(kind, list(parts), **fields)
    header = decode_header(raw)
    verify_entry(raw, 0, header)
    payload = b"".join(parts)
    assert len(raw) == header.size == entry_size(len(payload)) and len(raw) % ALIGNMENT == 0
    assert raw[HEADER_SIZE : HEADER_SIZE + header.payload_size] == payload
    assert raw[HEADER_SIZE + len(payload) :].count(0) == padded(len(payload)) - len(payload)
    assert {name: getattr(header, name) for name in fields} == fields
    assert header.kind is kind
    assert encode_header(header) == raw[:HEADER_SIZE]


@given(st.data(), FIELDS)
def test_any_flipped_bit_is_found(data: st.DataObject, fields: dict[str, Any]) -> None:
    raw = encode_entry(EntryKind.RECORDS, [b"payload that matters"], **fields)
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(LayoutError):
        verify_entry(raw, 0, decode_header(raw))


@given(st.binary(max_size=300))
def test_random_bytes_are_never_an_entry(raw: bytes) -> None:
    if raw:
        with pytest.raises(LayoutError):
            for position, header in walk_wire(raw):
                verify_entry(raw, position, header)


def entry(payload: bytes = b"x", **changes: int) -> bytearray:
    fields = {
        "section_count": 1,
        "index": 5,
        "term": 2,
        "physical_offset": 64,
        "timestamp": 9,
        "prev_crc": 77,
    }
    return encode_entry(EntryKind.RECORDS, [payload], **{**fields, **changes})


def test_known_bytes_of_an_entry() -> None:
    """The layout is on disks: these bytes may never change."""
    assert entry().hex() == (
        "4c4d51013615a8e5480000000100010005000000000000000200000000000000400000000000000009000000000000004d0000000100000000000000000000007800000000000000"
    )


def test_header_fields_stand_where_the_numpy_type_says() -> None:
    import numpy as np

    raw = entry(b"abc")
    row = np.frombuffer(raw[:HEADER_SIZE], HEADER_DTYPE)[0]
    header = decode_header(raw)
    for name in (
        "crc",
        "size",
        "kind",
        "section_count",
        "index",
        "term",
        "physical_offset",
        "timestamp",
        "prev_crc",
    ):
        assert int(row[name]) == getattr(header, name)


def test_filler_is_a_function_of_the_entry_before_it() -> None:
    before = decode_header(entry())
    raw = encode_filler(before, 4096)
    header = decode_header(raw)
    verify_entry(raw, 0, header)
    assert header.kind is EntryKind.FILLER and header.wire_size == HEADER_SIZE
    assert (header.physical_offset, header.end) == (before.end, 4096)
    assert (header.index, header.term, header.prev_crc) == (before.index, before.term, before.crc)
    assert encode_filler(before, 4096) == raw


def test_walk_finds_entries_and_fillers_and_refuses_a_cut() -> None:
    one = entry()
    wire = bytes(one + encode_filler(decode_header(one), 4096) + entry(b"second", index=6))
    assert [position for position, _ in walk_wire(wire)] == [0, 72, 136]
    for size in range(1, len(wire)):
        if size not in (72, 136):
            with pytest.raises(CorruptError):
                list(walk_wire(wire[:size]))


def test_newer_version_is_named() -> None:
    raw = entry()
    raw[3] = 2
    with pytest.raises(NewerFormatError, match="version 2"):
        decode_header(raw)


@pytest.mark.parametrize(
    ("size", "room", "fits"), [(64, 64, True), (64, 127, False), (64, 128, True), (72, 64, False)]
)
def test_entry_leaves_room_for_a_filler_or_none_at_all(size: int, room: int, fits: bool) -> None:
    assert fits_segment(size, room) is fits
