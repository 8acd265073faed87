"""Row checksums: 64 bits for each message of a batch of columns. Their sum stands for a range. Pure.

Owns: what two equal messages are: the same place and times, id, keys, tag, properties, body, message group.
Must not: do I/O.

Sums (mod 2^64) do not depend on the order of rows, and those of two ranges add up to that of both.
A checksum is written into manifests: what it is made of must not change within version 1 of the format.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

UInt64s = npt.NDArray[np.uint64]

_NUMBERS: Final = ("queue", "offset", "born_time", "store_time")
#: Few distinct values: each is read once.
_REPEATED: Final = ("queue_group", "tag", "message_group")
_DISTINCT: Final = ("message_id", "body")
_NESTED: Final = ("keys", "properties")
#: Stands for null. No CRC is so large.
_NULL: Final = np.uint64(1 << 40)
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def row_checksums(batch: pa.RecordBatch) -> UInt64s:
    """Return the checksum of every row of a batch, which has all columns of a topic (`topic` is not used)."""
    found = np.zeros(batch.num_rows, np.uint64)
    for name in _NUMBERS:
        numbers = batch.column(name).cast(pa.int64())
        values = np.asarray(numbers.fill_null(-1)).view(np.uint64)
        found = _mixed(found, values)
    for name in _REPEATED:
        encoded = batch.column(name).dictionary_encode()
        known = np.append(_crcs(encoded.dictionary), _NULL)
        which = np.asarray(encoded.indices.fill_null(len(known) - 1))
        found = _mixed(found, known[which])
    for name in _DISTINCT:
        found = _mixed(found, _crcs(batch.column(name)))
    for name in _NESTED:
        found = _mixed(found, _nested(batch.column(name)))
    return found


def total(checksums: UInt64s) -> int:
    """Return the sum of checksums, mod 2^64."""
    return int(np.add.reduce(checksums, dtype=np.uint64))


def _mixed(state: UInt64s, values: UInt64s) -> UInt64s:
    """Return the states behind one more value each: every bit of both changes half of the result's bits."""
    state = (state + _STEP) ^ values
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return np.asarray(state ^ (state >> np.uint64(31)), np.uint64)


def _crcs(column: pa.Array) -> UInt64s:
    """Return the CRC-32C of each text or body; `_NULL` where there is none."""
    wide = column.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    if not len(wide):
        return np.empty(0, np.uint64)
    ends = np.frombuffer(offsets, np.int64)[wide.offset :][: len(wide) + 1].tolist()
    raw = memoryview(data if data is not None else b"")
    found = np.fromiter((crc32c(raw[start:end]) for start, end in pairwise(ends)), np.uint64, len(wide))
    if wide.null_count:
        found[np.asarray(wide.is_null())] = _NULL
    return found


def _nested(column: pa.Array) -> UInt64s:
    """Return a CRC of each list or map, 0 for an empty one, `_NULL` for none."""
    found = np.zeros(len(column), np.uint64)
    for row in np.flatnonzero(np.diff(np.asarray(column.offsets))).tolist():
        value: Any = column[row].as_py()
        if value is None:
            continue
        entries = sorted(value) if pa.types.is_map(column.type) else value
        found[row] = crc32c(json.dumps(entries).encode())
    if column.null_count:
        found[np.asarray(column.is_null())] = _NULL
    return found
