"""Reference that does not change with LedgerMQ: append 4 KiB to a file and flush it, repeatedly."""

from __future__ import annotations

import os
import time
from pathlib import Path

_SIZE = 4096
_PREALLOCATED = 64 << 20


def append_and_flush(folder: Path, seconds: float) -> list[float]:
    """Return the seconds of each append with its `fdatasync`.

    The file grows without limit, like the log's files.
    """
    path = folder / "flush-reference"
    block = os.urandom(_SIZE)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(file, 0, _PREALLOCATED)
        os.fsync(file)
        taken: list[float] = []
        begin = now = time.perf_counter()
        while now - begin < seconds:
            os.pwrite(file, block, len(taken) * _SIZE % _PREALLOCATED)
            os.fdatasync(file)
            end = time.perf_counter()
            taken.append(end - now)
            now = end
        return taken
    finally:
        os.close(file)
        path.unlink()
