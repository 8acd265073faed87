"""Simulated disk with unreadable sectors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.power_cut import Write

from .log_rig import DATA, SEGMENT
from .simulated_disk import SimulatedDisk, SimulatedFile


class BadSectors(SimulatedDisk):
    """Blocks of a disk, by physical offset in the log, that return EIO until they are rewritten."""

    def __init__(self, disk: SimulatedDisk, offset: int) -> None:
        super().__init__()
        self.names, self.durable_names, self.directories = disk.names, disk.durable_names, disk.directories
        self.bad = {(DATA / "commitlog" / f"{offset // SEGMENT * SEGMENT:020d}", offset % SEGMENT // 512)}

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        found = super().open(path, create=create, writable=writable)
        return BadFile(self, path, found._inode, writable)


class BadFile(SimulatedFile):
    """File on such a disk."""

    def _touched(self, size: int, offset: int) -> set[tuple[Path, int]]:
        return {(self.path, sector) for sector in range(offset // 512, (offset + size - 1) // 512 + 1)}

    def pread(self, size: int, offset: int) -> bytes:
        assert isinstance(self._disk, BadSectors)
        if self._disk.bad & self._touched(size, offset):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        return super().pread(size, offset)

    def _write(self, write: Write) -> None:
        assert isinstance(self._disk, BadSectors)
        begin, end = write.offset, write.offset + len(write.data)
        bad = self._disk.bad & self._touched(end - begin, begin)
        if any(sector * 512 < begin or (sector + 1) * 512 > end for _, sector in bad):
            # the rest of the sector would have to be read
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        super()._write(write)
        self._disk.bad -= bad
