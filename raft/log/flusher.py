"""Flusher thread: takes batches of persist operations from the event loop and reports what is durable.

Owns: its queue, its thread (two in async mode), fsync latencies.   Must not: touch the log's memory.
Invariants: turns run in submission order. One report may cover many operations. After a failed write or
fsync, nothing is ever reported as durable again (rule P15).

`DurableReports` carries "durable up to this operation" from the flusher thread to the event loop. Waking the
loop costs more than the work it then does. A leader that waits for its followers gains nothing from its own
flush alone: it can pick the report up with the first reply, or at the next tick. Invariant: the next `look`
delivers every report. Without a `look`, a report is delivered at once unless the loop asked for patience.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from ..errors import DiskFullError, StorageDefectError, StorageError, StorageFailedError
from ..types import LogIndex
from .writer import LogWriter, PersistOp


class DurableReports:
    """Hand-over of durable sequence numbers.

    The flusher thread calls `report`, the loop calls everything else.
    """

    def __init__(self, post: Callable[[Callable[[], None]], object], hear: Callable[[int], None]) -> None:
        """`post` is `loop.call_soon_threadsafe`.

        `hear(seq)` is called on the loop with increasing numbers.
        """
        self._post = post
        self._hear = hear
        self._reported = 0  # highest operation that the thread reported
        self._heard = 0  # highest operation passed to `hear`; never above _reported
        self._is_patient = False  # True: `report` does not wake the loop

    def report(self, seq: int) -> None:
        """Report that everything up to operation `seq` is durable."""
        self._reported = seq
        if not self._is_patient:  # read after _reported is set: see `look`
            self._post(self.look)

    def look(self) -> None:
        """Deliver pending reports. Later ones wake the loop again."""
        # Cleared before the comparison: a concurrent report is either seen below or wakes the loop.
        self._is_patient = False
        if self._reported > self._heard:
            self._heard = self._reported
            self._hear(self._heard)

    def hurry(self) -> None:
        """Like `look`, but deliver at the loop's next turn."""
        self._is_patient = False
        if self._reported > self._heard:
            self._post(self.look)

    def be_patient(self) -> None:
        """Do not wake the loop for the next report: it calls `look` before anything depends on it."""
        self._is_patient = True


_log = logging.getLogger(__name__)

#: Upper limit of one turn, so that the first of many waiting operations is not delayed by the last.
MAX_TURN_BYTES: Final = 16 << 20
#: Minimum time between two stores of the acked floor, which need not be exact (P18).
FLOOR_INTERVAL_SECONDS: Final = 1.0
_LATENCIES_KEPT: Final = 1024


class FlushMode(StrEnum):
    """Point at which an operation counts as done (D7)."""

    SYNC = "sync"  # after fdatasync
    ASYNC_TIMED = "async_timed"  # written, not synced; fdatasync after an interval or a number of bytes
    ASYNC_NOTIFY = "async_notify"  # written, not synced; each turn wakes the syncer thread


@dataclass(frozen=True, slots=True)
class FlushStatistics:
    """Counters since the start; times in milliseconds over the last 1,024 fsyncs."""

    fsync_count: int
    fsync_p50_ms: float
    fsync_p99_ms: float
    written_bytes: int
    flushed_index: LogIndex  # highest index on stable storage
    disk_full: bool


