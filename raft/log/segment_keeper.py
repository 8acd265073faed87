"""Background thread of the log: prepares the next segment, writes index files, deletes old segments.

Owns: which segment files exist.
Must not: write log bytes, or delay the flusher unless the flusher itself waits for a segment.
Invariants: a segment has its full length and a durable name before anything is written to it (P17). The
manifest is durable before a segment that it no longer names is unlinked (D8).
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ledgermq.proto.digest_file import DIGESTS

from ..disk.files import File, FileSystem, is_full, write_zeros
from ..errors import DiskFullError, StorageDefectError, StorageError, StorageFailedError
from .digest_store import remove_digests
from .entry_index import index_path, write_index
from .identity import Manifest, write_manifest
from .segment import TRAILER_SIZE, Segment, create_segment, segment_path

_log = logging.getLogger(__name__)

#: Bytes of zeros per second while no writer waits: fast enough to stay ahead, slow enough not to disturb
#: others.
PREPARE_RATE: Final = 256 << 20
#: Space to leave free when creating a segment, so that LedgerMQ itself does not fill the disk.
SPARE_SPACE: Final = 1 << 20
#: Released for the manifest when the disk is full: retention must always be able to run.
BALLAST_SIZE: Final = 64 << 10
RETRY_SECONDS: Final = 0.5


class LogFolders:
    """Paths below one data folder."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.segments = data / "commitlog"
        self.indexes = data / "entryindex"
        self.digests = data / DIGESTS
        self.manifest = data / "manifest"
        self.identity = data / "identity"
        self.hard_state = data / "hardstate"
        self.ballast = data / "ballast"
        self.lock = data / "lock"


