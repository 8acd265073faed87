"""Finished runs of the key index, and the task that writes those of closed segments and rebuilds missing
ones.

Owns: the runs by segment, the set of missing runs, the thread that writes their files.   Must not: follow
apply. Bounds: runs are written, and old segments are read, at a limited rate, one segment at a time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ledgermq.proto.entry import EntryHeader
from ledgermq.proto.errors import LayoutError
from ledgermq.raft.disk.files import FileSystem
from ledgermq.raft.errors import DamagedLogError, LogCompactedError, LogTruncatedError, StorageError
from ledgermq.raft.log.segment import SegmentInfo, segment_start
from ledgermq.raft.types import LogIndex

from .key_build import PART_ITEMS, SegmentBuild
from .key_hashes import ItemForm
from .key_run import KeyRun, RunReader

logger = logging.getLogger(__name__)

#: Maximum rate at which old segments are read, and at which runs are written.
BYTES_PER_SECOND: Final = 32 << 20
#: Pause after a failure.
RETRY_SECONDS: Final = 30.0
_SLICE: Final = 512 << 10  # bytes of log per read
_T = TypeVar("_T")
Entries = Sequence[tuple[EntryHeader, memoryview]]


class LogSource(Protocol):
    """The part of CommitLog that the key index uses."""

    @property
    def segment_size(self) -> int: ...

    @property
    def first_index(self) -> LogIndex: ...

    @property
    def first_offset(self) -> int: ...

    def segments(self) -> Sequence[SegmentInfo]: ...

    async def header_at(self, index: LogIndex) -> EntryHeader: ...

    async def entries(self, lo: LogIndex, hi: LogIndex, max_bytes: int) -> Entries: ...


class StoppedError(Exception):
    """The thread must stop."""


class Builds:
    """Factory and environment of builds: the log, the folder, the rate."""

    def __init__(
        self,
        log: LogSource,
        files: FileSystem,
        folder: Path,
        repair: Callable[[DamagedLogError], Awaitable[bool]],
        form: ItemForm | None = None,
        part_items: int = PART_ITEMS,
    ) -> None:
        """`repair` returns True if damaged log bytes are whole again."""
        self.log = log
        self.files = files
        self.folder = folder
        self.form = form or ItemForm.of(log.segment_size)
        self.reader = RunReader(files)
        self.stopping = threading.Event()
        self._repair = repair
        self._part_items = part_items

    def new(self, start: int, first_index: int) -> SegmentBuild:
        """Return an empty build of a segment."""
        return SegmentBuild(
            self.files, self.folder, self.form, start, first_index,
            pace=self._pace, part_items=self._part_items,
        )  # fmt: skip

    async def read(self, low: LogIndex, high: LogIndex) -> Entries:
        """Return the next entries; none: call again.

        Raises: LogCompactedError, DamagedLogError, StorageError.
        """
        try:
            return await self.log.entries(low, high, _SLICE)
        except LogTruncatedError:  # a concurrent truncation of later entries
            await asyncio.sleep(0)
        except DamagedLogError as error:
            if not await self._repair(error):
                raise
        return []

    def _pace(self, size: int) -> None:
        """Limit the rate of a writing thread. Raises: StoppedError (the node stops)."""
        if self.stopping.wait(size / BYTES_PER_SECOND):
            raise StoppedError

    def unlink(self, paths: Sequence[Path]) -> None:
        """Delete files. Blocks."""
        for path in paths:
            self.reader.forget(path)
            with suppress(OSError):
                self.files.unlink(path)


class KeyRuns:
    """Finished runs. `start()`, `close(build)` per complete segment, `await stop()`. Event-loop thread."""

    def __init__(self, builds: Builds, applied: Callable[[], int]) -> None:
        self._builds = builds
        self._log = builds.log
        self._applied = applied
        self._wanted = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, "key-runs")
        self._task: asyncio.Task[None] | None = None
        self._first_start = -1
        self.runs: dict[int, KeyRun] = {}  # by the segment's start offset
        self.missing: set[int] = set()  # starts of segments without a run or a build
        self.closed: dict[int, SegmentBuild] = {}  # complete builds to be written, oldest first
        self.damaged = 0  # runs that were discarded since start

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop the task and its thread. `Builds.stopping` must be set."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._worker.shutdown)

    def wake(self) -> None:
        """Wake the task: there may be work."""
        self._wanted.set()

    def close(self, build: SegmentBuild) -> None:
        """Queue the build of a complete segment for writing. Until then, searches use the build."""
        self.closed[build.start] = build
        self._wanted.set()

    def lose(self, start: int, paths: Sequence[Path]) -> None:
        """Discard the unusable run of a segment; it is rebuilt."""
        self.runs.pop(start, None)
        self.closed.pop(start, None)
        self.missing.add(start)
        self.damaged += 1
        self._unlink(paths)
        self._wanted.set()

    def drop_deleted(self) -> None:
        """Delete the runs of segments that retention deleted."""
        first = segment_start(self._log.first_offset, self._log.segment_size)
        if first == self._first_start:
            return
        self._first_start = first
        self.missing = {start for start in self.missing if start >= first}
        for start in [start for start in self.closed if start < first]:
            self._unlink([part.path for part in self.closed.pop(start).content.parts])
        self._unlink([self.runs.pop(start).path for start in [s for s in self.runs if s < first]])

    # --- writing runs ---------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while self.closed or self._whole_missing():
                    if self.closed:
                        await self._write_closed()
                    else:
                        await self._make(self._whole_missing()[-1])
            except StoppedError:
                return
            except Exception as error:  # the task must go on; only searches depend on it
                if isinstance(error, OSError | StorageError):
                    logger.warning("key index not written, the next try follows reason=%s", error)
                else:
                    logger.exception("key index not written, the next try follows")
                await asyncio.sleep(RETRY_SECONDS)
                self._wanted.set()

    async def _write_closed(self) -> None:
        """Write the run of the oldest closed segment. Raises: OSError."""
        build = next(iter(self.closed.values()))
        try:
            await self._write_whole(build)
        except (LayoutError, FileNotFoundError) as error:  # one of its parts
            logger.warning("key index damaged, it is made again start=%d reason=%s", build.start, error)
            self.lose(build.start, [part.path for part in build.content.parts])

    async def _write_whole(self, build: SegmentBuild) -> None:
        """Write the run of a segment, which replaces its parts. Raises: OSError, CorruptError."""
        run = await self._in_worker(build.write_whole)
        self._builds.reader.forget(run.path)
        self.closed.pop(build.start, None)
        self.missing.discard(build.start)
        useless = [part.path for part in build.content.parts]
        if build.start < self._log.first_offset:
            useless.append(run.path)
        else:
            self.runs[build.start] = run
        self._unlink(useless)
        logger.debug("key index written path=%s items=%d", run.path, run.count)

    def _whole_missing(self) -> list[int]:
        """Return the complete, applied segments without a run, oldest first."""
        if not self.missing:
            return []
        applied = self._applied()
        whole = {info.start_offset for info in self._log.segments()[:-1] if info.last_index <= applied}
        return sorted(self.missing & whole)

    async def _make(self, start: int) -> None:
        """Build the run of an old segment from the log at a limited rate. Closed segments come first."""
        info = next((each for each in self._log.segments() if each.start_offset == start), None)
        if info is None:
            self.missing.discard(start)
            return
        build = self._builds.new(start, info.first_index)
        try:
            while build.next_index <= info.last_index:
                while self.closed:
                    await self._write_closed()
                begin = time.monotonic()
                entries = await self._builds.read(LogIndex(build.next_index), info.last_index)
                if entries:
                    await self._in_worker(build.take, entries)
                if build.is_full:
                    await self._in_worker(build.write_part)
                size = sum(header.size for header, _ in entries)
                await asyncio.sleep(max(0.0, size / BYTES_PER_SECOND - (time.monotonic() - begin)))
            await self._write_whole(build)
        except LogCompactedError:
            self.missing.discard(start)
        finally:
            self._unlink([part.path for part in build.content.parts])

    def _unlink(self, paths: Sequence[Path]) -> None:
        """Delete files in the thread that may write files of the same names."""
        if paths:
            with suppress(RuntimeError):  # the thread is shut down; the next start deletes them
                self._worker.submit(self._builds.unlink, paths)

    async def _in_worker(self, call: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call, *arguments)


def says_nothing_of_the_file(error: Exception) -> bool:
    """Tell whether a read error has another cause than a bad file, for example a lack of descriptors."""
    return (
        isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and error.errno != errno.EIO
    )
