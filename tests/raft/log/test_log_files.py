"""Opening segments for reading: never on the event loop, once for all readers, and never a forgotten file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ledgermq.raft.disk.files import RealFile
from ledgermq.raft.log.open_files import LogFiles
from ledgermq.raft.log.segment_keeper import LogFolders
from tests.gated_disk import OPENS, Gate, GatedFileSystem

TEXT = b"what a segment holds"


class CountedFileSystem(GatedFileSystem):
    """Counts opened and closed files."""

    def __init__(self) -> None:
        self.opened: list[RealFile] = []

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        file = super().open(path, create=create, writable=writable)
        self.opened.append(file)
        return file

    @property
    def still_open(self) -> int:
        return sum(file._fd >= 0 for file in self.opened)


class Rig:
    """A segment at 0 behind a gate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "commitlog").mkdir(parents=True)
        self.path = folder / "commitlog" / f"{0:020d}"
        self.path.write_bytes(TEXT)
        self.disk = CountedFileSystem()

        self.files = LogFiles(self.disk, LogFolders(folder), threads=2)
        self.gate = Gate(folder, OPENS)

    async def until_it_waits(self) -> None:
        while not self.gate.waiting:  # noqa: ASYNC110 (a thread sets no event)
            await asyncio.sleep(0.001)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "n1")
    yield made
    made.files.close()
    assert made.disk.still_open == 0


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


def test_a_segment_is_opened_in_a_thread_and_once_for_all_who_want_it(rig: Rig) -> None:
    async def scenario() -> None:
        with rig.gate.closed():
            reads = [asyncio.ensure_future(rig.files.read(0, 5, 4)) for _ in range(5)]
            await rig.until_it_waits()
            assert rig.files.read_nowait(0, 0, 4) is None, "it is not open, and nobody waits for it here"
            assert not any(each.done() for each in reads)
        assert await asyncio.gather(*reads) == [TEXT[5:9]] * 5
        assert len(rig.disk.opened) == 1
        assert rig.files.read_nowait(0, 0, 4) in (TEXT[:4], None)
        assert len(rig.disk.opened) == 1

    run(scenario)


def test_who_must_not_wait_has_it_opened_and_finds_it_when_he_asks_again(rig: Rig) -> None:
    async def scenario() -> None:
        assert rig.files.read_nowait(0, 0, 4) is None
        assert rig.files.read_nowait(0, 0, 4) is None
        while not rig.files._handles:  # noqa: ASYNC110 (no event signals it)
            await asyncio.sleep(0.001)
        assert len(rig.disk.opened) == 1
        assert rig.files.read_nowait(0, 0, 4) in (TEXT[:4], None)  # None: not in the page cache

    run(scenario)
    assert rig.files.read_nowait(9, 0, 4) is None, "without a loop nothing is begun"


def test_what_is_opened_for_somebody_who_left_is_kept_and_closed_in_the_end(rig: Rig) -> None:
    async def scenario() -> None:
        with rig.gate.closed():
            read = asyncio.ensure_future(rig.files.read(0, 0, 4))
            await rig.until_it_waits()
            read.cancel()
            await asyncio.gather(read, return_exceptions=True)
        assert await rig.files.read(0, 0, 4) == TEXT[:4]
        assert len(rig.disk.opened) == 1

    run(scenario)


def test_a_segment_that_was_forgotten_while_it_was_opened_is_opened_anew(rig: Rig) -> None:
    """It was cut off, and another one was created in its place."""

    async def scenario() -> None:
        with rig.gate.closed():
            read = asyncio.ensure_future(rig.files.read(0, 0, 4))
            await rig.until_it_waits()
            rig.files.forget_from(0)
        await read
        assert len(rig.disk.opened) == 2
        assert rig.disk.still_open == 1, "the first one is closed"

    run(scenario)


def test_a_segment_that_is_gone_is_an_error_for_everybody_who_wants_it(rig: Rig) -> None:
    rig.path.unlink()

    async def scenario() -> None:
        reads = [rig.files.read(0, 0, 4) for _ in range(2)]
        found = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(each) for each in found] == [FileNotFoundError] * 2

    run(scenario)