class SegmentKeeper:
    """Callers queue work with `prepare`, `save_index` and `delete`.

    `open_segment` and `delete_after` are for the writer's thread.
    """

    def __init__(
        self, files: FileSystem, folders: LogFolders, segment_size: int, existing: Sequence[int]
    ) -> None:
        self._files = files
        self._folders = folders
        self._segment_size = segment_size
        self._existing = set(existing)
        self._jobs: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = threading.Event()  # set: no waiting for disk space any more
        self._urgent = threading.Event()  # set: the writer waits for a segment, so `_pace` must not sleep
        self._files_lock = threading.Lock()  # guards _existing and the files it names
        self._thread: threading.Thread | None = None
        self._post: Callable[[Callable[[], None]], object] = lambda call: call()
        self._on_full: Callable[[bool], object] = lambda full: None
        self._on_failed: Callable[[StorageError], object] = lambda error: None
        self.full = False  # the last attempt to make a segment found no room
        self.deleting = 0  # segments passed to `delete` that still occupy space
        self._no_room_for: int | None = None  # segment to create as soon as there is room
        #: Deletions without room for the new base point. A stop drops them; the next start finds all the
        #: segments.
        self._postponed: deque[tuple[Manifest, Sequence[int]]] = deque()

    # --- life -----------------------------------------------------------------------------------------------
    def start(
        self,
        post: Callable[[Callable[[], None]], object],
        on_full: Callable[[bool], None],
        on_failed: Callable[[StorageError], None],
    ) -> None:
        """Run queued work in a thread. Every callback goes through `post`."""
        self._post = post
        self._on_full = lambda full: post(lambda: on_full(full))
        self._on_failed = lambda error: post(lambda: on_failed(error))
        self._thread = threading.Thread(target=self._work, name="ledgermq-segments", daemon=True)
        self._thread.start()

    def stop_waiting(self) -> None:
        """Stop waiting for disk space, so that the writer can finish. Call `stop` afterwards."""
        self._stopping.set()

    def stop(self) -> None:
        """Stop waiting for disk space and end the thread after the queued work."""
        self.stop_waiting()
        with self._wake:
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def run_pending(self) -> None:
        """Run queued work on the calling thread (simulators, tests), then retry what found no room.

        Raises: OSError, DiskFullError.
        """
        while self._jobs:
            self._jobs.popleft()()
        self._try_again()

    @property
    def has_work(self) -> bool:
        """Return whether `run_pending` would do anything."""
        return bool(self._jobs) or self._finds_no_room

    @property
    def _finds_no_room(self) -> bool:
        return self._no_room_for is not None or bool(self._postponed)

    # --- queued work ----------------------------------------------------------------------------------------
    def prepare(self, start: int) -> None:
        """Create the segment at `start` ahead of need."""
        self._queue(lambda: self._prepare(start))

    def save_index(self, segment: Segment, done: Callable[[], None]) -> None:
        """Write the index file of a sealed segment, then call `done`.

        `segment` is a copy that does not change.
        """
        self._queue(lambda: self._save_index(segment, done))

    def has(self, start: int) -> bool:
        """Return whether the segment at `start` exists. Callable from any thread."""
        return start in self._existing

    def delete(self, manifest: Manifest, starts: Sequence[int]) -> None:
        """Store the new base point, then remove the segments at `starts`."""
        with self._wake:
            self.deleting += len(starts)
        self._queue(lambda: self._delete(manifest, starts))

    # --- for the writer -------------------------------------------------------------------------------------
    def open_segment(self, start: int) -> File:
        """Open a segment for writing, creating it if needed. Waits while the disk is full."""
        self._urgent.set()
        try:
            while not self._ensure(start):
                if self._thread is None or self._stopping.wait(RETRY_SECONDS):
                    raise disk_full(self._folders.data)
        finally:
            self._urgent.clear()
        return self._files.open(segment_path(self._folders.segments, start))

    def delete_after(self, start: int) -> None:
        """Durably remove all segments after the one at `start`, and derived files from `start` on."""
        self._urgent.set()
        with self._files_lock:
            self._urgent.clear()
            later = sorted((other for other in self._existing if other > start), reverse=True)
            for other in later:
                self._files.unlink(segment_path(self._folders.segments, other))
                self._existing.discard(other)
            if later:
                self._files.sync_directory(self._folders.segments)
        for other in (start, *later):
            self._unlink_derived(other)

    # --- the work -------------------------------------------------------------------------------------------
    def _queue(self, job: Callable[[], None]) -> None:
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                job()
            except OSError as error:
                self._on_failed(StorageFailedError(Path(error.filename or self._folders.data), error))
                return
            except StorageError as error:
                self._on_failed(error)
                return
            except Exception as defect:  # noqa: BLE001 (otherwise the thread would die unnoticed)
                _log.exception("segment thread failed path=%s", self._folders.data)
                self._on_failed(StorageDefectError(f"preparing segments in {self._folders.data}", defect))
                return

    def _next_job(self) -> Callable[[], None] | None:
        """Wait for the next job; None: there will be none. Retries of work without room come last."""
        with self._wake:
            while True:
                if self._jobs:
                    return self._jobs.popleft()
                if self._stopping.is_set():
                    return None
                if not self._wake.wait(RETRY_SECONDS if self._finds_no_room else None):
                    return self._try_again

    def _try_again(self) -> None:
        """Retry what found no room: deletions first, because they free space."""
        postponed, self._postponed = self._postponed, deque()
        for manifest, starts in postponed:
            self._delete(manifest, starts)
        if self._no_room_for is not None:
            self._prepare(self._no_room_for)

    def _prepare(self, start: int) -> None:
        # Never wait here: the next job may be the deletion that makes room.
        self._no_room_for = None if self._ensure(start) else start

    def _ensure(self, start: int) -> bool:
        """Create the segment unless it exists. Returns False if there is no room. Raises: OSError."""
        with self._files_lock:
            # A truncation may have removed earlier ones. Never leave a gap: recovery would treat it as loss.
            first = max(self._existing, default=start - self._segment_size) + self._segment_size
            try:
                for missing in range(first, start + 1, self._segment_size):
                    self._create(missing)
            except OSError as error:
                if not is_full(error):
                    raise
                self._set_full(True)
                return False
        self._set_full(False)
        return True

    def _create(self, start: int) -> None:
        needed = self._segment_size + TRAILER_SIZE + SPARE_SPACE
        if self._files.disk_use(self._folders.segments).available < needed:
            raise OSError(errno.ENOSPC, "no room for a segment", str(self._folders.segments))
        create_segment(self._files, self._folders.segments, start, self._segment_size, self._pace)
        self._existing.add(start)

    def _set_full(self, full: bool) -> None:
        if full != self.full:
            self.full = full
            if full:
                _log.warning("disk full path=%s", self._folders.segments)
            self._on_full(full)

    def _pace(self, count: int) -> None:
        if self._thread is not None and not self._urgent.is_set() and not self._stopping.is_set():
            time.sleep(count / PREPARE_RATE)

    def _save_index(self, segment: Segment, done: Callable[[], None]) -> None:
        try:
            write_index(self._files, self._folders.indexes, segment)
        except OSError as error:
            if not is_full(error):
                raise
            return  # the index stays in memory and is rebuilt after a restart
        self._post(done)

    def _delete(self, manifest: Manifest, starts: Sequence[int]) -> None:
        # In order: the base point must never move back.
        if self._postponed or not self._write_manifest(manifest):
            self._postponed.append((manifest, starts))
            return
        for start in starts:
            with self._files_lock:
                self._existing.discard(start)
            # Unlock first: unlinking a large file is slow on some file systems, and the writer may need a
            # segment.
            self._files.unlink(segment_path(self._folders.segments, start))
            self._unlink_derived(start)
            with self._wake:
                self.deleting -= 1
        self._files.sync_directory(self._folders.segments)
        make_ballast(self._files, self._folders.ballast)

    def _write_manifest(self, manifest: Manifest) -> bool:
        """Store the base point, using the reserve if there is no other room.

        False: no room. Raises: OSError.
        """
        ballast = self._folders.ballast
        while True:
            try:
                write_manifest(self._files, self._folders.manifest, manifest)
            except OSError as error:
                if not is_full(error):
                    raise
                if not self._files.exists(ballast):
                    _log.warning(
                        "disk full, segments are deleted when there is room path=%s", self._folders.data
                    )
                    return False
                self._files.unlink(ballast)
            else:
                return True

    def _unlink_derived(self, start: int) -> None:
        """Remove the index file and the digests of a segment."""
        path = index_path(self._folders.indexes, start)
        if self._files.exists(path):
            self._files.unlink(path)
        remove_digests(self._files, self._folders.digests, start)


def make_ballast(files: FileSystem, path: Path) -> None:
    """Allocate the reserve space unless it exists. A disk without room for it is not an error."""
    if files.exists(path):
        return
    file = files.open(path, create=True)
    try:
        write_zeros(file, 0, BALLAST_SIZE)
    except OSError as error:
        if not is_full(error):
            raise
        files.unlink(path)
    finally:
        file.close()


def disk_full(folder: Path) -> DiskFullError:
    """Return the error for a disk without room for another segment."""
    return DiskFullError(
        f"the disk of {folder} has no room for another log segment; nothing was appended. Free space:"
        f" ledgermq admin clean"
    )
