"""Log repair with disk errors: what is readable is kept, and no failed write is retried (P15, P18)."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from ledgermq.proto.entry import MAGIC
from ledgermq.raft.damage import Before
from ledgermq.raft.disk.files import Buffer
from ledgermq.raft.log.rewrite import LogRepair, RewriteProgress
from ledgermq.raft.log.segment_keeper import LogFolders
from ledgermq.raft.types import LogIndex, Term
from tests.power_cut import Keep

from ..bad_sectors import BadFile, BadSectors
from ..log_rig import DATA, SEGMENT, LogRig, reopen
from ..simulated_disk import SimulatedDisk
from .test_log_repair import LAST, Peer, filled, log_bytes, place_of, repaired, zero


def test_sectors_that_cannot_be_read_are_damage_like_any_other() -> None:
    """A write remaps them, so the repair is also the cure."""
    whole = filled()
    for clean in (True, False):
        disk = BadSectors(filled(clean=clean).disk.killed(), place_of(whole, 7)[0])
        for path in [path for path in disk.names if path.parent.name == "entryindex"]:
            del disk.names[path]
        after, count, gave_up = repaired(disk, Peer(whole))
        assert count and not gave_up
        assert not disk.bad
        assert after.read_all() == whole.entries


def test_write_of_a_repair_that_fails_where_the_disk_can_be_read_is_not_tried_again() -> None:
    whole = filled()
    disk = filled().disk.killed()
    zero(disk, *place_of(whole, 10))
    failed: list[int] = []

    def fail(step: int, operation: str, path: Path) -> None:
        if operation == "write" and path.parent.name == "commitlog":
            failed.append(step)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    disk.on_step = fail
    with pytest.raises(OSError, match="Input/output error"):
        repaired(disk, Peer(whole))
    assert len(failed) == 1


def test_write_of_a_repair_that_fails_beside_a_sector_that_cannot_be_read_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sector does not explain the error (soak, seed 16870)."""
    whole = filled()
    disk = BadSectors(filled().disk.killed(), place_of(whole, 7)[0])
    failed: list[int] = []
    pwritev = BadFile.pwritev

    def fail(file: BadFile, buffers: Sequence[Buffer], offset: int) -> None:
        if file.path.parent.name == "commitlog" and bytes(buffers[0][:3]) == MAGIC:
            failed.append(offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file.path))
        pwritev(file, buffers, offset)

    monkeypatch.setattr(BadFile, "pwritev", fail)
    with pytest.raises(OSError, match="Input/output error"):
        repaired(disk, Peer(whole))
    assert len(failed) == 1


def test_what_can_be_read_beside_a_sector_that_cannot_stays_as_it_is() -> None:
    """A repair begins after the last intact entry.

    Earlier entries in the same page would not be written again.
    """
    whole = filled()
    header = asyncio.run(whole.log.header_at(LogIndex(6)))
    begin = header.end
    disk = BadSectors(filled().disk.killed(), begin + 512)
    before = Before(LogIndex(6), Term(header.term), header.crc, header.timestamp)
    repair = LogRepair(
        disk, LogFolders(DATA), SEGMENT, before, begin, LogIndex(LAST), whole.log.end_offset, True
    )
    while repair.take(Peer(whole).wire(repair.next_index)) is RewriteProgress.MORE:
        pass
    assert not disk.bad
    assert log_bytes(disk, whole.log.end_offset) == log_bytes(whole.disk, whole.log.end_offset)


def test_a_page_in_which_the_log_goes_on_is_left_to_its_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer rewrites the page and its entries are acknowledged, between the test of the page and its
    repair.
    """
    disk = BadSectors(SimulatedDisk(), 0)
    bad, disk.bad = disk.bad, set()
    rig = LogRig(disk, direct_write_bytes=1)
    rig.append(b"committed")
    rig.flush()
    wire, place = Peer(rig, 1).wire(1), rig.log.sketch(0)
    assert place is not None
    repair = LogRepair(
        disk, LogFolders(DATA), SEGMENT, place.chained, 0, LogIndex(1), rig.log.end_offset, True
    )
    disk.bad, pwritev = bad, BadFile.pwritev

    def go_on() -> None:
        if len(rig.entries) == 1:
            rig.append(b"acknowledged")
            rig.flush()
            assert rig.durable_seq == rig.seq

    def overtaken(file: BadFile, buffers: Sequence[Buffer], offset: int) -> None:
        go_on()
        pwritev(file, buffers, offset)

    monkeypatch.setattr(BadFile, "pwritev", overtaken)
    with suppress(OSError):  # the node ends, and its next start repairs the page
        repair.take(wire)
    go_on()
    assert not disk.bad, "the writer knows all that stands in the page"
    assert reopen(disk.crash(random.Random(1), Keep.NONE), rig).read_all() == rig.entries
