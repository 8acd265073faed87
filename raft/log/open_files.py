"""Log files opened for reading, and the threads that wait for cold data.

Owns: a bounded set of descriptors and the bounded read pool.   Must not: know entries.
Invariants: a file is closed only when no thread is reading it. If there is a pool, segments are opened only
inside it, because even looking up an uncached name reads the disk. Event-loop thread only, except inside the
pool.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from ..disk.files import File, FileSystem
from .entry_index import IndexCache, index_path, read_index, read_index_nowait
from .segment import segment_path
from .segment_keeper import LogFolders

MAX_OPEN_FILES: Final = 64
_T = TypeVar("_T")


@dataclass(slots=True)
class _Handle:
    file: File
    readers: int = 0  # reads in progress in pool threads
    dropped: bool = False  # forgotten meanwhile: the last reader closes the file


class LogFiles:
    """Reads of segments and their index files, with an LRU set of open descriptors."""

    def __init__(self, files: FileSystem, folders: LogFolders, threads: int) -> None:
        self._files = files
        self._folders = folders
        self._handles: OrderedDict[int, _Handle] = OrderedDict()
        self._indexes = IndexCache()
        self._opening: dict[int, asyncio.Future[None]] = {}  # pending opens by segment start
        self._forgotten = 0  # number of `forget` calls; an open that spans one starts over
        # Without threads (simulators) a cold read is done on the calling thread.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ledgermq-read") if threads else None

    def read_nowait(self, start: int, position: int, size: int) -> bytes | None:
        """Return bytes of the segment at `start` if it is open and the page cache has them, else None.

        Raises: OSError.
        """
        if self._pool is not None and start not in self._handles:
            with suppress(RuntimeError):  # no running loop
                self._open_soon(start)  # a retry finds it open
            return None
        return self._handle(start).file.pread_nowait(size, position)

    async def read(self, start: int, position: int, size: int) -> bytes:
        """Return bytes of the segment at `start`, read by a pool thread. Raises: OSError."""
        handle = await self._opened(start)
        handle.readers += 1
        try:
            return await self._in_pool(lambda: handle.file.pread(size, position))
        finally:
            handle.readers -= 1
            if handle.dropped and not handle.readers:
                handle.file.close()

    def read_now(self, start: int, position: int, size: int) -> bytes:
        """Return bytes of the segment at `start`, blocking the calling thread. Raises: OSError."""
        return self._handle(start).file.pread(size, position)

    def offsets_nowait(self, start: int) -> array[int] | None:
        """Return the entry offsets of a sealed segment if memory or the page cache has them, else None.

        Raises: CorruptError, NewerFormatError, OSError.
        """
        offsets = self._indexes.get(start)
        if offsets is None:
            with closing(self._files.open(index_path(self._folders.indexes, start), writable=False)) as file:
                segment = read_index_nowait(file)
            if segment is not None and segment.offsets is not None:
                offsets = self.keep_offsets(start, segment.offsets)
        return offsets

    async def offsets(self, start: int) -> array[int]:
        """Return the entry offsets of a sealed segment. Raises: CorruptError, NewerFormatError, OSError."""
        offsets = self._indexes.get(start)
        return offsets if offsets is not None else await self._in_pool(lambda: self._load(start))

    def offsets_now(self, start: int) -> array[int]:
        """Return the entry offsets of a sealed segment, blocking the calling thread."""
        offsets = self._indexes.get(start)
        return offsets if offsets is not None else self._load(start)

    def keep_offsets(self, start: int, offsets: array[int]) -> array[int]:
        """Cache the offsets of a segment that was sealed or read, and return them."""
        self._indexes.put(start, offsets)
        return offsets

    def forget(self, start: int) -> None:
        """Drop the descriptor and cached offsets of the segment at `start`."""
        self._forgotten += 1
        self._indexes.drop(start)
        handle = self._handles.pop(start, None)
        if handle is not None:
            self._drop(handle)

    def forget_from(self, start: int) -> None:
        """Drop descriptors and cached offsets of all segments that start at or after `start`."""
        self._forgotten += 1
        for other in [other for other in self._handles if other >= start]:
            self.forget(other)
        self._indexes.drop_from(start)

    def close(self) -> None:
        """Wait for the pool, then close the files."""
        self._forgotten += 1
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

    def _open(self, start: int) -> File:
        return self._files.open(segment_path(self._folders.segments, start), writable=False)

    async def _opened(self, start: int) -> _Handle:
        """Return the open segment. Concurrent callers share one pool thread per segment."""
        while self._pool is not None and start not in self._handles:
            await asyncio.shield(self._open_soon(start))
        return self._handle(start)

    def _open_soon(self, start: int) -> asyncio.Future[None]:
        """Start opening a segment unless that is under way. Raises: RuntimeError (no running loop)."""
        opening = self._opening.get(start)
        if opening is None:
            loop = asyncio.get_running_loop()
            opening = self._opening[start] = loop.create_task(self._open_in_pool(start))
            opening.add_done_callback(_seen)
        return opening

    async def _open_in_pool(self, start: int) -> None:
        """Open a segment, even if the caller that asked for it is gone.

        A segment that was forgotten meanwhile may have been replaced by another file.
        """
        forgotten = self._forgotten
        try:
            file = await self._in_pool(lambda: self._open(start))
        finally:
            del self._opening[start]
        if forgotten == self._forgotten and start not in self._handles:
            self._keep(start, file)
        else:
            file.close()

    def _handle(self, start: int) -> _Handle:
        if start not in self._handles:
            self._keep(start, self._open(start))
        self._handles.move_to_end(start)
        return self._handles[start]

    def _keep(self, start: int, file: File) -> None:
        self._handles[start] = _Handle(file)
        while len(self._handles) > MAX_OPEN_FILES:
            self._drop(self._handles.popitem(last=False)[1])

    def _drop(self, handle: _Handle) -> None:
        handle.dropped = True
        if not handle.readers:
            handle.file.close()


def _seen(opening: asyncio.Future[None]) -> None:
    """Retrieve the result, in case no waiter is left. The next caller gets the error by trying again."""
    if not opening.cancelled():
        opening.exception()
