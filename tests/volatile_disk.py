"""A real file system that behaves as if the power were cut when its process is killed.

For the power-cut test with real broker processes: bytes reach the real file only at fdatasync, names only
when the directory is synced. So `kill -9` loses exactly what a power cut would have lost. A test's entry
point builds the node with it (`RaftNode(..., file_system=VolatileFileSystem())`); no flag of the broker can
switch it on. With `ignore_fdatasync` it lies about fdatasync: the test that proves that the power-cut test
can fail.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ledgermq.raft.disk.files import Buffer, DiskUse, RealFile, RealFileSystem, RealLock, write_zeros
from ledgermq.raft.disk.page_writer import PAGE

_HIDDEN = ".volatile-"


@dataclass(slots=True)
class _Contents:
    """One file: what is real, and what is only in memory."""

    file: RealFile
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    length: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)


class VolatileFileSystem:
    """A FileSystem for one process."""

    def __init__(self, *, ignore_fdatasync: bool = False) -> None:
        self._real = RealFileSystem()
        self._ignore_fdatasync = ignore_fdatasync
        self._lock = threading.RLock()
        self._contents: dict[Path, _Contents] = {}  # by the path that this process sees
        self._real_path: dict[Path, Path] = {}  # of names that differ from, or are missing on, the real disk
        self._unlinked: set[Path] = set()
        self._count = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> VolatileFile:
        with self._lock:
            contents = self._contents.get(path)
            if contents is None:
                contents = self._contents[path] = self._open_contents(path, create=create)
            return VolatileFile(path, contents, self._ignore_fdatasync)

    def _open_contents(self, path: Path, *, create: bool) -> _Contents:
        real_path = path
        if not self.exists(path):
            if not create:
                raise FileNotFoundError(2, "No such file or directory", str(path))
            self._count += 1
            real_path = path.parent / f"{_HIDDEN}{os.getpid()}-{self._count}"
            self._real_path[path] = real_path
        file = self._real.open(real_path, create=create)
        return _Contents(file, length=file.size())

    def exists(self, path: Path) -> bool:
        with self._lock:
            return path in self._real_path or (path not in self._unlinked and self._real.exists(path))

    def list_directory(self, path: Path) -> list[str]:
        with self._lock:
            real = {name for name in self._real.list_directory(path) if not name.startswith(_HIDDEN)}
            gone = {name.name for name in self._unlinked if name.parent == path}
            added = {name.name for name in self._real_path if name.parent == path}
            return sorted((real - gone) | added)

    def make_directory(self, path: Path) -> None:
        self._real.make_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        with self._lock:
            if old.is_dir():
                self._real.rename(old, new)
                return
            self._contents.pop(new, None)
            if old in self._contents:
                self._contents[new] = self._contents.pop(old)
            self._real_path[new] = self._real_path.pop(old, old)
            self._unlinked.add(old)
            self._unlinked.discard(new)

    def unlink(self, path: Path) -> None:
        with self._lock:
            if not self.exists(path):
                raise FileNotFoundError(2, "No such file or directory", str(path))
            self._contents.pop(path, None)
            hidden = self._real_path.pop(path, None)
            if hidden is not None and hidden.name.startswith(_HIDDEN):
                self._real.unlink(hidden)
            self._unlinked.add(path)

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            for name in [name for name in self._real_path if name.parent == path]:
                self._real.rename(self._real_path.pop(name), name)
                self._unlinked.discard(name)
            for name in [name for name in self._unlinked if name.parent == path]:
                if self._real.exists(name):
                    self._real.unlink(name)
                self._unlinked.discard(name)
            self._real.sync_directory(path)

    def disk_use(self, path: Path) -> DiskUse:
        return self._real.disk_use(path)

    def lock(self, path: Path) -> RealLock:
        return self._real.lock(path)


class VolatileFile:
    """A File whose un-synced bytes are in memory."""

    def __init__(self, path: Path, contents: _Contents, ignore_fdatasync: bool) -> None:
        self._path = path
        self._contents = contents
        self._ignore_fdatasync = ignore_fdatasync

    @property
    def path(self) -> Path:
        return self._path

    def size(self) -> int:
        with self._contents.lock:
            return self._contents.length

    def pread(self, size: int, offset: int) -> bytes:
        contents = self._contents
        with contents.lock:
            size = max(0, min(size, contents.length - offset))
            out = bytearray(contents.file.pread(size, offset).ljust(size, b"\0"))
            for start, data in contents.pending:
                begin, end = max(start, offset), min(start + len(data), offset + size)
                if begin < end:
                    out[begin - offset : end - offset] = data[begin - start : end - start]
            return bytes(out)

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        data = self.pread(size, offset)
        return data if len(data) == size else None

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        with self._contents.lock:
            self._contents.pending.append((offset, data))
            self._contents.length = max(self._contents.length, offset + len(data))

    def write_zeros(self, start: int, end: int) -> None:
        write_zeros(self, start, end)

    def write_past_cache(self, data: memoryview, offset: int) -> None:
        assert offset % PAGE == len(data) % PAGE == 0
        self.pwritev([data], offset)

    def fdatasync(self) -> None:
        if self._ignore_fdatasync:
            return
        with self._contents.lock:
            for offset, data in self._contents.pending:
                self._contents.file.pwritev([data], offset)
            self._contents.pending.clear()
            self._contents.file.fdatasync()

    def close(self) -> None:
        """The contents stay: other descriptors, and bytes that were never synced, outlive this one."""
