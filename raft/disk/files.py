"""The file system as the storage layer sees it: small protocols, and the real implementation.

Owns: the only calls into `os` for durable data.   Must not: know what is stored.
Everything durable goes through a `FileSystem` given to a constructor, so tests can lose what was not synced.
Methods block; errors are plain `OSError` (and `LockedError`), translated by the callers.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

_log = logging.getLogger(__name__)

#: The kernel takes at most this many buffers in one pwritev.
MAX_BUFFERS: Final = 1024
_ZERO_CHUNK: Final = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
#: Any of these tells a data folder, also one that lost its identity.
_OURS: Final = frozenset({"identity", "hardstate", "manifest", "commitlog", "rejoin", "do-rejoin"})
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_DIRECT_UNIT: Final = mmap.PAGESIZE


class LockedError(OSError):
    """Another process holds the lock."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes of a file system: what is used or may be used, and what an unprivileged process may still take."""

    total: int
    available: int


class File(Protocol):
    """An open file. Offsets and sizes are bytes. May be used from several threads."""

    @property
    def path(self) -> Path: ...

    def size(self) -> int:
        """Length of the file."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes (fewer only at the end of the file). May wait for the disk."""

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Read exactly `size` bytes when the page cache has them all, else None. Never waits for the disk."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all `buffers` one behind the other. Complete, or OSError."""

    def write_zeros(self, start: int, end: int) -> None:
        """Fill [start, end) with zeros, past the page cache where the file system can. Complete, or OSError."""

    def write_past_cache(self, data: memoryview, offset: int) -> None:
        """Write whole pages out of memory that begins at a page, past the page cache where the file system can.

        They are on stable storage after the next `fdatasync`, not before. Complete, or OSError.
        """

    def fdatasync(self) -> None:
        """Put the data (and a changed length) on stable storage. After an OSError the file must not be used."""

    def close(self) -> None:
        """Close; closing twice is harmless."""


class Lock(Protocol):
    """A held lock of a folder; it ends with the process."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """Folders and names. A name or a length is durable after `sync_directory` of its folder."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        """Open a file; `create` makes an empty one when it is missing. Raises: FileNotFoundError."""

    def exists(self, path: Path) -> bool: ...

    def list_directory(self, path: Path) -> list[str]:
        """Sorted names in a folder; empty when there is no such folder."""

    def make_directory(self, path: Path) -> None:
        """Create a folder and its parents; nothing happens when it is there."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename inside one file system, replacing `new`."""

    def unlink(self, path: Path) -> None:
        """Remove a file. Raises: FileNotFoundError."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in a folder durable."""

    def disk_use(self, path: Path) -> DiskUse: ...

    def lock(self, path: Path) -> Lock:
        """Take an exclusive lock on a file, creating it. Raises: LockedError."""


def write_zeros(file: File, start: int, end: int) -> None:
    """Fill [start, end) with zeros, in the page cache."""
    position = start
    while position < end:
        count = min(end - position, len(_ZERO_CHUNK))
        file.pwritev([memoryview(_ZERO_CHUNK)[:count]], position)
        position += count


