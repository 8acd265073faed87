"""Variable-length integers of protobuf, for code that handles wire bytes without message objects. Pure.

Owns: the only reader and the only writer.
Invariant: a number has at most 64 bits in 10 bytes, so no input costs more than 10 steps.
"""

from __future__ import annotations

from typing import Final

from .entry import Buffer
from .errors import CorruptError

_MAX_BYTES: Final = 10
_BITS: Final = 64


def varint(value: int) -> bytes:
    """Return the encoding of an unsigned number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return (number, position after it). Raises: CorruptError (truncated, or more than 64 bits)."""
    value = shift = 0
    for at in range(position, min(position + _MAX_BYTES, len(buffer))):
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> _BITS:
                break
            return value, at + 1
        shift += 7
    raise CorruptError("no whole number of at most 64 bits", position)
