"""Bytes read for a follower are not verified: a damaged size must neither block the loop nor be sent on."""

from __future__ import annotations

import struct

from ledgermq.proto.entry import EntryKind
from ledgermq.raft.log.wire_batch import last_index_of

from ..log_rig import LogRig
from ..simulated_disk import SimulatedDisk


def wire_of(count: int) -> bytes:
    rig = LogRig(SimulatedDisk(), segment_size=1 << 16, cache_bytes=1 << 16)
    for _ in range(count):
        rig.append(bytes(100))
    rig.flush()
    data = rig.log.read_wire_nowait(rig.log.first_index, rig.log.last_index, 1 << 20)
    assert data is not None
    return data


def test_the_last_index_is_that_of_the_last_entry() -> None:
    assert last_index_of(wire_of(1)) == 1
    assert last_index_of(wire_of(7)) == 7


def test_no_bytes_hold_no_entry() -> None:
    assert last_index_of(b"") == 0


def test_a_damaged_size_ends_the_walk() -> None:
    data = bytearray(wire_of(5))
    (size,) = struct.unpack_from("<I", data, 8)
    assert data[12] != EntryKind.FILLER
    for damaged in (0, 1, size - 1, size + 8, 1 << 31):
        struct.pack_into("<I", data, size + 8, damaged)  # of the second entry
        assert last_index_of(bytes(data)) not in range(1, 6)
    assert last_index_of(bytes(data[: len(data) - 8])) == 0
