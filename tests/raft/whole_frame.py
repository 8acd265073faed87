"""The body of a frame that is there as a whole; the transport reads frames piece by piece."""

from __future__ import annotations

from crc32c import crc32c

from ledgermq.proto.entry import Buffer
from ledgermq.raft.errors import DamagedFrameError
from ledgermq.raft.transport.checked_frame import HEADER_SIZE, check_body, read_header


def unframed(frame: Buffer) -> memoryview:
    """Return the body of one whole frame. Raises: DamagedFrameError."""
    view = memoryview(frame)
    if len(view) < HEADER_SIZE:
        raise DamagedFrameError("a frame without a whole header")
    size, checksum = read_header(view)
    body = view[HEADER_SIZE:]
    if len(body) != size:
        raise DamagedFrameError(f"a frame of {len(body)} bytes says that it has {size}")
    check_body(crc32c(body), checksum)
    return body
