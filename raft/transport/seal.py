"""Checksum at the end of every message between nodes, as a field of the message itself. Pure.

     ...  fields of the message, in the order of their numbers
     -6   tag of the field 18, fixed32: 0x95 0x01
     -4   crc32c of everything before it, little-endian

TCP's checksum misses some corruption, and a flipped bit of an index would be taken for the sender's word. The
message stays valid protobuf, and the place of the checksum does not depend on what is in the message.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from ledgermq.proto.entry import Buffer

from ..errors import DamagedFrameError

_TAG: Final = b"\x95\x01"
SEAL_SIZE: Final = len(_TAG) + 4
#: The crc32c of whatever ends with its own crc32c.
_RESIDUE: Final = 0x48674BC7


def seal_of(*parts: Buffer) -> bytes:
    """Return what follows a message made of these parts."""
    checksum = 0
    for part in parts:
        checksum = crc32c(part, checksum)
    return _TAG + crc32c(_TAG, checksum).to_bytes(4, "little")


def has_seal(message: Buffer) -> bool:
    """Return whether a message ends like one with a checksum.

    Raises: DamagedFrameError (it does not match).
    """
    if len(message) < SEAL_SIZE or message[-SEAL_SIZE:-4] != _TAG:
        return False
    if crc32c(message[:-4]) != int.from_bytes(message[-4:], "little"):
        raise DamagedFrameError("a message was changed on the way")
    return True


def unsealed(message: Buffer) -> memoryview:
    """Return a message without its checksum; not copied. Raises: DamagedFrameError."""
    view = memoryview(message)
    if bytes(view[-SEAL_SIZE:-4]) != _TAG or crc32c(view) != _RESIDUE:
        raise DamagedFrameError("a message was changed on the way")
    return view[:-SEAL_SIZE]
