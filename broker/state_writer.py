"""Puts the applied state on disk in the background: queue units every second, checkpoints now and then (D12, D13).

A checkpoint is due after 256 MiB of log, or 60 s after the last one when something was applied, and at a clean stop; an idle node
writes nothing. All writing is done by one thread, so queue files and checkpoints never meet.
Owns: that thread, the timing.   Must not: be needed for correctness; after a crash the log is replayed from `floor`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from ledgermq.raft.files import is_full

from .checkpoint_store import CheckpointStore, begin_checkpoint, finish_checkpoint
from .effects import Effects
from .state import BrokerState

logger = logging.getLogger(__name__)

WRITE_INTERVAL: Final = 1.0  # seconds
CHECKPOINT_INTERVAL: Final = 60.0  # seconds
CHECKPOINT_BYTES: Final = 256 << 20  # of log

T = TypeVar("T")


class StateWriter:
    """Use: `start`, feed it the effects of every applied entry, `stop`."""

    def __init__(
        self,
        state: BrokerState,
        store: CheckpointStore,
        log_end: Callable[[], int],
        on_fault: Callable[[OSError], None],
    ) -> None:
        """`log_end`: physical offset behind the log. `on_fault`: the files cannot be written any more; stop the node."""
        self._state = state
        self._store = store
        self._log_end = log_end
        self._on_fault = on_fault
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state-writer")
        self._task: asyncio.Task[None] | None = None
        self._floor = store.kept_index
        self._checkpoint_index = state.applied_index
        self._checkpoint_end = 0
        self._checkpoint_time = 0.0
        self._removals: list[
            tuple[int, Callable[[], None]]
        ] = []  # index of the entry that made files useless

    @property
    def floor(self) -> int:
        """Entries up to this index are not needed to start again: both kept checkpoints are behind them."""
        return self._floor

    def start(self) -> None:
        """Begin to write."""
        self._checkpoint_end = self._log_end()
        self._checkpoint_time = time.monotonic()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Write a last checkpoint, so that the next start replays nothing, and close the files."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            if self._state.applied_index > self._checkpoint_index:
                try:
                    await self.checkpoint()
                except OSError as error:
                    logger.warning(
                        "last checkpoint not written, the next start replays more reason=%s", error
                    )
        self._thread.shutdown()
        self._store.files.close()

    def on_effects(self, effects: Effects) -> None:
        """Note which queue files an applied entry made useless; they go when no kept checkpoint counts on them."""
        for topic in effects.deleted_topics:
            self._removals.append((effects.index, partial(self._store.files.remove_topic, topic.folder)))
        if effects.log_start is not None:
            for topic_id, queue_id, _ in effects.log_start.rows.tolist():
                queue = self._state.queues.get(topic_id, queue_id)
                if queue is not None:
                    remove = partial(self._store.files.remove_below, queue.folder, queue_id, queue.begin)
                    self._removals.append((effects.index, remove))

    # --- the loop -------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_INTERVAL)
            try:
                if self._checkpoint_due():
                    await self.checkpoint()
                else:
                    await self._write()
            except OSError as error:
                if not is_full(error):
                    logger.error("state cannot be written path=%s reason=%s", error.filename, error.strerror)
                    self._on_fault(error)
                    return
                logger.warning("state not written, the disk is full; tried again in %.0f s", WRITE_INTERVAL)

    def _checkpoint_due(self) -> bool:
        if self._state.applied_index == self._checkpoint_index:
            return False
        grown = self._log_end() - self._checkpoint_end
        return grown >= CHECKPOINT_BYTES or time.monotonic() - self._checkpoint_time >= CHECKPOINT_INTERVAL

    async def _write(self) -> None:
        """Write units that are only in memory, so that memory stays small."""
        runs = self._state.queues.unwritten()
        if runs:
            await self._in_thread(lambda: self._store.files.write(runs))
            self._state.queues.mark_written(runs)

    async def checkpoint(self) -> None:
        """Write a checkpoint of what is applied now. Raises: OSError."""
        started, end = time.monotonic(), self._log_end()
        job = begin_checkpoint(self._state)
        size = await self._in_thread(lambda: self._store.run(job))
        finish_checkpoint(self._state, job)
        self._floor = await self._in_thread(lambda: self._store.kept_index)
        while self._removals and self._removals[0][0] <= self._floor:
            await self._in_thread(self._removals.pop(0)[1])
        self._checkpoint_index = job.snapshot.index
        self._checkpoint_end, self._checkpoint_time = end, started
        logger.info(
            "checkpoint written index=%d bytes=%d seconds=%.3f",
            job.snapshot.index,
            size,
            time.monotonic() - started,
        )

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
