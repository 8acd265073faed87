"""Background writer of checkpoints: every 256 MiB of log or 60 s, and at a clean stop (D12).

Owns: one worker thread, the only one that writes queue files and checkpoints.
Must not: let a checkpoint run ahead of this node's durable log. A leader may apply entries that only its
followers have on disk.
Must not: write a checkpoint after a fault of the node. Its state may stop in the middle of an entry, and
after a failed flush the next one would report success (P15).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from ledgermq.raft.errors import StorageFailedError

from ..reading.consume_queue_files import bounds_of
from ..replica import Replica
from ..state.consume_queue import UnwrittenRun
from ..state.effects import Effects
from .store import CheckpointStore, begin_checkpoint

logger = logging.getLogger(__name__)

BYTES_BETWEEN: Final = 256 << 20
SECONDS_BETWEEN: Final = 60.0
#: Maximum of units (20 bytes each) that wait in memory for the next checkpoint.
UNITS_IN_MEMORY: Final = 50_000
_LOOK_INTERVAL: Final = 1.0
_DURABLE_POLL: Final = 0.05


class Checkpointing:
    """Checkpoint schedule.

    Call `start()` when the Raft node runs, `on_effects` after each entry, and `await stop()` at the end.
    """

    def __init__(
        self,
        replica: Replica,
        store: CheckpointStore,
        *,
        durable_index: Callable[[], int],
        log_end: Callable[[], int],
        on_failed: Callable[[str], None],
        fault: Callable[[], str | None],
    ) -> None:
        """`on_failed`: a flush failed, so the node must stop (P15). `fault`: reason of the stop, or None."""
        self._on_failed = on_failed
        self._fault = fault
        self._replica = replica
        self._store = store
        self._durable_index = durable_index
        self._log_end = log_end
        self._worker = ThreadPoolExecutor(1, "checkpoint")
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()  # held during any write of queue files or checkpoints
        self._wanted = False  # write a checkpoint at the next look
        self._last_index = 0  # of the newest checkpoint
        self._last_end = 0  # end offset of the log at the last attempt
        self._last_time = 0.0  # monotonic seconds of the last attempt
        #: Log entries below this index may be deleted.
        self.floor = 0
        # (entry index, removal) of queue files that an entry made obsolete. A kept checkpoint before that
        # entry still needs them.
        self._useless: list[tuple[int, Callable[[], list[Path]]]] = []

    def start(self) -> None:
        """Start writing checkpoints."""
        self._last_index = self._replica.state.applied_index
        self._last_end, self._last_time = self._log_end(), time.monotonic()
        self.floor = self._store.kept_index + 1
        self._trim_again()
        self._task = asyncio.create_task(self._run())

    @property
    def is_running(self) -> bool:
        """Whether checkpoints can be written."""
        return self._task is not None

    async def stop(self) -> None:
        """Write a last checkpoint, so that the next start replays little, and stop the worker."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if self._durable_index() >= self._replica.state.applied_index:
                await self.write_now()
        self._worker.shutdown()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_INTERVAL)
            try:
                await self._look()
            except Exception:  # a bug; without checkpoints the log could never be deleted
                logger.exception("checkpoint failed, the next try follows")

    async def _look(self) -> None:
        """Write a checkpoint if it is due, else only queue units if there are many."""
        grown = self._log_end() - self._last_end >= BYTES_BETWEEN
        rebuilt = self._store.rebuilding and self._replica.rebuild is None
        if self._wanted or rebuilt or grown or time.monotonic() - self._last_time >= SECONDS_BETWEEN:
            self._wanted = False
            await self.write_now()
        else:
            async with self._writing:
                await self._write_units()

    async def write_now(self) -> int:
        """Write a checkpoint unless the state is unchanged; return the index of the newest one."""
        async with self._writing:
            await self._checkpoint_if_changed()
        return self._last_index

    async def rewrite(self, run: UnwrittenRun) -> None:
        """Write the units of a damaged block again, durably. Raises: OSError, StorageFailedError."""
        async with self._writing:
            await self._in_worker(self._store.files.write, [run])
            await self._in_worker(self._store.files.sync)

    async def _write_units(self) -> None:
        """Write queue units ahead of the next checkpoint to save memory. They are not durable until then."""
        runs = self._replica.state.queues.unwritten()
        if sum(len(run.units) for run in runs) < UNITS_IN_MEMORY:
            return
        try:
            await self._in_worker(self._store.files.write, runs)
        except OSError as error:
            logger.warning("queue units not written, they stay in memory reason=%s", error)
            return
        self._replica.state.queues.mark_written(runs)

    async def _checkpoint_if_changed(self) -> None:
        state = self._replica.state
        self._last_end, self._last_time = self._log_end(), time.monotonic()
        if self._fault() is not None or self._replica.rebuild is not None:
            return  # during a rebuild, the received checkpoint is the newest possible one
        if state.applied_index == self._last_index and not self._store.rebuilding:
            return
        job = begin_checkpoint(state)
        while self._durable_index() < job.snapshot.index:
            await asyncio.sleep(_DURABLE_POLL)  # the flusher has no notification for this
            if self._fault() is not None:
                return
        try:
            size = await self._in_worker(self._store.run, job)
            kept = await self._in_worker(lambda: self._store.kept_index)
        except OSError as error:
            logger.error("checkpoint failed, the log is kept and the next try follows reason=%s", error)
            return
        except StorageFailedError as error:
            self._on_failed(str(error))
            return
        state.queues.mark_written(job.runs)
        self._last_index = job.snapshot.index
        self.floor = kept + 1
        await self._remove_useless()
        logger.debug("checkpoint written index=%d bytes=%d", job.snapshot.index, size)

    async def _in_worker(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call, *arguments)

    def on_effects(self, effects: Effects) -> None:
        """Record the queue files that an entry made obsolete."""
        files = self._store.files
        for topic in effects.deleted_topics:
            self._useless.append((effects.index, partial(files.remove_topic, topic.folder)))
        if effects.log_start is not None:
            self._wanted = True  # segments are deleted only up to the older checkpoint
        for key in effects.trimmed:
            queue = self._replica.state.queues.get(*key)
            if queue is not None:
                self._useless.append((effects.index, partial(files.remove_below, [bounds_of(queue)])))

    def _trim_again(self) -> None:
        """Schedule the removal of queue files below the begins that an earlier run left behind."""
        state = self._replica.state
        begun = [bounds_of(queue) for queue in state.queues if queue.begin]
        if begun:
            self._useless.append((state.applied_index, partial(self._store.files.remove_below, begun)))

    async def _remove_useless(self) -> None:
        """Delete the obsolete files that no kept checkpoint needs."""
        while self._useless and self._useless[0][0] < self.floor:
            _, remove = self._useless.pop(0)
            try:
                self._store.files.forget(await self._in_worker(remove))
            except OSError as error:
                logger.warning("queue files not deleted path=%s reason=%s", error.filename, error.strerror)
