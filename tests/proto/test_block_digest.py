"""Block digests merge: however a log is cut among readers, its blocks have the same digests."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.block_digest import BLOCK_SIZE, DIGEST_DTYPE, block_digests, merge_digests
from ledgermq.proto.entry import HEADER_DTYPE


def entries(sizes: list[int], start: int = 0) -> np.ndarray:
    """Headers of entries of these sizes, one behind the other, with checksums as if of real bytes."""
    table = np.zeros(len(sizes), HEADER_DTYPE)
    table["size"] = sizes
    table["index"] = np.arange(1, len(sizes) + 1)
    table["physical_offset"] = start + np.cumsum([0, *sizes])[:-1]
    table["crc"] = (table["index"] * 2654435761) & 0xFFFFFFFF
    return table


def digests(table: np.ndarray) -> np.ndarray:
    return block_digests(table, table["crc"], table["physical_offset"].astype(np.int64))


sizes = st.lists(st.integers(8, (3 << 20) // 8).map(lambda words: words * 8 + 64), min_size=1, max_size=60)


@given(sizes, st.lists(st.integers(0, 60), max_size=6), st.randoms())
def test_the_digests_of_parts_merge_to_those_of_the_whole(
    chosen: list[int], cuts: list[int], rng: object
) -> None:
    table = entries(chosen)
    parts = np.split(table, sorted(min(cut, len(table)) for cut in cuts))
    rows = [digests(part) for part in parts]
    rng.shuffle(rows)  # type: ignore[attr-defined]
    assert np.array_equal(merge_digests(np.concatenate(rows)), digests(table))


@given(sizes, st.data())
def test_one_changed_field_of_one_entry_changes_the_digest_of_its_block_only(
    chosen: list[int], data: st.DataObject
) -> None:
    table = entries(chosen)
    row = data.draw(st.integers(0, len(table) - 1))
    field = data.draw(
        st.sampled_from(["crc", "term", "timestamp", "prev_crc", "section_count", "payload_size"])
    )
    changed = table.copy()
    bit = changed.dtype[field].type(1 << data.draw(st.integers(0, 15)))
    changed[field][row] ^= bit
    a, b = digests(table), digests(changed)
    block = int(table["physical_offset"][row]) // BLOCK_SIZE
    differs = (a["lane_a"] != b["lane_a"]) & (a["lane_b"] != b["lane_b"])
    assert a["block"][differs].tolist() == [block]
    assert np.array_equal(a[~differs], b[~differs])


def test_a_wrong_checksum_of_the_bytes_shows_although_the_header_is_equal() -> None:
    table = entries([1000, 2000, 3000])
    computed = table["crc"].copy()
    computed[1] ^= 1
    other = block_digests(table, computed, table["physical_offset"].astype(np.int64))
    assert other["lane_a"][0] != digests(table)["lane_a"][0]


def test_nothing_has_no_digests() -> None:
    assert len(digests(entries([]))) == 0 == len(merge_digests(np.empty(0, DIGEST_DTYPE)))
