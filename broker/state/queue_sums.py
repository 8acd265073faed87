"""Checksums of a ConsumeQueue's blocks of units: a unit has no room for one of its own.

A flipped bit in a unit would lead a reader to another place of the log, or past a filter, and nobody would notice: the
files of a queue are believed only block by block, when their checksum is right.
Owns: crc32c over the units of each block, the last one up to the queue's end. Built with the queue, so equal on all nodes,
and kept in checkpoints. Must not: touch files.
"""

from __future__ import annotations

from array import array
from typing import Final

from crc32c import crc32c

from ledgermq.proto.entry import Buffer

UNIT_SIZE: Final = 20
#: Units that are read, checked and cached together; a file is a whole number of blocks.
BLOCK_UNITS: Final = 2_000
_BLOCK_BYTES: Final = BLOCK_UNITS * UNIT_SIZE


class QueueSums:
    """Invariant: `complete` holds the blocks from `first_block` to the one before the queue's end."""

    __slots__ = ("complete", "first_block", "open")

    def __init__(self, first_block: int = 0, complete: bytes = b"", open_sum: int = 0) -> None:
        self.first_block = first_block
        self.complete: array[int] = array("I", complete)
        self.open = open_sum  # of the units of the last, incomplete block

    @classmethod
    def behind_hole(cls, end: int) -> QueueSums:
        """Return the sums of a queue that begins at `end`: files are sparse, so what is before it reads as zeros."""
        return cls(
            end // BLOCK_UNITS, b"", crc32c(bytes(end % BLOCK_UNITS * UNIT_SIZE)) if end % BLOCK_UNITS else 0
        )

    def append(self, raw: Buffer, end: int) -> None:
        """Units were added to a queue that ended at `end`."""
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
        """Return the checksum of a block's units, as far as they are stored."""
        place = block - self.first_block
        return self.complete[place] if place < len(self.complete) else self.open

    def from_block(self, block: int) -> tuple[int, bytes, int]:
        """Return (first block, complete, open) without the blocks before `block`: the arguments of a copy."""
        gone = max(block - self.first_block, 0)
        return self.first_block + gone, self.complete[gone:].tobytes(), self.open

    def replace(self, block: int, value: int) -> None:
        """Let a block have another checksum."""
        place = block - self.first_block
        if place < len(self.complete):
            self.complete[place] = value
        else:
            self.open = value


def bridging_unit(difference: int, units_behind: int) -> bytes:
    """Return the unit that changes a block's checksum by `difference` where a unit of zeros stands `units_behind` others.

    The checksum of a queue's first block covers units below its begin. When their file is lost and retention took their
    entries, nobody can make them again, and nobody reads them: zeros stand in for them, and in front of the first unit
    that is known this one. Its physical offset is 0. A checksum of 32 bits can always be reached with 32 free bits.
    """
    zeros = bytes(units_behind * UNIT_SIZE)
    nothing = crc32c(bytes(4) + zeros)
    by_top_bit: dict[int, tuple[int, int]] = {}  # what a combination of bits changes, and which bits
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
