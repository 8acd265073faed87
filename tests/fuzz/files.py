"""In-memory file system with one file, from which decoders of files read."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class OneFile:
    """File system and file at once. Every opened path exists. Read-only."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Any:
        return self

    def exists(self, path: Path) -> bool:
        return True

    def size(self) -> int:
        return len(self._data)

    def pread(self, size: int, offset: int) -> bytes:
        return self._data[offset : offset + size]

    def pread_nowait(self, size: int, offset: int) -> bytes:
        return self.pread(size, offset)

    def close(self) -> None:
        """Do nothing."""


def one_file(data: bytes) -> Any:
    """Return it as the type that the decoder expects."""
    return OneFile(data)