class SteppedFlusher:
    """Flusher for simulators: does a turn on the caller's thread, only when told to.

    `step` raises the errors.
    """

    def __init__(self, writer: LogWriter, mode: FlushMode, on_done: Callable[[int], None]) -> None:
        self._writer = writer
        self._mode = mode
        self._on_done = on_done
        self._queue: deque[PersistOp] = deque()

    def submit(self, op: PersistOp) -> None:
        """Queue an operation."""
        self._queue.append(op)

    @property
    def queue(self) -> Sequence[PersistOp]:
        """Operations that the next turn takes."""
        return self._queue

    def step(self, max_ops: int = 1 << 30) -> bool:
        """Run one turn of at most `max_ops` operations. Returns whether there were any. Raises: OSError."""
        seq = self.turn(max_ops)
        if seq is not None:
            self.report(seq)
        return seq is not None

    def turn(self, max_ops: int = 1 << 30) -> int | None:
        """Like `step`, but without reporting.

        Returns what to pass to `report`, or None if there was nothing to do.
        """
        turn = [self._queue.popleft() for _ in range(min(max_ops, len(self._queue)))]
        if not turn:
            return None
        self._writer.run(turn, sync=self._mode is FlushMode.SYNC)
        return turn[-1].seq

    def report(self, seq: int) -> None:
        """Report everything up to `seq` as done. The simulated disk took its time since the turn."""
        self._on_done(seq)

    def sync(self, *, others_write: bool = False) -> None:
        """Make everything written durable (async modes) and store the floor. Raises: OSError."""
        self._writer.sync(others_write=others_write)
        self._writer.store_floor()

    def store_floor(self) -> None:
        """Store the acked floor, as the thread does periodically. Raises: OSError."""
        self._writer.store_floor()

    def close(self) -> bool:
        """Finish the queued operations."""
        self.step()
        self._writer.sync()
        return True

    def statistics(self, *, disk_full: bool) -> FlushStatistics:
        """Return positions only; a stepped flusher measures no time."""
        flushed = self._writer.flushed
        return FlushStatistics(0, 0.0, 0.0, 0, flushed.index, disk_full)