def is_full(error: OSError) -> bool:
    """Tell whether an error means that there is no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def make_private(folder: Path) -> None:
    """Take a data folder of an earlier version from other users of the machine, or say that nobody may. Blocking.

    Raises: NotADirectoryError.
    """
    mode = 0
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not folder.is_dir():  # such as /dev/null, which everybody needs
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        names = {each.name for each in folder.iterdir()} - {"lost+found"}
        if names and not names & _OURS:  # others may need what lies here
            return
        if mode & _OTHERS:
            folder.chmod(mode & ~_OTHERS)
            _log.info("data folder taken from other users folder=%s mode=%04o", folder, mode & ~_OTHERS)
    except FileNotFoundError:
        return  # it is made private
    except NotADirectoryError:
        raise
    except OSError as error:
        _log.warning(
            "other users of this machine may read the data folder, and its rights cannot be changed folder=%s mode=%04o "
            "reason=%s. Its owner can: chmod go= %s",
            folder, mode, error.strerror, folder,
        )  # fmt: skip


class RealFile:
    """A file of the operating system."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._direct_fd: int | None = None  # opened when it is first needed; -1: no direct I/O here

    @property
    def path(self) -> Path:
        return self._path

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        done = len(data)
        while done < size:
            data = os.pread(self._fd, size - done, offset + done)
            if not data:
                break
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        out = bytearray(size)
        try:
            count = os.preadv(self._fd, [out], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        return bytes(out) if count == size else None

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        for first in range(0, len(buffers), MAX_BUFFERS):
            offset = self._pwritev(buffers[first : first + MAX_BUFFERS], offset)

    def _pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write up to MAX_BUFFERS buffers completely; return the offset behind them."""
        size = sum(map(len, buffers))
        count = os.pwritev(self._fd, buffers, offset)
        if count < size:  # a signal, or a disk that is nearly full: the rest tells
            rest = memoryview(b"".join(buffers))
            while count < size:
                written = os.pwrite(self._fd, rest[count:], offset + count)
                if written == 0:
                    raise OSError(errno.EIO, "write made no progress", str(self._path))
                count += written
        return offset + size

    def write_zeros(self, start: int, end: int) -> None:
        """Direct I/O spares a page of memory and a copy for each page of a file that nobody reads yet."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        if start % _DIRECT_UNIT == 0 and end % _DIRECT_UNIT == 0:
            try:
                fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT)
                write_zeros(self, start, end)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:  # a file system without direct I/O
                    raise
            finally:
                fcntl.fcntl(self._fd, fcntl.F_SETFL, flags)
        write_zeros(self, start, end)

    def write_past_cache(self, data: memoryview, offset: int) -> None:
        """A descriptor of its own: another thread may write through the page cache meanwhile."""
        if self._direct_fd is None:
            self._direct_fd = _open_direct(self._fd)
        done = 0
        if self._direct_fd >= 0:
            try:
                done = os.pwrite(self._direct_fd, data, offset)
            except OSError as error:
                if error.errno not in (
                    errno.EINVAL,
                    errno.EOPNOTSUPP,
                ):  # such files are opened, but not written so
                    raise
                os.close(self._direct_fd)
                self._direct_fd = -1
        if done < len(data):
            self.pwritev([data[done:]], offset + done)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def drop_cached(self, size: int, offset: int) -> None:
        """Give back the pages of the cache that hold a range: whoever reads everything must not push out the rest."""
        os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        for fd in (self._fd, self._direct_fd):
            if fd is not None and fd >= 0:
                os.close(fd)
        self._fd = self._direct_fd = -1


def _open_direct(fd: int) -> int:
    """Return a second descriptor of the same file, whatever its name is by now, for direct I/O; -1 where there is none.

    No error of it may end a node: nothing was written yet, and the page cache takes everything.
    """
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:  # a file system without direct I/O, no /proc, no descriptor left
        _log.info("large flushes go through the page cache reason=%s", error)
        return -1


class RealLock:
    """An flock on a file; its content tells people who holds it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealFileSystem:
    """The file system of the operating system."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, 0o600))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def list_directory(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 (names are wanted, not paths)
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        if path.parent != path and not path.parent.exists():
            self.make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)  # what is in it are other people's messages

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def disk_use(self, path: Path) -> DiskUse:
        found = os.statvfs(path)
        # What is kept back for root, or by a quota, is neither used nor ours: it does not count, as in `df`.
        total = found.f_blocks - found.f_bfree + found.f_bavail
        return DiskUse(total * found.f_frsize, found.f_bavail * found.f_frsize)

    def lock(self, path: Path) -> RealLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
            os.close(fd)
            raise LockedError(error.errno, f"locked by process {holder or '?'}", str(path)) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return RealLock(fd)
