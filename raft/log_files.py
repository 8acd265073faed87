"""Open files of the log for reading, and the threads that wait for cold ones.

Owns: a bounded set of descriptors and the bounded read pool.   Must not: know entries.
Invariant: a file is closed only when no thread reads it. Event-loop thread only, except inside the pool.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from .entry_index import IndexCache, index_path, read_index, read_index_nowait
from .files import File, FileSystem
from .segment import segment_path
from .segment_keeper import LogFolders

MAX_OPEN_FILES: Final = 64
_T = TypeVar("_T")


@dataclass(slots=True)
class _Handle:
    file: File
    readers: int = 0
    dropped: bool = False


class LogFiles:
    """Reads of segments and their index files."""

    def __init__(self, files: FileSystem, folders: LogFolders, threads: int) -> None:
        self._files = files
        self._folders = folders
        self._handles: OrderedDict[int, _Handle] = OrderedDict()
        self._indexes = IndexCache()
        # Without threads (simulators) a cold read is done on the calling thread.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ledgermq-read") if threads else None

    def read_nowait(self, start: int, position: int, size: int) -> bytes | None:
        """Bytes of the segment at `start`, when the page cache has them. Raises: OSError."""
        return self._handle(start).file.pread_nowait(size, position)

    async def read(self, start: int, position: int, size: int) -> bytes:
        """Bytes of the segment at `start`, from a thread of the pool. Raises: OSError."""
        handle = self._handle(start)
        handle.readers += 1
        try:
            return await self._in_pool(lambda: handle.file.pread(size, position))
        finally:
            handle.readers -= 1
            if handle.dropped and not handle.readers:
                handle.file.close()

    def read_now(self, start: int, position: int, size: int) -> bytes:
        """Bytes of the segment at `start`, waiting on the calling thread. Raises: OSError."""
        return self._handle(start).file.pread(size, position)

    def offsets_nowait(self, start: int) -> array[int] | None:
        """Entry offsets of a sealed segment, when memory or the page cache has them.

        Raises: CorruptError, NewerFormatError, OSError.
        """
        offsets = self._indexes.get(start)
        if offsets is None:
            file = self._files.open(index_path(self._folders.indexes, start), writable=False)
            try:
                segment = read_index_nowait(file)
            finally:
                file.close()
            if segment is not None and segment.offsets is not None:
                offsets = self.keep_offsets(start, segment.offsets)
        return offsets

    async def offsets(self, start: int) -> array[int]:
        """Entry offsets of a sealed segment. Raises: CorruptError, NewerFormatError, OSError."""
        offsets = self._indexes.get(start)
        return offsets if offsets is not None else await self._in_pool(lambda: self._load(start))

    def offsets_now(self, start: int) -> array[int]:
        """Entry offsets of a sealed segment, waiting on the calling thread."""
        offsets = self._indexes.get(start)
        return offsets if offsets is not None else self._load(start)

    def keep_offsets(self, start: int, offsets: array[int]) -> array[int]:
        """Remember the offsets of a segment that was sealed or read."""
        self._indexes.put(start, offsets)
        return offsets

    def forget(self, start: int) -> None:
        """Drop what is open or remembered of the segment at `start`."""
        self._indexes.drop(start)
        handle = self._handles.pop(start, None)
        if handle is not None:
            self._drop(handle)

    def forget_from(self, start: int) -> None:
        """Drop what is open or remembered of the segments at or behind `start`."""
        for other in [other for other in self._handles if other >= start]:
            self.forget(other)
        self._indexes.drop_from(start)

    def close(self) -> None:
        """Wait for the pool, close the files."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        while self._handles:
            self._handles.popitem()[1].file.close()

    def _load(self, start: int) -> array[int]:
        offsets = read_index(self._files, self._folders.indexes, start).offsets
        assert offsets is not None
        return offsets

    async def _in_pool(self, work: Callable[[], _T]) -> _T:
        if self._pool is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _handle(self, start: int) -> _Handle:
        handle = self._handles.get(start)
        if handle is None:
            path = segment_path(self._folders.segments, start)
            handle = self._handles[start] = _Handle(self._files.open(path, writable=False))
            while len(self._handles) > MAX_OPEN_FILES:
                self._drop(self._handles.popitem(last=False)[1])
        self._handles.move_to_end(start)
        return handle

    def _drop(self, handle: _Handle) -> None:
        handle.dropped = True
        if not handle.readers:
            handle.file.close()
