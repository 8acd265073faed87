"""Digests of the entries in fixed blocks of the log, comparable between replicas and mergeable.

Owns: the mixing function and the block size. Pure numpy. Nodes digest what they verify (raft/repair), and the
check digests what it reads (spark_jobs); both must get the same numbers.
Each entry yields two 64-bit lanes from the words of its header and the checksum that its bytes *really* have
(a flipped payload byte leaves the header unchanged). A block's digest is the XOR over the entries that start
in it, so parts of a block read by different tasks merge with XOR. Offset and index are in the header, so
order matters. Count and byte sum guard against pairs that cancel out. A digest is 128 bits over 32-bit
checksums: it finds damage and bugs, not malice.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK_SIZE: Final = 4 << 20
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_LANES: Final = (np.uint64(0xD1B54A32D192ED03), np.uint64(0x8CB92BA72F3D8DD7))

#: Digest of one block, or of a part of it. All numbers are signed, like Spark's longs.
DIGEST_DTYPE: Final = np.dtype(
    [
        ("block", "<i8"),  # physical offset // BLOCK_SIZE
        ("first_offset", "<i8"),  # physical offset of the first entry that starts in it
        ("entries", "<i8"),  # fillers count, too
        ("size", "<i8"),  # bytes of those entries
        ("lane_a", "<i8"),
        ("lane_b", "<i8"),
        ("first_index", "<i8"),
        ("last_index", "<i8"),
    ]
)

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
#: Rows of DIGEST_DTYPE.
Digests = npt.NDArray[np.void]


def _mix(values: UInt64s) -> UInt64s:
    """Spread every input bit over all output bits (finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def entry_lanes(
    headers: npt.NDArray[np.void], computed_crc: npt.NDArray[np.uint32], positions: Int64s
) -> tuple[UInt64s, UInt64s]:
    """Return the two lanes of each entry: header words, real checksum and real position, mixed in turn.

    The arrays run in parallel: headers (HEADER_DTYPE) as stored, checksums of the bytes, physical offsets.
    """
    words = headers.view("<u8").reshape(len(headers), -1)
    extra = (computed_crc.astype(np.uint64), positions.astype(np.uint64))
    columns = [words[:, i] for i in range(words.shape[1])] + list(extra)
    lanes = []
    for seed in _LANES:
        state = np.full(len(headers), seed, np.uint64)
        for column in columns:
            state = _mix((state ^ column) + _GOLDEN)
        lanes.append(state)
    return lanes[0], lanes[1]


def block_digests(
    headers: npt.NDArray[np.void], computed_crc: npt.NDArray[np.uint32], positions: Int64s
) -> Digests:
    """Return the digests of entries, which are in log order, one row per block. Arguments: `entry_lanes`."""
    if len(headers) == 0:
        return np.empty(0, DIGEST_DTYPE)
    each = np.empty(len(headers), DIGEST_DTYPE)
    lane_a, lane_b = entry_lanes(headers, computed_crc, positions)
    each["block"], each["first_offset"] = positions // BLOCK_SIZE, positions
    each["entries"], each["size"] = 1, headers["size"]
    each["lane_a"], each["lane_b"] = lane_a.view(np.int64), lane_b.view(np.int64)
    each["first_index"] = each["last_index"] = headers["index"]
    return merge_digests(each)


def merge_digests(parts: Digests) -> Digests:
    """Merge digests of parts of blocks, in any order: one row per block, by block.

    Each entry must be in one part only: XOR cancels what comes twice.
    """
    if len(parts) == 0:
        return parts
    parts = parts[np.argsort(parts["block"], kind="stable")]
    starts = np.flatnonzero(np.diff(parts["block"], prepend=parts["block"][0] - 1))
    merged = parts[starts].copy()
    for name in ("lane_a", "lane_b"):
        merged[name] = np.bitwise_xor.reduceat(parts[name], starts)
    for name in ("entries", "size"):
        merged[name] = np.add.reduceat(parts[name], starts)
    for name in ("first_offset", "first_index"):
        merged[name] = np.minimum.reduceat(parts[name], starts)
    merged["last_index"] = np.maximum.reduceat(parts["last_index"], starts)
    return merged
