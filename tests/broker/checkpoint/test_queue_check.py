"""Damaged queue files are made again from the log; what cannot be made again ends the node."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgermq.broker.checkpoint.queue_check import QueueCheck
from ledgermq.broker.checkpoint.schedule import Checkpointing
from ledgermq.broker.checkpoint.store import CheckpointStore
from ledgermq.broker.errors import ConsumeQueueError
from ledgermq.broker.reading.consume_queue_files import ConsumeQueueFiles
from ledgermq.broker.state.consume_queue import BLOCK_UNITS, UNIT_SIZE, ColdRead
from ledgermq.proto.entry import HEADER_SIZE, Buffer, EntryHeader, decode_header
from ledgermq.raft.disk.files import RealFile, RealFileSystem
from ledgermq.raft.node_status import CheckCounts
from ledgermq.raft.repair.scrub_plan import ScrubPlan
from ledgermq.raft.types import LogIndex

from ..entry_log import Node

UNITS = 2 * BLOCK_UNITS + 700


class LogOf:
    """The entries of a test node, as CommitLog gives them out."""

    segment_size = 1 << 30
    first_offset = 0

    def __init__(self, node: Node) -> None:
        self._node = node
        self.first_index = LogIndex(1)

    @property
    def end_offset(self) -> int:
        return self._node.log.end

    def sketch(self, start: int) -> None:
        return None

    async def entries(self, lo: int, hi: int, size: int) -> list[tuple[EntryHeader, memoryview]]:
        raw = self._node.log.raw[lo - 1]
        header = decode_header(raw)
        assert header.index == lo <= hi
        return [(header, memoryview(raw)[HEADER_SIZE : HEADER_SIZE + header.payload_size])]


class Rig:
    """A node with two queues whose files are written, and its check."""

    def __init__(self, data: Path) -> None:
        self.node = Node()
        self.state = self.node.state
        self.rebuild = None
        disk = RealFileSystem()
        self.files = ConsumeQueueFiles(disk, data / "consumequeue")
        self.store = CheckpointStore(disk, data / "checkpoint", self.files)
        self.state.queues.attach(self.files)
        replica: Any = self
        self.work = Checkpointing(
            replica, self.store, durable_index=lambda: 1 << 60, log_end=lambda: self.node.log.end,
            on_failed=lambda reason: self.failed.append(reason), fault=lambda: None,
        )  # fmt: skip
        self.counts = CheckCounts()
        self.failed: list[str] = []
        self.log = LogOf(self.node)
        log: Any = self.log
        self.check = QueueCheck(
            replica, log, ScrubPlan(1 << 30, 3600.0), self.counts, rewrite=self.work.rewrite,
            repair_log=self._no_repair, on_failed=self.failed.append,
        )  # fmt: skip
        self.topic = self.node.topic()
        for queue_id in (0, 1):
            for _ in range(UNITS // 100):
                self.node.fill(self.topic, queue_id, 100)

    def observe(self, observer: Callable[..., None]) -> None:
        pass

    def load_units(self, read: ColdRead) -> bytes:
        return self.files.load(read)

    async def units(self, topic_id: int, queue_id: int, offset: int, count: int) -> np.ndarray:
        """As the replica: what is damaged is waited for."""
        while True:
            try:
                found = self.state.queues.lookup(topic_id, queue_id, offset, count)
            except ConsumeQueueError as error:
                assert await self.check.rebuilt(error)
                continue
            if not isinstance(found, ColdRead):
                return found
            self.state.queues.admit(found, self.files.load(found))

    async def _no_repair(self, error: object) -> bool:
        return False

    async def check_until_repaired(self) -> None:
        self.check.start()
        async with asyncio.timeout(30):
            while not self.counts.repaired:  # noqa: ASYNC110 (nothing announces it)
                await asyncio.sleep(0)

    def path(self, queue_id: int) -> Path:
        return self.files.path(self.state.topics.named("orders").folder, queue_id, 0)

    def damage(self, queue_id: int, block: int) -> ConsumeQueueError:
        """Return the error of a reader that met a damaged block."""
        folder = self.state.topics.named("orders").folder
        error = self.files.damaged(folder, queue_id, block * BLOCK_UNITS, "a test")
        error.block = ((self.topic, queue_id), block)
        return error

    def stored(self, queue_id: int) -> np.ndarray:
        return np.frombuffer(self.path(queue_id).read_bytes(), np.uint8)


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))


@asynccontextmanager
async def opened_rig(path: Path) -> AsyncIterator[Rig]:
    """Open a rig whose queue files are written."""
    made = Rig(path)
    await made.work.write_now()
    try:
        yield made
    finally:
        await made.check.stop()
        await made.work.stop()


@pytest.fixture
def rig(tmp_path: Path) -> AbstractAsyncContextManager[Rig]:
    return opened_rig(tmp_path)


@pytest.mark.parametrize("unit", [0, BLOCK_UNITS - 1, BLOCK_UNITS + 5, 2 * BLOCK_UNITS + 600])
async def test_a_pass_finds_a_flipped_bit_and_makes_the_block_again(rig: Rig, unit: int) -> None:
    before = [rig.stored(0).tobytes(), rig.stored(1).tobytes()]
    flip(rig.path(1), unit * UNIT_SIZE + 3)
    await rig.check_until_repaired()
    assert [rig.stored(0).tobytes(), rig.stored(1).tobytes()] == before
    assert (rig.counts.found, rig.counts.repaired, rig.failed) == (1, 1, [])
    assert "rebuilt" in rig.counts.last


async def test_a_pass_makes_a_block_again_that_the_disk_cannot_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, read, write = {rig.path(1)}, RealFile.pread, RealFile.pwritev

    def pread(file: RealFile, size: int, offset: int) -> bytes:
        if file.path in bad and not offset:
            raise OSError(errno.EIO, "Input/output error")
        return read(file, size, offset)

    def pwritev(file: RealFile, buffers: Sequence[Buffer], offset: int) -> None:
        bad.discard(file.path)
        write(file, buffers, offset)

    monkeypatch.setattr(RealFile, "pread", pread)
    monkeypatch.setattr(RealFile, "pwritev", pwritev)
    await rig.check_until_repaired()
    assert (rig.counts.found, rig.failed, bad) == (1, [], set())
    assert "the disk cannot read it; rebuilt" in rig.counts.last


async def test_a_queue_that_cannot_be_checked_now_keeps_no_other_from_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = rig.files.load

    def failing(read: ColdRead) -> bytes:
        if read.key == (rig.topic, 0):
            raise OSError(errno.EMFILE, "Too many open files")
        return load(read)

    monkeypatch.setattr(rig.files, "load", failing)
    flip(rig.path(1), 3)
    await rig.check_until_repaired()
    assert (rig.counts.found, rig.failed) == (1, [])


async def test_a_reader_that_meets_damage_can_wait_and_read_again(rig: Rig) -> None:
    flip(rig.path(0), 10 * UNIT_SIZE)
    with pytest.raises(ConsumeQueueError) as caught:
        rig.state.queues.lookup(rig.topic, 0, 10, 1)
    assert caught.value.block == ((rig.topic, 0), 0)
    rig.check.report(caught.value)
    assert await rig.check.rebuilt(caught.value)
    assert rig.counts.found == 1
    found: Any = rig.state.queues.lookup(rig.topic, 0, 10, 1)
    assert len(found) == 1


async def test_units_whose_entries_were_deleted_cannot_be_made_again_and_end_the_node(rig: Rig) -> None:
    flip(rig.path(0), 10 * UNIT_SIZE)
    before = rig.stored(0).tobytes()
    rig.log.first_index = LogIndex(5)
    assert not await rig.check.rebuilt(rig.damage(0, 0))
    assert len(rig.failed) == 1 and "--rejoin" in rig.failed[0]
    assert rig.stored(0).tobytes() == before


async def test_a_log_that_says_something_else_is_not_believed(rig: Rig) -> None:
    """The checksum of the block decides, not the log: a wrong unit must never be written over a right one."""
    flip(rig.path(0), 10 * UNIT_SIZE)
    before = rig.stored(0).tobytes()
    queue: Any = rig.state.queues.get(rig.topic, 0)
    queue.sums.complete[0] ^= 1
    assert not await rig.check.rebuilt(rig.damage(0, 0))
    assert rig.failed and rig.stored(0).tobytes() == before


@pytest.mark.parametrize("first_index", [1, 12])
async def test_the_block_in_which_a_queue_begins_is_made_again_without_what_retention_took(
    rig: Rig, first_index: int
) -> None:
    queue: Any = rig.state.queues.get(rig.topic, 0)
    queue.begin = 1_150
    before = rig.stored(0).tobytes()
    rig.log.first_index = LogIndex(first_index)
    flip(rig.path(0), 1_200 * UNIT_SIZE + 3)
    flip(rig.path(0), 100 * UNIT_SIZE + 3)
    await rig.check_until_repaired()
    assert (rig.counts.found, rig.counts.repaired, rig.failed) == (1, 1, [])
    known_from = 100 * (first_index - 2) if first_index > 1 else 0
    assert rig.stored(0).tobytes()[known_from * UNIT_SIZE :] == before[known_from * UNIT_SIZE :]
    assert queue.is_right(0, rig.stored(0).tobytes()[: BLOCK_UNITS * UNIT_SIZE])


async def test_a_file_with_other_contents_is_made_again_with_one_look_at_the_log_for_each_block(
    rig: Rig,
) -> None:
    """A reader may meet the last block first: it waits for those before, which give its place in the log."""
    before = rig.stored(1).tobytes()
    rig.path(1).write_bytes(rig.path(0).read_bytes()[::-1])
    assert await rig.check.rebuilt(rig.damage(1, 1))
    blocks = 2 * BLOCK_UNITS * UNIT_SIZE
    assert rig.stored(1).tobytes()[:blocks] == before[:blocks]
    assert (rig.counts.found, rig.counts.repaired, rig.failed) == (2, 2, [])
