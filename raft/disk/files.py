"""File system as the storage layer sees it: small protocols, and the real implementation.

Owns: the only calls into `os` for durable data.   Must not: know what is stored.
Everything durable goes through a `FileSystem` passed to a constructor, so tests can lose whatever was not
synced. Methods block. Errors are plain `OSError` (and `LockedError`); callers translate them.
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

#: The kernel's limit of buffers per pwritev.
MAX_BUFFERS: Final = 1024
_ZERO_CHUNK: Final = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
#: Any of these names identifies a data folder, even one without its identity.
_OURS: Final = frozenset({"identity", "hardstate", "manifest", "commitlog", "rejoin", "do-rejoin"})
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_DIRECT_UNIT: Final = mmap.PAGESIZE


class LockedError(OSError):
    """Another process holds the lock."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Space of a file system in bytes: used plus available, and available to an unprivileged process."""

    total: int
    available: int


class File(Protocol):
    """An open file. Offsets and sizes are bytes. May be used from several threads."""

    @property
    def path(self) -> Path: ...

    def size(self) -> int:
        """Length of the file."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes, fewer only at the end of the file. May block on the disk."""

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Read exactly `size` bytes if the page cache holds them all, else return None.

        Never blocks on the disk.
        """

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all `buffers` one after the other. Completes, or raises OSError."""

    def write_zeros(self, start: int, end: int) -> None:
        """Fill [start, end) with zeros, bypassing the page cache where the file system can.

        Completes, or raises OSError.
        """

    def write_past_cache(self, data: memoryview, offset: int) -> None:
        """Write whole pages from page-aligned memory, bypassing the page cache where the file system can.

        They are on stable storage only after the next `fdatasync`. Completes, or raises OSError.
        """

    def fdatasync(self) -> None:
        """Put the data (and a changed length) on stable storage.

        After an OSError the file must not be used.
        """

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""


class Lock(Protocol):
    """A held lock of a folder. It ends with the process."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """Folders and names. A name or a length is durable after `sync_directory` of its folder."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        """Open a file. `create` makes an empty one if it is missing. Raises: FileNotFoundError."""

    def exists(self, path: Path) -> bool: ...

    def list_directory(self, path: Path) -> list[str]:
        """Return the sorted names in a folder; empty if the folder does not exist."""

    def make_directory(self, path: Path) -> None:
        """Create a folder and its parents unless they exist."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename within one file system, replacing `new`."""

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
    """Return whether an error means that no space is left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def make_private(folder: Path) -> None:
    """Remove other users' access to a data folder that an earlier version created, or log why it cannot be
    done.

    Blocking. Raises: NotADirectoryError.
    """
    mode = 0
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not folder.is_dir():  # such as /dev/null, which everyone needs
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        names = {each.name for each in folder.iterdir()} - {"lost+found"}
        if names and not names & _OURS:  # not a data folder: other users may need its files
            return
        if mode & _OTHERS:
            folder.chmod(mode & ~_OTHERS)
            _log.info("data folder taken from other users folder=%s mode=%04o", folder, mode & ~_OTHERS)
    except FileNotFoundError:
        return  # it will be created private
    except NotADirectoryError:
        raise
    except OSError as error:
        _log.warning(
            "other users of this machine may read the data folder, and its rights cannot be changed "
            "folder=%s mode=%04o reason=%s. Its owner can: chmod go= %s",
            folder, mode, error.strerror, folder,
        )  # fmt: skip


class RealFile:
    """File of the operating system."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._direct_fd: int | None = None  # opened on first use; -1: no direct I/O here

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
        """Write up to MAX_BUFFERS buffers completely. Returns the offset after them."""
        size = sum(map(len, buffers))
        count = os.pwritev(self._fd, buffers, offset)
        if count < size:  # a signal or a nearly full disk; writing the rest shows which
            rest = memoryview(b"".join(buffers))
            while count < size:
                written = os.pwrite(self._fd, rest[count:], offset + count)
                if written == 0:
                    raise OSError(errno.EIO, "write made no progress", str(self._path))
                count += written
        return offset + size

    def write_zeros(self, start: int, end: int) -> None:
        """Use direct I/O where possible: it saves a page of memory and a copy for each page that is not read
        yet.
        """
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
        """Use a separate descriptor, because another thread may write through the page cache meanwhile."""
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
                ):  # such files open for direct I/O but refuse the write
                    raise
                os.close(self._direct_fd)
                self._direct_fd = -1
        if done < len(data):
            self.pwritev([data[done:]], offset + done)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def drop_cached(self, size: int, offset: int) -> None:
        """Drop the cached pages of a range. A full scan must not evict everything else."""
        os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        for fd in (self._fd, self._direct_fd):
            if fd is not None and fd >= 0:
                os.close(fd)
        self._fd = self._direct_fd = -1


def _open_direct(fd: int) -> int:
    """Return a second descriptor of the same file for direct I/O, whatever its name is now; -1 if there is
    none.

    Its errors must not stop a node: nothing was written yet, and the page cache works for every file.
    """
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:  # a file system without direct I/O, no /proc, or no descriptor left
        _log.info("large flushes go through the page cache reason=%s", error)
        return -1


class RealLock:
    """An flock on a file. The file's content names the holder."""

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
        path.mkdir(mode=0o700, exist_ok=True)  # it will hold other people's messages

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
        # Space reserved for root or by a quota is neither used nor ours. It does not count, as in `df`.
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
