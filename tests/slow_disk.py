"""A file system whose every fdatasync takes longer: what a busy or dying disk does to a node.

For integration tests that show that the event loop never waits for a disk. Given to the node as its FileSystem.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ledgermq.raft.files import Buffer, File, FileSystem, RealFileSystem


class SlowFile:
    """A File that sleeps before it syncs."""

    def __init__(self, file: File, seconds: float) -> None:
        self._file = file
        self._seconds = seconds

    @property
    def path(self) -> Path:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def pread(self, size: int, offset: int) -> bytes:
        return self._file.pread(size, offset)

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        return self._file.pread_nowait(size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._file.pwritev(buffers, offset)

    def write_zeros(self, start: int, end: int) -> None:
        self._file.write_zeros(start, end)

    def fdatasync(self) -> None:
        time.sleep(self._seconds)
        self._file.fdatasync()

    def close(self) -> None:
        self._file.close()


class SlowFileSystem(RealFileSystem):
    """A real file system with slow fdatasync."""

    def __init__(self, fdatasync_seconds: float) -> None:
        self._seconds = fdatasync_seconds

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SlowFile:  # type: ignore[override]
        return SlowFile(super().open(path, create=create, writable=writable), self._seconds)


_: FileSystem = SlowFileSystem(0.0)
