"""Writes checkpoints in the background: every 256 MiB of log or 60 s, and at a clean stop (D12).

Owns: one worker thread, which alone writes queue files and checkpoints. Must not: let a checkpoint run ahead of this
node's durable log: a leader may apply what only its followers have on disk. Must not: write one when the node has faulted:
its state may stop in the middle of an entry, and after a failed flush the next one would say that all is well (P15).
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
from .store import CheckpointStore, begin_checkpoint, finish_checkpoint

logger = logging.getLogger(__name__)

BYTES_BETWEEN: Final = 256 << 20
SECONDS_BETWEEN: Final = 60.0
#: Units (20 bytes each) that may wait in memory for the next checkpoint.
UNITS_IN_MEMORY: Final = 50_000
_LOOK_INTERVAL: Final = 1.0
_DURABLE_POLL: Final = 0.05


class Checkpointing:
    """Use: `start()` when the Raft node runs, `on_effects` after each entry, `await stop()`.

    `floor`: log entries below it may be deleted.
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
        """`on_failed`: a flush failed, so this node must stop (P15). `fault`: why it does, None while it is well."""
        self._on_failed = on_failed
        self._fault = fault
        self._replica = replica
        self._store = store
        self._durable_index = durable_index
        self._log_end = log_end
        self._worker = ThreadPoolExecutor(1, "checkpoint")
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._wanted = False
        self._last_index = 0
        self._last_end = 0
        self._last_time = 0.0
        self.floor = 0
        # Queue files that an entry (its index) made useless: a kept checkpoint before that entry still counts on them.
        self._useless: list[tuple[int, Callable[[], list[Path]]]] = []

    def start(self) -> None:
        """Begin to write checkpoints."""
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
        """Write a last checkpoint, so that the next start has little to replay, and end the worker."""
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
            except Exception:  # a defect: yet a log that no checkpoint lets go of would be worse
                logger.exception("checkpoint failed, the next try follows")

    async def _look(self) -> None:
        """Write what is due."""
        grown = self._log_end() - self._last_end >= BYTES_BETWEEN
        rebuilt = self._store.rebuilding and self._replica.rebuild is None
        if self._wanted or rebuilt or grown or time.monotonic() - self._last_time >= SECONDS_BETWEEN:
            self._wanted = False
            await self.write_now()
        else:
            async with self._writing:
                await self._write_units()

    async def write_now(self) -> int:
        """Write a checkpoint unless nothing was applied since the last one; return the index of the newest."""
        async with self._writing:
            await self._checkpoint_if_changed()
        return self._last_index

    async def rewrite(self, run: UnwrittenRun) -> None:
        """Write units of a damaged block again, durably. Raises: OSError."""
        async with self._writing:
            await self._in_worker(self._store.files.write, [run])
            await self._in_worker(self._store.files.sync)

    async def _write_units(self) -> None:
        """Write queue units before the next checkpoint does when they take memory. Not durable, not counted on."""
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
            return  # while it is rebuilt, the checkpoint that the leader sent is the newest there can be
        if state.applied_index == self._last_index and not self._store.rebuilding:
            return
        job = begin_checkpoint(state)
        while self._durable_index() < job.snapshot.index:
            await asyncio.sleep(_DURABLE_POLL)  # the flusher tells nobody else
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
        finish_checkpoint(state, job)
        self._last_index = job.snapshot.index
        self.floor = kept + 1
        await self._remove_useless()
        logger.debug("checkpoint written index=%d bytes=%d", job.snapshot.index, size)

    async def _in_worker(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call, *arguments)

    def on_effects(self, effects: Effects) -> None:
        """Note which queue files an entry made useless."""
        files = self._store.files
        for topic in effects.deleted_topics:
            self._useless.append((effects.index, partial(files.remove_topic, topic.folder)))
        if effects.log_start is not None:
            self._wanted = True  # segments go as far as the older checkpoint reaches
        for key in effects.trimmed:
            queue = self._replica.state.queues.get(*key)
            if queue is not None:
                self._useless.append((effects.index, partial(files.remove_below, [bounds_of(queue)])))

    def _trim_again(self) -> None:
        """Of what retention hid before this start, files may be left: forgotten by a stop, or by a crash while they went."""
        state = self._replica.state
        begun = [bounds_of(queue) for queue in state.queues if queue.begin]
        if begun:
            self._useless.append((state.applied_index, partial(self._store.files.remove_below, begun)))

    async def _remove_useless(self) -> None:
        """Delete the files that no kept checkpoint counts on any more."""
        while self._useless and self._useless[0][0] < self.floor:
            _, remove = self._useless.pop(0)
            try:
                self._store.files.forget(await self._in_worker(remove))
            except OSError as error:
                logger.warning("queue files not deleted path=%s reason=%s", error.filename, error.strerror)
