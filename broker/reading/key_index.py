"""Key index of a node: places in the log of records with a given message id or key (D22).

Each segment whose entries are all applied has one sorted run of items. The run of the current segment grows
in memory, shortly behind apply. The index is not a source of truth: a run that is missing, damaged, or of
another log is rebuilt, and a match must be verified in the record.

Owns: the build of the followed segment, and searches.   Must not: delay apply, read entries that are not
applied, or occupy the event loop for longer than the verification of one slice of log.
Bounds: five builds of about 8 MiB (one followed, three closed, one of an old segment), 8 MiB of tables.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ledgermq.proto.errors import LayoutError
from ledgermq.raft.errors import LogCompactedError, StorageError
from ledgermq.raft.log.segment import segment_start
from ledgermq.raft.types import LogIndex

from ..background import BackgroundWork
from .key_run import KeyRun
from .key_runs import (
    RETRY_SECONDS,
    BuildContent,
    Builds,
    Entries,
    KeyRuns,
    SegmentBuild,
    StoppedError,
    keep_what_fits,
    read_folder,
    says_nothing_of_the_file,
)

logger = logging.getLogger(__name__)

#: Seconds between two looks for applied entries and deleted segments, while no search waits: while entries
#: come, and on an idle node.
FOLLOW_INTERVAL: Final = 0.1
IDLE_INTERVAL: Final = 1.0
_MAX_CLOSED: Final = 2  # maximum of segments waiting for their run to be written; then following pauses
_MAX_PLANS: Final = 4
#: Bytes of log per read. The newest entries are in memory, and each read wakes a thread.
_SLICE: Final = 2 << 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search."""

    offsets: list[int]  # physical offsets of records that may match, newest first
    unsearched: int  # log bytes that were not searched


@dataclass(frozen=True, slots=True)
class _Source:
    """Part of a segment to search."""

    start: int  # physical offset of the segment
    begin: int  # first byte in the segment
    end: int  # one past the last byte in the segment
    content: BuildContent


