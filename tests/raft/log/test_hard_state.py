"""Two-slot hard state: any torn write leaves the old record or the new one (rule P1)."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from ledgermq.proto.errors import CorruptError, NewerFormatError
from ledgermq.raft.errors import OldHardStateError
from ledgermq.raft.log.hard_state import (
    BLOCK,
    FILE_SIZE,
    RECORD_SIZE,
    DurableState,
    HardStateFile,
    check_not_older,
    decode_state,
    encode_state,
)
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term
from tests.power_cut import Keep, Write

from ..simulated_disk import SimulatedDisk

PATH = Path("/data/hardstate")


def state(term: int, vote: str | None = None) -> DurableState:
    hard = HardState(Term(term), NodeId(vote) if vote else None, LogIndex(7), is_voter=term % 2 == 0)
    return DurableState(hard=hard, floor_index=LogIndex(5), floor_term=Term(1), incarnation=99)


def test_record_comes_back_as_it_was() -> None:
    full = replace(
        state(3, "node-ä"),
        boot_id="01234567-89ab-cdef-0123-456789abcdef",
        clean_stop=True,
        cut_turn=4,
        cut_offset=1 << 40,
    )
    record = encode_state(full, 12)
    assert len(record) == RECORD_SIZE
    assert decode_state(record) == (12, full)


def test_write_torn_at_any_byte_leaves_the_old_or_the_new_record() -> None:
    old, new = state(1, "n1"), state(2, "n2")
    record = encode_state(new, 3)
    for size in range(RECORD_SIZE + 1):
        disk = SimulatedDisk()
        HardStateFile.create(disk, PATH, state(0)).write(old)
        inode = disk.names[PATH]
        inode.current[BLOCK : BLOCK + size] = record[:size]  # sequence 3 goes to slot B
        found = HardStateFile.open(disk, PATH).state
        assert found == (new if size == RECORD_SIZE or record[size:].count(0) == RECORD_SIZE - size else old)


@pytest.mark.parametrize("keep", list(Keep))
def test_power_cut_between_any_two_operations_leaves_the_old_or_the_new_record(keep: Keep) -> None:
    rng = random.Random(3)
    for _ in range(50):
        disk = SimulatedDisk()
        file = HardStateFile.create(disk, PATH, state(0))
        disk.sync_directory(PATH.parent)
        file.write(state(1, "n1"))
        inode = disk.names[PATH]
        record = encode_state(state(2, "n2"), 3)
        inode.write(Write(BLOCK, record))
        if rng.random() < 0.5:
            inode.write(Write(3 * BLOCK, record))
        assert HardStateFile.open(disk.crash(rng, keep), PATH).state in (state(1, "n1"), state(2, "n2"))


def test_damaged_sector_does_not_bring_an_older_vote_back() -> None:
    disk = SimulatedDisk()
    file = HardStateFile.create(disk, PATH, state(0))
    file.write(state(1, "n1"))
    file.write(state(2, "n2"))
    for block in range(4):
        for position in range(RECORD_SIZE):
            disk.flip(PATH, block * BLOCK + position, 8)
            assert HardStateFile.open(disk, PATH).state == state(2, "n2")
            disk.flip(PATH, block * BLOCK + position, 8)


@pytest.mark.parametrize("blocks", [(0, 2, 3), (0, 1, 2), (1, 2, 3), (0, 1, 3)])
@pytest.mark.parametrize("how", ["flipped", "zeroed"])
def test_damage_that_no_torn_write_leaves_is_not_answered_with_an_older_vote(
    blocks: tuple[int, ...], how: str
) -> None:
    """Two bad blocks of one slot may be a torn write.

    A third one shows that the latest record may be lost.
    """
    disk = SimulatedDisk()
    file = HardStateFile.create(disk, PATH, state(0))
    file.write(state(1, "n1"))
    file.write(state(2, "n2"))
    for block in blocks:
        if how == "flipped":
            disk.flip(PATH, block * BLOCK + 40, 8)
        else:
            disk.names[PATH].current[block * BLOCK : block * BLOCK + RECORD_SIZE] = bytes(RECORD_SIZE)
    with pytest.raises(CorruptError, match=r"block \d"):
        HardStateFile.open(disk, PATH)


def test_a_copy_that_cannot_be_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    file = HardStateFile.create(disk, PATH, state(0))
    file.write(state(1, "n1"))
    disk.flip(PATH, BLOCK + 40, 8)
    assert HardStateFile.open(disk, PATH).state == state(1, "n1")
    assert "hard state copy not readable path=/data/hardstate reason='block 1" in caplog.text


def test_a_record_that_is_older_than_the_log_is_refused() -> None:
    voter, learner = state(2).hard, state(3).hard
    assert voter.is_voter and not learner.is_voter
    check_not_older("n1", PATH, voter, Term(2))
    with pytest.raises(OldHardStateError, match=r"knows term 2 and the log ends in term 3.*--rejoin"):
        check_not_older("n1", PATH, voter, Term(3))
    with pytest.raises(OldHardStateError, match="knows term 3 and the log ends in term 4"):
        check_not_older("n1", PATH, learner, Term(4))


def test_file_has_its_space_from_the_beginning() -> None:
    disk = SimulatedDisk()
    file = HardStateFile.create(disk, PATH, state(0))
    disk.capacity = disk.used
    for term in range(1, 10):
        file.write(state(term))
    assert disk.used == FILE_SIZE
    assert HardStateFile.open(disk, PATH).state == state(9)


def test_newer_version_is_named() -> None:
    record = bytearray(encode_state(state(1), 1))
    with pytest.raises(CorruptError):
        decode_state(bytes(record[:100]))
    record[4] = 9
    with pytest.raises(CorruptError):
        decode_state(bytes(record))
    record[8:12] = crc32c(bytes(record[12:]), crc32c(bytes(record[:8]))).to_bytes(4, "little")
    with pytest.raises(NewerFormatError) as caught:
        decode_state(bytes(record))
    assert (caught.value.found, caught.value.supported) == (9, 1)
