"""A broker node that kills itself at a file operation: `python -m tests.integration.dying_node [FLAGS]`.

Takes the flags of `python -m ledgermq.broker`. LEDGERMQ_TEST_DIE_AT is "operation path-end count": the
process gets SIGKILL right before its count-th operation (write, rename, unlink, sync_directory) on a path
that contains that text.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ledgermq.broker.__main__ import main
from ledgermq.raft.disk.files import Buffer, RealFile, RealFileSystem


class DyingFile(RealFile):
    """Its writes are counted."""

    disk: DyingFileSystem

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.disk.count("write", self.path)
        super().pwritev(buffers, offset)


class DyingFileSystem(RealFileSystem):
    """The real one, until it dies."""

    def __init__(self, operation: str, text: str, count: int) -> None:
        self._operation, self._text, self._left = operation, text, count

    def count(self, operation: str, path: Path) -> None:
        if operation == self._operation and self._text in str(path):
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        opened = super().open(path, create=create, writable=writable)
        file = DyingFile(path, opened._fd)
        file.disk = self
        return file

    def rename(self, old: Path, new: Path) -> None:
        self.count("rename", new)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self.count("unlink", path)
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self.count("sync_directory", path)
        super().sync_directory(path)


if __name__ == "__main__":
    operation, text, count = os.environ.pop("LEDGERMQ_TEST_DIE_AT").split(" ")
    raise SystemExit(main(sys.argv[1:], files=DyingFileSystem(operation, text, int(count))))
