"""Digests of the entries in fixed blocks of the log, comparable between replicas and mergeable.

Owns: the mixing function and the block size. Pure numpy.
Each entry yields two 64-bit lanes from the words of its header and the checksum that its bytes *really* have
(a flipped payload byte leaves the header unchanged). A block's digest is the XOR over the entries that start
in it, so parts of a block read by different tasks merge with XOR. Offset and index are in the header, so
order matters. Count and byte sum guard against pairs that cancel out. A digest is 128 bits over 32-bit
checksums: it finds damage and bugs, not malice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from .entry_table import EntryTable

BLOCK_SIZE: Final = 4 << 20
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_LANES: Final = (np.uint64(0xD1B54A32D192ED03), np.uint64(0x8CB92BA72F3D8DD7))

UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class BlockDigest:
    """Digest of one block, or of the part of it that one task has read.

    Lanes are signed, like Spark's longs.
    """

    block: int  # physical offset // BLOCK_SIZE
    entries: int
    size: int  # bytes of those entries
    lane_a: int
    lane_b: int
    first_index: int
    last_index: int


def _mix(values: UInt64s) -> UInt64s:
    """Spread every input bit over all output bits (finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def entry_lanes(table: EntryTable) -> tuple[UInt64s, UInt64s]:
    """Return the two lanes of each entry: header words, real checksum and real position, mixed in turn."""
    words = table.headers.view("<u8").reshape(len(table), -1)
    extra = (table.computed_crc.astype(np.uint64), table.positions.astype(np.uint64))
    columns = [words[:, i] for i in range(words.shape[1])] + list(extra)
    lanes = []
    for seed in _LANES:
        state = np.full(len(table), seed, np.uint64)
        for column in columns:
            state = _mix((state ^ column) + _GOLDEN)
        lanes.append(state)
    return lanes[0], lanes[1]


def block_digests(table: EntryTable, *, up_to: int) -> list[BlockDigest]:
    """Return the digests of the entries below the physical offset `up_to`, in order of the blocks."""
    count = int(np.searchsorted(table.positions, up_to))
    if count == 0:
        return []
    blocks = table.positions[:count] // BLOCK_SIZE
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    lane_a, lane_b = (
        np.bitwise_xor.reduceat(lane[:count], starts).view(np.int64) for lane in entry_lanes(table)
    )
    sizes = np.add.reduceat(table.headers["size"][:count].astype(np.int64), starts)
    indexes = table.headers["index"].astype(np.int64)
    ends = np.append(starts[1:], count)
    return [
        BlockDigest(
            int(blocks[start]), int(end - start), int(sizes[i]), int(lane_a[i]), int(lane_b[i]),
            int(indexes[start]), int(indexes[end - 1]),
        )
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]  # fmt: skip
