"""Checksum at the end of a message: whatever bit changes on the way, nothing of the message is accepted."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from ledgermq.proto import raft_pb2 as pb
from ledgermq.raft.errors import DamagedFrameError
from ledgermq.raft.transport.seal import SEAL_SIZE, seal_of, unsealed

PARTS = (b"\x7a\x04", b"log ", b"")


def test_a_message_of_parts_is_read_as_one() -> None:
    assert bytes(unsealed(b"".join(PARTS) + seal_of(*PARTS))) == b"".join(PARTS)
    assert bytes(unsealed(seal_of())) == b""


def test_no_flipped_bit_passes() -> None:
    message = b"".join(PARTS) + seal_of(*PARTS)
    for bit in range(8 * len(message)):
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedFrameError):
            unsealed(changed)


@pytest.mark.parametrize("size", range(SEAL_SIZE))
def test_a_part_of_a_checksum_is_none(size: int) -> None:
    with pytest.raises(DamagedFrameError):
        unsealed(seal_of()[:size])


def test_generated_code_reads_and_writes_the_checksum_at_its_place() -> None:
    """As a peer of any language does it: serialize, add the tag, then the checksum of that."""
    message = pb.RaftFrame(messages=[pb.RaftMessage(term=3)], entries=b"log bytes")
    body = message.SerializeToString()
    message.checksum = crc32c(body + b"\x95\x01")
    assert bytes(unsealed(message.SerializeToString())) == body
    read = pb.RaftFrame.FromString(body + seal_of(body))
    assert read == message
