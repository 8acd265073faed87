"""Runs of the key index by segment: builds, the inventory at start, and the task that writes missing runs.

A build collects the items of a segment without a finished run, writes them out in parts, and merges the
parts. A file of an earlier process is useless if it is damaged, fits no segment, or was built from other
entries (the checksum of its last entry differs, and checksums are chained); its name proves nothing.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from ledgermq.proto.entry import EntryHeader
from ledgermq.proto.errors import LayoutError
from ledgermq.raft.disk.files import FileSystem
from ledgermq.raft.errors import DamagedLogError, LogCompactedError, LogTruncatedError, StorageError
from ledgermq.raft.log.segment import SegmentInfo, segment_start
from ledgermq.raft.types import LogIndex

from ..background import BackgroundWork
from .key_hashes import NO_ITEMS, ItemForm, items_of
from .key_run import KeyRun, RunRange, RunReader, merged, open_run, run_path, write_run

logger = logging.getLogger(__name__)

#: Maximum rate at which old segments are read, and at which runs are written.
BYTES_PER_SECOND: Final = 32 << 20
#: Pause after a failure.
RETRY_SECONDS: Final = 30.0
_SLICE: Final = 512 << 10  # bytes of log per read
#: Number of items in memory at which a part is written: 8 MiB.
PART_ITEMS: Final = 1 << 20
#: Number of log bytes at which a part is written: a node that was killed reads up to so much again.
PART_LOG_BYTES: Final = 256 << 20
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


@dataclass(frozen=True, slots=True, eq=False)
class BuildContent:
    """Searchable content of a build. Immutable."""

    parts: tuple[KeyRun, ...] = ()  # in the order of the log
    items: np.ndarray = field(default_factory=lambda: NO_ITEMS)  # u64, unsorted; of entries after `parts`

    def in_memory(self, form: ItemForm, hashed: int, begin: int, end: int, at_most: int) -> np.ndarray:
        """Search the items in memory; see RunReader.find."""
        bounds = form.bounds(hashed, begin, end)
        if bounds is None:
            return np.empty(0, np.int64)
        found = self.items[(self.items >= bounds[0]) & (self.items <= bounds[1])]
        return form.positions(np.sort(found)[-at_most:])


class SegmentBuild:
    """Build of one run. `take` entries in order, `write_part` when `is_full`, `write_whole` at the end.

    Invariant: `content` is replaced as a whole, so a search in another thread sees each item exactly once.
    Except for reads of `content`, only one worker thread at a time may use a build.
    """

    def __init__(
        self,
        files: FileSystem,
        folder: Path,
        form: ItemForm,
        start: int,
        first_index: int,
        *,
        pace: Callable[[int], None],
        part_items: int = PART_ITEMS,
    ) -> None:
        """`start`: physical offset of the segment. `first_index`: index of its first entry."""
        self._files = files
        self._folder = folder
        self._form = form
        self._pace = pace
        self._part_items = part_items
        self._room = NO_ITEMS  # buffer; `content.items` is its used part
        self._part_first = first_index  # first entry of the next part
        self._part_offset = start  # physical offset of that entry
        self.start = start
        self.first_index = first_index
        self.next_index = first_index  # first entry that is not taken
        self.last: RunRange | None = None  # range of all taken entries
        self.content = BuildContent()

    def go_on(self, parts: Sequence[KeyRun]) -> None:
        """Start with contiguous parts of an earlier build, from the segment's first entry on."""
        last = parts[-1].range
        self.last = last._replace(first_index=self.first_index)
        self.next_index = self._part_first = last.last_index + 1
        self._part_offset = last.end_offset
        self.content = BuildContent(tuple(parts))

    @property
    def end_offset(self) -> int:
        """Physical offset just past the last taken entry."""
        return self.last.end_offset if self.last is not None else self.start

    @property
    def is_full(self) -> bool:
        """Whether the items in memory should be written out."""
        grown = self.end_offset - self._part_offset
        return len(self.content.items) >= self._part_items or grown >= PART_LOG_BYTES

    def take(self, entries: Sequence[tuple[EntryHeader, memoryview]]) -> None:
        """Add the next entries of the segment."""
        assert entries[0][0].index == self.next_index
        found = items_of(entries, self.start, self._form)
        used = len(self.content.items)
        need = used + len(found)
        if need > len(self._room):
            grown = np.empty(max(need + need // 2, 1024), np.uint64)
            grown[:used] = self.content.items
            self._room = grown
        self._room[used:need] = found
        last = entries[-1][0]
        self.content = BuildContent(self.content.parts, self._room[:need])
        self.last = RunRange(self.start, self.first_index, last.index, last.crc, last.end)
        self.next_index = last.index + 1

    def write_part(self, paced: bool = True) -> None:
        """Write the items in memory to a file. `paced`: slowly. Raises: OSError (nothing changed)."""
        if self.last is None or self._part_first == self.next_index:
            return
        items = np.sort(self.content.items)
        path = run_path(self._folder, self.start, self._part_first)
        taken = self.last._replace(first_index=self._part_first)
        part = self._write(path, taken, (), items, self._pace if paced else _no_pace)
        self.content = BuildContent((*self.content.parts, part))
        self._room = NO_ITEMS
        self._part_first, self._part_offset = self.next_index, self.end_offset

    def write_whole(self) -> KeyRun:
        """Write the run of the segment; its parts can be deleted then. Raises: OSError, CorruptError."""
        assert self.last is not None
        content = self.content
        path = run_path(self._folder, self.start)
        return self._write(path, self.last, content.parts, np.sort(content.items), self._pace)

    def _write(
        self,
        path: Path,
        taken: RunRange,
        parts: Sequence[KeyRun],
        items: np.ndarray,
        pace: Callable[[int], None],
    ) -> KeyRun:
        count = sum(part.count for part in parts) + len(items)
        stretches = merged(self._files, parts, items)
        return write_run(self._files, path, taken, self._form, count, stretches, pace)


def _no_pace(size: int) -> None:
    """Do not limit the rate."""


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

    async def read(self, low: LogIndex, high: LogIndex, max_bytes: int = _SLICE) -> Entries:
        """Return the next entries, of about `max_bytes`; none: call again.

        Raises: LogCompactedError, DamagedLogError, StorageError.
        """
        try:
            return await self.log.entries(low, high, max_bytes)
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


@dataclass(slots=True)
class Kept:
    """Result of the inventory. Segments are named by their start offset."""

    #: Segment of the last applied entry. It is followed from its first entry, or from the end of `parts`.
    followed: SegmentInfo | None = None
    parts: list[KeyRun] = field(default_factory=list)  # of `followed`, contiguous from its first entry
    runs: dict[int, KeyRun] = field(default_factory=dict)  # runs of whole segments
    missing: set[int] = field(default_factory=set)  # segments before `followed` without a run
    useless: list[Path] = field(default_factory=list)  # files to delete


def read_folder(files: FileSystem, folder: Path, form: ItemForm) -> tuple[list[KeyRun], list[Path]]:
    """Return the runs in the folder, oldest first, and the other files. Blocks."""
    found: list[KeyRun] = []
    useless: list[Path] = []
    for name in files.list_directory(folder):
        path = folder / name
        try:
            run = open_run(files, path)
        except (LayoutError, OSError) as error:
            logger.info("key index file not used path=%s reason=%s", path, error)
            useless.append(path)
            continue
        first = run.range.first_index if path.suffix else None
        if run.form == form and path == run_path(folder, run.range.segment_start, first):
            found.append(run)
        else:  # incomplete, of another segment size, or with a wrong name
            useless.append(path)
    return found, useless


async def keep_what_fits(found: list[KeyRun], log: LogSource, applied: int) -> Kept:
    """Select the runs that match the log. `applied`: index of the last applied entry."""
    infos = {info.start_offset: info for info in log.segments()}
    newest = max(infos, default=0)
    kept = Kept()
    for info in infos.values():  # ascending
        if info.first_index <= applied:
            kept.followed = info
    next_index = kept.followed.first_index if kept.followed is not None else LogIndex(0)
    for run in found:
        taken, segment = run.range, infos.get(run.range.segment_start)
        fits = segment is not None and taken.last_index <= applied and await _fits(run, log)
        if fits and run.path.suffix and segment is kept.followed and taken.first_index == next_index:
            kept.parts.append(run)
            next_index = LogIndex(taken.last_index + 1)
        elif fits and not run.path.suffix and segment is not None and _is_whole(run, segment, newest):
            kept.runs[taken.segment_start] = run
        else:
            kept.useless.append(run.path)
    if kept.followed is not None:
        older = {start for start in infos if start < kept.followed.start_offset}
        kept.missing = older - kept.runs.keys()
    return kept


def _is_whole(run: KeyRun, segment: SegmentInfo, newest: int) -> bool:
    """Tell whether a run covers a whole segment. The newest one still grows."""
    taken = run.range
    same = (taken.first_index, taken.last_index) == (segment.first_index, segment.last_index)
    return same and segment.start_offset != newest


async def _fits(run: KeyRun, log: LogSource) -> bool:
    """Tell whether a run was built from the entries in the log."""
    taken = run.range
    try:
        last = await log.header_at(LogIndex(taken.last_index))
    except StorageError:
        return False
    return (last.crc, last.end) == (taken.last_crc, taken.end_offset)


class KeyRuns(BackgroundWork):
    """Finished runs. `start()`, `close(build)` per complete segment, `await stop()`. Event-loop thread."""

    def __init__(self, builds: Builds, applied: Callable[[], int]) -> None:
        self._builds = builds
        self._log = builds.log
        self._applied = applied
        self._wanted = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, "key-runs")
        self._first_start = -1
        self.runs: dict[int, KeyRun] = {}  # by the segment's start offset
        self.missing: set[int] = set()  # starts of segments without a run or a build
        self.closed: dict[int, SegmentBuild] = {}  # complete builds to be written, oldest first
        self.damaged = 0  # runs that were discarded since start

    async def stop(self) -> None:
        """Stop the task and its thread. `Builds.stopping` must be set."""
        await super().stop()
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
