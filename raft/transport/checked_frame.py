"""Frames with checksums of their own, because those of TCP miss some corruption. Pure.

     0  4  u32 size of the body
     4  4  crc32c of the body
     8  4  crc32c of bytes [0, 8)
    12     body

The header has its own checksum, so a corrupted size never makes the receiver wait for bytes or allocate
memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from ledgermq.proto.entry import Buffer

from ..errors import DamagedFrameError

#: Value of `Hello.frames` for builds that support them; 0: plain frames, with a length only.
CHECKED_FRAMES: Final = 1
HEADER_SIZE: Final = 12
_HEADER: Final = struct.Struct("<III")


def header_of(parts: Sequence[Buffer]) -> bytes:
    """Return the header of a body made of these parts."""
    size = checksum = 0
    for part in parts:
        size += len(part)
        checksum = crc32c(part, checksum)
    start = size.to_bytes(4, "little") + checksum.to_bytes(4, "little")
    return start + crc32c(start).to_bytes(4, "little")


def read_header(buffer: Buffer, position: int = 0) -> tuple[int, int]:
    """Return (size of the body, its checksum). Raises: DamagedFrameError."""
    size, checksum, own = _HEADER.unpack_from(buffer, position)
    if crc32c(buffer[position : position + 8]) != own:
        raise DamagedFrameError("the header of a frame was changed on the way")
    return size, checksum


def check_body(actual: int, stated: int) -> None:
    """Compare the checksum of the received bytes with the header's. Raises: DamagedFrameError."""
    if actual != stated:
        raise DamagedFrameError("a frame was changed on the way")
