"""The flusher thread: takes persist operations from the event loop, many per turn, and reports what is durable.

Owns: its queue, the thread (in async mode two), fsync latencies.   Must not: touch the log's memory.
Invariants: turns run in the order of submission; one report may cover many operations; after a failed write or
fsync nothing is reported as durable ever again (rule P15).

`DurableReports` carries "durable up to this operation" from the flusher's thread to the event loop. Waking the loop costs more than
what it then does, and a leader that waits for its followers learns nothing from its own flush: it hears of it with the first of their
answers, or with the next tick. Invariant: what was reported is heard by the next `look`, and without one at once unless the loop
was patient.
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
from typing import Final, Protocol

from ..errors import DiskFullError, StorageDefectError, StorageError, StorageFailedError
from ..types import LogIndex
from .writer import LogWriter, PersistOp


class DurableReports:
    """`report` comes from the thread, everything else from the loop."""

    def __init__(self, post: Callable[[Callable[[], None]], object], hear: Callable[[int], None]) -> None:
        """`post` is `loop.call_soon_threadsafe`; `hear(seq)` is called on the loop, with growing numbers."""
        self._post = post
        self._hear = hear
        self._reported = 0
        self._heard = 0
        self._is_patient = False

    def report(self, seq: int) -> None:
        """Everything up to operation `seq` is durable."""
        self._reported = seq
        if not self._is_patient:  # looked at after the report is there: see `look`
            self._post(self.look)

    def look(self) -> None:
        """Hear what was reported; wake the loop for what comes from now on."""
        self._is_patient = False  # before the look: a report that comes in between is seen, or wakes the loop
        if self._reported > self._heard:
            self._heard = self._reported
            self._hear(self._heard)

    def hurry(self) -> None:
        """As `look`, but not before the loop's next turn."""
        self._is_patient = False
        if self._reported > self._heard:
            self._post(self.look)

    def be_patient(self) -> None:
        """The next report need not wake the loop: it will look before anything depends on it."""
        self._is_patient = True


_log = logging.getLogger(__name__)

#: One turn takes no more than this, so that the first of many waiting operations is not held up by the last.
MAX_TURN_BYTES: Final = 16 << 20
#: The acked floor is stored at most this often; it need not be exact (P18).
FLOOR_INTERVAL_SECONDS: Final = 1.0
_LATENCIES_KEPT: Final = 1024


class FlushMode(StrEnum):
    """When an operation counts as done (D7)."""

    SYNC = "sync"  # after fdatasync
    ASYNC_TIMED = "async_timed"  # written, not synced; fdatasync every interval or so many bytes
    ASYNC_NOTIFY = "async_notify"  # written, not synced; each turn wakes the syncing thread


@dataclass(frozen=True, slots=True)
class FlushStatistics:
    """Counters since the start; times in milliseconds over the last 1,024 fsyncs."""

    fsync_count: int
    fsync_p50_ms: float
    fsync_p99_ms: float
    written_bytes: int
    flushed_index: LogIndex  # highest index on stable storage
    flushed_offset: int
    disk_full: bool


class FlusherLike(Protocol):
    """What the storage needs of a flusher."""

    def submit(self, op: PersistOp) -> None: ...

    def close(self) -> bool: ...

    def statistics(self, *, disk_full: bool) -> FlushStatistics: ...


class SteppedFlusher:
    """Does a turn only when it is told to, on the caller's thread: for simulators. Errors come out of `step`."""

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
        """What the next turn takes."""
        return self._queue

    def step(self, max_ops: int = 1 << 30) -> bool:
        """Do one turn of at most `max_ops` operations; return whether there was any. Raises: OSError."""
        seq = self.turn(max_ops)
        if seq is not None:
            self.report(seq)
        return seq is not None

    def turn(self, max_ops: int = 1 << 30) -> int | None:
        """Like `step`, but say nothing yet; return what `report` must be told, None when there was nothing to do."""
        turn = [self._queue.popleft() for _ in range(min(max_ops, len(self._queue)))]
        if not turn:
            return None
        self._writer.run(turn, sync=self._mode is FlushMode.SYNC)
        return turn[-1].seq

    def report(self, seq: int) -> None:
        """Everything up to `seq` is done: a simulated disk took its time since the turn."""
        self._on_done(seq)

    def sync(self, *, others_write: bool = False) -> None:
        """Make everything written durable (async modes), and store the floor. Raises: OSError."""
        self._writer.sync(others_write=others_write)
        self._writer.store_floor()

    def store_floor(self) -> None:
        """Store the acked floor, as the thread does once in a while. Raises: OSError."""
        self._writer.store_floor()

    def close(self) -> bool:
        """Finish what is queued."""
        self.step()
        self._writer.sync()
        return True

    def statistics(self, *, disk_full: bool) -> FlushStatistics:
        """Positions only; there is no time here."""
        flushed = self._writer.flushed
        return FlushStatistics(0, 0.0, 0.0, 0, flushed.index, flushed.offset, disk_full)


