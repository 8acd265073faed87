"""In-memory disk that forgets what was not synced: the FileSystem of the storage tests and the simulator.

Writes stay pending until fdatasync, names and moves of folders until the directory is synced. `crash` keeps
any part of the pending data, by 512-byte sectors, and may tear one sector. Every operation is a numbered
step, at which a test can crash, fail or fill the disk.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ledgermq.raft.disk.files import Buffer, DiskUse, LockedError, write_zeros
from ledgermq.raft.disk.page_writer import PAGE
from tests.power_cut import FolderMoves, Keep, Write, kept_names, kept_writes, put, relocate

SECTOR = 512


class PowerCut(BaseException):
    """The machine is gone. No `except OSError` and no `finally` of the code under test may matter."""


@dataclass(slots=True)
class _Inode:
    durable: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)
    pending: list[Write] = field(default_factory=list)
    failed: bool = False  # an fsync failed: the kernel dropped the pages and marked them clean
    unreadable: int = -1  # a byte whose sector is unreadable

    def write(self, write: Write) -> None:
        put(self.current, write.offset, write.data)
        self.pending.append(write)

    def sync(self) -> None:
        for offset, data, _ in self.pending:
            put(self.durable, offset, data)
        self.pending.clear()

    def fail_sync(self, *, keeps_pages: bool) -> None:
        """Fail an fsync like the kernel: pages are marked clean, and the next fsync "succeeds".

        The pages are dropped or stay readable. Direct writes are on their way; where pages stay, the disk
        loses both.
        """
        if keeps_pages:
            self.pending.clear()
            return
        self.pending = [write for write in self.pending if write.is_direct]
        self.current[:] = self.durable
        for offset, data, _ in self.pending:
            put(self.current, offset, data)

    def after_crash(self, rng: random.Random, keep: Keep) -> bytearray:
        """Return the bytes on the disk after the power comes back."""
        out = bytearray(self.durable)
        for offset, data, _ in kept_writes(self.pending, SECTOR, keep, rng):
            put(out, offset, data)
        return out


class SimulatedDisk:
    """A FileSystem. `on_step(number, operation, path)` runs before each operation and may raise."""

    def __init__(self, *, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.names: dict[Path, _Inode] = {}
        self.durable_names: dict[Path, _Inode] = {}
        self.directories: dict[Path, None] = {}
        self.moves = FolderMoves()
        self.locked: set[Path] = set()
        self.steps = 0
        self.on_step: Callable[[int, str, Path], None] | None = None
        self.cold = False  # pread_nowait always returns None
        self.keeps_failed_pages = False  # a failed fsync leaves its pages readable, marked clean

    # --- FileSystem -----------------------------------------------------------------------------------------
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        inode = self.names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.step("create", path)
            inode = self.names[path] = _Inode()
        return SimulatedFile(self, path, inode, writable)

    def exists(self, path: Path) -> bool:
        return path in self.names or path in self.directories

    def list_directory(self, path: Path) -> list[str]:
        files = {name.relative_to(path).parts[0] for name in self.names if path in name.parents}
        folders = {name.relative_to(path).parts[0] for name in self.directories if path in name.parents}
        return sorted(files | folders)

    def make_directory(self, path: Path) -> None:
        self.directories.update(dict.fromkeys((path, *path.parents)))

    def rename(self, old: Path, new: Path) -> None:
        self.step("rename", old)
        if old in self.directories:
            for names in (self.names, self.durable_names):
                relocate(names, old, new)
            relocate(self.directories, old, new)
            self.moves.add(old, new)
        else:
            self.names[new] = self.names.pop(old)

    def unlink(self, path: Path) -> None:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self.step("unlink", path)
        del self.names[path]

    def sync_directory(self, path: Path) -> None:
        self.step("sync_directory", path)
        for name in [name for name in self.durable_names if name.parent == path]:
            del self.durable_names[name]
        for name, inode in self.names.items():
            if name.parent == path:
                self.durable_names[name] = inode
        self.moves.sync(path)

    def disk_use(self, path: Path) -> DiskUse:
        return DiskUse(self.capacity, max(0, self.capacity - self.used))

    def lock(self, path: Path) -> SimulatedLock:
        if path in self.locked:
            raise LockedError(errno.EAGAIN, "locked by process 4711", str(path))
        self.locked.add(path)
        return SimulatedLock(self, path)

    # --- for tests ------------------------------------------------------------------------------------------
    @property
    def used(self) -> int:
        """Return the bytes used by files."""
        return sum(len(inode.current) for inode in set_of(self.names))

    def step(self, operation: str, path: Path) -> None:
        """Count an operation and let the test interfere."""
        self.steps += 1
        if self.on_step is not None:
            self.on_step(self.steps, operation, path)

    def crash(self, rng: random.Random, keep: Keep) -> SimulatedDisk:
        """Return the disk as it is after a power cut now."""
        after = SimulatedDisk(capacity=self.capacity)
        after.directories = dict(self.directories)
        names = kept_names(self.names, self.durable_names, keep, rng)
        for new, old in self.moves.taken_back(keep, rng):
            relocate(names, new, old)
            relocate(after.directories, new, old)
        copies: dict[int, _Inode] = {}
        for path in sorted(names):
            inode = names[path]
            if id(inode) not in copies:
                data = inode.after_crash(rng, keep)
                copies[id(inode)] = _Inode(bytearray(data), data)
            after.names[path] = after.durable_names[path] = copies[id(inode)]
        return after

    def killed(self) -> SimulatedDisk:
        """Return the disk as a new process sees it after kill -9: nothing is lost."""
        after = SimulatedDisk(capacity=self.capacity)
        after.directories, after.names, after.durable_names = self.directories, self.names, self.durable_names
        after.moves = self.moves
        return after

    def copy(self) -> SimulatedDisk:
        """Return a copy of the files as they are now, on the disk of another machine."""
        return self.crash(random.Random(1), Keep.ALL)

    def cut_power_at(self, step: int) -> None:
        """Cut the power at operation number `step`."""

        def on_step(number: int, operation: str, path: Path) -> None:
            if number >= step:
                raise PowerCut

        self.on_step = on_step

    def fail(self, operation: str, part: str, code: int = errno.EIO, *, skip: int = 0) -> None:
        """Fail one kind of operation on paths that contain `part`, after `skip` successes."""
        left = iter(range(skip))

        def on_step(number: int, name: str, path: Path) -> None:
            if name == operation and part in str(path) and next(left, None) is None:
                raise OSError(code, "injected", str(path))

        self.on_step = on_step

    def contents(self, folder: Path = Path("/")) -> dict[str, bytes]:
        """Return the files below `folder` as a process sees them, by relative path."""
        return {
            str(path.relative_to(folder)): bytes(inode.current)
            for path, inode in self.names.items()
            if folder in path.parents
        }

    def flip(self, path: Path, position: int, mask: int = 1) -> None:
        """Damage a byte at rest."""
        inode = self.names[path]
        inode.current[position] ^= mask
        if position < len(inode.durable):
            inode.durable[position] ^= mask


After = Callable[[SimulatedDisk], SimulatedDisk]
"""What the next process finds after a crash."""


def power_back(keep: Keep) -> After:
    """Return a power cut after which the disk holds what `keep` says."""
    return lambda disk: disk.crash(random.Random(disk.steps), keep)


def crashes(
    make: Callable[[], SimulatedDisk], act: Callable[[SimulatedDisk], object], after: After
) -> Iterator[SimulatedDisk]:
    """Yield what a crash at the first, second, ... operation of `act` on a disk from `make` leaves."""
    for step in itertools.count(1):
        disk = make()
        disk.cut_power_at(disk.steps + step)
        try:
            act(disk)
        except PowerCut:
            yield after(disk)
        else:
            assert step > 3, "it does next to nothing on the disk"
            return


def set_of(names: dict[Path, _Inode]) -> list[_Inode]:
    """Return each inode once."""
    return list({id(inode): inode for inode in names.values()}.values())


class SimulatedFile:
    """A File on a SimulatedDisk."""

    def __init__(self, disk: SimulatedDisk, path: Path, inode: _Inode, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable

    @property
    def path(self) -> Path:
        return self._path

    def size(self) -> int:
        return len(self._inode.current)

    def pread(self, size: int, offset: int) -> bytes:
        if offset <= self._inode.unreadable < offset + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._path))
        return bytes(self._inode.current[offset : offset + size])

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        return None if self._disk.cold else self.pread(size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._write(Write(offset, b"".join(buffers)))

    def _write(self, write: Write) -> None:
        assert self._writable
        self._disk.step("write", self._path)
        growth = max(0, write.offset + len(write.data) - len(self._inode.current))
        if growth and self._disk.used + growth > self._disk.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._inode.write(write)

    def write_zeros(self, start: int, end: int) -> None:
        write_zeros(self, start, end)

    def write_past_cache(self, data: memoryview, offset: int) -> None:
        assert offset % PAGE == len(data) % PAGE == 0
        self._write(Write(offset, bytes(data), is_direct=True))

    def fdatasync(self) -> None:
        try:
            self._disk.step("fdatasync", self._path)
        except OSError:
            self._inode.fail_sync(keeps_pages=self._disk.keeps_failed_pages)
            raise
        self._inode.sync()

    def close(self) -> None:
        pass


class SimulatedLock:
    """A held lock."""

    def __init__(self, disk: SimulatedDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)
