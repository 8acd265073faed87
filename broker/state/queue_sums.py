"""Checksums of a ConsumeQueue's blocks of units: a unit has no room for a checksum of its own.

A flipped bit in a unit would silently send a reader to another place of the log, or past a filter. The files
of a queue are therefore verified block by block before their units are used.
Owns: crc32c over the units of each block, the last one up to the queue's end. Checksums are built with the
queue, so they are equal on all nodes, and stored in checkpoints.   Must not: touch files.
"""

from __future__ import annotations

from array import array
from typing import Final

from crc32c import crc32c

from ledgermq.proto.entry import Buffer

UNIT_SIZE: Final = 20
#: Number of units that are read, verified and cached together. A file is a whole number of blocks.
BLOCK_UNITS: Final = 2_000
_BLOCK_BYTES: Final = BLOCK_UNITS * UNIT_SIZE


class QueueSums:
    """Block checksums of one queue.

    Invariant: `complete` holds the checksums from `first_block` to the last complete block; `open` is that of
    the incomplete block at the queue's end, 0 while that block is empty.
    """

    __slots__ = ("complete", "first_block", "open")

    def __init__(self, first_block: int = 0, complete: bytes = b"", open_sum: int = 0) -> None:
        self.first_block = first_block
        self.complete: array[int] = array("I", complete)
        self.open = open_sum  # of the units of the last, incomplete block

    @classmethod
    def behind_hole(cls, end: int) -> QueueSums:
        """Return the checksums of a queue that begins at `end`; its sparse files read as zeros before it."""
        return cls(
            end // BLOCK_UNITS, b"", crc32c(bytes(end % BLOCK_UNITS * UNIT_SIZE)) if end % BLOCK_UNITS else 0
        )

    def append(self, raw: Buffer, end: int) -> None:
        """Extend the checksums by the units that were added to a queue that ended at `end`."""
        view, done = memoryview(raw), 0
        while done < len(view):
            room = _BLOCK_BYTES - (end * UNIT_SIZE + done) % _BLOCK_BYTES
            part = view[done : done + room]
            self.open = crc32c(part, self.open)
            done += len(part)
            if len(part) == room:
                self.complete.append(self.open)
                self.open = 0

    def of_block(self, block: int) -> int:
        """Return the checksum over the units of a block, up to the queue's end."""
        place = block - self.first_block
        return self.complete[place] if place < len(self.complete) else self.open

    def from_block(self, block: int) -> tuple[int, bytes, int]:
        """Return (first block, complete, open) without the blocks before `block`: the arguments of a copy."""
        gone = max(block - self.first_block, 0)
        return self.first_block + gone, self.complete[gone:].tobytes(), self.open

    def replace(self, block: int, value: int) -> None:
        """Overwrite the checksum of a block."""
        place = block - self.first_block
        if place < len(self.complete):
            self.complete[place] = value
        else:
            self.open = value


def bridging_unit(difference: int, units_behind: int) -> bytes:
    """Return a unit that changes the checksum of a block by `difference` (xor).

    It replaces a unit of zeros that is followed by `units_behind` units in its block.
    The checksum of a queue's first block covers units below the queue's begin. If their file is lost and
    retention deleted their entries, these units cannot be rebuilt; no reader needs them either. Zeros replace
    them, and this unit stands directly before the first known one. Its physical offset is 0. Its 32 free bits
    can produce any 32-bit checksum.
    """
    zeros = bytes(units_behind * UNIT_SIZE)
    nothing = crc32c(bytes(4) + zeros)
    # Gaussian elimination over GF(2), keyed by the top bit: (change of the checksum, bits that cause it).
    by_top_bit: dict[int, tuple[int, int]] = {}
    for bit in range(32):
        change, bits = crc32c((1 << bit).to_bytes(4, "little") + zeros) ^ nothing, 1 << bit
        while (top := change.bit_length()) in by_top_bit:
            change, bits = change ^ by_top_bit[top][0], bits ^ by_top_bit[top][1]
        by_top_bit[top] = change, bits
    word = 0
    while difference:
        change, bits = by_top_bit[difference.bit_length()]
        difference, word = difference ^ change, word ^ bits
    return bytes(UNIT_SIZE - 4) + word.to_bytes(4, "little")
