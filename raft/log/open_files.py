"""Open files of the log for reading, and the threads that wait for cold ones.

Owns: a bounded set of descriptors and the bounded read pool.   Must not: know entries.
Invariants: a file is closed only when no thread reads it; where there is a pool, no segment is opened outside it, since a
name that is in no cache is read from the disk, too. Event-loop thread only, except inside the pool.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
    readers: int = 0
    dropped: bool = False


class LogFiles:
    """Reads of segments and their index files."""

    def __init__(self, files: FileSystem, folders: LogFolders, threads: int) -> None:
        self._files = files
        self._folders = folders
        self._handles: OrderedDict[int, _Handle] = OrderedDict()
        self._indexes = IndexCache()
        self._opening: dict[int, asyncio.Future[None]] = {}
        self._forgotten = 0  # how often something was
        # Without threads (simulators) a cold read is done on the calling thread.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ledgermq-read") if threads else None

    def read_nowait(self, start: int, position: int, size: int) -> bytes | None:
        """Bytes of the segment at `start`, when it is open and the page cache has them. Raises: OSError."""
        if self._pool is not None and start not in self._handles:
            with suppress(RuntimeError):  # no loop runs
                self._open_soon(start)  # whoever asks again has it
            return None
        return self._handle(start).file.pread_nowait(size, position)

    async def read(self, start: int, position: int, size: int) -> bytes:
        """Bytes of the segment at `start`, from a thread of the pool. Raises: OSError."""
        handle = await self._opened(start)
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
        self._forgotten += 1
        self._indexes.drop(start)
        handle = self._handles.pop(start, None)
        if handle is not None:
            self._drop(handle)

    def forget_from(self, start: int) -> None:
        """Drop what is open or remembered of the segments at or behind `start`."""
        self._forgotten += 1
        for other in [other for other in self._handles if other >= start]:
            self.forget(other)
        self._indexes.drop_from(start)

    def close(self) -> None:
        """Wait for the pool, close the files."""
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
        """Return the open segment; all who want one that is not open wait for the same thread."""
        while self._pool is not None and start not in self._handles:
            await asyncio.shield(self._open_soon(start))
        return self._handle(start)

    def _open_soon(self, start: int) -> asyncio.Future[None]:
        """Begin to open a segment, unless somebody did. Raises: RuntimeError (no loop runs)."""
        opening = self._opening.get(start)
        if opening is None:
            loop = asyncio.get_running_loop()
            opening = self._opening[start] = loop.create_task(self._open_in_pool(start))
            opening.add_done_callback(_seen)
        return opening

    async def _open_in_pool(self, start: int) -> None:
        """Open a segment, whatever becomes of who asked for it. One that was forgotten meanwhile may be another now."""
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
    """Nobody may be left who waits for it: an error comes again for whoever asks again."""
    if not opening.cancelled():
        opening.exception()
