"""Files of the ConsumeQueues: `consumequeue/<topic>@<topic id>/<queueId>/<20-digit byte offset>` (D13).

A file holds 300,000 units of 20 bytes and is named after the byte offset of its first unit in the queue (unit
* 20). Files are created with their first unit and are sparse.
Owns: a bounded number of descriptors.   Must not: verify units; callers stay within the queue's range.

Threads: one background worker calls `write`, `sync`, `remove_topic` and `remove_below`; the event loop calls
`read_nowait`; any thread may call `load` (it opens its own descriptor).
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from ledgermq.raft.disk.files import File, FileSystem, is_full
from ledgermq.raft.errors import StorageFailedError

from ..errors import ConsumeQueueError
from ..state.consume_queue import BLOCK_UNITS, UNIT_SIZE, UNITS_PER_FILE, ColdRead, ConsumeQueue, UnwrittenRun

_OPEN_FILES: Final = 64  # per role: readers and the writer
FILE_SIZE: Final = UNITS_PER_FILE * UNIT_SIZE


#: Folder of the topic, queue id, first stored queue offset.
QueueBounds = tuple[str, int, int]


def bounds_of(queue: ConsumeQueue) -> QueueBounds:
    """Return the bounds of a queue, for `remove_below`."""
    return queue.folder, queue.key[1], queue.begin


class _OpenFiles:
    """LRU cache of descriptors."""

    def __init__(self, filesystem: FileSystem, *, writable: bool) -> None:
        self._filesystem = filesystem
        self._writable = writable
        self._files: OrderedDict[Path, File] = OrderedDict()

    def get(self, path: Path) -> File:
        found = self._files.get(path)
        if found is None:
            found = self._filesystem.open(path, create=self._writable, writable=self._writable)
            self._files[path] = found
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(path)
        return found

    def forget(self, path: Path) -> None:
        found = self._files.pop(path, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


class ConsumeQueueFiles:
    """Folder `consumequeue/` of a node."""

    def __init__(self, filesystem: FileSystem, root: Path) -> None:
        self._filesystem = filesystem
        self._root = root
        self._readers = _OpenFiles(filesystem, writable=False)
        self._writers = _OpenFiles(filesystem, writable=True)
        self._unsynced: set[Path] = set()  # files with writes that are not durable
        self._new_names: set[Path] = set()  # folders with new entries that are not durable

    def path(self, folder: str, queue_id: int, unit: int) -> Path:
        """Return the file that holds a unit."""
        return self._root / folder / str(queue_id) / f"{unit // UNITS_PER_FILE * FILE_SIZE:020d}"

    # --- the event loop -------------------------------------------------------------------------------------
    def read_nowait(self, folder: str, queue_id: int, start: int, count: int) -> bytes | None:
        """See UnitReader. A missing or unreadable file is an error, because the range was written before."""
        path = self.path(folder, queue_id, start)
        try:
            file = self._readers.get(path)
        except FileNotFoundError:
            raise ConsumeQueueError(str(path), "the file is gone") from None
        try:
            return file.pread_nowait(count * UNIT_SIZE, start % UNITS_PER_FILE * UNIT_SIZE)
        except OSError as error:
            raise _unreadable(path, error) from None

    def forget(self, paths: Iterable[Path]) -> None:
        """Close the descriptors of deleted files, which hold disk space until then."""
        for path in paths:
            self._readers.forget(path)

    def damaged(self, folder: str, queue_id: int, start: int, reason: str) -> ConsumeQueueError:
        """See UnitReader."""
        position = start % UNITS_PER_FILE * UNIT_SIZE
        return ConsumeQueueError(
            str(self.path(folder, queue_id, start)), f"damaged in the block at byte {position}: {reason}"
        )

    # --- any thread -----------------------------------------------------------------------------------------
    def load(self, read: ColdRead) -> bytes:
        """Read a block from disk, for `ConsumeQueues.admit`. Blocks. Raises: ConsumeQueueError."""
        path = self.path(read.folder, read.key[1], read.start)
        try:
            file = self._filesystem.open(path, writable=False)
        except FileNotFoundError:
            raise ConsumeQueueError(str(path), "the file is gone") from None
        try:
            raw = file.pread(BLOCK_UNITS * UNIT_SIZE, read.start % UNITS_PER_FILE * UNIT_SIZE)
        except OSError as error:
            raise _unreadable(path, error) from None
        finally:
            file.close()
        return raw[: len(raw) // UNIT_SIZE * UNIT_SIZE]

    # --- the background worker ------------------------------------------------------------------------------
    def write(self, runs: Iterable[UnwrittenRun]) -> None:
        """Write runs to their files, durable after `sync`. Raises: OSError; then write the same again."""
        for run in runs:
            done = 0
            while done < len(run.units):
                unit = run.start + done
                count = min(len(run.units) - done, UNITS_PER_FILE - unit % UNITS_PER_FILE)
                self._write_part(run, unit, run.units[done : done + count])
                done += count

    def _write_part(self, run: UnwrittenRun, unit: int, units: np.ndarray) -> None:
        path = self.path(run.folder, run.key[1], unit)
        if path not in self._unsynced and not self._filesystem.exists(path):
            self._filesystem.make_directory(path.parent)
            self._new_names.update((path.parent, path.parent.parent, self._root, self._root.parent))
        self._unsynced.add(path)
        raw = units.tobytes()
        self._writers.get(path).pwritev([raw], unit % UNITS_PER_FILE * UNIT_SIZE)

    def sync(self) -> None:
        """Make all writes so far durable.

        Raises: StorageFailedError (a failed flush is never repeated, because the next one would report
        success: P15), OSError (disk full; nothing is lost).
        """
        for path in sorted(self._unsynced):
            if self._filesystem.exists(path):
                try:
                    self._writers.get(path).fdatasync()
                except OSError as error:
                    if is_full(error):
                        raise
                    raise StorageFailedError(path, error) from None
        self._unsynced.clear()
        for folder in sorted(self._new_names, key=lambda name: (-len(name.parts), name)):
            self._filesystem.sync_directory(folder)
        self._new_names.clear()

    def remove_topic(self, folder: str) -> list[Path]:
        """Delete the files of a deleted topic; return them, for `forget`."""
        queues = self._filesystem.list_directory(self._root / folder)
        return [path for name in queues for path in self._remove(self._root / folder / name, FILE_SIZE << 40)]

    def remove_below(self, bounds: Iterable[QueueBounds]) -> list[Path]:
        """Delete files whose units are all below the queue's begin (retention); return them, for `forget`."""
        return [
            path
            for folder, queue_id, begin in bounds
            for path in self._remove(self._root / folder / str(queue_id), begin * UNIT_SIZE)
        ]

    def _remove(self, folder: Path, limit: int) -> list[Path]:
        names = self._filesystem.list_directory(folder)
        gone = [folder / name for name in names if name.isdecimal() and int(name) + FILE_SIZE <= limit]
        for path in gone:
            self._writers.forget(path)
            self._unsynced.discard(path)
            self._filesystem.unlink(path)
        return gone

    def remove_orphans(self, known: set[str]) -> None:
        """At start, delete the files of topics that are not in the state."""
        for folder in self._filesystem.list_directory(self._root):
            if folder not in known and "@" in folder:  # other folders are foreign
                self.remove_topic(folder)

    def damage(self, queue: ConsumeQueue) -> ConsumeQueueError | None:
        """At start, return an error if files are missing or shorter than the checkpoint requires."""
        stop = queue.written
        begin = (
            queue.begin // BLOCK_UNITS * BLOCK_UNITS
        )  # the checksum of its block covers the units below it, too
        if begin == stop:
            return None
        for start in range(begin // UNITS_PER_FILE * UNITS_PER_FILE, stop, UNITS_PER_FILE):
            path = self.path(queue.folder, queue.key[1], start)
            if not self._filesystem.exists(path):
                return ConsumeQueueError(str(path), "the file is missing, but the checkpoint counts on it")
            need = min(stop - start, UNITS_PER_FILE) * UNIT_SIZE
            file = self._filesystem.open(path, writable=False)
            try:
                size = file.size()
            finally:
                file.close()
            if size < need:
                return ConsumeQueueError(
                    str(path), f"the file has {size} bytes, the checkpoint counts on {need}"
                )
        return None

    def close(self) -> None:
        """Close all descriptors. No other method may run."""
        self._readers.close()
        self._writers.close()


def _unreadable(path: Path, error: OSError) -> Exception:
    """Return the error for a failed read. A bad sector is damage, as in the log; other errors are not."""
    return ConsumeQueueError(str(path), "the disk cannot read it") if error.errno == errno.EIO else error
