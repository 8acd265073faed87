"""Repair while running: fetches a damaged range that a reader found from a peer and writes it in place.

Only entries that are committed and locally durable are repaired: nothing writes there any more. Damage after
them, or in a node without peers, ends the node; its next start knows what is allowed (repair/at_start.py).
For the rest the process need not stop: no reader was given wrong bytes, and only these bytes can belong
there.

Owns: the ranges under repair, and what was found and repaired since the start.   Must not: block the event
loop, or give up a vote. A failed write or flush is terminal (P15).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ledgermq.proto import raft_pb2 as pb

from ..config import RaftConfig
from ..damage import Before
from ..disk.files import FileSystem
from ..disk.threads import in_thread
from ..errors import (
    DamagedLogError,
    LogCompactedError,
    RaftError,
    StorageError,
    StorageFailedError,
    defect_text,
)
from ..log.commit_log import CommitLog
from ..log.rewrite import LogRepair
from ..log.segment import segment_path, segment_start
from ..log.segment_keeper import LogFolders
from ..log.segment_scan import scan_segment
from ..metrics import RaftMetrics
from ..node_status import CheckCounts
from ..types import LogIndex
from .from_peers import RoundOutcome, run_round
from .refetch import RefetchClient, repair_text

logger = logging.getLogger(__name__)

PAUSE_S = 0.5  # between two rounds


@dataclass(slots=True)
class _Place:
    """Range to look at, and start of a repair."""

    start: int  # physical start of the segment
    scan_from: int  # physical offset at which what continues `chained` must be
    chained: Before
    before: Before  # the last entry before it, not counting a filler
    before_end: int


@dataclass(slots=True)
class RangeRepair:
    """Event-loop thread only. `group_id` is read at each repair. `on_failed` ends the node."""

    config: RaftConfig
    files: FileSystem
    log: CommitLog
    metrics: RaftMetrics
    settled_index: Callable[[], LogIndex]  # last entry that is committed and locally durable
    group_id: Callable[[], int]
    on_repaired: Callable[[], None]  # readers retry
    on_failed: Callable[[str], None]
    counts: CheckCounts = field(default_factory=CheckCounts)  # found and repaired since the start, for status
    # running repairs, by segment start; at most one per segment
    _under_way: dict[int, asyncio.Task[bool]] = field(default_factory=dict)
    # what peers are told about the current repair; None: no repair runs
    _told: pb.RepairProgress | None = None
    _closed: bool = False

    @property
    def state(self) -> str:
        """Text shown for this node: "repairing …", or ""."""
        return repair_text(self._told) if self._told is not None else ""

    def can_repair(self, error: DamagedLogError) -> bool:
        """Return whether the damage may be repaired while the node runs."""
        settled = self.settled_index()
        alone = not self.config.peers or not self.group_id()
        if self._closed or alone or settled < self.log.first_index:
            return False
        try:
            return error.offset < self.log.end_of(settled)
        except StorageError:  # the segment's index is unusable too: the next start rebuilds it
            return False

    def report(self, error: DamagedLogError, found_by: str) -> bool:
        """Start a repair. False: it is impossible here, and the node has been failed."""
        if not self.can_repair(error):
            if not self._closed:
                self.on_failed(str(error))
            return False
        self._begin(error, found_by)
        return True

    async def repaired(self, error: DamagedLogError, found_by: str) -> bool:
        """Wait until the damage is repaired. Returns whether it was; the range then reads intact."""
        if not self.report(error, found_by):
            return False
        return await asyncio.shield(self._under_way[segment_start(error.offset, self.config.segment_size)])

    async def close(self) -> None:
        """Cancel running repairs."""
        self._closed = True
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one repair -----------------------------------------------------------------------------------------
    def _begin(self, error: DamagedLogError, found_by: str) -> None:
        start = segment_start(error.offset, self.config.segment_size)
        if start in self._under_way:
            return
        self.counts.found += 1
        self.counts.last = f"{error.path.name} at byte {error.position}: {error.reason}; being repaired"
        self.metrics.counter("ledgermq_raft_damaged_ranges_total", found_by).inc()
        logger.error(
            "log damaged node=%s path=%s position=%d offset=%d found_by=%s reason=%r; fetching it from the "
            "other members",
            self.config.node_id, error.path, error.position, error.offset, found_by, error.reason,
        )  # fmt: skip
        task = asyncio.get_running_loop().create_task(self._run(error))
        self._under_way[start] = task
        task.add_done_callback(lambda _: self._ended(start))

    def _ended(self, start: int) -> None:
        """End a repair before readers retry: a reader may find the next damage in the same segment."""
        self._under_way.pop(start, None)
        if not self._closed:
            self.on_repaired()

    async def _run(self, error: DamagedLogError) -> bool:
        client = RefetchClient(self.config, self.group_id())
        gauge = self.metrics.gauge("ledgermq_raft_repairing")
        gauge.set(1)
        try:
            size = await self._repair(error, client)
        except OSError as failure:
            self.on_failed(str(StorageFailedError(error.path, failure)))
            return False
        except LogCompactedError:
            return True  # retention deleted the range first
        except RaftError as failure:
            self.on_failed(str(failure))
            return False
        except Exception as defect:
            logger.error("defect node=%s", self.config.node_id, exc_info=defect)
            self.on_failed(defect_text("repairing the log", defect))
            return False
        finally:
            self._told = None
            gauge.set(0)
            await client.close()
        if size == 0:
            self.counts.last = f"{error.path.name} at byte {error.position}: not found when it was read again"
            await asyncio.sleep(PAUSE_S)  # if it is real, the reader will find it again at once
        elif size is not None:
            self.counts.repaired += 1
            self.counts.last = (
                f"{error.path.name} at byte {error.position}: {error.reason}; {size} bytes repaired"
            )
            self.metrics.counter("ledgermq_raft_repaired_ranges_total").inc()
            logger.warning(
                "log repaired node=%s path=%s position=%d bytes=%d",
                self.config.node_id, error.path, error.position, size,
            )  # fmt: skip
        return True

    async def _repair(self, error: DamagedLogError, client: RefetchClient) -> int | None:
        """Repair one range. Returns the number of bytes written; None: the segment is gone."""
        place = await self._place_of(error.offset)
        if place is None:
            return None
        last = self.settled_index()
        settled_end = self.log.end_of(last)
        until = min(error.offset + error.extent, settled_end)
        damaged = await in_thread(lambda: self._find(place, until, last))
        if damaged is None:
            logger.warning("damage not found again path=%s offset=%d", error.path, error.offset)
            return 0
        damaged.last_index, damaged.settled_end = last, settled_end
        self._told = told = pb.RepairProgress(from_offset=damaged.offset)
        while True:
            result = await run_round(
                self.config, client, damaged, told, lambda repair: repair.before.index >= last
            )
            if result.outcome is not RoundOutcome.STUCK:
                return damaged.written_bytes
            if self.log.sketch(place.start) is None:
                return None
            if result.is_deleted_everywhere(self.config, damaged.next_index):
                raise StorageError(f"{error} (every other member has deleted that entry)")
            waiting_for = result.waiting_for(damaged.next_index)
            if waiting_for != told.waiting_for:
                logger.warning("repair waits node=%s for=%s", self.config.node_id, waiting_for)
            told.waiting_for = waiting_for
            await asyncio.sleep(PAUSE_S)

    async def _place_of(self, offset: int) -> _Place | None:
        """Find an intact entry before the damage, in memory or on disk."""
        start = segment_start(offset, self.config.segment_size)
        sketch = self.log.sketch(start)
        if sketch is None:
            return None
        try:
            found = await self.log.whole_entry_before(offset)
        except StorageError:
            found = None  # the index file is bad too: scan from the start of the segment
        if found is not None:
            before, end = found
            return _Place(start, end, before, before, end)
        return _Place(start, start, sketch.chained, sketch.before, sketch.before_end)

    def _find(self, place: _Place, until: int, last: LogIndex) -> LogRepair | None:
        """Read the disk again, up to a physical offset: the bytes may have been corrupted on their way."""
        path = segment_path(LogFolders(self.config.data_dir).segments, place.start)
        try:
            file = self.files.open(path, writable=False)
        except FileNotFoundError:
            return None  # retention deleted it
        size = self.config.segment_size
        try:
            scan = scan_segment(
                file, place.start, size, place.chained, place.scan_from - place.start, until - place.start
            )  # fmt: skip
        finally:
            file.close()
        if scan.end >= min(until - place.start, size) or scan.before.index >= last:
            return None
        at_first = scan.before == place.chained
        return LogRepair(
            self.files,
            LogFolders(self.config.data_dir),
            size,
            place.before if at_first else scan.before,
            place.before_end if at_first else place.start + scan.end,
            keeps_indexes=True,
        )