class KeyIndex(BackgroundWork):
    """Key index. `start()`, `await search(...)`, `await stop()`.

    Runs on the event-loop thread.
    """

    def __init__(self, builds: Builds, applied: Callable[[], int]) -> None:
        """`applied`: index of the last applied entry."""
        self._builds = builds
        self._log = builds.log
        self._applied = applied
        self._finished = KeyRuns(builds, applied)
        self._tail: SegmentBuild | None = None
        self._next = 0  # first entry that is not taken; 0: not known yet
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []  # (index to reach, future)
        self._wanted = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, "key-items")
        self._searchers = ThreadPoolExecutor(2, "key-search")

    # --- start and stop -------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start following the log."""
        super().start()
        self._finished.start()

    async def stop(self) -> None:
        """Stop following, and write the items in memory, so that the next start need not read them again."""
        self._builds.stopping.set()
        await super().stop()
        await self._finished.stop()
        if self._tail is not None:
            try:
                await self._in(self._worker, self._tail.write_part, False)
            except OSError as error:
                logger.info("key index: the newest part is not kept reason=%s", error)
        await asyncio.to_thread(self._worker.shutdown)
        await asyncio.to_thread(self._searchers.shutdown)

    # --- for metrics ----------------------------------------------------------------------------------------
    @property
    def entries_behind(self) -> int:
        """Number of applied entries that are not indexed yet."""
        return max(self._applied() + 1 - self._next, 0)

    @property
    def segments_missing(self) -> int:
        """Number of old segments that cannot be searched."""
        return len(self._finished.missing)

    @property
    def damaged(self) -> int:
        """Number of damaged files that were discarded since start."""
        return self._finished.damaged

    # --- search ---------------------------------------------------------------------------------------------
    async def catch_up(self, timeout: float) -> None:
        """Wait until all entries applied so far are indexed, at most `timeout` seconds."""
        target = self._applied()
        if self._next > target:
            return
        waiter = (target, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._wanted.set()
        try:
            await asyncio.wait((waiter[1],), timeout=timeout)
        finally:
            self._waiters.remove(waiter)

    async def search(self, hashed: int, begin: int, end: int, at_most: int) -> Found:
        """Return the newest `at_most` records in [begin, end) (physical offsets) that may have a hash.

        Raises: OSError (files cannot be read for a reason other than damage).
        """
        offsets: list[int] = []
        for _ in range(_MAX_PLANS):
            plan, unsearched = self._plan(begin, end)
            offsets, lost = await self._in(self._searchers, self._search, plan, hashed, at_most)
            if not lost:
                return Found(offsets, unsearched)
            for run, reason in lost:
                self._lose(run, reason)
        return Found(offsets, end - begin)

    def _plan(self, begin: int, end: int) -> tuple[list[_Source], int]:
        """Return the sources to search, newest first, and the number of bytes without a source."""
        size, finished, tail = self._log.segment_size, self._finished, self._tail
        plan: list[_Source] = []
        unsearched = 0
        for start in range(segment_start(max(end - 1, 0), size), segment_start(begin, size) - 1, -size):
            low, high = max(begin - start, 0), min(end - start, size)
            build = tail if tail is not None and tail.start == start else finished.closed.get(start)
            run = finished.runs.get(start)
            if build is not None:
                taken = build.end_offset - start
                if build is tail:
                    unsearched += max(high - max(low, taken), 0)
                plan.append(_Source(start, low, min(high, taken), build.content))
            elif run is not None:
                plan.append(_Source(start, low, high, BuildContent((run,))))
            else:
                unsearched += high - low
        return plan, unsearched

    def _search(
        self, plan: list[_Source], hashed: int, at_most: int
    ) -> tuple[list[int], list[tuple[KeyRun, str]]]:
        """Search, in a thread. Return offsets, newest first, and unusable runs. Raises: OSError."""
        form, reader = self._builds.form, self._builds.reader
        found: list[int] = []
        lost: list[tuple[KeyRun, str]] = []
        for source in plan:
            if len(found) >= at_most:
                break
            here = source.content.in_memory(form, hashed, source.begin, source.end, at_most - len(found))
            found += (here[::-1] + source.start).tolist()
            for run in reversed(source.content.parts):
                if len(found) >= at_most:
                    break
                try:
                    here = reader.find(run, hashed, source.begin, source.end, at_most - len(found))
                except (LayoutError, OSError) as error:
                    if says_nothing_of_the_file(error):
                        raise
                    lost.append((run, str(error)))
                else:
                    found += (here[::-1] + source.start).tolist()
        return found, lost

    def _lose(self, run: KeyRun, reason: str) -> None:
        """Rebuild an unreadable run, unless it was replaced or deleted meanwhile."""
        start, finished = run.range.segment_start, self._finished
        closed = finished.closed.get(start)
        if self._tail is not None and run in self._tail.content.parts:
            finished.damaged += 1
            paths = [part.path for part in self._tail.content.parts]
            self._worker.submit(self._builds.unlink, paths)  # before new parts with these names are written
            self._next = self._tail.first_index
            self._tail = self._builds.new(start, self._tail.first_index)
            self._wanted.set()
        elif closed is not None and run in closed.content.parts:
            finished.lose(start, [part.path for part in closed.content.parts])
        elif finished.runs.get(start) is run:
            finished.lose(start, [run.path])
        else:
            return
        logger.warning("key index damaged, it is made again path=%s reason=%s", run.path, reason)

    # --- following apply ------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            try:
                if not self._next:
                    await self._open()
                self._finished.drop_deleted()
                before = self._next
                await self._follow()
            except StoppedError:
                return
            except Exception as error:  # the task must go on; only searches depend on it
                if isinstance(error, OSError | StorageError):
                    logger.warning("key index does not follow, the next try comes reason=%s", error)
                else:
                    logger.exception("key index does not follow, the next try comes")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(FOLLOW_INTERVAL if self._next != before else IDLE_INTERVAL):
                    await self._wanted.wait()
            self._wanted.clear()

    async def _open(self) -> None:
        """Load the files of an earlier process, as far as they match the log."""
        builds, finished = self._builds, self._finished
        found, useless = await self._in(self._worker, read_folder, builds.files, builds.folder, builds.form)
        kept = await keep_what_fits(found, self._log, self._applied())
        await self._in(self._worker, builds.unlink, [*useless, *kept.useless])
        finished.runs, finished.missing = kept.runs, kept.missing
        followed = kept.followed
        if followed is None:
            self._next = self._log.first_index
        elif followed.start_offset in kept.runs:
            self._next = followed.last_index + 1
        else:
            self._tail = builds.new(followed.start_offset, followed.first_index)
            if kept.parts:
                self._tail.go_on(kept.parts)
            self._next = self._tail.next_index
        finished.wake()

    async def _follow(self) -> None:
        """Index all applied entries."""
        while (target := self._applied()) >= self._next:
            try:
                entries = await self._builds.read(LogIndex(self._next), LogIndex(target), _SLICE)
            except LogCompactedError:  # deleted meanwhile by retention or a reset
                self._tail, self._next = None, self._log.first_index
                continue
            if entries and entries[0][0].index == self._next:  # else a part was found damaged meanwhile
                await self._take(entries)
        self._settle()

    async def _take(self, entries: Entries) -> None:
        """Index the next entries, of one or several segments."""
        size = self._log.segment_size
        while entries:
            start = segment_start(entries[0][0].physical_offset, size)
            if self._tail is None or self._tail.start != start:
                await self._close_tail()
                self._tail = self._builds.new(start, entries[0][0].index)
            build = self._tail
            count = _count_before(entries, start + size)
            await self._in(self._worker, build.take, entries[:count])
            if self._tail is not build:
                return  # one of its parts was damaged: the build restarts
            self._next = build.next_index
            if build.is_full:
                await self._in(self._worker, build.write_part)
            self._settle()
            entries = entries[count:] if self._tail is build else ()

    async def _close_tail(self) -> None:
        """Hand the build of a complete segment over to be written."""
        build, self._tail = self._tail, None
        if build is not None:
            self._finished.close(build)
        while len(self._finished.closed) > _MAX_CLOSED:  # noqa: ASYNC110 (rare: a full or very slow disk)
            await asyncio.sleep(FOLLOW_INTERVAL)

    def _settle(self) -> None:
        for target, waiter in self._waiters:
            if self._next > target and not waiter.done():
                waiter.set_result(None)

    async def _in(self, pool: ThreadPoolExecutor, call: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(pool, call, *arguments)


def _count_before(entries: Entries, offset: int) -> int:
    """Return the number of entries before a physical offset."""
    for count, (header, _) in enumerate(entries):
        if header.physical_offset >= offset:
            return count
    return len(entries)
