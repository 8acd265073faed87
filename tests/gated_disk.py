"""A disk that stands still for as long as a test wants: reads, or flushes, of log segments wait at a gate.

A node with `GatedFileSystem` looks beside its data folder `DATA` into `DATA.gates`. While a FIFO `reads`
stands there, no segment is in any cache, and reading one waits; while `opens`, opening one to read it waits;
while `flushes`, fdatasync of a segment waits. Whatever waits leaves a file there first. `Gate` is the test's
side: so a test shows that something happened *while* something else stood still, whatever the time it took.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ledgermq.raft.disk.files import FileSystem, RealFile, RealFileSystem

READS, OPENS, FLUSHES = "reads", "opens", "flushes"


def _gates(data: Path) -> Path:
    return data.with_name(f"{data.name}.gates")


class GatedFile(RealFile):
    """A log segment."""

    gates: Path

    def pread(self, size: int, offset: int) -> bytes:
        self._pass(READS)
        return super().pread(size, offset)

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        return None if (self.gates / READS).exists() else super().pread_nowait(size, offset)

    def fdatasync(self) -> None:
        self._pass(FLUSHES)
        super().fdatasync()

    def _pass(self, name: str) -> None:
        _pass(self.gates, name)


def _pass(gates: Path, name: str) -> None:
    """Wait while the gate is closed."""
    gate = gates / name
    if gate.exists():
        (gates / f"waits-{name}-{threading.get_ident()}").touch()
        with suppress(FileNotFoundError), gate.open("rb"):
            pass  # it is open as soon as somebody opens the other end


class GatedFileSystem(RealFileSystem):
    """A real file system whose log segments have gates."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        if path.parent.name != "commitlog":
            return super().open(path, create=create, writable=writable)
        if not writable:
            _pass(_gates(path.parent.parent), OPENS)
        opened = super().open(path, create=create, writable=writable)
        file = GatedFile(path, opened._fd)
        file.gates = _gates(path.parent.parent)
        return file


_: FileSystem = GatedFileSystem()


class Gate:
    """One gate of the node whose data folder is `data`."""

    def __init__(self, data: Path, name: str) -> None:
        self._folder = _gates(data)
        self._name = name

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep the gate closed in the block; everybody who waits goes on behind it."""
        self._folder.mkdir(exist_ok=True)
        gate = self._folder / self._name
        os.mkfifo(gate)
        try:
            yield
        finally:
            other_end = os.open(gate, os.O_RDWR)
            gate.unlink()
            os.close(other_end)

    @property
    def waiting(self) -> int:
        """Threads that have come to wait."""
        return len(list(self._folder.glob(f"waits-{self._name}-*")))