class Flusher:
    """Runs a LogWriter in a thread. `submit` and `close` come from outside; callbacks run on the threads here."""

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
        # None wakes the thread to look what happened. One C call hands an operation over: a Condition takes a dozen
        # Python functions on either side, while both threads want the interpreter.
        self._queue: SimpleQueue[PersistOp | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._sync_wake = threading.Event()
        self._closing = False
        self._failed: StorageError | None = None
        self._latencies: deque[float] = deque(maxlen=_LATENCIES_KEPT)
        self._fsync_count = 0
        self._written_bytes = 0
        self._floor_stored = 0.0
        # In the first idle moment after a turn: what it made durable, and what became committed by it.
        self._quiet_store_is_due = mode is FlushMode.SYNC
        self._threads = [threading.Thread(target=self._guarded, args=(self._work,), name="ledgermq-flusher")]
        if mode is not FlushMode.SYNC:
            self._threads.append(
                threading.Thread(target=self._guarded, args=(self._sync_work,), name="ledgermq-syncer")
            )

    def start(self) -> None:
        """Start the thread."""
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def submit(self, op: PersistOp) -> None:
        """Queue an operation. Never waits."""
        self._queue.put(op)

    def close(self) -> bool:
        """Finish what is queued, sync, end the threads; return whether all of it is durable."""
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
        """Tell, when the threads have ended, whether something came that they did not see any more."""
        while not self._queue.empty():
            if self._queue.get() is not None:
                return True
        return False

    def statistics(self, *, disk_full: bool) -> FlushStatistics:
        """Return the counters. Any thread."""
        latencies = sorted(self._latencies.copy())
        count = len(latencies)
        flushed = self._writer.flushed
        return FlushStatistics(
            fsync_count=self._fsync_count,
            fsync_p50_ms=latencies[count // 2] if count else 0.0,
            fsync_p99_ms=latencies[min(count - 1, count * 99 // 100)] if count else 0.0,
            written_bytes=self._written_bytes,
            flushed_index=flushed.index,
            flushed_offset=flushed.offset,
            disk_full=disk_full,
        )

    # --- threads -----------------------------------------------------------------------------------------------
    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a thread's work; the first failure is the last thing it says."""
        try:
            work()
        except (OSError, StorageError) as error:
            self._fail(error)
        except Exception as defect:  # noqa: BLE001 (nobody else would notice that this thread is gone)
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
        """Wait for work and take it; empty when the thread must end."""
        turn: list[PersistOp] = []
        size, queue = 0, self._queue
        while self._failed is None and size < MAX_TURN_BYTES:
            if turn or self._closing:  # take what is there
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
        """Return the next operation; None: look what happened. An idle second stores the floor."""
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
        """Run a sync and note how long it took. A turn's write is in it: that is what an append waits for."""
        begin = time.perf_counter()
        if work() is not False:
            self._latencies.append((time.perf_counter() - begin) * 1000)
            self._fsync_count += 1

    def _floor_behind(self) -> bool:
        """Tell whether an idle moment should store the floor (the syncer does it in async mode)."""
        return self._mode is FlushMode.SYNC and self._writer.state.floor_index != self._writer.flushed.index

    def _store_floor(self) -> None:
        now = time.monotonic()
        if now - self._floor_stored >= FLOOR_INTERVAL_SECONDS:
            self._floor_stored = now
            self._writer.store_floor()
