"""Sections, records, commands: what is encoded comes back, damage is refused, both record readers agree."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.errors import CorruptError, LayoutError, NewerFormatError
from ledgermq.proto.record import (
    RECORD_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    RecordFlags,
    RecordWords,
    SectionKind,
    decode_record,
    decode_section,
    encode_command,
    encode_record,
    encode_section,
    hash_text,
    pack_message_id,
    record_headers,
    record_positions,
    seal_section,
    verify_section,
    walk_commands,
    walk_sections,
)

RUNS = st.tuples(
    st.binary(max_size=60),
    st.binary(max_size=30),
    st.binary(max_size=120),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.integers(-(2**63), 2**63 - 1),
)


def build(records: list[tuple[bytes, bytes, bytes, list[int], int]]) -> bytearray:
    """A section whose records have the given (system run, rest before the body, body, keys, tag hash)."""
    parts: list[bytes] = []
    distance = SECTION_HEADER_SIZE
    for number, (system, rest, body, keys, tag) in enumerate(records):
        part = encode_record(
            system,
            rest + body,
            section_distance=distance,
            body_offset_in_rest=len(rest),
            body_size=len(body),
            message_id=bytes([number % 256]) * 16,
            born_timestamp=number,
            tag_hash=tag,
            key_hashes=keys,
            flags=RecordFlags.FIFO,
        )
        parts.append(part)
        distance += len(part)
    return encode_section(SectionKind.RECORDS, parts, len(records), topic_id=7, queue_id=3, producer_id=11)


@given(st.lists(RUNS, min_size=1, max_size=5))
def test_records_come_back_as_they_were(records: list[tuple[bytes, bytes, bytes, list[int], int]]) -> None:
    section = build(records)
    header = decode_section(section)
    verify_section(section, 0, header)
    assert (header.topic_id, header.queue_id, header.count, header.base_queue_offset) == (
        7,
        3,
        len(records),
        -1,
    )
    body = memoryview(section)[SECTION_HEADER_SIZE:]
    positions = record_positions(body, header.count)
    rows = record_headers(body, positions)
    for number, (system, rest, content, keys, tag) in enumerate(records):
        view = decode_record(body, int(positions[number]))
        assert (bytes(view.system_run), bytes(view.rest_run), bytes(view.body)) == (
            system,
            rest + content,
            content,
        )
        assert [key if key < 2**63 else key - 2**64 for key in view.key_hashes] == keys
        assert (view.tag_hash, view.born_timestamp, view.flags) == (tag, number, RecordFlags.FIFO)
        assert view.message_id == bytes([number]) * 16
        assert (int(rows[number]["tag_hash"]), int(rows[number]["body_size"])) == (tag, len(content))
        assert view.section_distance == SECTION_HEADER_SIZE + positions[number]


@given(st.data())
def test_any_flipped_bit_in_a_section_body_is_found(data: st.DataObject) -> None:
    section = build([(b"sys", b"rest", b"body", [1], 5)])
    position = data.draw(st.integers(SECTION_HEADER_SIZE, len(section) - 1))
    section[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptError):
        verify_section(section, 0, decode_section(section))


@given(st.binary(max_size=400), st.integers(0, 6))
def test_random_bodies_are_refused_with_a_layout_error_or_read_consistently(body: bytes, count: int) -> None:
    try:
        positions = record_positions(body, count)
        for position in positions:
            decode_record(body, int(position))
    except LayoutError:
        pass


@given(st.data())
def test_damaged_record_headers_never_lead_outside_the_record(data: st.DataObject) -> None:
    section = build([(b"sys", b"rest", b"body" * 9, [1, 2], 5), (b"", b"", b"", [], 0)])
    body = section[SECTION_HEADER_SIZE:]
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] = data.draw(st.integers(0, 255))
    try:
        positions = record_positions(body, 2)
    except LayoutError:
        return
    for start in positions:
        view = decode_record(body, int(start))
        assert len(view.body) == view.body_size
        assert len(view.system_run) == view.system_size and len(view.rest_run) == view.rest_size


@pytest.mark.parametrize("damaged", [range(1), range(20, 21), range(39, 40), range(40)])
def test_many_equal_records_are_checked_as_each_of_them_alone(damaged: range) -> None:
    """Records of equal size and layout are compared with the first one; any that differs is found."""
    whole = build([(b"sys", b"rest", b"body", [7], 5)] * 40)[SECTION_HEADER_SIZE:]
    size = len(whole) // 40
    refused = 0
    for at in range(32):
        body = bytearray(whole)
        for number in damaged:
            body[number * size + at] ^= 0x10

        def alone(number: int, body: bytearray = body) -> bool:
            start = number * size
            try:
                record_positions(body[start : start + size], 1, distance=SECTION_HEADER_SIZE + start)
            except CorruptError:
                return False
            return True

        if all(alone(number) for number in damaged):
            assert record_positions(body, 40).tolist() == [size * number for number in range(40)]
        else:
            refused += 1
            with pytest.raises(CorruptError):
                record_positions(body, 40)
    assert refused == 30, "all but the two bytes of flags"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.sampled_from([1, 30]))
def test_columns_of_header_words_are_those_of_the_single_records(sizes: list[int], times: int) -> None:
    sizes = sizes * times
    section = build([(b"s" * size, b"", b"b" * 9 * size, [3] * size, size - 2) for size in sizes])
    body = section[SECTION_HEADER_SIZE:]
    positions = record_positions(body, len(sizes))
    for some in (positions, positions[1:], positions[::2]):
        words = RecordWords(body, some)
        for word in range(RECORD_HEADER_SIZE // 8):
            found = [
                int.from_bytes(body[at + 8 * word : at + 8 * word + 8], "little") for at in some.tolist()
            ]
            assert words.column(word).tolist() == found


@pytest.mark.parametrize("count", [3, 5, 2**32 - 1])
def test_more_records_than_a_section_can_hold_are_refused_before_anything_is_made_for_them(
    count: int,
) -> None:
    section = build([(b"", b"", b"x", [], 0)] * 2)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError):
            record_positions(bytes(section[SECTION_HEADER_SIZE:]), count)
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_sealing_changes_only_the_fields_of_the_leader() -> None:
    section = build([(b"", b"", b"x", [], 0)])
    before = bytes(section)
    seal_section(section, base_queue_offset=41, entry_distance=64)
    header = decode_section(section)
    verify_section(section, 0, header)
    assert (header.base_queue_offset, header.entry_distance) == (41, 64)
    assert section[:8] == before[:8] and section[16:28] == before[16:28] and section[32:] == before[32:]


def test_sections_are_walked_to_the_exact_end() -> None:
    one, two = build([(b"", b"", b"x", [], 0)]), build([(b"s", b"r", b"y", [], 0)])
    assert [position for position, _ in walk_sections(one + two, 2)] == [0, len(one)]
    with pytest.raises(CorruptError):
        list(walk_sections(one + two, 1))
    with pytest.raises(CorruptError):
        list(walk_sections((one + two)[:-8], 2))


def test_newer_section_version_is_named() -> None:
    section = build([(b"", b"", b"x", [], 0)])
    section[1] = 2
    with pytest.raises(NewerFormatError, match="section has format version 2"):
        decode_section(section)


@given(
    st.lists(
        st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1), st.binary(max_size=50)), max_size=5
    )
)
def test_commands_come_back_as_they_were(commands: list[tuple[int, int, bytes]]) -> None:
    body = b"".join(encode_command(*command) for command in commands)
    assert [
        (kind, version, bytes(data)) for kind, version, data in walk_commands(body, len(commands))
    ] == commands
    if body:
        with pytest.raises(CorruptError):
            list(walk_commands(body[:-1], len(commands)))


def test_hashes_and_ids_are_the_same_for_ever() -> None:
    """They are stored: another value would lose every stored tag and key."""
    assert hash_text("") == 0
    assert hash_text("TagA") == 7035401830615350085
    raw, flags = pack_message_id("01" + "0A" * 16)
    assert (raw, flags) == (b"\x0a" * 16, RecordFlags.V1_ID)
    assert pack_message_id("01" + "0a" * 16)[1] == 0
    assert len(pack_message_id("any text")[0]) == 16


@pytest.mark.parametrize("sizes", [[64] * 300, [72] * 120 + [64] * 5 + [72] * 120, [64, 72, 88] * 40, [64]])
def test_headers_of_evenly_and_unevenly_spaced_records_are_those_at_their_positions(sizes: list[int]) -> None:
    positions = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
    body = np.random.default_rng(1).bytes(sum(sizes))
    found = record_headers(body, positions)
    assert found.tobytes() == b"".join(body[at : at + RECORD_HEADER_SIZE] for at in positions.tolist())


def test_headers_outside_of_the_body_are_refused() -> None:
    with pytest.raises(IndexError):
        record_headers(bytes(64 * 200), np.arange(201, dtype=np.int64) * 64)
