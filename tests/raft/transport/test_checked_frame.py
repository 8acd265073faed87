"""Frames with checksums: whatever bit changes on the way, nothing of the frame is accepted."""

from __future__ import annotations

import pytest

from ledgermq.raft.errors import DamagedFrameError
from ledgermq.raft.transport.checked_frame import HEADER_SIZE, header_of, read_header

from ..whole_frame import unframed

BODY = (b"head", b"entries" * 9)


def test_a_frame_of_parts_is_read_as_one_body() -> None:
    frame = header_of(BODY) + b"".join(BODY)
    assert bytes(unframed(frame)) == b"".join(BODY)
    assert read_header(frame)[0] == len(frame) - HEADER_SIZE
    assert bytes(unframed(header_of(()))) == b""


def test_no_flipped_bit_passes() -> None:
    frame = header_of(BODY) + b"".join(BODY)
    for bit in range(8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedFrameError):
            unframed(changed)
        if bit < 8 * HEADER_SIZE - 32:  # a size is trusted only with its header
            with pytest.raises(DamagedFrameError):
                read_header(changed)


@pytest.mark.parametrize("size", [0, 3, HEADER_SIZE - 1])
def test_a_part_of_a_header_is_no_frame(size: int) -> None:
    with pytest.raises(DamagedFrameError):
        unframed(header_of(BODY)[:size])
