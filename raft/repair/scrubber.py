"""Scrubber: reads the whole log repeatedly and slowly, to find damage while the peers are intact.

Verifies checksum and chain of every settled entry, the zeros after fillers, and the entry index files. A
damaged range is fetched from a peer (repair/while_running.py). An index file is rebuilt from its segment.

Owns: the current pass.   Must not: run on the event loop (a thread reads and verifies), evict other readers'
data from the page cache, or look at entries that are not committed and durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.proto.errors import LayoutError

from ..damage import Before
from ..disk.files import File, FileSystem, RealFile, write_zeros
from ..disk.threads import in_thread
from ..errors import DamagedLogError, StorageError, StorageFailedError, defect_text
from ..log.commit_log import CommitLog
from ..log.entry_index import read_index, write_index
from ..log.reads import SegmentSketch
from ..log.segment import segment_path
from ..log.segment_keeper import LogFolders
from ..log.segment_scan import last_nonzero, scan_segment
from ..metrics import RaftMetrics
from ..types import LogIndex
from .scrub_plan import ScrubPlan
from .while_running import RangeRepair

logger = logging.getLogger(__name__)

#: Bytes to read and verify at a time.
PIECE: Final = 1 << 20
RETRY_S: Final = 5.0  # pause after damage that could not be repaired


@dataclass(slots=True)
class _Cursor:
    """Position of the pass in a segment."""

    sketch: SegmentSketch
    position: int  # in the file
    before: Before  # the entry or filler before `position`
    limit: int  # position just past the last wanted entry, or the segment size if all of it is wanted

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
            await asyncio.sleep(self.plan.wait_s(time.monotonic() - begin))

    async def _pass(self) -> None:
        """Read every segment with settled entries, oldest first."""
        begin, read = time.monotonic(), self.repair.counts.read_bytes
        start = -1
        while True:
            later = [info.start_offset for info in self.log.segments() if info.start_offset > start]
            if not later:
                break
            start = later[0]
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
                self.plan.pause_s(cursor.position - position, time.monotonic() - begin, log_bytes)
            )

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
            cursor.position = cursor.limit
            return None
        try:
            stop = min(cursor.position + PIECE, cursor.limit)
            was_cached = _is_cached(file, stop - cursor.position, cursor.position)
            scan = scan_segment(file, start, size, cursor.before, cursor.position, stop, PIECE)
            begin, cursor.position, cursor.before = cursor.position, scan.end, scan.before
            if scan.sealed and scan.segment.filler:
                end = cursor.sketch.info.end_offset - start
                self._zero_behind_filler(path.name, end + HEADER_SIZE)
            if not was_cached and isinstance(file, RealFile):
                file.drop_cached(scan.end - begin, begin)
        finally:
            file.close()
        if scan.end >= stop:
            return None
        reason = scan.reason or "zeros where an entry must be"
        return DamagedLogError(self.node, path, scan.end, start + scan.end, reason)

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
