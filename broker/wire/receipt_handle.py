"""Receipt handles, with which a consumer acknowledges a message that it received.

     0  u8   version 1
     1  u8   bytes of the broker group's name
     2  u16  attempt
     4  u32  consumer group id
     8  u32  topic id
    12  u32  queue id
    16  i64  queue offset
    24  u64  lease id: log index of the grant (or of the change of its invisible time)
    32       name of the broker group
   end  u32  crc32c of all bytes before it

Text form: base64url without padding. Every node can decode it and check it against the replicated state.
Owns: the bytes.   Must not: know whether the lease is still valid.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from ..errors import InvalidReceiptHandleError

_FIXED: Final = struct.Struct("<BBHIIIqQ")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ReceiptHandle:
    """Decoded handle."""

    broker_group: str  # the broker group that granted the lease
    group_id: int  # consumer group
    topic_id: int
    queue_id: int
    queue_offset: int
    lease_id: int
    attempt: int  # delivery attempt, from 1; encoded as at most 65535

    def encode(self) -> str:
        """Return the text form."""
        name = self.broker_group.encode()
        raw = _FIXED.pack(
            _VERSION, len(name), min(self.attempt, 0xFFFF), self.group_id, self.topic_id, self.queue_id,
            self.queue_offset, self.lease_id,
        ) + name  # fmt: skip
        return base64.urlsafe_b64encode(raw + crc32c(raw).to_bytes(4, "little")).rstrip(b"=").decode()


def parse_handle(text: str) -> ReceiptHandle:
    """Decode a handle. Raises: InvalidReceiptHandleError."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidReceiptHandleError("it is not a handle of this broker") from None
    if len(raw) < _FIXED.size + 4 or crc32c(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise InvalidReceiptHandleError("it is damaged or not of this broker")
    version, size, attempt, group_id, topic_id, queue_id, offset, lease_id = _FIXED.unpack_from(raw)
    if version != _VERSION or len(raw) != _FIXED.size + size + 4:
        raise InvalidReceiptHandleError(f"its version {version} is not known here")
    name = raw[_FIXED.size : -4].decode(errors="replace")
    return ReceiptHandle(name, group_id, topic_id, queue_id, offset, lease_id, attempt)
