"""How much memory this process may use: what the machine has, or less, when a container or service manager says so.

Owns: nothing; asks the kernel. Knows control groups of version 2 and 1; without them the machine's memory counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_CGROUPS: Final = "sys/fs/cgroup"
_NO_LIMIT: Final = 1 << 62


def usable_memory(root: Path = Path("/")) -> int:
    """Return bytes: the RAM, or the smallest limit of the control groups that this process is in."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits(root))


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of this process's groups and of all groups above them."""
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
        # Inside a container the path may be that of the host: what is mounted is then the group itself.
        for each in (group, *group.parents):
            yield from _limit(folder / each / name)


def _limit(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdecimal():  # else "max"
        yield int(text)