class Flusher:
    """Runs a LogWriter in a thread.

    Callers use `submit` and `close`; callbacks run on the flusher's threads.
    """

    def __init__(
        self,
        writer: LogWriter,
        mode: FlushMode,
        *,
        interval_seconds: float,
        max_unsynced_bytes: int,
        on_done: Callable[[int], None],
        on_failed: Callable[[StorageError], object],
        path: Path,
        learner_after_failure: bool = False,
    ) -> None:
        self._writer = writer
        self._learner_after_failure = learner_after_failure
        self._mode = mode
        self._interval = interval_seconds
        self._max_unsynced = max_unsynced_bytes
        self._on_done = on_done
        self._on_failed = on_failed
        self._path = path
        # None wakes the thread to check its flags. SimpleQueue hands over an operation in one C call. A
        # Condition runs a dozen Python functions on each side while both threads compete for the interpreter.
        self._queue: SimpleQueue[PersistOp | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._sync_wake = threading.Event()
        self._closing = False
        self._failed: StorageError | None = None
        self._latencies: deque[float] = deque(maxlen=_LATENCIES_KEPT)
        self._fsync_count = 0
        self._written_bytes = 0
        self._floor_stored = 0.0
        # Store the floor at the first idle moment after a turn. It covers what the turn made durable and what
        # became committed because of it.
        self._quiet_store_is_due = mode is FlushMode.SYNC
        self._threads = [threading.Thread(target=self._guarded, args=(self._work,), name="ledgermq-flusher")]
        if mode is not FlushMode.SYNC:
            self._threads.append(
                threading.Thread(target=self._guarded, args=(self._sync_work,), name="ledgermq-syncer")
            )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def submit(self, op: PersistOp) -> None:
        """Queue an operation. Never blocks."""
        self._queue.put(op)

    def close(self) -> bool:
        """Finish the queued operations, sync and end the threads. Returns whether everything is durable."""
        self._closing = True
        self._queue.put(None)
        self._sync_wake.set()
        for thread in self._threads:
            thread.join()
        if self._failed is None:
            try:
                self._writer.sync()
            except OSError as error:
                self._fail(error)
        return self._failed is None and not self._has_work_left()

    def _has_work_left(self) -> bool:
        """Return whether operations arrived that the ended threads no longer saw."""
        while not self._queue.empty():
            if self._queue.get() is not None:
                return True
        return False

    def statistics(self, *, disk_full: bool) -> FlushStatistics:
        """Return the counters. Callable from any thread."""
        latencies = sorted(self._latencies.copy())
        count = len(latencies)
        flushed = self._writer.flushed
        return FlushStatistics(
            fsync_count=self._fsync_count,
            fsync_p50_ms=latencies[count // 2] if count else 0.0,
            fsync_p99_ms=latencies[min(count - 1, count * 99 // 100)] if count else 0.0,
            written_bytes=self._written_bytes,
            flushed_index=flushed.index,
            disk_full=disk_full,
        )

    # --- threads --------------------------------------------------------------------------------------------
    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a thread's work and report its first failure, which ends the thread."""
        try:
            work()
        except (OSError, StorageError) as error:
            self._fail(error)
        except Exception as defect:  # noqa: BLE001 (otherwise the thread would die unnoticed)
            _log.exception("storage thread failed path=%s", self._path)
            self._fail(StorageDefectError(f"writing the log in {self._path}", defect))

    def _fail(self, error: OSError | StorageError) -> None:
        if isinstance(error, OSError):
            error = StorageFailedError(Path(error.filename or self._path), error)
        with self._lock:
            if self._failed is not None:
                return
            self._failed = error
        self._queue.put(None)
        self._sync_wake.set()
        self._on_failed(error)
        if self._learner_after_failure and not isinstance(error, DiskFullError):  # a full disk loses nothing
            self._give_up_vote()

    def _give_up_vote(self) -> None:
        try:
            self._writer.give_up_vote()
        except OSError as error:
            _log.error("not marked as a learner path=%s error=%s", self._path, error)

    def _work(self) -> None:
        while turn := self._next_turn():
            if self._mode is FlushMode.SYNC:
                self._timed(partial(self._writer.run, turn, sync=True))
            else:
                self._writer.run(turn, sync=False)
            self._written_bytes += sum(op.size for op in turn)
            if self._failed is not None:
                return
            self._on_done(turn[-1].seq)
            if self._mode is FlushMode.SYNC:
                self._store_floor()
                self._quiet_store_is_due = True
            elif self._mode is FlushMode.ASYNC_NOTIFY or self._writer.unsynced_bytes >= self._max_unsynced:
                self._sync_wake.set()

    def _next_turn(self) -> list[PersistOp]:
        """Wait for work and take it. Returns an empty list when the thread must end."""
        turn: list[PersistOp] = []
        size, queue = 0, self._queue
        while self._failed is None and size < MAX_TURN_BYTES:
            if turn or self._closing:  # drain the queue without waiting
                if queue.empty():
                    break
                op = queue.get()
            else:
                op = self._wait_for_work()
            if op is not None:
                turn.append(op)
                size += op.size
        return turn if self._failed is None else []

    def _wait_for_work(self) -> PersistOp | None:
        """Return the next operation, or None to make the caller check its flags.

        An idle second stores the floor.
        """
        try:
            return self._queue.get(timeout=FLOOR_INTERVAL_SECONDS if self._quiet_store_is_due else None)
        except Empty:
            self._store_floor()
            self._quiet_store_is_due = self._floor_behind()
            return None

    def _sync_work(self) -> None:
        while not self._closing and self._failed is None:
            self._sync_wake.wait(self._interval)
            self._sync_wake.clear()
            self._timed(lambda: self._writer.sync(others_write=True))
            self._store_floor()

    def _timed(self, work: Callable[[], object]) -> None:
        """Run a sync and record how long it took.

        A turn's write is included, because an append waits for both.
        """
        begin = time.perf_counter()
        if work() is not False:
            self._latencies.append((time.perf_counter() - begin) * 1000)
            self._fsync_count += 1

    def _floor_behind(self) -> bool:
        """Return whether an idle moment should store the floor. In async mode the syncer does it."""
        return self._mode is FlushMode.SYNC and self._writer.state.floor_index != self._writer.flushed.index

    def _store_floor(self) -> None:
        now = time.monotonic()
        if now - self._floor_stored >= FLOOR_INTERVAL_SECONDS:
            self._floor_stored = now
            self._writer.store_floor()
