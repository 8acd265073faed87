"""Scrubber: reads the whole log repeatedly and slowly, to find damage while the peers are intact.

Verifies checksum and chain of every settled entry, the zeros after fillers, and the entry index files. A
damaged range is fetched from a peer (repair/while_running.py). An index file is rebuilt from its segment.
What it verified it also digests (digest_builder.py), for the check of replicas. Sealed segments without
digests are read soon, while the page cache has them, and not again in the same pass.

Owns: the current pass, the digest files. Must not: run on the event loop (a thread reads and verifies), evict
other readers' data from the page cache, or look at entries that are not committed and durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ledgermq.proto.block_digest import BLOCK_SIZE
from ledgermq.proto.digest_file import SegmentDigests
from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.proto.errors import LayoutError

from ..damage import Before
from ..disk.files import File, FileSystem, RealFile, write_zeros
from ..disk.threads import in_thread
from ..errors import DamagedLogError, StorageError, StorageFailedError, defect_text
from ..log.commit_log import CommitLog
from ..log.digest_store import read_digests, remove_digests, write_digests
from ..log.entry_index import read_index, write_index
from ..log.reads import SegmentSketch
from ..log.segment import segment_path
from ..log.segment_keeper import LogFolders
from ..log.segment_scan import last_nonzero, scan_segment
from ..metrics import RaftMetrics
from ..types import LogIndex
from .digest_builder import DigestBuilder
from .scrub_plan import ScrubPlan
from .while_running import RangeRepair

logger = logging.getLogger(__name__)

#: Bytes to read and verify at a time.
PIECE: Final = 1 << 20
RETRY_S: Final = 5.0  # pause after damage that could not be repaired
SEALED_S: Final = 60.0  # between two looks for segments that were sealed since the last pass


@dataclass(slots=True)
class _Cursor:
    """Position of the pass in a segment."""

    sketch: SegmentSketch
    position: int  # in the file
    before: Before  # the entry or filler before `position`
    limit: int  # position just past the last wanted entry, or the segment size if all of it is wanted
    builder: DigestBuilder | None = None  # takes what is verified

    @property
    def is_done(self) -> bool:
        return self.position >= self.limit


@dataclass
class Scrubber:
    """Usage: `start()`, `await stop()`; `await verify(…)` at any time in between."""

    node: str
    plan: ScrubPlan
    log: CommitLog
    files: FileSystem
    folders: LogFolders
    repair: RangeRepair
    metrics: RaftMetrics
    settled_index: Callable[[], LogIndex]  # the last entry that is committed and locally durable
    incarnation: Callable[[], int]
    _digested: set[int] = field(default_factory=set)  # starts of sealed segments, also where it was in vain
    _in_order: bool = False  # the last segment of the pass was the oldest one, not the newest
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start scrubbing if it is on."""
        if self.plan.is_on:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop scrubbing. Returns once the thread has finished its piece."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def verify(self, last: LogIndex, progress: Callable[[int], None]) -> None:
        """Verify everything up to the durable entry `last`, now and at full speed.

        `progress` receives byte counts.

        Nothing is repaired: without a leader it is unknown which bytes are right.
        Raises: DamagedLogError, StorageError, OSError.
        """
        start = -1
        while (cursor := self._next_cursor(start, last)) is not None:
            start = cursor.sketch.start
            while not cursor.is_done:
                position = cursor.position
                damage = await in_thread(partial(self._check_piece, cursor))
                if damage is not None:
                    raise damage
                progress(cursor.position - position)

    async def digests(self, progress: Callable[[int], None], *, reread: bool) -> list[SegmentDigests]:
        """Return the digests of the committed log, oldest first, after making those that are missing, now and
        at full speed. `progress` receives byte counts. `reread`: all are made again.

        A segment's digests end where it is damaged, and at its last whole block while it is open.
        Raises: OSError, StorageError.
        """
        found = []
        start = -1
        while (cursor := self._next_cursor(start, self.settled_index())) is not None:
            start = cursor.sketch.start
            made = None
            if not reread:
                made = await in_thread(partial(read_digests, self.files, self.folders.digests, start))
            if made is not None and not await self._fits(made, cursor):
                made = None
            if made is None or self._can_grow(made, cursor):
                made = await self._grown(made, cursor, progress)
            if made is not None:
                found.append(made)
        return found

    async def _fits(self, made: SegmentDigests, cursor: _Cursor) -> bool:
        """Return whether digests are of this log, and of nothing that was cut off or replaced since."""
        sketch = cursor.sketch
        if (
            made.incarnation != self.incarnation()
            or (made.first.index, made.first.prev_crc) != (sketch.info.first_index, sketch.chained.crc)
            or made.end > sketch.start + cursor.limit
            or not self.files.exists(segment_path(self.folders.segments, sketch.start))
        ):
            return False
        after = self.log.sketch(made.end) if made.end == sketch.start + self.log.segment_size else None
        if after is not None:
            return after.chained.crc == made.last.crc
        try:
            last = await self.log.header_at(LogIndex(made.last.index))
        except StorageError:
            return False
        return (last.crc, last.end) == (made.last.crc, made.end)

    def _can_grow(self, made: SegmentDigests, cursor: _Cursor) -> bool:
        """Return whether whole blocks follow what is digested."""
        limit = cursor.sketch.start + cursor.limit
        if cursor.limit == self.log.segment_size:
            return made.end < limit
        return made.end // BLOCK_SIZE < limit // BLOCK_SIZE

    async def _grown(
        self, made: SegmentDigests | None, cursor: _Cursor, progress: Callable[[int], None]
    ) -> SegmentDigests | None:
        """Read and digest what follows `made` in its segment."""
        cursor.builder = DigestBuilder(self.incarnation(), cursor.sketch.start, made)
        if made is not None:
            cursor.position, cursor.before = made.end - cursor.sketch.start, Before.after(made.last)
        while not cursor.is_done:
            position = cursor.position
            if await in_thread(partial(self._check_piece, cursor)) is not None:
                break  # a dump copies damage, and the scrubber repairs it
            progress(cursor.position - position)
        return await in_thread(partial(self._save_digests, cursor))

    def _next_cursor(self, start: int, last: LogIndex) -> _Cursor | None:
        """Return where to begin in the next segment after `start`; None: `last` is not in a later one."""
        for info in self.log.segments():
            if info.start_offset > start:
                return self._cursor(info.start_offset, last)
        return None

    async def _run(self) -> None:
        while True:
            begin = time.monotonic()
            try:
                await self._pass()
                await self._wait(self.plan.wait_s(time.monotonic() - begin))
            except StorageError as error:
                self.repair.on_failed(str(error))
                return
            except OSError as error:
                logger.warning("scrubbing failed, trying again later node=%s error=%s", self.node, error)
                await asyncio.sleep(RETRY_S)
                continue
            except Exception as defect:
                logger.error("defect node=%s", self.node, exc_info=defect)
                self.repair.on_failed(defect_text("reading the log", defect))
                return

    async def _wait(self, seconds: float) -> None:
        """Wait for the next pass, and digest the segments that are sealed meanwhile."""
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            await asyncio.sleep(min(rest, SEALED_S))
            while sealed := self._undigested():
                await self._segment(sealed[0])

    async def _pass(self) -> None:
        """Read every segment with settled entries, oldest first; every other time a sealed one that has no
        digests yet.
        """
        begin, read = time.monotonic(), self.repair.counts.read_bytes
        self._digested |= await in_thread(self._find_digested)
        done: set[int] = set()
        while True:
            later = [info.start_offset for info in self.log.segments() if info.start_offset not in done]
            if not later:
                break
            self._in_order = not self._in_order
            start = later[0]
            if not self._in_order:
                sealed = [each for each in self._undigested() if each not in done]
                start = sealed[0] if sealed else start
            done.add(start)
            await self._segment(start)
        self.repair.counts.passes += 1
        self.metrics.counter("ledgermq_raft_scrub_passes_total").inc()
        logger.info(
            "log scrubbed node=%s bytes=%d seconds=%.0f found=%d repaired=%d", self.node,
            self.repair.counts.read_bytes - read, time.monotonic() - begin, self.repair.counts.found,
            self.repair.counts.repaired,
        )  # fmt: skip

    async def _segment(self, start: int) -> None:
        cursor = self._cursor(start, self.settled_index())
        if cursor is None:
            return
        if cursor.limit == self.log.segment_size and cursor.sketch.is_index_saved:
            await in_thread(lambda: self._check_index(cursor.sketch))
        cursor.builder = DigestBuilder(self.incarnation(), start)
        undigested = self._undigested()
        undigested_bytes = len(undigested) * self.log.segment_size if start in undigested else 0
        if cursor.limit == self.log.segment_size:
            self._digested.add(start)
        while not cursor.is_done:
            begin, position = time.monotonic(), cursor.position
            damage = await in_thread(lambda: self._check_piece(cursor))
            if damage is not None and not await self.repair.repaired(damage, "scrub"):
                await asyncio.sleep(RETRY_S)  # the node ends, or no peer is reachable
            self._note_read(cursor.position - position)
            renewed = self._cursor(start, self.settled_index())
            if renewed is None:
                return  # retention deleted it
            log_bytes = self.log.end_offset - self.log.first_offset
            await asyncio.sleep(
                self.plan.pause_s(
                    cursor.position - position, time.monotonic() - begin, log_bytes, undigested_bytes
                )
            )
        await in_thread(lambda: self._save_digests(cursor))

    def _undigested(self) -> list[int]:
        """Return the starts of the sealed segments that have no digests yet, oldest first."""
        settled, segments = self.settled_index(), self.log.segments()
        self._digested &= {info.start_offset for info in segments}
        return [
            info.start_offset
            for info in segments
            if info.last_index < settled and info.start_offset not in self._digested
        ]

    def _cursor(self, start: int, last: LogIndex) -> _Cursor | None:
        """Return where to begin in a segment; None if it is gone or holds nothing up to entry `last`."""
        sketch = self.log.sketch(start)
        if sketch is None or sketch.info.first_index > last:
            return None
        is_sealed = sketch.info.last_index < last  # the next entry is in the next segment
        limit = self.log.segment_size if is_sealed else self.log.end_of(last) - start
        return _Cursor(sketch, 0, sketch.chained, limit)

    def _note_read(self, count: int) -> None:
        self.repair.counts.read_bytes += count
        self.metrics.counter("ledgermq_raft_scrubbed_bytes_total").inc(count)

    # --- in the thread --------------------------------------------------------------------------------------
    def _check_piece(self, cursor: _Cursor) -> DamagedLogError | None:
        """Verify the next piece and advance. Returns the damage that stopped it, or None."""
        start, size = cursor.sketch.start, self.log.segment_size
        path = segment_path(self.folders.segments, start)
        try:
            file = self.files.open(path, writable=False)
        except FileNotFoundError:
            # deleted by retention, or by a person; the next start reports that
            cursor.position, cursor.builder = cursor.limit, None
            return None
        try:
            stop = min(cursor.position + PIECE, cursor.limit)
            was_cached = _is_cached(file, stop - cursor.position, cursor.position)
            headers = bytearray()
            scan = scan_segment(file, start, size, cursor.before, cursor.position, stop, PIECE, headers)
            begin, cursor.position, cursor.before = cursor.position, scan.end, scan.before
            if scan.sealed and scan.segment.filler:
                end = cursor.sketch.info.end_offset - start
                self._zero_behind_filler(path.name, end + HEADER_SIZE)
            if cursor.builder is not None:
                cursor.builder.add(headers, time.time_ns() // 1_000_000)
            if not was_cached and isinstance(file, RealFile):
                file.drop_cached(scan.end - begin, begin)
        finally:
            file.close()
        if scan.end >= stop:
            return None
        reason = scan.reason or "zeros where an entry must be"
        return DamagedLogError(self.node, path, scan.end, start + scan.end, reason)

    def _save_digests(self, cursor: _Cursor) -> SegmentDigests | None:
        """Store and return the digests of what was read; None: of nothing."""
        if cursor.builder is None:
            return None
        whole = cursor.limit == self.log.segment_size and cursor.is_done
        digests = cursor.builder.digests(sealed=whole)
        start, folder = cursor.sketch.start, self.folders.digests
        try:
            if digests is None:
                remove_digests(self.files, folder, start)
            else:
                write_digests(self.files, folder, digests)
        except OSError as error:
            logger.warning("digests not stored node=%s segment=%020d error=%s", self.node, start, error)
        return digests

    def _find_digested(self) -> set[int]:
        """Return the starts of the segments with complete digests."""
        size, found = self.log.segment_size, set()
        for name in self.files.list_directory(self.folders.digests):
            digests = read_digests(self.files, self.folders.digests, int(name)) if name.isdecimal() else None
            if digests is not None and digests.end == digests.start + size:
                found.add(digests.start)
        return found

    def _zero_behind_filler(self, name: str, position: int) -> None:
        """Restore the zeros after a filler. They are zeros by definition, so no peer is needed."""
        file = self.files.open(self.folders.segments / name)
        try:
            end = last_nonzero(file, position, self.log.segment_size)
            if end == position:
                return
            write_zeros(file, position, end)
            file.fdatasync()
        except OSError as error:
            raise StorageFailedError(file.path, error) from None
        finally:
            file.close()
        self.repair.counts.found += 1
        self.repair.counts.repaired += 1
        self.repair.counts.last = f"{name} at byte {position}: no zeros behind a filler; zeroed"
        logger.warning("zeros behind a filler restored node=%s path=%s", self.node, name)

    def _check_index(self, sketch: SegmentSketch) -> None:
        """Rebuild the index file of a sealed segment if it is damaged or missing."""
        start, folder = sketch.start, self.folders.indexes
        try:
            read_index(self.files, folder, start)
            return
        except FileNotFoundError:
            reason = "missing"
        except (LayoutError, OSError) as error:
            reason = str(error)
        try:
            file = self.files.open(segment_path(self.folders.segments, start), writable=False)
        except FileNotFoundError:
            return
        try:
            size = self.log.segment_size
            scan = scan_segment(file, start, size, sketch.chained, limit=size)
        finally:
            file.close()
        if scan.sealed and scan.segment.last_index == sketch.info.last_index:
            write_index(self.files, folder, scan.segment)
            self.repair.counts.found += 1
            self.repair.counts.repaired += 1
            self.repair.counts.last = f"the index of {start:020d}: {reason}; rebuilt"
            logger.warning("entry index rebuilt node=%s segment=%020d reason=%r", self.node, start, reason)


def _is_cached(file: File, size: int, position: int) -> bool:
    return size > 0 and file.pread_nowait(size, position) is not None
