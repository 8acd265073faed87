"""Block digests of one segment, made from the entries that the scrubber has just verified.

Pure. Owns: the digests of a growing prefix of one segment. Must not: read, or take an entry whose bytes and
chain were not verified: a digest says that they were.
"""

from __future__ import annotations

import numpy as np

from ledgermq.proto.block_digest import BLOCK_SIZE, Digests, block_digests, merge_digests
from ledgermq.proto.digest_file import SegmentDigests
from ledgermq.proto.entry import HEADER_DTYPE, HEADER_SIZE, decode_header


class DigestBuilder:
    """Usage: `add(…)` piece after piece, in log order; then `digests()`."""

    def __init__(self, incarnation: int, start: int, made: SegmentDigests | None = None) -> None:
        """`start`: of the segment. `made`: digests of its first part, which `add` continues."""
        self._incarnation = incarnation
        self._start = start
        self._parts: list[Digests] = []
        self._lasts: dict[int, bytes] = {}  # header of the last entry that starts in a block
        self._first = b""
        self._made = made
        self._read_from_ms = self._read_to_ms = 0
        if made is not None:
            self._read_from_ms, self._read_to_ms = made.read_from_ms, made.read_to_ms

    def add(self, headers: bytes | bytearray, now_ms: int) -> None:
        """Add verified entries and fillers: their headers, 64 bytes each, one after the other."""
        if not headers:
            return
        table = np.frombuffer(bytes(headers), HEADER_DTYPE)
        positions = table["physical_offset"].astype(np.int64)
        rows = block_digests(table, table["crc"], positions)
        self._parts.append(rows)
        self._first = self._first or bytes(headers[:HEADER_SIZE])
        for row in rows:
            last = int(np.searchsorted(positions, (int(row["block"]) + 1) * BLOCK_SIZE)) - 1
            self._lasts[int(row["block"])] = bytes(headers[last * HEADER_SIZE : (last + 1) * HEADER_SIZE])
        self._read_from_ms = self._read_from_ms or now_ms
        self._read_to_ms = now_ms

    def digests(self, *, sealed: bool) -> SegmentDigests | None:
        """Return the digests of what was added; None: of nothing.

        `sealed`: it was the whole segment. Otherwise the last block, which is not complete yet, is left out,
        and its bytes are compared as such.
        """
        made = self._made
        parts = ([made.rows] if made is not None else []) + self._parts
        rows = merge_digests(np.concatenate(parts)) if parts else None
        if rows is not None and not sealed:
            rows = rows[:-1]
        if rows is None or len(rows) == 0:
            return None
        last_block = int(rows["block"][-1])
        if last_block in self._lasts:
            last = decode_header(self._lasts[last_block])
        else:
            # Everything that was added starts in blocks that were left out.
            assert made is not None
            return made
        first = made.first if made is not None else decode_header(self._first)
        return SegmentDigests(
            self._incarnation, self._start, last.end, self._read_from_ms, self._read_to_ms, first, last, rows
        )
