"""Memory that this process may use: the machine's, or the lower limit of a container or service manager.

Owns: nothing; asks the kernel. Supports control groups of versions 2 and 1. Without them, the RAM counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_CGROUPS: Final = "sys/fs/cgroup"
_NO_LIMIT: Final = 1 << 62


def usable_memory(root: Path = Path("/")) -> int:
    """Return the RAM or the smallest limit of the control groups of this process, in bytes."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits(root))


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of this process's control groups and of all their ancestors."""
    yield _NO_LIMIT
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = root / _CGROUPS / "memory" if controllers else root / _CGROUPS
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = PurePosixPath(path.lstrip("/"))
        # In a container the path may be that of the host; the mount is then the control group itself.
        for each in (group, *group.parents):
            yield from _limit(folder / each / name)


def _limit(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdecimal():  # else "max"
        yield int(text)
