"""The key index of a node: where in the log the records with a message id or a key stand (D22).

One sorted run of items per segment whose entries are all applied; that of the segment that is written grows in memory,
behind what is applied by a moment. Nothing here is a source of truth: a run that is missing, damaged, or of another log is
made again, and who finds an item must look at the record.

Owns: the build of the segment that is followed, and searching.   Must not: hold up apply, or look at what is not applied;
work on the event loop for longer than a slice of log takes to verify.
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

from ..state.effects import Effects
from .key_build import BuildContent, SegmentBuild
from .key_folder import keep_what_fits, read_folder
from .key_run import KeyRun
from .key_runs import RETRY_SECONDS, Builds, Entries, KeyRuns, StoppedError, says_nothing_of_the_file

logger = logging.getLogger(__name__)

#: Seconds between an entry that is applied and its items, while nobody asks.
FOLLOW_INTERVAL: Final = 0.1
_MAX_CLOSED: Final = 2  # segments whose run is to be written; with more of them following waits
_LOOK_INTERVAL: Final = 10.0  # for segments that retention deleted
_MAX_PLANS: Final = 4
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Found:
    """Physical offsets of records that may have a hash, the newest first, and how many log bytes were not searched."""

    offsets: list[int]
    unsearched: int


@dataclass(frozen=True, slots=True)
class _Source:
    """What is searched of one segment, between two bytes of it."""

    start: int
    begin: int
    end: int
    content: BuildContent


class KeyIndex:
    """Use: `start()`, `on_effects` for each applied entry, `await search(...)`, `await stop()`. Event-loop thread."""

    def __init__(self, builds: Builds, applied: Callable[[], int]) -> None:
        """`applied`: index of the last applied entry."""
        self._builds = builds
        self._log = builds.log
        self._applied = applied
        self._finished = KeyRuns(builds, applied)
        self._tail: SegmentBuild | None = None
        self._next = 0  # first entry that is not taken; 0: not known yet
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._worker = ThreadPoolExecutor(1, "key-items")
        self._searchers = ThreadPoolExecutor(2, "key-search")

    # --- life -----------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to follow the log."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._finished.start()

    async def stop(self) -> None:
        """Follow no further; keep what is in memory, so that the next start need not read it again."""
        self._builds.stopping.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._finished.stop()
        if self._tail is not None:
            try:
                await self._in(self._worker, self._tail.write_part, False)
            except OSError as error:
                logger.info("key index: the newest part is not kept reason=%s", error)
        await asyncio.to_thread(self._worker.shutdown)
        await asyncio.to_thread(self._searchers.shutdown)

    def on_effects(self, effects: Effects) -> None:
        """An entry was applied: its items follow soon."""
        if self._timer is None and not self._builds.stopping.is_set():
            self._timer = asyncio.get_running_loop().call_later(FOLLOW_INTERVAL, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._wanted.set()

    # --- for metrics ----------------------------------------------------------------------------------------
    @property
    def entries_behind(self) -> int:
        """Applied entries that are not taken yet."""
        return max(self._applied() + 1 - self._next, 0)

    @property
    def segments_missing(self) -> int:
        """Old segments that cannot be searched."""
        return len(self._finished.missing)

    @property
    def damaged(self) -> int:
        """Files that were thrown away since the start."""
        return self._finished.damaged

    # --- searching ------------------------------------------------------------------------------------------
    async def catch_up(self, timeout: float) -> None:
        """Return when everything that is applied now is taken, or after `timeout` seconds."""
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
        """Return the newest `at_most` records that may have a hash and stand in [begin, end) (physical offsets).

        Raises: OSError (files cannot be read, and it is not their fault).
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
        """Return what there is to search, the newest first, and the bytes for which there is nothing."""
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
        """Search, in a thread. Returns offsets, the newest first, and the runs that cannot be used. Raises: OSError."""
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
        """A run cannot be read: it is made again, unless it was replaced or deleted in the meantime."""
        start, finished = run.range.segment_start, self._finished
        closed = finished.closed.get(start)
        if self._tail is not None and run in self._tail.content.parts:
            finished.damaged += 1
            paths = [part.path for part in self._tail.content.parts]
            self._worker.submit(self._builds.unlink, paths)  # in front of the parts that come in their place
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

    # --- following what is applied --------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            try:
                if not self._next:
                    await self._open()
                self._finished.drop_deleted()
                await self._follow()
            except StoppedError:
                return
            except Exception as error:  # nobody awaits this task, and nothing but look-ups depends on it
                if isinstance(error, OSError | StorageError):
                    logger.warning("key index does not follow, the next try comes reason=%s", error)
                else:
                    logger.exception("key index does not follow, the next try comes")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_INTERVAL):
                    await self._wanted.wait()
            self._wanted.clear()

    async def _open(self) -> None:
        """Take over what an earlier run of this node left, as far as it fits the log."""
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
        """Take all that is applied."""
        while (target := self._applied()) >= self._next:
            try:
                entries = await self._builds.read(LogIndex(self._next), LogIndex(target))
            except LogCompactedError:  # retention or a reset was quicker
                self._tail, self._next = None, self._log.first_index
                continue
            if entries and entries[0][0].index == self._next:  # else a part was damaged while it was read
                await self._take(entries)
        self._settle()

    async def _take(self, entries: Entries) -> None:
        """Take the next entries, of one segment or several."""
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
                return  # a part of it was damaged: it begins again
            self._next = build.next_index
            if build.is_full:
                await self._in(self._worker, build.write_part)
            self._settle()
            entries = entries[count:] if self._tail is build else ()

    async def _close_tail(self) -> None:
        """The segment that was followed has no more entries: let its run be written."""
        build, self._tail = self._tail, None
        if build is not None:
            self._finished.close(build)
        while len(self._finished.closed) > _MAX_CLOSED:  # noqa: ASYNC110 (rare: a disk that is full, or very slow)
            await asyncio.sleep(FOLLOW_INTERVAL)

    def _settle(self) -> None:
        for target, waiter in self._waiters:
            if self._next > target and not waiter.done():
                waiter.set_result(None)

    async def _in(self, pool: ThreadPoolExecutor, call: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(pool, call, *arguments)


def _count_before(entries: Entries, offset: int) -> int:
    """Return how many of the entries stand in front of a physical offset."""
    for count, (header, _) in enumerate(entries):
        if header.physical_offset >= offset:
            return count
    return len(entries)
