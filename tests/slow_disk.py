"""A file system whose every fdatasync takes longer: what a busy or dying disk does to a node.

For integration tests that show that the event loop never waits for a disk. Given to the node as its
FileSystem.
"""

from __future__ import annotations

import time
from pathlib import Path

from ledgermq.raft.disk.files import FileSystem, RealFile, RealFileSystem


class SlowFile(RealFile):
    """A File that sleeps before it syncs."""

    seconds: float

    def fdatasync(self) -> None:
        time.sleep(self.seconds)
        super().fdatasync()


class SlowFileSystem(RealFileSystem):
    """A real file system with slow fdatasync."""

    def __init__(self, fdatasync_seconds: float) -> None:
        self._seconds = fdatasync_seconds

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        opened = super().open(path, create=create, writable=writable)
        file = SlowFile(path, opened._fd)
        file.seconds = self._seconds
        return file


_: FileSystem = SlowFileSystem(0.0)
