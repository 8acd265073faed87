"""File system whose changes stay in memory, to see what a recovery of the log would do.

Owns: bytes written over a real file, and removed names.   Must not: change the real files.
It supports what `LogRecovery` does to a folder; that does not include creating or renaming files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from .files import Buffer, DiskUse, File, FileSystem, Lock


@dataclass(slots=True)
class _Changes:
    """Writes over one file, oldest first: (start, end, bytes; None: zeros)."""

    writes: list[tuple[int, int, bytes | None]] = field(default_factory=list)

    def add(self, start: int, data: bytes | None, size: int) -> None:
        """Record a write. Long runs of zeros take no memory."""
        if data is not None and data.count(0) == size:
            data = None
        last = self.writes[-1] if self.writes else None
        if data is None and last is not None and last[2] is None and last[1] == start:
            self.writes[-1] = (last[0], start + size, None)
        else:
            self.writes.append((start, start + size, data))

    def lay_over(self, data: bytes, offset: int) -> bytes:
        """Return `data`, the file's bytes at `offset`, with the changes applied."""
        touching = [w for w in self.writes if w[0] < offset + len(data) and offset < w[1]]
        if not touching:
            return data
        out = bytearray(data)
        for start, end, written in touching:
            lo, hi = max(start, offset), min(end, offset + len(data))
            piece = bytes(hi - lo) if written is None else written[lo - start : hi - start]
            out[lo - offset : hi - offset] = piece
        return bytes(out)


class OverlayFiles:
    """A FileSystem over `below`. Offsets and sizes are bytes."""

    def __init__(self, below: FileSystem) -> None:
        self._below = below
        self._changes: dict[Path, _Changes] = {}
        self._gone: set[Path] = set()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OverlayFile:
        assert not create
        if path in self._gone:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        changes = self._changes.setdefault(path, _Changes())
        return OverlayFile(self._below.open(path, writable=False), changes)

    def exists(self, path: Path) -> bool:
        return path not in self._gone and self._below.exists(path)

    def list_directory(self, path: Path) -> list[str]:
        return [name for name in self._below.list_directory(path) if path / name not in self._gone]

    def unlink(self, path: Path) -> None:
        if not self.exists(path):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        self._gone.add(path)

    def sync_directory(self, path: Path) -> None:
        """Do nothing: an overlay makes nothing durable."""

    def disk_use(self, path: Path) -> DiskUse:
        return self._below.disk_use(path)

    def make_directory(self, path: Path) -> NoReturn:
        raise AssertionError("looking makes no folders")

    def rename(self, old: Path, new: Path) -> NoReturn:
        raise AssertionError("looking renames nothing")

    def lock(self, path: Path) -> Lock:
        return self._below.lock(path)


class OverlayFile:
    """Open file with its changes in memory."""

    def __init__(self, below: File, changes: _Changes) -> None:
        self._below = below
        self._changes = changes

    @property
    def path(self) -> Path:
        return self._below.path

    def size(self) -> int:
        return self._below.size()

    def pread(self, size: int, offset: int) -> bytes:
        return self._changes.lay_over(self._below.pread(size, offset), offset)

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        data = self._below.pread_nowait(size, offset)
        return None if data is None else self._changes.lay_over(data, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        assert offset + len(data) <= self.size()
        self._changes.add(offset, data, len(data))

    def write_zeros(self, start: int, end: int) -> None:
        assert end <= self.size()
        self._changes.add(start, None, end - start)

    def write_past_cache(self, data: memoryview, offset: int) -> None:
        self.pwritev([data], offset)

    def fdatasync(self) -> None:
        """Do nothing: an overlay makes nothing durable."""

    def close(self) -> None:
        self._below.close()
