"""Scrubber of the ConsumeQueue files: reads all of them slowly and repeatedly, and rebuilds damaged blocks.

A queue file is derived from the log. The units of a damaged block are rebuilt from the entries that hold the
queue's sections, and written only if they match the checksum that the state keeps for that block.

Owns: the current pass, the rebuilds.   Must not: trust a file, or write one itself (`rewrite` does, in the
one thread that may). A block that cannot be rebuilt stops the node, because its records could not be found.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np

from ledgermq.raft.errors import DamagedLogError, LogCompactedError, StorageFailedError
from ledgermq.raft.log.commit_log import CommitLog
from ledgermq.raft.log.segment import segment_start
from ledgermq.raft.node_status import CheckCounts
from ledgermq.raft.repair.scrub_plan import ScrubPlan
from ledgermq.raft.types import LogIndex

from ..errors import BrokerError, ConsumeQueueError
from ..replica import Replica
from ..state.consume_queue import (
    BLOCK_UNITS,
    UNIT_DTYPE,
    UNIT_SIZE,
    ColdRead,
    ConsumeQueue,
    UnwrittenRun,
    record_sections,
    record_starts,
    units_of,
)
from ..state.rebuild import bridging_unit

logger = logging.getLogger(__name__)

_SLICE_BYTES: Final = 1 << 20  # of the log, read at a time for a rebuild
_REBUILD_POLL: Final = 1.0  # seconds

Block = tuple[tuple[int, int], int]  # queue key, block number


class QueueCheck:
    """Scrubber. Call `start()`, `await stop()`, and `await rebuilt(error)` for damage that a reader found.

    Runs on the event-loop thread.
    """

    def __init__(
        self,
        replica: Replica,
        log: CommitLog,
        plan: ScrubPlan,
        counts: CheckCounts,
        *,
        rewrite: Callable[[UnwrittenRun], Awaitable[None]],
        repair_log: Callable[[DamagedLogError], Awaitable[bool]],
        on_failed: Callable[[str], None],
    ) -> None:
        self._replica = replica
        self._log = log
        self._plan = plan
        self._counts = counts
        self._rewrite = rewrite
        self._repair_log = repair_log
        self._on_failed = on_failed
        self._rebuilds: dict[Block, asyncio.Task[bool]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start scrubbing, if the plan enables it."""
        if self._plan.is_on:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Cancel scrubbing and rebuilds."""
        tasks = [*self._rebuilds.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def report(self, error: ConsumeQueueError) -> None:
        """Start the rebuild of a block that a reader found damaged."""
        if error.block is None:
            self._on_failed(str(error))
        else:
            self._begin(error.block, error)

    async def rebuilt(self, error: ConsumeQueueError) -> bool:
        """Wait for the rebuild of a block that a reader found damaged; return whether it is readable."""
        if error.block is None:
            return False
        return await asyncio.shield(self._begin(error.block, error))

    # --- scrubbing --------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            while self._replica.rebuild is not None:  # noqa: ASYNC110 (the files are being rebuilt)
                await asyncio.sleep(_REBUILD_POLL)
            begin = time.monotonic()
            for key in [queue.key for queue in self._replica.state.queues]:
                try:
                    await self._check_queue(key)
                except Exception:  # no caller sees it, and the other queues must still be checked
                    logger.exception("queue not checked, the next pass follows topic=%d queue=%d", *key)
            await asyncio.sleep(self._plan.wait_s(time.monotonic() - begin))

    async def _check_queue(self, key: tuple[int, int]) -> None:
        block = -1
        while True:
            queue = self._replica.state.queues.get(*key)
            if queue is None or queue.written == queue.begin:
                return
            block = max(block + 1, queue.begin // BLOCK_UNITS)
            if block * BLOCK_UNITS >= queue.written:
                return
            begin = time.monotonic()
            read = await self._check_block(queue, block)
            log_bytes = self._log.end_offset - self._log.first_offset
            await asyncio.sleep(self._plan.pause_s(read, time.monotonic() - begin, log_bytes))

    async def _check_block(self, queue: ConsumeQueue, block: int) -> int:
        """Verify a block in its file; return the number of bytes read."""
        want = min(queue.written - block * BLOCK_UNITS, BLOCK_UNITS)
        read = ColdRead(queue.key, queue.folder, block, want)
        try:
            raw = await asyncio.to_thread(self._replica.load_units, read)
        except ConsumeQueueError as error:
            raw, reason = b"", error.reason
        else:
            reason = "the checksum of these units is wrong"
        raw = raw[: want * UNIT_SIZE]
        if (
            self._replica.state.queues.get(*queue.key) is not queue
            or (block + 1) * BLOCK_UNITS <= queue.begin
        ):
            return len(raw)  # deleted meanwhile
        if len(raw) == want * UNIT_SIZE and (
            block * BLOCK_UNITS + want < min(queue.tail_start, (block + 1) * BLOCK_UNITS)
            or queue.is_right(block, raw)
        ):
            return len(raw)
        damage = self._replica.files.damaged(queue.folder, queue.key[1], block * BLOCK_UNITS, reason)
        await asyncio.shield(self._begin((queue.key, block), damage))
        return len(raw)

    # --- rebuilding -------------------------------------------------------------------------------------
    def _begin(self, block: Block, error: ConsumeQueueError) -> asyncio.Task[bool]:
        task = self._rebuilds.get(block)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._rebuild(block, error))
            self._rebuilds[block] = task
            task.add_done_callback(lambda _: self._rebuilds.pop(block, None))
        return task

    async def _rebuild(self, block: Block, error: ConsumeQueueError) -> bool:
        self._counts.found += 1
        self._counts.last = f"{error.path}: {error.reason}; being rebuilt"
        logger.error(
            "queue file damaged path=%s reason=%r; rebuilding it from the log", error.path, error.reason
        )
        queue = self._replica.state.queues.get(*block[0])
        if queue is None:
            return True
        start = stop = block[1] * BLOCK_UNITS
        units: np.ndarray | None = None
        while stop < min(start + BLOCK_UNITS, queue.tail_start) or units is None:
            stop = min(start + BLOCK_UNITS, queue.written)  # may grow during the rebuild
            try:
                units, known_from = await self._units_from_log(queue, start, stop)
            except LogCompactedError:
                units = None
            if units is None:
                break
        if units is not None and start < known_from:  # as in a full rebuild (rebuild.py)
            behind = min(start + BLOCK_UNITS, queue.end) - known_from
            unit = bridging_unit(queue.error_of(block[1], units.tobytes()), behind)
            units[known_from - 1 - start] = np.frombuffer(unit, UNIT_DTYPE)[0]
        if units is None or not queue.is_right(block[1], units.tobytes()):
            self._on_failed(str(error))
            return False
        try:
            await self._rewrite(UnwrittenRun(queue.key, queue.folder, start, units))
        except (OSError, StorageFailedError) as failure:
            self._on_failed(f"writing {error.path} failed: {failure}")
            return False
        self._counts.repaired += 1
        self._counts.last = f"{error.path}: {error.reason}; rebuilt"
        logger.warning("queue file rebuilt path=%s units=%d", error.path, len(units))
        return True

    async def _units_from_log(
        self, queue: ConsumeQueue, start: int, stop: int
    ) -> tuple[np.ndarray | None, int]:
        """Rebuild units [start, stop) from their entries; return them and the offset of the first known unit.

        Units below that offset are zeros, because retention deleted their entries. None: units that are still
        needed are missing from the log.
        """
        units = np.zeros(stop - start, UNIT_DTYPE)
        known_from, done = stop, start
        index, last = await self._first_entry(queue, start), LogIndex(self._replica.state.applied_index)
        while done < stop and index <= last:
            try:
                entries = await self._log.entries(index, last, _SLICE_BYTES)
            except DamagedLogError as error:
                if not await self._repair_log(error):
                    return None, stop
                continue
            for header, payload in entries:
                index = LogIndex(header.index + 1)
                for section, body, physical_offset in record_sections(header, payload):
                    base = section.base_queue_offset
                    lo, hi = max(base, start), min(base + section.count, stop)
                    if queue.key != (section.topic_id, section.queue_id) or lo >= hi:
                        continue
                    found = units_of(body, record_starts(body, section.count), physical_offset)
                    units[lo - start : hi - start] = found[lo - base : hi - base]
                    known_from, done = min(known_from, lo), hi
            await asyncio.sleep(0)
        is_lost = stop > queue.begin and (done < stop or known_from > max(queue.begin, start))
        return None if is_lost else units, known_from

    async def _first_entry(self, queue: ConsumeQueue, start: int) -> LogIndex:
        """Return the index of an entry at or before that of unit `start`.

        It is the first one of the segment that holds the preceding unit's record.
        """
        first = self._log.first_index
        if start <= queue.begin:
            return first
        try:
            # If that unit's block is damaged, too, this waits for its rebuild.
            unit = await self._replica.units(*queue.key, start - 1, 1)
        except BrokerError:
            return first
        if not len(unit):
            return first
        sketch = self._log.sketch(segment_start(int(unit["physical_offset"][0]), self._log.segment_size))
        return sketch.info.first_index if sketch is not None else first
